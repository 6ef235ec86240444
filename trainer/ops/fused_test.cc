// Our kernels against ATen's plain operations: the GPU's everywhere by the emulator, on the CPU,
// and on a GPU where there is one (tests/gpu.sh), with FlashAttention beside them; the CPU's in
// each form that it has.
#include "trainer/ops/fused.h"

#include <cmath>
#include <cstdlib>
#include <memory>

#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "trainer/model/projection.h"
#include "trainer/ops/host_kernels.h"
#include "trainer/ops/testing/allocations.h"
#include "trainer/parallel/flat_param.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {
namespace {

// Where the kernels work.
class Fused : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    const std::string where = GetParam();
    if (where != "gpu") {
      const CpuForm form = where == "avx512" ? CpuForm::kAvx512
                           : where == "avx2" ? CpuForm::kAvx2
                                             : CpuForm::kPlain;
      if (form > BestCpuForm()) GTEST_SKIP() << "not of this CPU";
      on_cpu_ = where == "emulated" ? &kernels::EmulatedKernels() : &kernels::HostKernels(form);
      return;
    }
    device_ = *ChooseDevice(0);
    if (!device_.is_cuda()) GTEST_SKIP() << "no GPU here";
    if (!ops::fused::Compiled()) GTEST_SKIP() << "built without nvcc";
  }
  void TearDown() override {
    ops::fused::UseOnCpu(&kernels::HostKernels());
    ops::fused::Allow(true);
  }

  // On: kernels; off: the reference.
  void Kernels(bool on) {
    ops::fused::Allow(on);
    if (!gpu()) ops::fused::UseOnCpu(on_cpu_);
  }
  bool gpu() const { return device_.is_cuda(); }
  at::Tensor Fp32Ones(at::IntArrayRef shape) const {
    return at::ones(shape, at::TensorOptions().dtype(at::kFloat).device(device_));
  }
  at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype) const {
    return at::randn(shape, at::TensorOptions().dtype(at::kFloat)).to(device_, dtype);
  }

  // f by kernels and by the reference; they may not have been the same code.
  template <class F>
  auto Both(F f) {
    Kernels(true);
    auto fused = f();
    Kernels(false);
    return std::pair{fused, f()};
  }

  at::NoGradGuard no_grad_;
  at::Device device_ = at::kCPU;
  const kernels::Kernels* on_cpu_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(, Fused, ::testing::Values("emulated", "gpu", "plain", "avx2", "avx512"),
                         [](const auto& info) { return info.param; });

// It has no form for the CPU.
class Flash : public Fused {};
INSTANTIATE_TEST_SUITE_P(, Flash, ::testing::Values("gpu"),
                         [](const auto& info) { return info.param; });

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

// The same heads, [B, S, H, D] in memory.
at::Tensor ByToken(const at::Tensor& heads) {
  return heads.transpose(1, 2).contiguous().transpose(1, 2);
}

// Largest distance in representable bf16 numbers.
int64_t Ulps(const at::Tensor& a, const at::Tensor& b) {
  const auto ordered = [](const at::Tensor& x) {
    const at::Tensor bits = x.contiguous().view(at::kShort).to(at::kInt);
    return at::where(bits < 0, -(bits + 32768), bits);
  };
  return (ordered(a) - ordered(b)).abs().max().item<int64_t>();
}

// fp32: relative to the largest; bf16: `ulps` of each element's, but for what nearly cancels beside
// the largest.
void ExpectSame(const at::Tensor& found, const at::Tensor& wanted, const char* what,
                int64_t ulps = 2) {
  ASSERT_EQ(found.sizes(), wanted.sizes()) << what;
  ASSERT_EQ(found.scalar_type(), wanted.scalar_type()) << what;
  const at::Tensor f = found.to(at::kFloat), w = wanted.to(at::kFloat);
  const double largest = std::max(1e-20, w.abs().max().item<double>());
  const double off = (f - w).abs().max().item<double>() / largest;
  if (found.scalar_type() != at::kBFloat16) {
    EXPECT_LT(off, 2e-6) << what;
    return;
  }
  const at::Tensor counts = w.abs() > largest / 512;
  EXPECT_LE(Ulps(found.masked_select(counts), wanted.masked_select(counts)), ulps) << what;
  EXPECT_LT(off, 1.0 / 128) << what;
  EXPECT_LT(((f - w).norm() / w.norm()).item<double>(), 5e-3) << what;
}

