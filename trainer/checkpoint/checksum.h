// Checksums of the trainer's files: CRC-32C (Castagnoli) for checkpoints, SHA-256 for identities.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace muster::trainer {

// CRC-32C of `data`, continued from `crc` (0 at the start). Uses the SSE 4.2 instruction where the
// CPU has it.
uint32_t Crc32c(const void* data, size_t size_bytes, uint32_t crc = 0);

// SHA-256 (FIPS 180-4) of what was added, piece by piece.
class Sha256 {
 public:
  void Add(std::span<const uint8_t> bytes);
  // In lower-case hex; the last call.
  std::string Hex();

 private:
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t pending_[64] = {};  // the first size_bytes_ % 64 are of a block that isn't whole yet
  uint64_t size_bytes_ = 0;
};

std::string Sha256Hex(std::string_view data);

}  // namespace muster::trainer
