// Products in 8 bits on ranks: whatever they share out, scales are of whole tensors.
#include <cmath>

#include <gtest/gtest.h>

#include "trainer/parallel/testing/engine_ways.h"

namespace muster::trainer {
namespace {

// Widths are multiples of 16, in two slices, too; heads' slices are unlike, so their largest are.
ModelConfig Widths(bool biases) {
  ModelConfig c = Tiny(false);
  c.hidden_size = 32, c.intermediate_size = 64, c.num_heads = 4, c.num_kv_heads = 2,
  c.head_dim = 16;
  c.qkv_bias = c.out_bias = c.mlp_bias = biases;
  return c;
}

Way InFp8(const char* name, int ranks = 1, int micro_batches = 1) {
  Way way{name, ranks, micro_batches};
  way.options.fp8 = true;
  return way;
}
Way InParts(const char* name, int tp, int cp) {
  Way way = InFp8(name, tp * cp);
  way.tp = tp, way.cp = cp;
  return way;
}

// Farthest of any parameter's gradient from another's, of its length.
double Farthest(const std::map<std::string, at::Tensor>& found,
                const std::map<std::string, at::Tensor>& wanted) {
  double most = 0;
  for (const auto& [name, gradient] : wanted) {
    const at::Tensor off = found.at(name) - gradient;
    most = std::max(most, (off.norm() / gradient.norm()).item<double>());
  }
  return most;
}

// How far all of it is off, of its length. (Of a parameter whose gradient is nearly zero, such as
// k_proj's before attention has learnt anything, it's mostly rounding.)
double Distance(const std::map<std::string, at::Tensor>& found,
                const std::map<std::string, at::Tensor>& wanted) {
  double off = 0, length = 0;
  for (const auto& [name, gradient] : wanted) {
    off += (found.at(name) - gradient).square().sum().item<double>();
    length += gradient.square().sum().item<double>();
  }
  return std::sqrt(off / length);
}

TEST(Fp8Ranks, GradientsAreOfAllSlicesAndPartsOfRows) {
  // Rounding differs for a few numbers that lie between two of 8 bits. Where a scale is of a rank's
  // part alone, it differs for all.
  constexpr double kApart = 5e-3;
  for (const bool packed : {false, true}) {
    const auto gradients = [&](Way way) {
      way.packed = packed;
      double norm = 0;
      return GradientsOf(way, Widths(packed), &norm);
    };
    const auto wanted = gradients(InFp8("one"));
    const double rounding = Distance(wanted, gradients({"exact"}));
    EXPECT_GT(rounding, 2e-2) << "it does round";
    EXPECT_LT(rounding, 0.6) << "layers of weights as large as these make more of it";
    for (const Way& way : {InParts("tp", 2, 1), InParts("cp", 1, 2), InParts("tp and cp", 2, 2)})
      EXPECT_LE(Farthest(gradients(way), wanted), kApart) << way.name << packed;
  }
}

// With `deterministic`, as any other products.
TEST(Fp8Ranks, RanksAndMicroBatchesAreAddedToTheSameBits) {
  const auto exact = [](Way way, int stage) {
    way.options.flats.separate_gradients = true;
    way.options.flats.zero_stage = stage;
    return way;
  };
  const Outcome wanted = Train(exact(InFp8("one", 1, 2), 0), Widths(false));
  for (const int stage : {1, 2, 3})
    ExpectSameWeights(Train(exact(InFp8("two", 2), stage), Widths(false)), wanted);
}

TEST(Fp8Ranks, StagesAndRecomputeChangeNoBit) {
  const Outcome wanted = Train(InFp8("one", 1, 4), Widths(false));
  Way again = InFp8("recompute", 1, 4), stages = InFp8("stages", 2, 4);
  again.options.recompute = RecomputeMode::kFull;
  stages.options.pipeline = PipelineKind::kZeroBubble, stages.pp = 2;
  ExpectSameWeights(Train(again, Widths(false)), wanted);
  ExpectSameWeights(Train(stages, Widths(false)), wanted);
}

TEST(Fp8Ranks, TrainsNearlyAsExactNumbersDo) {
  const Outcome exact = Train({"exact"}, Widths(true)), found = Train(InFp8("fp8"), Widths(true));
  EXPECT_NE(found.losses, exact.losses);
  for (size_t i = 0; i < exact.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], exact.losses[i], 0.1 * exact.losses[i]) << i;
}

}  // namespace
}  // namespace muster::trainer
