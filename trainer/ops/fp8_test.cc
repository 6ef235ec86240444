// Products in 8 bits: against the same numbers multiplied in fp32.
#include "trainer/ops/fp8.h"

#include <string>

#include <gtest/gtest.h>

#include "trainer/ops/ops.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {
namespace {

namespace fp8 = ops::fp8;

at::Tensor Random(const std::vector<int64_t>& shape, uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

at::Tensor Values(const fp8::Matrix& x) { return x.codes.to(at::kFloat) * x.step; }

class Fp8 : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) != "gpu") return;
    device_ = *ChooseDevice(0);
    if (!device_.is_cuda()) GTEST_SKIP() << "no GPU here";
    if (ComputeCapability(device_) < 89) GTEST_SKIP() << "the GPU has no products in 8 bits";
  }
  at::Device device_ = at::kCPU;
};
INSTANTIATE_TEST_SUITE_P(, Fp8, ::testing::Values("cpu", "gpu"),
                         [](const auto& info) { return info.param; });

TEST_P(Fp8, TheLargestBecomesTheTypesLargestAndOthersTheNearest) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [type, most, digits] :
         {std::tuple(fp8::kForward, 448.0, 3), {fp8::kBackward, 57344.0, 2}}) {
      const at::Tensor x = (Random({16, 32}, 1) * 1e-3).to(device_, dtype);
      const fp8::Matrix found = fp8::Quantise(x, fp8::Largest(x), type);
      EXPECT_EQ(found.codes.to(at::kFloat).abs().max().item<double>(), most);
      // Half of the last digit, and half of the smallest number of all.
      const at::Tensor off = (Values(found) - x.to(at::kFloat)).abs(),
                       near = x.to(at::kFloat).abs() / (2 << digits) + x.abs().max() * 1e-5;
      EXPECT_TRUE(off.le(near).all().item<bool>()) << most;
    }
  }
}

TEST_P(Fp8, WhatIsBeyondTheLargestSaturatesAndZerosStayZeros) {
  const at::Tensor x = at::tensor({1.0, -8.0, 2.0, 4.0}).view({2, 2}).to(device_, at::kFloat);
  const fp8::Matrix found = fp8::Quantise(x, fp8::Largest(x.narrow(0, 1, 1)), fp8::kForward);
  EXPECT_TRUE(
      at::allclose(Values(found).cpu(), at::tensor({1.0f, -4.0f, 2.0f, 4.0f}).view({2, 2}), 1e-6));
  const at::Tensor zeros = at::zeros({2, 16}, x.options());
  const fp8::Matrix none = fp8::Quantise(zeros, fp8::Largest(zeros), fp8::kBackward);
  EXPECT_TRUE(at::equal(Values(none), zeros));
}

TEST_P(Fp8, RowsThatDoNotCountAreLeftOutOfTheLargest) {
  const at::Tensor x = at::tensor({1.0, -3.0, 9.0, 2.0}).view({2, 2}).to(device_, at::kFloat);
  const at::Tensor counts = at::tensor({1.0, 0.0}).to(device_, at::kFloat);
  EXPECT_EQ(fp8::Largest(x).item<double>(), 9);
  EXPECT_EQ(fp8::Largest(x, counts).item<double>(), 3);
  EXPECT_EQ(fp8::Largest(x.narrow(0, 0, 0)).item<double>(), 0);
}

// Forward, and backward of the input and of the weight, with any number of tokens.
TEST_P(Fp8, ProductsAreThoseOfTheValuesInFp32) {
  for (const int64_t tokens : {1, 16, 37}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = Random({tokens, 48}, 1).to(device_, dtype),
                       w = Random({32, 48}, 2).to(device_, dtype) * 0.05,
                       dy = Random({tokens, 32}, 3).to(device_, dtype) * 1e-4;
      const fp8::Matrix in = fp8::Quantise(x, fp8::Largest(x), fp8::kForward),
                        weight = fp8::Quantise(w, fp8::Largest(w), fp8::kForward),
                        d = fp8::Quantise(dy, fp8::Largest(dy), fp8::kBackward);
      const auto near = [&](const at::Tensor& found, const at::Tensor& wanted) {
        const double bound = found.scalar_type() == at::kFloat ? 1e-4 : 5e-3;
        return ((found.to(at::kFloat) - wanted).norm() / wanted.norm()).item<double>() < bound;
      };
      const at::Tensor y = fp8::Product(in, weight, dtype);
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_TRUE(near(y, at::mm(Values(in), Values(weight).t()))) << tokens;
      const at::Tensor dx = fp8::Product(d, fp8::Transposed(weight), dtype);
      EXPECT_TRUE(near(dx, at::mm(Values(d), Values(weight)))) << tokens;
      // Of the size of what is added: more would round that away.
      const at::Tensor d_w = at::full({32, 48}, 1e-4, x.options().dtype(at::kFloat));
      fp8::AddWeightGradient(d, in, d_w);
      EXPECT_TRUE(near(d_w - 1e-4, at::mm(Values(d).t(), Values(in)))) << tokens;
    }
  }
}

TEST_P(Fp8, AWeightsGradientMayBePutOff) {
  const at::Tensor x = Random({16, 32}, 1).to(device_), dy = Random({16, 16}, 2).to(device_);
  const fp8::Matrix in = fp8::Quantise(x, fp8::Largest(x), fp8::kForward),
                    d = fp8::Quantise(dy, fp8::Largest(dy), fp8::kBackward);
  const at::Tensor now = at::zeros({16, 32}, x.options()), later = at::zeros_like(now);
  fp8::AddWeightGradient(d, in, now);
  ops::PutOff list;
  {
    const ops::PutOffWeights put_off(&list);
    fp8::AddWeightGradient(d, in, later);
  }
  EXPECT_EQ(later.abs().max().item<double>(), 0);
  for (const auto& add : list) add();
  EXPECT_TRUE(at::equal(now, later));
}

}  // namespace
}  // namespace muster::trainer
