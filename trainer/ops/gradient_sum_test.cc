// What is summed up in memory that holds anything is what it would be in zeros, bit for bit.
#include "trainer/ops/gradient_sum.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "trainer/ops/experts.h"
#include "trainer/ops/fp8.h"
#include "trainer/ops/fused.h"
#include "trainer/ops/ops.h"

namespace muster::trainer {
namespace {

using ops::GradientSum;

class Sums : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
  void TearDown() override { ops::fused::Allow(true); }
  at::NoGradGuard no_grad_;
};

at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::TensorOptions().dtype(at::kFloat)).to(dtype);
}

at::Tensor Stale(const at::Tensor& like) { return at::full_like(like, std::nan("")); }

// One operation that adds to the gradient of a weight of `shape`.
struct Case {
  std::string name;
  std::vector<int64_t> shape;
  std::function<void(const GradientSum&)> add;
};

Case Grouped(const char* name, const std::vector<int64_t>& counts) {
  int64_t rows = 0;
  for (const int64_t count : counts) rows += count;
  const int64_t groups = static_cast<int64_t>(counts.size());
  const at::Tensor x = Random({rows, 6}), w = Random({groups * 4, 6}), dy = Random({rows, 4});
  return {name, {groups * 4, 6}, [=](const GradientSum& d) {
            ops::GroupedLinearBackward(dy, x, w, d, counts);
          }};
}

std::vector<Case> Cases(at::ScalarType dtype) {
  const at::Tensor x = Random({9, 16}, dtype), dy = Random({9, 24}, dtype),
                   w = Random({24, 16}, dtype), scale = Random({16}, dtype),
                   d_norm = Random({9, 16}, dtype), rstd = at::rand({9, 1}),
                   qkv = Random({9, 32}, dtype);
  const ops::HeadNormResult before{Random({18, 16}, dtype), at::rand({18, 1})};
  const at::Tensor ids = at::randint(0, 5, {9}, at::kLong),
                   targets = at::randint(0, 24, {9}, at::kLong), weights = at::rand({9});
  const at::Tensor router = Random({5, 16}, dtype);
  const ops::RouterRule rule{.per_token = 2};
  const ops::Routing routing = ops::Route(x, router, {}, rule);
  const at::Tensor d_weights = Random({9, 2});
  std::vector<Case> cases = {
      {"linear", {24, 16}, [=](const GradientSum& d) { ops::LinearBackward(dy, x, w, d); }},
      {"linear without rows",
       {24, 16},
       [=](const GradientSum& d) {
         ops::LinearBackward(dy.narrow(0, 0, 0), x.narrow(0, 0, 0), w, d);
       }},
      {"bias", {24}, [=](const GradientSum& d) { ops::AddBiasGradient(dy, d); }},
      {"norm",
       {16},
       [=](const GradientSum& d) { ops::RmsNormBackward(d_norm, x, scale, rstd, d); }},
      {"norm of heads",
       {16},
       [=](const GradientSum& d) { ops::NormHeadsBackward(qkv.clone(), 0, before, scale, d); }},
      {"embedding",
       {24, 16},
       [=](const GradientSum& d) { ops::EmbeddingBackward(d_norm, ids, d); }},
      {"head",
       {24, 16},
       [=](const GradientSum& d) { ops::LinearCrossEntropy(x, w, targets, weights, d); }},
      {"head of no tokens",
       {24, 16},
       [=](const GradientSum& d) {
         ops::LinearCrossEntropy(x.narrow(0, 0, 0), w, targets.narrow(0, 0, 0),
                                 weights.narrow(0, 0, 0), d);
         d.ToAdd();  // nothing came
       }},
      {"head's adapter",
       {24, 4},
       [=](const GradientSum& d) {
         const at::Tensor inner = at::ones({9, 4}, x.options());
         const ops::LossBranch branch{inner, at::ones({24, 4}, x.options()), at::empty_like(inner),
                                      d};
         ops::LinearCrossEntropy(x, w, targets, weights, {}, false, 0, &branch);
       }},
      {"router",
       {5, 16},
       [=](const GradientSum& d) {
         ops::RouteBackward(d_weights, {}, routing.probabilities, routing.experts, rule, x, router,
                            d);
       }},
  };
  if (dtype != at::kFloat) return cases;
  cases.push_back(Grouped("experts", {3, 2, 1}));
  cases.push_back(Grouped("experts without tokens", {0, 3, 0, 2, 0}));
  cases.push_back(Grouped("no expert with tokens", {0, 0}));
  const ops::fp8::Matrix in = ops::fp8::Quantise(x, ops::fp8::Largest(x), ops::fp8::kForward),
                         d_out = ops::fp8::Quantise(dy.narrow(1, 0, 16).contiguous(),
                                                    ops::fp8::Largest(dy), ops::fp8::kBackward);
  cases.push_back(
      {"fp8", {16, 16}, [=](const GradientSum& d) { ops::fp8::AddWeightGradient(d_out, in, d); }});
  return cases;
}

TEST_F(Sums, AreTheBitsOfThoseInZerosHoweverOftenSomethingComes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool kernels : {true, false}) {
      ops::fused::Allow(kernels);
      for (const Case& one : Cases(dtype)) {
        SCOPED_TRACE(one.name + (kernels ? "" : ", reference") +
                     (dtype == at::kFloat ? "" : ", bf16"));
        const at::Tensor wanted = at::zeros(one.shape), found = Stale(wanted);
        const auto begun = std::make_shared<bool>(false);
        for (int times = 0; times < 3; ++times) {
          one.add(wanted);
          one.add({found, begun});
          EXPECT_TRUE(*begun);
          EXPECT_TRUE(at::equal(found, wanted)) << times;
        }
      }
    }
  }
}

// The first that comes is the first that is added, not the first that was put off.
TEST_F(Sums, PutOffTheyAreTheSameBits) {
  const std::vector<Case> cases = Cases(at::kFloat);
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const at::Tensor wanted = at::zeros(one.shape), found = Stale(wanted);
    const auto begun = std::make_shared<bool>(false);
    ops::PutOff list;
    for (int times = 0; times < 2; ++times) {
      one.add(wanted);
      const ops::PutOffWeights put_off(&list);
      one.add({found, begun});
    }
    for (const auto& add : list) add();
    EXPECT_TRUE(at::equal(found, wanted));
  }
}

TEST_F(Sums, WhoAsksFirstBegins) {
  const at::Tensor memory = at::full({2, 3}, 7.0);
  const GradientSum frozen, counts(memory);
  EXPECT_FALSE(frozen.defined());
  EXPECT_FALSE(frozen.ToAdd().defined());
  EXPECT_FALSE(counts.Begin());
  EXPECT_TRUE(at::equal(counts.ToAdd(), at::full({2, 3}, 7.0)));
  const auto begun = std::make_shared<bool>(false);
  const GradientSum sum(memory, begun), other = sum;
  EXPECT_TRUE(sum.Begin());
  EXPECT_FALSE(other.Begin());
  *begun = false;
  EXPECT_TRUE(at::equal(other.ToAdd(), at::zeros({2, 3})));
  sum.Add(at::ones({2, 3}));
  EXPECT_TRUE(at::equal(memory, at::ones({2, 3})));
}

}  // namespace
}  // namespace muster::trainer
