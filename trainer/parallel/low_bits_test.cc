// Weights and moments in few bits: that ways of computing them agree, wherever they are cut.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "trainer/ops/low_bits.h"
#include "trainer/parallel/flat_param.h"
#include "trainer/parallel/groups.h"
#include "trainer/parallel/int8_moments.h"
#include "trainer/parallel/quantised_weights.h"

namespace muster::trainer {
namespace {

at::Tensor Random(const std::vector<int64_t>& shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

TEST(LowBits, MapsAreThoseOfThePapers) {
  const low_bits::ByteMap& of_both = low_bits::DynamicMap(true);
  const low_bits::ByteMap& positive = low_bits::DynamicMap(false);
  for (size_t i = 1; i < of_both.size(); ++i) {
    EXPECT_LT(of_both[i - 1], of_both[i]);
    EXPECT_LT(positive[i - 1], positive[i]);
  }
  // The largest fraction of each has as many bits as the exponent leaves: 6 and 7.
  EXPECT_FLOAT_EQ(of_both[254], 1 - 0.9 / 64 / 2);
  EXPECT_FLOAT_EQ(positive[254], 1 - 0.9 / 128 / 2);
  EXPECT_EQ(of_both[127], 0);
  EXPECT_EQ(positive[0], 0);
  EXPECT_EQ(of_both[255], 1);
  EXPECT_EQ(low_bits::Nf4Values()[7], 0);
}

TEST(LowBits, ValuesThatAreEntriesComeBack) {
  for (int code = 0; code < 16; ++code) {
    std::vector<float> x(low_bits::kNf4Block, low_bits::Nf4Values()[code]);
    x[1] = -1;
    uint8_t packed[low_bits::kNf4Block / 2];
    float absmax = 0;
    low_bits::QuantiseNf4(x.data(), low_bits::kNf4Block, packed, &absmax);
    EXPECT_EQ(absmax, 1);
    EXPECT_EQ(packed[0], code << 4) << "the first element is in the high bits";
    EXPECT_EQ(packed[5], code << 4 | code);
  }
}

TEST(LowBits, StableValuesBecomeTheSameCodesAgain) {
  for (const bool is_signed : {true, false}) {
    const low_bits::ByteMap stable = low_bits::StableMap(is_signed);
    const std::vector<uint8_t>& nearest = low_bits::Nearest(is_signed);
    for (const float largest : {1.0f, -1.0f}) {
      for (const float scale : {1.0f, 3.7e-9f, 0.013f, 1.9e7f}) {
        // All codes that a value from 0 (or -1) to 1 can become, in blocks that have the largest.
        std::vector<int> codes;
        for (int code = 0; code < 256; ++code) {
          if (std::find(nearest.begin() + (is_signed ? 0 : 32768), nearest.end(), code) !=
              nearest.end())
            codes.push_back(code);
        }
        EXPECT_GT(codes.size(), 240u);
        std::vector<float> x(low_bits::kByteBlock, 0);
        for (size_t i = 0; i < codes.size(); ++i) x[i] = stable[codes[i]] * scale;
        x[255] = is_signed ? largest * scale : scale;
        if (is_signed && largest < 0) std::replace(x.begin(), x.end(), scale, 0.0f);
        uint8_t found[low_bits::kByteBlock];
        float absmax = 0;
        low_bits::QuantiseBytes(x.data(), low_bits::kByteBlock, is_signed, found, &absmax);
        EXPECT_EQ(absmax, scale);
        for (size_t i = 0; i < codes.size(); ++i) {
          if (x[i] != 0 || stable[codes[i]] == 0) EXPECT_EQ(found[i], codes[i]) << scale;
        }
      }
    }
  }
}

TEST(LowBits, BrokenNumbersDoNoHarm) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float broken : {std::nanf(""), infinity, -infinity}) {
    std::vector<float> x(low_bits::kByteBlock, 0.5f);
    x[3] = broken;
    uint8_t codes[low_bits::kByteBlock];
    float absmax[4];
    low_bits::QuantiseBytes(x.data(), low_bits::kByteBlock, true, codes, absmax);
    low_bits::QuantiseNf4(x.data(), low_bits::kByteBlock, codes, absmax);
  }
}

// A parameter's units, made here byte by byte.
Nf4Units Units(int64_t numel, bool nested, at::ScalarType type) {
  const Quantisation kind = nested ? Quantisation::kNf4Nested : Quantisation::kNf4;
  Nf4Units units;
  units.rows = at::randint(0, 256, {UnitsOf(numel), UnitBytes(kind)}, at::kByte);
  units.common.type = type;
  for (int64_t unit = 0; unit < units.rows.size(0); ++unit) {
    uint8_t* row = units.rows.data_ptr<uint8_t>() + unit * units.rows.size(1) + kUnitCodes;
    const at::Tensor scales = Random({nested ? 1 : kUnitBlocks}, static_cast<uint64_t>(unit)).abs();
    std::memcpy(row + (nested ? kUnitBlocks : 0), scales.data_ptr(), scales.nbytes());
  }
  if (nested) {
    const low_bits::ByteMap& map = low_bits::DynamicMap(true);
    units.common.map = at::tensor(at::ArrayRef<float>(map.data(), map.size()));
    units.common.offset = 1.5f;
  }
  return units;
}

TEST(QuantisedWeights, TheHostsLoopAndAtenGiveTheSameBits) {
  constexpr int64_t kNumel = 70 * kUnitElements + 4711;  // more than ATen takes at once
  for (const bool nested : {false, true}) {
    const Quantisation kind = nested ? Quantisation::kNf4Nested : Quantisation::kNf4;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Nf4Units units = Units(kNumel, nested, type);
      for (const at::ScalarType out : {at::kFloat, at::kBFloat16}) {
        const at::Tensor by_loop = at::empty({kNumel}, out), by_aten = at::empty({kNumel}, out);
        DequantiseUnits(units.rows, kind, units.common, by_loop);
        DequantiseByAten(units.rows, kind, units.common, by_aten);
        EXPECT_TRUE(at::equal(by_loop, by_aten)) << nested << type << out;
      }
    }
  }
}

