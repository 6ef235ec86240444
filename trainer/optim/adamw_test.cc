#include "trainer/optim/adamw.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/model/init.h"
#include "trainer/ops/fused.h"
#include "trainer/ops/host_kernels.h"
#include "trainer/ops/testing/allocations.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {
namespace {

std::vector<CpuForm> Forms() {
  std::vector<CpuForm> forms = {CpuForm::kPlain};
  if (BestCpuForm() != CpuForm::kPlain) forms.push_back(CpuForm::kAvx2);
  if (BestCpuForm() == CpuForm::kAvx512) forms.push_back(CpuForm::kAvx512);
  return forms;
}

constexpr int64_t kNumel = 1237;  // no multiple of any number of lanes

at::Tensor Gradient(int64_t step) {
  return at::randn({kNumel},
                   at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step))) *
         0.1;
}

AdamWStep Numbers(int64_t step) {
  AdamWStep s;
  s.beta1 = 0.9f, s.beta2 = 0.95f, s.one_minus_beta1 = static_cast<float>(1 - 0.9),
  s.one_minus_beta2 = static_cast<float>(1 - 0.95);
  s.step_size = static_cast<float>(1e-2 / (1 - std::pow(0.9, step))),
  s.inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(0.95, step)));
  s.epsilon = 1e-8f, s.keep = static_cast<float>(1 - 1e-2 * 0.1), s.clip = 0.5f,
  s.noise = static_cast<uint32_t>(step) * 77u;
  return s;
}

struct Variant {
  bool split = false, weights = false, gradient16 = false, moments16 = false;
};

// Masters, moments and bf16 weights after `steps` updates, in spans cut at `cuts`.
struct State {
  at::Tensor masters, weights, low_bits, exp_avg, exp_avg_sq;
};
State Train(CpuForm form, const Variant& v, int steps,
            const std::vector<int64_t>& cuts = {0, kNumel}) {
  State s;
  const at::Tensor start =
      at::randn({kNumel}, at::make_generator<at::CPUGeneratorImpl>(uint64_t{99}));
  s.masters = start.clone();
  s.weights = at::zeros({kNumel}, at::kBFloat16), s.low_bits = at::zeros({kNumel}, at::kShort);
  SplitMasters(start.data_ptr<float>(), static_cast<uint16_t*>(s.weights.data_ptr()),
               static_cast<uint16_t*>(s.low_bits.data_ptr()), kNumel);
  const at::ScalarType moments = v.moments16 ? at::kBFloat16 : at::kFloat;
  s.exp_avg = at::zeros({kNumel}, moments), s.exp_avg_sq = at::zeros({kNumel}, moments);
  for (int step = 1; step <= steps; ++step) {
    const at::Tensor gradient = Gradient(step).to(v.gradient16 ? at::kBFloat16 : at::kFloat);
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      const auto at = [&](const at::Tensor& t) {
        return static_cast<void*>(static_cast<char*>(t.data_ptr()) + cuts[c] * t.element_size());
      };
      AdamWSpan span;
      if (!v.split) span.masters = static_cast<float*>(at(s.masters));
      if (v.split || v.weights) span.weights = static_cast<uint16_t*>(at(s.weights));
      if (v.split) span.low_bits = static_cast<uint16_t*>(at(s.low_bits));
      span.gradient = at(gradient), span.gradient_bf16 = v.gradient16;
      span.exp_avg = at(s.exp_avg), span.exp_avg_sq = at(s.exp_avg_sq),
      span.moments_bf16 = v.moments16;
      span.first_element = static_cast<uint32_t>(cuts[c]), span.numel = cuts[c + 1] - cuts[c];
      UpdateAdamW(form, Numbers(step), span);
    }
  }
  if (v.split)
    JoinMasters(static_cast<uint16_t*>(s.weights.data_ptr()),
                static_cast<uint16_t*>(s.low_bits.data_ptr()), s.masters.data_ptr<float>(), kNumel);
  return s;
}