TEST_P(Fused, ResidualRmsNormAndItsBackward) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [rows, width] :
         {std::pair<int64_t, int64_t>{5, 64}, {3, 512}, {7, 520}, {1, 8192}, {530, 8}}) {
      const at::Tensor x = Random({rows, width}, type), residual = Random({rows, width}, type),
                       w = Random({width}, type), dy = Random({rows, width}, type);
      for (const auto& [with, from_one] :
           {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
        const auto [fused, plain] = Both([&, with = with, from_one = from_one] {
          if (with) return ops::ResidualRmsNorm(x.clone(), residual, w, 1e-5, from_one);
          const ops::RmsNormResult norm = ops::RmsNorm(x, w, 1e-5, from_one);
          return ops::ResidualNormResult{x, norm.y, norm.rstd};
        });
        EXPECT_TRUE(at::equal(fused.sum, plain.sum));
        ExpectSame(fused.y, plain.y, "y");
        ExpectSame(fused.rstd, plain.rstd, "rstd");
        const auto [d_fused, d_plain] = Both([&, &plain = plain, with = with, from_one = from_one] {
          const at::Tensor d_w = at::ones({width}, x.options().dtype(at::kFloat));
          const at::Tensor dx = ops::RmsNormBackward(dy, plain.sum, w, plain.rstd, d_w,
                                                     with ? residual : at::Tensor(), from_one);
          return std::pair{dx, d_w};
        });
        ExpectSame(d_fused.first, d_plain.first, "dx");
        EXPECT_LT((d_fused.second - d_plain.second).abs().max().item<double>() /
                      d_plain.second.abs().max().item<double>(),
                  1e-5)
            << "dw";
      }
    }
  }
}

TEST_P(Fused, RopeAndItsBackward) {
  ModelConfig c;
  c.num_heads = 6, c.num_kv_heads = 2, c.head_dim = 16, c.rope_theta = 10000;
  const int64_t batch = 2, length = 9;
  ops::RopeTables rope = ops::MakeRopeTables(c, 32, device_);
  const at::Tensor positions = at::randint(32, {batch * length}, at::kLong).to(device_);
  for (const at::ScalarType type : kTypes) {
    for (const at::Tensor& at : {at::Tensor(), positions}) {
      const at::Tensor qkv = Random({batch * length, 10 * 16}, type);
      const auto [fused, plain] =
          Both([&] { return ops::SplitAndRotate(qkv, batch, c, rope, at); });
      ExpectSame(fused.q, plain.q, "q");
      ExpectSame(fused.k, plain.k, "k");
      EXPECT_TRUE(at::equal(fused.v, plain.v));
      const ops::Heads d{Random(plain.q.sizes(), type), Random(plain.k.sizes(), type),
                         Random(plain.v.sizes(), type)};
      const auto [d_fused, d_plain] =
          Both([&] { return ops::SplitAndRotateBackward(d, c, rope, at); });
      ExpectSame(d_fused, d_plain, "d qkv");

      // As FlashAttention has them: the same numbers, elsewhere.
      Kernels(true);
      const ops::Heads by_token =
          *ops::fused::SplitAndRotate(qkv, batch, c, rope, at, /*by_token=*/true);
      EXPECT_TRUE(by_token.q.transpose(1, 2).is_contiguous());
      EXPECT_TRUE(at::equal(by_token.q, fused.q) && at::equal(by_token.k, fused.k) &&
                  at::equal(by_token.v, fused.v));
      const auto d_by_token = ops::fused::SplitAndRotateBackward(
          {ByToken(d.q), ByToken(d.k), ByToken(d.v)}, c, rope, at);
      ASSERT_TRUE(d_by_token.has_value());
      EXPECT_TRUE(at::equal(*d_by_token, d_fused));
    }
  }
}

TEST_P(Fused, SwiGluAndItsBackward) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor gate_up = Random({67, 48}, type).mul_(3), dy = Random({67, 24}, type);
    const auto [fused, plain] = Both([&] { return ops::GatedUnit(gate_up); });
    ExpectSame(fused, plain, "y");
    const auto [d_fused, d_plain] = Both([&] { return ops::GatedUnitBackward(dy, gate_up); });
    ExpectSame(d_fused, d_plain, "d gate_up", 4);
  }
}