TEST(QuantisedWeights, RanksOwnWholeUnitsThatMakeUpAll) {
  FlatLayout layout;
  layout.Add("a", {3, 20000}, true);
  layout.Add("b", {1, 10}, true, /*joined=*/true);
  layout.Add("c", {40000}, true);
  for (const int ranks : {1, 2, 3, 7, 20}) {
    std::vector<at::Tensor> rows;
    std::vector<Nf4Units> wanted;
    for (const Segment& segment : layout.segments())
      wanted.push_back(Units(segment.numel, true, at::kFloat));
    std::unique_ptr<QuantisedWeights> last;
    for (int rank = 0; rank < ranks; ++rank) {
      last = std::make_unique<QuantisedWeights>(layout, Quantisation::kNf4Nested, rank, ranks,
                                                at::kCPU);
      for (int s = 0; s < 3; ++s) {
        const auto [first, count] = last->OwnedUnits(s);
        last->Set(s, {wanted[s].rows.narrow(0, count > 0 ? first : 0, count), wanted[s].common});
      }
      EXPECT_EQ(static_cast<int64_t>(last->owned().nbytes()),
                QuantisedWeights::OwnedBytes(layout, Quantisation::kNf4Nested, ranks));
      rows.push_back(last->owned());
    }
    const at::Tensor flat = at::full({layout.numel()}, 77.0f);
    last->Dequantise(layout, at::cat(rows), flat);
    for (int s = 0; s < 3; ++s) {
      const Segment& segment = layout.segments()[s];
      const at::Tensor values = at::empty({segment.numel});
      DequantiseUnits(wanted[s].rows, Quantisation::kNf4Nested, wanted[s].common, values);
      EXPECT_TRUE(at::equal(flat.narrow(0, segment.offset, segment.numel), values)) << ranks << s;
    }
  }
}

FlatLayout MomentsLayout() {
  FlatLayout layout;
  layout.Add("norm", {100}, false);
  layout.Add("matrix", {70, 83}, true);
  layout.AddSlice("columns", {64, 640}, {1, 320, 640}, true);
  layout.AddSlice("rows", {80, 64}, {0, 10, 30}, true);  // small here, and not as a whole
  return layout;
}

TEST(Int8Moments, WhatStaysExactIsDecidedByTheWholeParameter) {
  FlatLayout embedding;
  embedding.Add("model.embed_tokens.weight", {1000, 64}, true);
  EXPECT_FALSE(Int8Moments::IsFor(embedding));
  const FlatLayout layout = MomentsLayout();
  EXPECT_TRUE(Int8Moments::IsFor(layout));
  for (const Segment& segment : layout.segments())
    EXPECT_EQ(Int8Moments::IsExact(segment), segment.name == "norm") << segment.name;
}

TEST(Int8Moments, ACheckpointsValuesGiveTheSameStateAgain) {
  const FlatLayout layout = MomentsLayout();
  const int64_t begin = 96, numel = layout.numel() - 200;
  Int8Moments moments(layout, begin, numel, at::kCPU), again(layout, begin, numel, at::kCPU);
  EXPECT_EQ(moments.bytes(), Int8Moments::Bytes(layout, numel));
  for (const auto which : {Int8Moments::kExpAvg, Int8Moments::kExpAvgSq}) {
    at::Tensor values = Random({numel}, 5) * Random({numel}, 6).pow(6);
    if (which == Int8Moments::kExpAvgSq) values = values.abs();
    values.narrow(0, 1000, 600).zero_();
    moments.SetOwned(which, values);
    const at::Tensor saved = at::empty({numel}), parts = at::empty({numel});
    moments.Copy(which, 0, saved);
    moments.Copy(which, 0, parts.narrow(0, 0, 777));
    moments.Copy(which, 777, parts.narrow(0, 777, numel - 777));
    EXPECT_TRUE(at::equal(saved, parts));
    again.SetOwned(which, saved);
    const at::Tensor once = at::empty({numel});
    again.Copy(which, 0, once);
    EXPECT_TRUE(at::equal(once, saved)) << which;
    const at::Tensor covered = at::zeros({numel});
    for (const Int8Moments::Run& run : moments.runs())
      covered.narrow(0, run.begin, run.numel).fill_(1);
    EXPECT_LT(((saved - values) * covered).abs().max().item<float>(),
              0.02 * values.abs().max().item<float>());
  }
}

