#include "trainer/checkpoint/checksum.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace muster::trainer {
namespace {

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) ? 0x82F63B78u : 0u);
    table[i] = c;
  }
  return table;
}

uint32_t CrcPortable(const uint8_t* p, size_t n, uint32_t c) {
  static constexpr std::array<uint32_t, 256> kTable = MakeCrcTable();
  for (size_t i = 0; i < n; ++i) c = (c >> 8) ^ kTable[(c ^ p[i]) & 0xFF];
  return c;
}

#if defined(__x86_64__)
inline uint64_t Word(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// What kBytes zero bytes make of a register: linear over GF(2), so a table for each of its bytes
// tells it.
template <size_t kBytes>
struct Zeros {
  uint32_t table[4][256];

  __attribute__((target("sse4.2"))) Zeros() {
    for (int byte = 0; byte < 4; ++byte) {
      for (uint32_t value = 0; value < 256; ++value) {
        uint32_t& entry = table[byte][value];
        if ((value & (value - 1)) != 0) {  // the sum of those of its bits
          entry = table[byte][value & (value - 1)] ^ table[byte][value & -value];
          continue;
        }
        uint64_t c = uint64_t{value} << (8 * byte);
        for (size_t i = 0; i < kBytes; i += 8) c = _mm_crc32_u64(c, 0);
        entry = static_cast<uint32_t>(c);
      }
    }
  }
  uint32_t After(uint32_t c) const {
    return table[0][c & 0xFF] ^ table[1][(c >> 8) & 0xFF] ^ table[2][(c >> 16) & 0xFF] ^
           table[3][c >> 24];
  }
};

// The instruction takes three cycles, but one can begin in each: three neighbouring stretches at a
// time, put together afterwards.
__attribute__((target("sse4.2"))) uint32_t CrcHardware(const uint8_t* p, size_t n, uint32_t crc) {
  constexpr size_t kStretch = 4096;
  static const Zeros<kStretch> behind;
  uint64_t c = crc;
  for (; n >= 3 * kStretch; p += 3 * kStretch, n -= 3 * kStretch) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kStretch; i += 8) {
      c = _mm_crc32_u64(c, Word(p + i));
      second = _mm_crc32_u64(second, Word(p + kStretch + i));
      third = _mm_crc32_u64(third, Word(p + 2 * kStretch + i));
    }
    c = behind.After(behind.After(static_cast<uint32_t>(c)) ^ static_cast<uint32_t>(second)) ^
        third;
  }
  for (; n >= 8; p += 8, n -= 8) c = _mm_crc32_u64(c, Word(p));
  for (; n > 0; ++p, --n) c = _mm_crc32_u8(static_cast<uint32_t>(c), *p);
  return static_cast<uint32_t>(c);
}
#endif

constexpr uint32_t kSha256K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t RotateRight(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

void Sha256Block(uint32_t state[8], const uint8_t* p) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{p[4 * i]} << 24 | uint32_t{p[4 * i + 1]} << 16 | uint32_t{p[4 * i + 2]} << 8 |
           p[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = RotateRight(w[i - 15], 7) ^ RotateRight(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = RotateRight(w[i - 2], 17) ^ RotateRight(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5],
           g = state[6], h = state[7];
  for (int i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (RotateRight(e, 6) ^ RotateRight(e, 11) ^ RotateRight(e, 25)) +
                        ((e & f) ^ (~e & g)) + kSha256K[i] + w[i];
    const uint32_t t2 = (RotateRight(a, 2) ^ RotateRight(a, 13) ^ RotateRight(a, 22)) +
                        ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t add[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += add[i];
}

}  // namespace

uint32_t Crc32c(const void* data, size_t size_bytes, uint32_t crc) {
  const auto* p = static_cast<const uint8_t*>(data);
  crc = ~crc;
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  if (hardware) return ~CrcHardware(p, size_bytes, crc);
#endif
  return ~CrcPortable(p, size_bytes, crc);
}

void Sha256::Add(std::span<const uint8_t> bytes) {
  size_t pending = size_bytes_ % 64;
  size_bytes_ += bytes.size();
  if (pending + bytes.size() >= 64 && pending > 0) {
    std::memcpy(pending_ + pending, bytes.data(), 64 - pending);
    Sha256Block(state_, pending_);
    bytes = bytes.subspan(64 - pending);
    pending = 0;
  }
  for (; bytes.size() >= 64; bytes = bytes.subspan(64)) Sha256Block(state_, bytes.data());
  if (!bytes.empty()) std::memcpy(pending_ + pending, bytes.data(), bytes.size());
}

std::string Sha256::Hex() {
  const uint64_t bits = size_bytes_ * 8;
  uint8_t tail[72] = {0x80};
  const size_t filling = (size_bytes_ % 64 < 56 ? 56 : 120) - size_bytes_ % 64;
  for (int i = 0; i < 8; ++i) tail[filling + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  Add({tail, filling + 8});
  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (const uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) hex.push_back(kHex[(word >> shift) & 15]);
  }
  return hex;
}

std::string Sha256Hex(std::string_view data) {
  Sha256 hash;
  hash.Add({reinterpret_cast<const uint8_t*>(data.data()), data.size()});
  return hash.Hex();
}

}  // namespace muster::trainer
