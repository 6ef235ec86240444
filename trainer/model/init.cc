#include "trainer/model/init.h"

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include <ATen/Parallel.h>

#include "absl/strings/match.h"

namespace muster::trainer {
namespace {

std::array<uint32_t, 4> Philox(uint64_t key, uint64_t high, uint64_t low) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                               static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// FNV-1a, so that the stream of a name is the same on every machine.
uint64_t NameHash(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  return hash;
}

// The two uniform numbers, in (0, 1] and [0, 1), of pair `pair` of a stream.
std::pair<double, double> UniformPair(uint64_t seed, uint64_t stream, uint64_t pair) {
  const std::array<uint32_t, 4> bits = Philox(seed, stream, pair);
  return {(static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) + 1) * 0x1p-53,
          static_cast<double>((uint64_t{bits[2]} << 32 | bits[3]) >> 11) * 0x1p-53};
}

}  // namespace

void FillNormal(uint64_t seed, const std::string& name, double stddev, int64_t begin, int64_t n,
                float* out) {
  const uint64_t stream = NameHash(name);
  at::parallel_for(0, n, 1 << 16, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      // Element e is half e % 2 of the pair number e / 2.
      const uint64_t element = static_cast<uint64_t>(begin + i);
      const auto [u1, u2] = UniformPair(seed, stream, element / 2);
      const double radius = std::sqrt(-2 * std::log(u1)), angle = 2 * std::numbers::pi * u2;
      out[i] = static_cast<float>(stddev * radius *
                                  (element % 2 == 0 ? std::cos(angle) : std::sin(angle)));
    }
  });
}

void FillUniform(uint64_t seed, const std::string& name, int64_t begin, int64_t n, float* out) {
  const uint64_t stream = NameHash(name);
  at::parallel_for(0, n, 1 << 16, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const uint64_t element = static_cast<uint64_t>(begin + i);
      const auto [u1, u2] = UniformPair(seed, stream, element / 2);
      out[i] = static_cast<float>(element % 2 == 0 ? u1 : 1 - u2);
    }
  });
}

void InitialiseMasters(FlatParam& flat, uint64_t seed, double stddev) {
  const at::Tensor host = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
  for (const SegmentPiece& piece : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
    const Segment& segment = flat.layout().segments()[piece.segment];
    if (absl::EndsWith(segment.name, ".bias")) {
      continue;  // zero
    } else if (segment.shape.size() == 1) {
      host.narrow(0, piece.range_begin, piece.numel).fill_(1);
    } else {
      FillNormal(seed, segment.name, stddev, piece.segment_begin, piece.numel,
                 host.data_ptr<float>() + piece.range_begin);
    }
  }
  flat.SetOwned(FlatParam::kMaster, host);
}

}  // namespace muster::trainer
