// CRC-32C (Castagnoli), for rows that SQLite's own checks don't cover (contract 23 of
// docs/contracts.md).
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

// Goes on from `crc`, which is 0 at the beginning. With the SSE 4.2 instruction where the CPU has
// it.
uint32_t Crc32c(std::string_view bytes, uint32_t crc = 0);

}  // namespace muster
