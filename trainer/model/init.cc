#include "trainer/model/init.h"

#include <cmath>
#include <numbers>

#include <ATen/Parallel.h>

#include "absl/strings/match.h"
#include "trainer/model/philox.h"

namespace muster::trainer {

uint64_t NameHash(const std::string& name) {
  uint64_t hash = kNameHashBegin;
  for (const char c : name) hash = HashByte(hash, static_cast<uint8_t>(c));
  return hash;
}

void FillNormal(uint64_t seed, const std::string& name, double stddev, int64_t begin, int64_t n,
                float* out) {
  const uint64_t stream = NameHash(name);
  at::parallel_for(0, n, 1 << 16, [&](int64_t from, int64_t to) {
    // Element e is half e % 2 of the pair number e / 2; both halves come from the same logarithm.
    for (int64_t i = from; i < to;) {
      const uint64_t element = static_cast<uint64_t>(begin + i);
      const auto [u1, u2] = UniformPair(seed, stream, element / 2);
      const double radius = stddev * std::sqrt(-2 * std::log(u1)),
                   angle = 2 * std::numbers::pi * u2;
      if (element % 2 == 0) out[i++] = static_cast<float>(radius * std::cos(angle));
      if (i < to) out[i++] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

void FillUniform(uint64_t seed, const std::string& name, int64_t begin, int64_t n, float* out) {
  const uint64_t stream = NameHash(name);
  at::parallel_for(0, n, 1 << 16, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const uint64_t element = static_cast<uint64_t>(begin + i);
      out[i] = UniformOf(UniformPair(seed, stream, element / 2), element);
    }
  });
}

void InitialiseMasters(FlatParam& flat, uint64_t seed, double stddev, bool norms_from_one) {
  const at::Tensor host = at::zeros({flat.owned_end() - flat.owned_begin()}, at::kFloat);
  for (const SegmentPiece& piece : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
    const Segment& segment = flat.layout().segments()[piece.segment];
    if (absl::EndsWith(segment.name, ".bias") || flat.layout().router_bias()) {
      continue;  // zero
    } else if (segment.shape.size() == 1) {
      if (!norms_from_one) host.narrow(0, piece.range_begin, piece.numel).fill_(1);
    } else {
      ForEachRun(flat.layout(), piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
        FillNormal(seed, segment.name, stddev, in_parameter, count, host.data_ptr<float>() + at);
      });
    }
  }
  flat.SetOwned(FlatParam::kMaster, host);
}

void DrawParameter(FlatParam& flat, const std::string& name, uint64_t seed, double stddev) {
  at::Tensor host;
  for (const SegmentPiece& piece : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
    if (flat.layout().segments()[piece.segment].name != name) continue;
    if (!host.defined())
      host = flat.Owned(FlatParam::kMaster)
                 .to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    ForEachRun(flat.layout(), piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
      FillNormal(seed, name, stddev, in_parameter, count, host.data_ptr<float>() + at);
    });
  }
  if (host.defined()) flat.SetOwned(FlatParam::kMaster, host);
}

}  // namespace muster::trainer