TEST_P(Fused, LinearCrossEntropyWithItsGradients) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t vocabulary : {37, 1000, 8}) {
      const at::Tensor x = Random({11, 24}, type), w = Random({vocabulary, 24}, type);
      const at::Tensor targets = at::randint(vocabulary, {11}, at::kLong).to(device_),
                       weights = at::rand({11}).mul_(0.1).to(device_);
      for (const double z_loss : {0.0, 1e-2}) {
        const auto [fused, plain] = Both([&] {
          const at::Tensor d_w = at::zeros({vocabulary, 24}, x.options().dtype(at::kFloat));
          const ops::LossResult result =
              ops::LinearCrossEntropy(x, w, targets, weights, d_w, false, z_loss);
          const ops::LossResult alone =
              ops::LinearCrossEntropy(x, w, targets, weights, {}, /*loss_only=*/true, z_loss);
          EXPECT_TRUE(at::equal(result.loss, alone.loss) && !alone.dx.defined());
          return std::pair{result, d_w};
        });
        EXPECT_LT((fused.first.loss - plain.first.loss).abs().max().item<double>(),
                  1e-6 * plain.first.loss.abs().max().item<double>());
        ExpectSame(fused.first.dx, plain.first.dx, "dx", 4);
        EXPECT_LT((fused.second - plain.second).abs().max().item<double>() /
                      plain.second.abs().max().item<double>(),
                  type == at::kFloat ? 2e-6 : 8e-3)
            << "dw";
      }
    }
  }
}

TEST_P(Fused, NormOfHeadsInPlaceAndItsBackward) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [begin, heads, d] :
         {std::tuple<int64_t, int64_t, int64_t>{0, 3, 16}, {48, 2, 8}, {64, 1, 32}}) {
      const at::Tensor qkv = Random({5, 96}, type), d_qkv = Random({5, 96}, type),
                       w = Random({d}, type);
      const bool from_one = heads == 2;
      const auto [fused, plain] = Both([&, begin = begin, heads = heads] {
        const at::Tensor all = qkv.clone();
        return std::pair{ops::NormHeads(all, begin, heads, w, 1e-5, from_one), all};
      });
      EXPECT_TRUE(at::equal(fused.first.x, plain.first.x)) << "what stood there";
      ExpectSame(fused.first.rstd, plain.first.rstd, "rstd");
      ExpectSame(fused.second, plain.second, "normed");
      const auto [d_fused, d_plain] = Both([&, begin = begin, d = d, &plain = plain] {
        const at::Tensor all = d_qkv.clone(), d_w = at::ones({d}, w.options().dtype(at::kFloat));
        ops::NormHeadsBackward(all, begin, plain.first, w, d_w, from_one);
        return std::pair{all, d_w};
      });
      ExpectSame(d_fused.first, d_plain.first, "d qkv");
      EXPECT_LT((d_fused.second - d_plain.second).abs().max().item<double>() /
                    d_plain.second.abs().max().item<double>(),
                1e-5)
          << "dw";
    }
  }
}

// Bit for bit: rows of one id are summed in their order before they are added.
TEST_P(Fused, EmbeddingBackwardAddsRowsWithoutAnotherTable) {
  constexpr int64_t kVocabulary = 1000;
  for (const auto& [width, kinds] : {std::pair<int64_t, int64_t>{24, 12}, {264, 2}}) {
    for (const at::ScalarType type : kTypes) {
      const at::Tensor dy = Random({70, width}, type), ids = at::randint(kinds, {70}, at::kLong);
      ids.mul_(83);
      const at::Tensor there = ids.to(device_), d_w = Fp32Ones({kVocabulary, width});
      Kernels(true);
      int64_t largest = 0;
      {
        const Allocations allocations;
        ops::EmbeddingBackward(dy, there, d_w);
        largest = allocations.largest();
      }
      Kernels(false);  // the CPU's: a GPU's by ATen adds in an order of its own
      const at::Tensor plain = at::ones(d_w.sizes());
      ops::EmbeddingBackward(dy.cpu(), ids, plain);
      EXPECT_TRUE(at::equal(d_w.cpu(), plain)) << width;
      EXPECT_LT(largest, kVocabulary * width);
    }
  }
}

