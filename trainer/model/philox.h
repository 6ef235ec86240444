// Philox4x32-10 (Salmon et al., SC 2011) keyed by a seed and a name: the numbers of an element
// don't depend on who draws them. For nvcc and for C++.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MUSTER_ON_BOTH __host__ __device__
#else
#define MUSTER_ON_BOTH
#endif

namespace muster::trainer {

struct PhiloxWords {
  uint32_t at[4];
};

MUSTER_ON_BOTH inline PhiloxWords Philox(uint64_t key, uint64_t high, uint64_t low) {
  PhiloxWords c = {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                    static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.at[0], p1 = uint64_t{0xCD9E8D57u} * c.at[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.at[1] ^ k0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.at[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// FNV-1a, so that the stream of a name is the same on every machine.
inline constexpr uint64_t kNameHashBegin = 0xCBF29CE484222325ull;
MUSTER_ON_BOTH inline uint64_t HashByte(uint64_t hash, uint8_t byte) {
  return (hash ^ byte) * 0x100000001B3ull;
}
// Goes on with a number that isn't negative, in decimals.
MUSTER_ON_BOTH inline uint64_t HashDecimal(uint64_t hash, int64_t number) {
  uint8_t digits[20];
  int count = 0;
  do {
    digits[count++] = static_cast<uint8_t>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  while (count > 0) hash = HashByte(hash, digits[--count]);
  return hash;
}

// The two uniform numbers, in (0, 1] and [0, 1), of pair `pair` of a stream.
struct UniformNumbers {
  double first, second;
};
MUSTER_ON_BOTH inline UniformNumbers UniformPair(uint64_t seed, uint64_t stream, uint64_t pair) {
  const PhiloxWords bits = Philox(seed, stream, pair);
  return {(static_cast<double>((uint64_t{bits.at[0]} << 32 | bits.at[1]) >> 11) + 1) * 0x1p-53,
          static_cast<double>((uint64_t{bits.at[2]} << 32 | bits.at[3]) >> 11) * 0x1p-53};
}
// Of element `element` in (0, 1]: element e is half e % 2 of the pair number e / 2.
MUSTER_ON_BOTH inline float UniformOf(const UniformNumbers& pair, uint64_t element) {
  return static_cast<float>(element % 2 == 0 ? pair.first : 1 - pair.second);
}

}  // namespace muster::trainer