TEST(AdamWKernel, EqualsAtensFusedKernelOverTwentySteps) {
  for (const CpuForm form : Forms()) {
    const State found = Train(form, {}, 20);
    std::vector<at::Tensor> params = {Train(form, {}, 0).masters}, m = {at::zeros({kNumel})},
                            v = {at::zeros({kNumel})}, steps = {at::zeros({})};
    for (int step = 1; step <= 20; ++step) {
      steps[0].fill_(step);
      std::vector<at::Tensor> grads = {Gradient(step) * 0.5};
      at::_fused_adamw_(params, grads, m, v, {}, steps, 1e-2, 0.9, 0.95, 0.1, 1e-8, false, false);
    }
    EXPECT_LT((found.masters - params[0]).abs().max().item<double>(), 5e-7);
    EXPECT_LT((found.exp_avg - m[0]).abs().max().item<double>(), 3e-8);
    EXPECT_LT((found.exp_avg_sq - v[0]).abs().max().item<double>(), 3e-8);
  }
}

TEST(AdamWKernel, EveryFormAndEveryCutGivesTheSameBits) {
  for (int bits = 0; bits < 16; ++bits) {
    const Variant v{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
    const State wanted = Train(CpuForm::kPlain, v, 5);
    for (const CpuForm form : Forms()) {
      for (const std::vector<int64_t>& cuts :
           {std::vector<int64_t>{0, kNumel}, {0, 1, 17, 40, 1000, kNumel}}) {
        const State found = Train(form, v, 5, cuts);
        EXPECT_TRUE(at::equal(found.masters, wanted.masters)) << bits;
        EXPECT_TRUE(at::equal(found.exp_avg, wanted.exp_avg)) << bits;
        EXPECT_TRUE(at::equal(found.exp_avg_sq, wanted.exp_avg_sq)) << bits;
        EXPECT_TRUE((!v.split && !v.weights) || at::equal(found.weights, wanted.weights)) << bits;
      }
    }
  }
}

TEST(AdamWKernel, SplitMastersAreTheMastersBitForBit) {
  for (const CpuForm form : Forms()) {
    const State whole = Train(form, {.weights = true}, 20),
                split = Train(form, {.split = true}, 20);
    EXPECT_TRUE(at::equal(whole.masters, split.masters));
    EXPECT_TRUE(at::equal(whole.weights, split.weights));
    EXPECT_LE((whole.weights.to(at::kFloat) - whole.masters)
                  .abs()
                  .div(whole.masters.abs())
                  .max()
                  .item<double>(),
              1.0 / 256);
  }
}

TEST(AdamWKernel, EveryFloatSurvivesTheSplit) {
  const uint32_t patterns[] = {0,           0x80000000u, 0x3F800000u, 0x3F807FFFu,
                               0x3F808000u, 0x3F818000u, 0x3F80FFFFu, 0xBF808000u,
                               0x00000001u, 0x7F7F8000u, 0x7F800000u};
  for (const uint32_t bits : patterns) {
    const auto value = std::bit_cast<float>(bits);
    float back = 0;
    uint16_t weight = 0, low_bits = 0;
    SplitMasters(&value, &weight, &low_bits, 1);
    JoinMasters(&weight, &low_bits, &back, 1);
    EXPECT_EQ(std::bit_cast<uint32_t>(back), bits);
  }
}

TEST(AdamWKernel, Bf16MomentsStayNearFp32OnesAlthoughEachChangeIsBelowTheirPrecision) {
  // A constant gradient and beta2 0.999: exp_avg_sq grows by less than half a unit in the last
  // place of bf16 from the 130th step on, and rounding to nearest would stop there, at an eighth.
  at::Tensor exp_avg = at::zeros({kNumel}, at::kBFloat16),
             exp_avg_sq = at::zeros({kNumel}, at::kBFloat16), masters = at::zeros({kNumel});
  const at::Tensor gradient = at::ones({kNumel});
  for (uint32_t step = 1; step <= 2000; ++step) {
    AdamWStep s = Numbers(step);
    s.beta2 = 0.999f, s.one_minus_beta2 = 0.001f, s.clip = 1, s.noise = step * 0x9E3779B9u;
    UpdateAdamW(BestCpuForm(), s,
                {masters.data_ptr<float>(), nullptr, nullptr, gradient.data_ptr(), false,
                 exp_avg.data_ptr(), exp_avg_sq.data_ptr(), true, 0, kNumel});
  }
  const double wanted = 1 - std::pow(0.999, 2000);
  EXPECT_NEAR(exp_avg_sq.to(at::kFloat).mean().item<double>(), wanted, 0.01 * wanted);
}

// Every layout of a sharded model adds the same whole numbers.
TEST(ExactSum, IsTheSameHoweverItIsCutAndNearTheSumInDouble) {
  const at::Tensor values = at::randn({10007}).mul_(at::exp(at::randn({10007}).mul_(4)));
  const float* v = values.data_ptr<float>();
  const auto sum_of = [&](const std::vector<int64_t>& cuts) {
    kernels::ExactSum all;
    for (size_t c = cuts.size() - 1; c > 0; --c) {
      kernels::SquaresInOrder part;
      for (int64_t i = cuts[c - 1]; i < cuts[c]; ++i) part.Add(v[i]);
      all.Add(part.Sum());
    }
    return all;
  };
  const kernels::ExactSum whole = sum_of({0, 10007});
  EXPECT_EQ(whole.out_of_range, 0u);
  const double wanted = values.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(whole.Value() / wanted, 1, 1e-13);
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 1, 10007}, {0, 17, 4096, 5000, 10007}}) {
    const kernels::ExactSum found = sum_of(cuts);
    EXPECT_EQ(found.low, whole.low);
    EXPECT_EQ(found.high, whole.high);
  }
}