// On a GPU a product goes straight into the gradient; the CPU's has a temporary. What comes first
// is written over whatever stands there.
TEST_P(Fused, LinearBackwardAddsToTheGradient) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor dy = Random({40, 24}, type), x = Random({40, 16}, type);
    for (const bool first : {false, true}) {
      const at::Tensor d_w = Fp32Ones({24, 16});
      ops::AddWeightGradient(dy, x, ops::GradientSum(d_w));  // cuBLAS takes its room once
      d_w.fill_(first ? std::nan("") : 1.0);
      int64_t largest = 0;
      {
        const Allocations allocations;
        ops::AddWeightGradient(
            dy, x, ops::GradientSum(d_w, first ? std::make_shared<bool>(false) : nullptr));
        largest = allocations.largest();
      }
      const at::Tensor wanted =
          dy.to(at::kDouble).t().mm(x.to(at::kDouble)).add_(first ? 0.0 : 1.0);
      EXPECT_LT(((d_w - wanted).norm() / wanted.norm()).item<double>(),
                type == at::kFloat || gpu() ? 1e-6 : 5e-3)
          << first;
      if (gpu()) {
        EXPECT_LT(largest, 4 * d_w.numel());
      }
    }
  }
}

// Bit for bit, and none of it on the host.
TEST_P(Fused, DropoutIsThatOfTheHostsNumbers) {
  constexpr int64_t kRows = 3, kLength = 5, kWidth = 16;
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = Random({kRows * kLength, kWidth}, type);
    Kernels(true);
    if (!ops::fused::DrawsBeside(x)) GTEST_SKIP() << "the CPU's stays with ATen";
    const Dropout dropout(Adapters{{}, 1, 0.3, 1234567890123});
    BatchMeta meta{.batch = kRows, .length = kLength, .rows = {7, 0, 1234567}};
    const at::Tensor wanted = dropout.For("model.layers.0.mlp", x.cpu(), meta).Apply(x.cpu());
    EXPECT_GT((wanted == 0).sum().item<int64_t>(), 0);
    meta.row_numbers = at::tensor(meta.rows, at::kLong).to(device_);
    EXPECT_TRUE(at::equal(dropout.For("model.layers.0.mlp", x, meta).Apply(x).cpu(), wanted));
    // Of a rank that has some of the columns: what the whole drops there.
    const at::Tensor some = x.narrow(1, 8, 8).contiguous();
    const Columns columns{8, kWidth};
    const Dropout::Mask mask = dropout.For("model.layers.0.mlp", some, meta, columns);
    EXPECT_TRUE(at::equal(mask.Apply(some).cpu(), wanted.narrow(1, 8, 8)));
  }
}

// The gradient norm: the same whole numbers as on the CPU, in two launches.
TEST_P(Fused, SquaresAreExact) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t count : {1, 15, 4096, 100003}) {
      const at::Tensor values = Random({count}, type).mul_(100);
      const at::Tensor total = at::zeros({3}, values.options().dtype(at::kLong));
      Kernels(true);
      ASSERT_TRUE(ops::fused::AddSquares(
          values, reinterpret_cast<kernels::ExactSum*>(total.data_ptr<int64_t>())));
      kernels::SquaresInOrder plain;
      const at::Tensor host = values.cpu().to(at::kFloat);
      for (int64_t i = 0; i < count; ++i) plain.Add(host.data_ptr<float>()[i]);
      const at::Tensor found = total.cpu();
      EXPECT_EQ(static_cast<uint64_t>(found[0].item<int64_t>()), plain.Sum().low) << count;
      EXPECT_EQ(static_cast<uint64_t>(found[1].item<int64_t>()), plain.Sum().high) << count;
    }
  }
}

TEST_P(Fused, WhatAKernelCantDoStaysWithTheReference) {
  const at::Tensor odd = Random({3, 10}, at::kBFloat16), w = Random({10}, at::kBFloat16);
  Kernels(true);
  EXPECT_FALSE(ops::fused::ResidualRmsNorm(odd, {}, w, 1e-5).has_value())
      << "rows that don't begin at 16 bytes";
  EXPECT_FALSE(ops::fused::SwiGlu(Random({4, 32}, at::kFloat).t()).has_value()) << "not contiguous";
  const at::Tensor wide = Random({1, 8200}, at::kFloat);
  EXPECT_FALSE(ops::fused::RmsNormBackward(wide, wide, wide[0].clone(),
                                           at::ones({1, 1}, wide.options()), {}, {})
                   .has_value());
  EXPECT_TRUE(ops::fused::SwiGlu(Random({4, 32}, at::kFloat)).has_value());
  Kernels(false);
  EXPECT_FALSE(ops::fused::SwiGlu(Random({4, 32}, at::kFloat)).has_value())
      << "trainer.reference_ops";
}

