// Checksums of the trainer's files: CRC-32C (Castagnoli) for checkpoints, SHA-256 for identities. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster::trainer {

// CRC-32C of `data`, continued from `crc` (0 at the start). Uses the SSE 4.2 instruction where the CPU has it.
uint32_t Crc32c(const void* data, size_t size_bytes, uint32_t crc = 0);

// SHA-256 (FIPS 180-4) in lower-case hex.
std::string Sha256Hex(std::string_view data);

}  // namespace muster::trainer