TEST(ExactSum, HoldsWhatSquaresCanBe) {
  for (const float value : {0.0f, 1.0f, -3.5f, 46340.0f, 46341.0f, 1e6f, -1.9e9f, 0x1p-31f}) {
    const double square = static_cast<double>(value) * value;
    EXPECT_EQ(kernels::ExactSquare(value).Value(), square) << value;
  }
  EXPECT_EQ(kernels::ExactSquare(0x1p-32f).low, 1u) << "the smallest number";
  EXPECT_EQ(kernels::ExactSquare(0x1p-33f).low, 0u);
  for (const float value : {2.2e9f, std::numeric_limits<float>::infinity(), std::nanf("")})
    EXPECT_TRUE(std::isinf(kernels::ExactSquare(value).Value())) << value;
  kernels::ExactSum sum;
  for (int i = 0; i < 4; ++i) sum.Add(kernels::ExactSquare(1.9e9f));
  EXPECT_TRUE(std::isinf(sum.Value())) << "beyond what it can hold";
}

TEST(ExactSum, IsTheSameInEveryFormOfTheKernels) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t count : {1, 7, 8, 1000, 70001}) {
      at::Tensor values = at::randn({count}).mul_(at::exp(at::randn({count}).mul_(3)));
      values[count / 2].fill_(70000);
      values = values.to(type);
      kernels::SquaresInOrder plain;
      for (int64_t i = 0; i < count; ++i) plain.Add(values[i].to(at::kFloat).item<float>());
      for (const CpuForm form : Forms()) {
        ops::fused::UseOnCpu(&kernels::HostKernels(form));
        kernels::ExactSum found;
        ASSERT_TRUE(ops::fused::AddSquares(values, &found));
        EXPECT_EQ(found.low, plain.Sum().low) << count;
        EXPECT_EQ(found.high, plain.Sum().high) << count;
      }
      ops::fused::UseOnCpu(&kernels::HostKernels());
    }
  }
}

// Gradients that come in chunks, as from a GPU to state in the host's memory.
TEST(AdamW, GivesTheSameBitsWhereGradientsComeInChunks) {
  const FlatOptions kinds[] = {{.host_state = true},
                               {.dtype = at::kBFloat16, .host_state = true},
                               {.dtype = at::kBFloat16, .bf16_moments = true, .host_state = true}};
  for (const FlatOptions& options : kinds) {
    std::vector<at::Tensor> found;
    for (const int64_t chunk : {AdamW::kStagedNumel, int64_t{-7}, int64_t{-64}, int64_t{-100000}}) {
      OnRanks(1, [&](World& world) {
        FlatLayout layout;
        layout.Add("a.weight", {9, 11}, true);
        layout.Add("b.weight", {3, 11}, true, /*joined=*/true);
        layout.Add("c.weight", {70}, false);
        std::vector<std::unique_ptr<FlatParam>> flats;
        for (int f = 0; f < 2; ++f) {
          flats.push_back(std::make_unique<FlatParam>(layout, &world, options));
          InitialiseMasters(*flats[f], 5, 0.5);
        }
        AdamW optimizer(flats, {.weight_decay = 0.1}, BestCpuForm(), chunk);
        for (int step = 1; step <= 3; ++step) {
          for (auto& flat : flats)
            flat->OwnedGradient().copy_(
                at::randn({flat->padded_numel()},
                          at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step))));
          optimizer.Step(step, 1e-2, 0.5);
        }
        at::Tensor all = at::empty({0});
        for (auto& flat : flats) {
          // The gaps between parameters among them: a checkpoint has them.
          all = at::cat({all, flat->owned_weights().to(at::kFloat), flat->Owned(FlatParam::kMaster),
                         flat->Owned(FlatParam::kExpAvg)});
        }
        found.push_back(all);
      });
      EXPECT_TRUE(at::equal(found.back(), found.front())) << chunk;
    }
  }
}