// Bit for bit: a run goes on the same on a GPU and with its state offloaded.
TEST_P(Fused, AdamWGivesTheBitsOfTheCpusKernel) {
  constexpr int64_t kNumel = 2500;
  AdamWStep step;
  step.beta1 = 0.9f, step.beta2 = 0.95f, step.one_minus_beta1 = 0.1f, step.one_minus_beta2 = 0.05f,
  step.step_size = 0.01f, step.inverse_root = 1.5f;
  step.epsilon = 1e-8f, step.clip = 0.5f, step.noise = 77;
  const kernels::AdamWArguments::Run runs[] = {
      {0, 1100, true, 5}, {1123, 7, false, 3000000000u}, {1203, 1297, true, 77}};
  for (int bits = 0; bits < 16; ++bits) {
    const bool split = (bits & 1) != 0, weights = (bits & 2) != 0 || split,
               gradient16 = (bits & 4) != 0, moments16 = (bits & 8) != 0;
    std::vector<at::Tensor> first = {
        at::randn({kNumel}),
        at::randn({kNumel}).to(at::kBFloat16),
        at::randint(-30000, 30000, {kNumel}, at::kShort),
        at::randn({kNumel}).to(gradient16 ? at::kBFloat16 : at::kFloat),
        at::randn({kNumel}).to(moments16 ? at::kBFloat16 : at::kFloat),
        at::rand({kNumel}).to(moments16 ? at::kBFloat16 : at::kFloat)};
    std::vector<at::Tensor> second;
    for (const at::Tensor& one : first) second.push_back(one.clone().to(device_));
    const auto span_of = [&](const std::vector<at::Tensor>& t, int64_t at, int64_t numel) {
      const auto from = [&](const at::Tensor& x) {
        return static_cast<void*>(static_cast<char*>(x.data_ptr()) + at * x.element_size());
      };
      AdamWSpan span;
      if (!split) span.masters = static_cast<float*>(from(t[0]));
      if (weights) span.weights = static_cast<uint16_t*>(from(t[1]));
      if (split) span.low_bits = static_cast<uint16_t*>(from(t[2]));
      span.gradient = from(t[3]), span.gradient_bf16 = gradient16, span.exp_avg = from(t[4]),
      span.exp_avg_sq = from(t[5]), span.moments_bf16 = moments16;
      span.numel = numel;
      return span;
    };
    kernels::AdamWArguments a;
    a.step = step, a.step.keep = 0.999f;
    a.span = span_of(second, 0, kNumel);
    for (const auto& run : runs) {
      a.run[a.runs++] = run;
      AdamWStep own = step;
      own.keep = run.decay ? 0.999f : 1.0f;
      AdamWSpan span = span_of(first, run.begin, run.numel);
      span.first_element = run.number;
      UpdateAdamW(CpuForm::kPlain, own, span);
    }
    Kernels(true);
    ops::fused::KernelsFor(second[0])->adamw(a, ops::fused::StreamOf(second[0]));
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_TRUE(at::equal(first[i], second[i].cpu())) << bits << " " << i;
  }
}

TEST_P(Fused, SplitMastersByAtenAreTheKernels) {
  const at::Tensor masters = at::randn({777}).mul_(at::exp(at::randn({777}).mul_(20)));
  at::Tensor weights = at::empty({777}, at::kBFloat16), low_bits = at::empty({777}, at::kShort);
  SplitMasters(masters.data_ptr<float>(), static_cast<uint16_t*>(weights.data_ptr()),
               static_cast<uint16_t*>(low_bits.data_ptr()), 777);
  const at::Tensor w = at::empty({777}, weights.options().device(device_)),
                   r = at::empty({777}, low_bits.options().device(device_));
  SplitByAten(masters.to(device_), w, r);
  EXPECT_TRUE(at::equal(w.cpu(), weights) && at::equal(r.cpu(), low_bits));
  EXPECT_TRUE(at::equal(JoinByAten(w, r).cpu(), masters));
}