TEST(Int8Moments, TheHostsLoopAndAtenGiveTheSameBits) {
  const FlatLayout layout = MomentsLayout();
  const int64_t begin = 96, numel = layout.numel() - 200;
  Int8Moments by_loop(layout, begin, numel, at::kCPU), by_aten(layout, begin, numel, at::kCPU);
  const at::Tensor gradient = Random({numel}, 8);
  const auto update = [&](int64_t at, int64_t end, float* m, float* v) {
    const float* g = gradient.data_ptr<float>() + at;
    for (int64_t i = 0; i < end - at; ++i)
      m[i] = 0.9f * m[i] + g[i], v[i] = 0.9f * v[i] + g[i] * g[i];
  };
  for (int step = 0; step < 3; ++step) {
    for (const Int8Moments::Run& run : by_loop.runs()) {
      by_loop.UpdateOnHost(run, update);
      by_aten.UpdateByAten(run, [&](int64_t at, const at::Tensor& m, const at::Tensor& v) {
        EXPECT_EQ(m.storage_offset() % 8, at % 8);
        update(at, at + m.numel(), m.data_ptr<float>(), v.data_ptr<float>());
      });
    }
  }
  for (const auto which : {Int8Moments::kExpAvg, Int8Moments::kExpAvgSq}) {
    const at::Tensor loop = at::empty({numel}), aten = at::empty({numel});
    by_loop.Copy(which, 0, loop), by_aten.Copy(which, 0, aten);
    EXPECT_TRUE(at::equal(loop, aten)) << which;
    EXPECT_TRUE(loop.abs().max().item<float>() > 1);
  }
}

// What a GPU makes of them, against the host's loops.
class LowBitsOnGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = *ChooseDevice(0);
    if (!device_.is_cuda()) GTEST_SKIP() << "no GPU here";
  }
  at::Device device_ = at::kCPU;
};
INSTANTIATE_TEST_SUITE_P(, LowBitsOnGpu, ::testing::Values("gpu"),
                         [](const auto& info) { return info.param; });

TEST_P(LowBitsOnGpu, WeightsIn4BitsAreTheHostsBits) {
  constexpr int64_t kNumel = 70 * kUnitElements + 4711;
  for (const bool nested : {false, true}) {
    const Quantisation kind = nested ? Quantisation::kNf4Nested : Quantisation::kNf4;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Nf4Units units = Units(kNumel, nested, type);
      Nf4Common common = units.common;
      if (nested) common.map = common.map.to(device_);
      for (const at::ScalarType out : {at::kFloat, at::kBFloat16}) {
        const at::Tensor wanted = at::empty({kNumel}, out),
                         found = at::empty({kNumel}, wanted.options().device(device_));
        DequantiseUnits(units.rows, kind, units.common, wanted);
        DequantiseUnits(units.rows.to(device_), kind, common, found);
        EXPECT_TRUE(at::equal(found.cpu(), wanted)) << nested << type << out;
      }
    }
  }
}

TEST_P(LowBitsOnGpu, MomentsIn8BitsAreTheHosts) {
  const FlatLayout layout = MomentsLayout();
  const int64_t begin = 96, numel = layout.numel() - 200;
  Int8Moments host(layout, begin, numel, at::kCPU), there(layout, begin, numel, device_);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradient = Random({numel}, 8 + static_cast<uint64_t>(step));
    for (Int8Moments* moments : {&host, &there}) {
      for (const Int8Moments::Run& run : moments->runs()) {
        moments->UpdateByAten(run, [&](int64_t at, const at::Tensor& m, const at::Tensor& v) {
          const at::Tensor g = gradient.narrow(0, at, m.numel()).to(m.device());
          m.mul_(0.9).add_(g);
          v.mul_(0.9).add_(g * g);
        });
      }
    }
  }
  for (const auto which : {Int8Moments::kExpAvg, Int8Moments::kExpAvgSq}) {
    const at::Tensor wanted = at::empty({numel}), found = at::empty({numel});
    host.Copy(which, 0, wanted), there.Copy(which, 0, found);
    // Whatever is rounded another way may come to the neighbouring code.
    EXPECT_LE((found - wanted).abs().max().item<float>(), 0.03 * wanted.abs().max().item<float>());
    EXPECT_LE(found.ne(wanted).sum().item<int64_t>(), numel / 1000) << which;
    EXPECT_GT(wanted.abs().max().item<float>(), 1);
  }
}

}  // namespace
}  // namespace muster::trainer