// Updates of offloaded state on a GPU, and the same way on the CPU, against those at once of
// gradients that lie beside the state.
class Offload : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) != "gpu") return;
    const absl::StatusOr<at::Device> chosen = ChooseDevice(0);
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    if (!chosen->is_cuda()) GTEST_SKIP() << "no GPU here";
    device_ = *chosen;
  }
  // Weights, masters and a moment after some steps.
  static at::Tensor Train(at::Device device, const FlatOptions& options, int64_t staged_numel) {
    const std::unique_ptr<World> world = World::Connect({}, device);
    std::vector<std::unique_ptr<FlatParam>> flats;
    for (int f = 0; f < 3; ++f) {
      FlatLayout layout;
      layout.Add(absl::StrCat("a", f), {9, 31 + f}, true);
      layout.Add(absl::StrCat("b", f), {70}, false);
      flats.push_back(std::make_unique<FlatParam>(layout, world.get(), options));
      InitialiseMasters(*flats.back(), 5, 0.5);
    }
    AdamW optimizer(flats, {.weight_decay = 0.1}, BestCpuForm(), staged_numel);
    for (int step = 1; step <= 3; ++step) {
      for (const auto& flat : flats) {
        flat->StartUnshard();
        flat->WaitUnshard();
        flat->OwnedGradient().copy_(
            at::randn({flat->padded_numel()},
                      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step))));
        flat->Reshard();
      }
      optimizer.Start(step, 1e-2, 0.5);
    }
    optimizer.Finish();
    at::Tensor all = at::empty({0});
    for (const auto& flat : flats) {
      all = at::cat({all, flat->owned_weights().to(at::kCPU, at::kFloat),
                     flat->Owned(FlatParam::kMaster).cpu(), flat->Owned(FlatParam::kExpAvg).cpu()});
    }
    return all;
  }

  at::NoGradGuard no_grad_;
  at::Device device_ = at::kCPU;
};
INSTANTIATE_TEST_SUITE_P(, Offload, ::testing::Values("cpu", "gpu"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Offload, UpdatesBesideWhatComesNextGiveTheSameBits) {
  const FlatOptions kinds[] = {{.host_state = true},
                               {.dtype = at::kBFloat16, .host_state = true},
                               {.dtype = at::kBFloat16, .bf16_moments = true, .host_state = true}};
  for (const FlatOptions& options : kinds) {
    const at::Tensor wanted = Train(at::kCPU, options, AdamW::kStagedNumel);
    for (const int64_t staged_numel : {int64_t{-7}, int64_t{-64}, int64_t{-100000}})
      EXPECT_TRUE(at::equal(Train(device_, options, staged_numel), wanted)) << staged_numel;
  }
}

TEST(AdamW, WhatEndsAnUpdateBesideIsThrownWhereItIsAwaited) {
  OnRanks(1, [](World& world) {
    std::vector<std::unique_ptr<FlatParam>> flats;
    FlatLayout layout;
    layout.Add("w", {50}, true);
    flats.push_back(std::make_unique<FlatParam>(
        layout, &world, FlatOptions{.dtype = at::kBFloat16, .split_masters = true}));
    AdamW optimizer(flats, {}, BestCpuForm(), -64);  // which split masters are not for
    optimizer.Start(1, 1e-2, 1);
    EXPECT_THROW(flats[0]->StartUnshard(), c10::Error);
    EXPECT_THROW(optimizer.Finish(), c10::Error);
    optimizer.Finish();
  });
}

// Of bf16 moments: a model that is sharded another way goes on with the same bits.
TEST(AdamW, RoundsByAParametersNameAndPlaceWhereverItLies) {
  using Names = std::vector<std::vector<std::string>>;  // of each flat
  std::vector<std::map<std::string, at::Tensor>> found;
  for (const Names& names : {Names{{"a", "b", "c"}}, Names{{"c"}, {"b", "a"}}}) {
    OnRanks(1, [&](World& world) {
      std::vector<std::unique_ptr<FlatParam>> flats;
      for (const std::vector<std::string>& of_flat : names) {
        FlatLayout layout;
        for (const std::string& name : of_flat) layout.Add(name, {37}, true);
        flats.push_back(
            std::make_unique<FlatParam>(layout, &world, FlatOptions{.bf16_moments = true}));
        InitialiseMasters(*flats.back(), 5, 0.5);
      }
      AdamW optimizer(flats, {});
      std::map<std::string, at::Tensor>& weights = found.emplace_back();
      for (int step = 1; step <= 5; ++step) {
        for (size_t f = 0; f < names.size(); ++f) {
          for (int s = 0; s < static_cast<int>(names[f].size()); ++s)
            FillNormal(static_cast<uint64_t>(step), names[f][s], 1, 0, 37,
                       flats[f]->Gradient(s).data_ptr<float>());
        }
        optimizer.Step(step, 1e-2, 1);
      }
      for (size_t f = 0; f < names.size(); ++f) {
        for (int s = 0; s < static_cast<int>(names[f].size()); ++s)
          weights[names[f][s]] = flats[f]->Weight(s).clone();
      }
    });
  }
  for (const auto& [name, weights] : found[0])
    EXPECT_TRUE(at::equal(weights, found[1].at(name))) << name;
}

const kernels::Kernels* counted;
int squares_kernels = 0;

// Thousands of short launches were a good part of a step.
TEST(ShardSquaredNorm, TakesOneKernelAFlatAndNoCopyOfTheGradients) {
  constexpr int64_t kElements = 1 << 20;
  OnRanks(1, [&](World& world) {
    std::vector<std::unique_ptr<FlatParam>> flats;
    for (int f = 0; f < 3; ++f) {
      FlatLayout layout;
      layout.Add("w", {kElements}, true);
      flats.push_back(std::make_unique<FlatParam>(layout, &world, FlatOptions{}));
      flats.back()->OwnedGradient().fill_(0.5);
    }
    counted = &kernels::HostKernels();
    kernels::Kernels counting = *counted;
    counting.squares = [](const kernels::SquaresArguments& a, kernels::Stream stream) {
      ++squares_kernels;
      counted->squares(a, stream);
    };
    ops::fused::UseOnCpu(&counting);
    const Allocations allocations;
    EXPECT_EQ(ShardSquaredNorm(flats).Value(), 3 * kElements * 0.25);
    ops::fused::UseOnCpu(counted);
    EXPECT_EQ(squares_kernels, 3);
    EXPECT_LE(allocations.largest(), kernels::SquaresBlocks(kElements) * 24);
  });
}

TEST(AdamW, WeightDecayFollowsTheSegmentTable) {
  at::NoGradGuard no_grad;
  FlatLayout layout;
  layout.Add("decayed", {5, 3}, true);
  layout.Add("plain", {7}, false);
  std::unique_ptr<World> world = World::Connect({}, at::kCPU);
  std::vector<std::unique_ptr<FlatParam>> flats;
  flats.push_back(
      std::make_unique<FlatParam>(std::move(layout), world.get(), FlatOptions{.zero_stage = 1}));
  flats[0]->SetOwned(FlatParam::kMaster, at::ones({flats[0]->padded_numel()}));
  AdamW(flats, {.weight_decay = 0.5}).Step(1, 0.1, 1);
  EXPECT_TRUE(at::allclose(flats[0]->Weight(0), at::full({5, 3}, 0.95)));
  EXPECT_TRUE(at::equal(flats[0]->Weight(1), at::ones({7})));
}

}  // namespace
}  // namespace muster::trainer