TEST(Kernels, AreCompiledForGpusToo) {
  if (!ops::fused::Compiled()) GTEST_SKIP() << "no nvcc: deploy/setup.sh installs it";
#if defined(MUSTER_CUDA_KERNELS)
  const kernels::Kernels& table = kernels::DeviceKernels();
  EXPECT_TRUE(table.rms_norm && table.rms_norm_backward && table.rope && table.swiglu &&
              table.cross_entropy && table.adamw && table.embedding_backward && table.squares &&
              table.dropout);
#endif
}

TEST(SequenceBounds, CutWhereverADocumentOrARowEnds) {
  EXPECT_EQ(ops::SequenceBounds({{0, 0, 4}, {0, 4, 7}, {1, 2, 10}}, 3, 10),
            (std::vector<int32_t>{0, 4, 7, 10, 12, 20, 30}));
  EXPECT_EQ(ops::SequenceBounds({}, 1, 5), (std::vector<int32_t>{0, 5}));
}

TEST_P(Flash, AttentionAgainstPlainAttentionOverDocumentLengths) {
  ModelConfig c;
  c.num_heads = 8, c.num_kv_heads = 2, c.head_dim = 64;
  for (const int64_t length : {1, 63, 64, 65, 127, 128, 129, 192, 704, 4096}) {
    for (const bool packed : {false, true}) {
      for (const int64_t window : {int64_t{0}, length / 2}) {
        const int64_t batch = packed ? 1 : 2, all = packed ? length + 33 : length;
        const ops::Heads heads{Random({batch, 8, all, 64}, at::kBFloat16),
                               Random({batch, 2, all, 64}, at::kBFloat16),
                               Random({batch, 2, all, 64}, at::kBFloat16)};
        const at::Tensor d_out = Random({batch * all, 8 * 64}, at::kBFloat16);
        const at::Tensor mask = ops::MakeCausalMask(c, all, heads.q.options(), window);
        const std::vector<ops::DocumentSpan> documents = {{0, 0, length}, {0, length, length + 33}};
        ops::FlashSequences sequences;
        if (packed) {
          sequences.bounds =
              at::tensor(ops::SequenceBounds(documents, batch, all), at::kInt).to(device_);
          sequences.longest = std::max<int64_t>(length, 33);
        }
        const ops::AttentionResult plain =
            packed ? ops::DocumentAttention(heads, mask, documents) : ops::Attention(heads, mask);
        const ops::Heads d_plain =
            packed ? ops::DocumentAttentionBackward(d_out, heads, plain.probabilities, documents)
                   : ops::AttentionBackward(d_out, heads, plain.probabilities);
        const ops::FlashResult flash = ops::FlashAttention(heads, sequences, window);
        const ops::Heads d_flash =
            ops::FlashAttentionBackward(d_out, heads, flash, sequences, window);
        // Its probabilities are never rounded to bf16, the reference's are: both are that far from
        // the truth.
        const double least = 1e-3 * d_out.to(at::kFloat).norm().item<double>();
        const auto off = [&](const at::Tensor& a, const at::Tensor& b) {
          const at::Tensor wanted = b.to(at::kFloat);
          return (a.to(at::kFloat) - wanted).norm().item<double>() /
                 std::max(least, wanted.norm().item<double>());  // 0 of queries that see one key
        };
        EXPECT_LT(off(flash.out, plain.out), 5e-3) << length;
        EXPECT_LT(off(d_flash.q, d_plain.q), 1e-2) << length;
        EXPECT_LT(off(d_flash.k, d_plain.k), 1e-2) << length;
        EXPECT_LT(off(d_flash.v, d_plain.v), 1e-2) << length;

        // As training has them in memory: no copies.
        const ops::Heads same{ByToken(heads.q), ByToken(heads.k), ByToken(heads.v)};
        const ops::FlashResult again = ops::FlashAttention(same, sequences, window);
        EXPECT_TRUE(at::equal(again.out, flash.out)) << length;
        const ops::Heads d_again =
            ops::FlashAttentionBackward(d_out, same, again, sequences, window);
        EXPECT_LT(off(d_again.q, d_plain.q), 1e-2) << length;
        EXPECT_LT(off(d_again.k, d_plain.k), 1e-2) << length;
        EXPECT_TRUE(d_again.q.transpose(1, 2).is_contiguous() &&
                    d_again.k.transpose(1, 2).is_contiguous());
      }
    }
  }
}

}  // namespace
}  // namespace muster::trainer
