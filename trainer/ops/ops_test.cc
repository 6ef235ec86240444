// Each op's and each block's backward against autograd through the same function written with plain
// ATen.
#include "trainer/ops/ops.h"

#include <functional>

#include <gtest/gtest.h>

#include "trainer/model/blocks.h"
#include "trainer/model/init.h"
#include "trainer/parallel/engine.h"

namespace muster::trainer {
namespace {

ModelConfig Tiny(bool tied = false) {
  ModelConfig c;
  c.vocab_size = 37, c.hidden_size = 24, c.intermediate_size = 40, c.num_layers = 2,
  c.num_heads = 4, c.num_kv_heads = 2, c.head_dim = 8;
  c.tie_word_embeddings = tied;
  return c;
}

at::Tensor Random(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions().dtype(at::kFloat));
}

void ExpectClose(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  const double scale = std::max(1e-6, wanted.abs().max().item<double>());
  EXPECT_LT((found - wanted).abs().max().item<double>() / scale, 2e-5) << what;
}

// For references: how exactly torch sums millions of floats depends on how wide the CPU's vectors
// are.
at::Tensor InDouble(const at::Tensor& tensor) { return tensor.to(at::kDouble); }

// Gradients of sum(f(leaves) * direction), by autograd.
std::vector<at::Tensor> Autograd(std::vector<at::Tensor> leaves,
                                 const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                                 const at::Tensor& direction) {
  at::AutoGradMode grad(true);
  for (at::Tensor& leaf : leaves) leaf = leaf.detach().clone().set_requires_grad(true);
  (f(leaves) * direction).sum().backward();
  std::vector<at::Tensor> grads;
  for (const at::Tensor& leaf : leaves) grads.push_back(leaf.grad());
  return grads;
}

// The logits' gradient times `by`. torch sums the products of a large vocabulary in fp32: over 4
// million entries it is off by up to 1 %, by how much depends on the CPU.
void ExpectProduct(const at::Tensor& found, const at::Tensor& d_logits, const at::Tensor& by,
                   const std::string& what) {
  const at::Tensor wanted = at::mm(d_logits, InDouble(by));
  const double error = (found - wanted).abs().max().item<double>();
  EXPECT_LT(error / wanted.abs().max().item<double>(), by.size(0) > 1'000'000 ? 3e-2 : 2e-5)
      << what;
}

class Ops : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
  at::NoGradGuard no_grad_;
};

TEST_F(Ops, LinearAndItsBackwardAddToTheGradient) {
  const at::Tensor x = Random({6, 5}), w = Random({3, 5}), dy = Random({6, 3});
  const auto wanted = Autograd({x, w}, [](const auto& l) { return at::mm(l[0], l[1].t()); }, dy);
  at::Tensor d_w = at::ones({3, 5});
  ExpectClose(ops::LinearBackward(dy, x, w, d_w), wanted[0], "dx");
  ExpectClose(d_w - 1, wanted[1], "dw");
  ExpectClose(ops::Linear(x, w), at::mm(x, w.t()), "y");
}

TEST_F(Ops, RmsNorm) {
  const at::Tensor x = Random({6, 8}), w = Random({8}), dy = Random({6, 8});
  const auto f = [](const auto& l) {
    return l[0] * at::rsqrt(l[0].square().mean({-1}, true) + 1e-5) * l[1];
  };
  const auto wanted = Autograd({x, w}, f, dy);
  const ops::RmsNormResult result = ops::RmsNorm(x, w, 1e-5);
  at::Tensor d_w = at::zeros({8});
  ExpectClose(result.y, f(std::vector<at::Tensor>{x, w}), "y");
  ExpectClose(ops::RmsNormBackward(dy, x, w, result.rstd, d_w), wanted[0], "dx");
  ExpectClose(d_w, wanted[1], "dw");
}

TEST_F(Ops, RmsNormWhoseWeightCountsFromOneIsRoundedOnce) {
  const at::Tensor x = Random({6, 8}), w = Random({8}), dy = Random({6, 8}),
                   residual = Random({6, 8});
  const auto f = [](const auto& l) {
    return l[0] * at::rsqrt(l[0].square().mean({-1}, true) + 1e-5) * (1 + l[1]);
  };
  const auto wanted = Autograd({x, w}, f, dy);
  const ops::RmsNormResult result = ops::RmsNorm(x, w, 1e-5, /*from_one=*/true);
  at::Tensor d_w = at::zeros({8});
  ExpectClose(result.y, f(std::vector<at::Tensor>{x, w}), "y");
  ExpectClose(ops::RmsNormBackward(dy, x, w, result.rstd, d_w, residual, true),
              wanted[0] + residual, "dx");
  ExpectClose(d_w, wanted[1], "dw");
  // 1 + w is no number of bf16.
  const at::Tensor x16 = x.to(at::kBFloat16), w16 = at::full({8}, 1.0 / 512, x16.options());
  EXPECT_TRUE(ops::RmsNorm(x16, w16, 1e-5, true)
                  .y.equal(f(std::vector<at::Tensor>{x16.to(at::kFloat), w16.to(at::kFloat)})
                               .to(at::kBFloat16)));
}

TEST_F(Ops, GatedUnits) {
  const at::Tensor x = Random({6, 10}), dy = Random({6, 5});
  for (const Activation kind : {Activation::kSilu, Activation::kGeluTanh}) {
    const auto f = [&](const auto& l) {
      const at::Tensor gate = l[0].narrow(1, 0, 5);
      return (kind == Activation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh")) *
             l[0].narrow(1, 5, 5);
    };
    ExpectClose(ops::GatedUnit(x, kind), f(std::vector<at::Tensor>{x}), "y");
    ExpectClose(ops::GatedUnitBackward(dy, x, kind), Autograd({x}, f, dy)[0], "dx");
  }
}

// transformers' attention: rotate_half of a head's first elements, repeat_kv, softmax over a causal
// mask.
at::Tensor PlainAttention(const at::Tensor& qkv, const ModelConfig& c, const ops::RopeTables& rope,
                          int64_t batch, int64_t window = 0, const ops::ScoreRule& rule = {}) {
  const int64_t s = qkv.size(0) / batch, d = c.head_dim, g = c.num_heads / c.num_kv_heads;
  const at::Tensor cos = at::cat({rope.cos, rope.cos}, -1), sin = at::cat({rope.sin, rope.sin}, -1);
  const auto rotate = [&](const at::Tensor& all) {
    const int64_t r = cos.size(-1);
    const at::Tensor x = all.narrow(-1, 0, r);
    const at::Tensor half = at::cat({-x.narrow(-1, r / 2, r / 2), x.narrow(-1, 0, r / 2)}, -1);
    return at::cat({x * cos + half * sin, all.narrow(-1, r, d - r)}, -1);
  };
  const at::Tensor all = qkv.view({batch, s, -1, d}).transpose(1, 2);
  const at::Tensor q = rotate(all.narrow(1, 0, c.num_heads)),
                   k = rotate(all.narrow(1, c.num_heads, c.num_kv_heads)).repeat_interleave(g, 1);
  const at::Tensor v =
      all.narrow(1, c.num_heads + c.num_kv_heads, c.num_kv_heads).repeat_interleave(g, 1);
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) *
                      (rule.scale > 0 ? rule.scale : 1 / std::sqrt(static_cast<double>(d)));
  if (rule.softcap > 0) scores = at::tanh(scores / rule.softcap) * rule.softcap;
  at::Tensor blocked = at::ones({s, s}, at::kBool).triu(1);
  if (window > 0) blocked = blocked.logical_or(at::ones({s, s}, at::kBool).tril(-window));
  const at::Tensor p =
      scores.masked_fill(blocked, -std::numeric_limits<float>::infinity()).softmax(-1);
  return at::matmul(p, v).transpose(1, 2).reshape({batch * s, -1});
}

TEST_F(Ops, RotaryGroupedCausalAttention) {
  const ModelConfig c = Tiny();
  const int64_t batch = 3, s = 7;
  const at::Tensor qkv = Random({batch * s, 8 * 8}), dy = Random({batch * s, 32});
  const ops::RopeTables rope = ops::MakeRopeTables(c, s, at::kCPU);
  const ops::Heads heads = ops::SplitAndRotate(qkv, batch, c, rope);
  const ops::AttentionResult result =
      ops::Attention(heads, ops::MakeCausalMask(c, s, qkv.options()));
  ExpectClose(result.out, PlainAttention(qkv, c, rope, batch), "out");
  const at::Tensor d_qkv =
      ops::SplitAndRotateBackward(ops::AttentionBackward(dy, heads, result.probabilities), c, rope);
  ExpectClose(
      d_qkv,
      Autograd(
          {qkv}, [&](const auto& l) { return PlainAttention(l[0], c, rope, batch); }, dy)[0],
      "d qkv");
}

TEST_F(Ops, ScoresAreScaledAndCappedAndHeadsRotatedInPart) {
  ModelConfig c = Tiny();
  c.partial_rotary_factor = 0.75;
  const int64_t batch = 2, s = 7;
  const at::Tensor qkv = Random({batch * s, 8 * 8}), dy = Random({batch * s, 32});
  const ops::RopeTables rope = ops::MakeRopeTables(c, s, at::kCPU);
  EXPECT_EQ(rope.cos.size(1), 3);
  const ops::Heads heads = ops::SplitAndRotate(qkv, batch, c, rope);
  const at::Tensor mask = ops::MakeCausalMask(c, s, qkv.options(), 4);
  const std::vector<ops::DocumentSpan> documents = {{0, 0, s}, {1, 0, s}};
  for (const ops::ScoreRule& rule : {ops::ScoreRule{0.7, 0}, {0, 1.2}, {0.7, 1.2}}) {
    const at::Tensor wanted = PlainAttention(qkv, c, rope, batch, 4, rule);
    const at::Tensor d_wanted = Autograd(
        {qkv}, [&](const auto& l) { return PlainAttention(l[0], c, rope, batch, 4, rule); }, dy)[0];
    const ops::AttentionResult whole = ops::Attention(heads, mask, rule),
                               packed = ops::DocumentAttention(heads, mask, documents, rule);
    ExpectClose(whole.out, wanted, "out");
    ExpectClose(packed.out, wanted, "out of documents");
    ExpectClose(ops::SplitAndRotateBackward(
                    ops::AttentionBackward(dy, heads, whole.probabilities, rule), c, rope),
                d_wanted, "d qkv");
    ExpectClose(ops::SplitAndRotateBackward(ops::DocumentAttentionBackward(
                                                dy, heads, packed.probabilities, documents, rule),
                                            c, rope),
                d_wanted, "d qkv of documents");
  }
  c.attention_softcap = 50;
  EXPECT_EQ(ops::ChooseAttention(true, true, at::kBFloat16, c), ops::AttentionKind::kPlain)
      << "FlashAttention knows no cap";
}

TEST_F(Ops, AWindowHidesWhatIsOlder) {
  const ModelConfig c = Tiny();
  const int64_t s = 9;
  const at::Tensor qkv = Random({s, 8 * 8}), dy = Random({s, 32});
  const ops::RopeTables rope = ops::MakeRopeTables(c, s, at::kCPU);
  const ops::Heads heads = ops::SplitAndRotate(qkv, 1, c, rope);
  for (const int64_t window : {1, 3, 8, 9}) {
    const at::Tensor mask = ops::MakeCausalMask(c, s + 2, qkv.options(), window);
    const ops::AttentionResult whole =
        ops::Attention(heads, ops::MakeCausalMask(c, s, qkv.options(), window));
    const ops::AttentionResult packed = ops::DocumentAttention(heads, mask, {{0, 0, s}});
    const at::Tensor wanted = PlainAttention(qkv, c, rope, 1, window);
    ExpectClose(whole.out, wanted, "out");
    ExpectClose(packed.out, wanted, "out of a document");
    const at::Tensor d_qkv = ops::SplitAndRotateBackward(
        ops::AttentionBackward(dy, heads, whole.probabilities), c, rope);
    ExpectClose(
        d_qkv,
        Autograd(
            {qkv}, [&](const auto& l) { return PlainAttention(l[0], c, rope, 1, window); }, dy)[0],
        "d qkv");
  }
  EXPECT_TRUE(
      ops::MakeCausalMask(c, s, qkv.options(), s).equal(ops::MakeCausalMask(c, s, qkv.options())));
  EXPECT_FALSE(ops::MakeCausalMask(c, s, qkv.options(), s - 1)
                   .equal(ops::MakeCausalMask(c, s, qkv.options())));
}

TEST_F(Ops, HeadsAreNormedInPlace) {
  const at::Tensor qkv = Random({5, 4 * 6}), w = Random({6}), dy = Random({5, 4 * 6});
  const auto f = [](const auto& l) {  // heads 1 and 2 of 4
    const at::Tensor heads = l[0].view({5, 4, 6}).narrow(1, 1, 2);
    const at::Tensor normed = heads * at::rsqrt(heads.square().mean({-1}, true) + 1e-5) * l[1];
    return at::cat({l[0].narrow(1, 0, 6), normed.reshape({5, 12}), l[0].narrow(1, 18, 6)}, 1);
  };
  const auto wanted = Autograd({qkv, w}, f, dy);
  const at::Tensor y = qkv.clone(), d = dy.clone(), d_w = at::zeros({6});
  const ops::HeadNormResult before = ops::NormHeads(y, 6, 2, w, 1e-5);
  ExpectClose(y, f(std::vector<at::Tensor>{qkv, w}), "y");
  ops::NormHeadsBackward(d, 6, before, w, d_w);
  ExpectClose(d, wanted[0], "d qkv");
  ExpectClose(d_w, wanted[1], "dw");
}

TEST_F(Ops, DocumentsPackedInRowsGiveWhatEachGivesAlone) {
  const ModelConfig c = Tiny();
  const int64_t batch = 2, s = 11;
  const std::vector<ops::DocumentSpan> documents = {
      {0, 0, 1}, {0, 1, 6}, {0, 6, 9}, {1, 0, 11}};  // row 0 ends with padding
  const at::Tensor qkv = Random({batch * s, 8 * 8}), dy = Random({batch * s, 32});
  at::Tensor positions = at::zeros({batch * s}, at::kLong);
  for (const auto& [row, begin, end] : documents)
    positions.narrow(0, row * s + begin, end - begin).copy_(at::arange(end - begin));
  const ops::RopeTables rope = ops::MakeRopeTables(c, s, at::kCPU);
  const at::Tensor mask =
      ops::MakeCausalMask(c, s + 3, qkv.options());  // one for longer rows serves
  const ops::Heads heads = ops::SplitAndRotate(qkv, batch, c, rope, positions);
  const ops::AttentionResult result = ops::DocumentAttention(heads, mask, documents);
  const at::Tensor d_qkv = ops::SplitAndRotateBackward(
      ops::DocumentAttentionBackward(dy, heads, result.probabilities, documents), c, rope,
      positions);
  at::Tensor inside = at::zeros({batch * s}, at::kBool);
  for (const auto& [row, begin, end] : documents) {
    const int64_t at = row * s + begin, n = end - begin;
    const ops::RopeTables own = {rope.cos.narrow(0, 0, n), rope.sin.narrow(0, 0, n)};
    const at::Tensor alone = qkv.narrow(0, at, n);
    ExpectClose(result.out.narrow(0, at, n), PlainAttention(alone, c, own, 1), "out");
    ExpectClose(d_qkv.narrow(0, at, n),
                Autograd(
                    {alone}, [&](const auto& l) { return PlainAttention(l[0], c, own, 1); },
                    dy.narrow(0, at, n))[0],
                "d qkv");
    inside.narrow(0, at, n).fill_(true);
  }
  EXPECT_EQ(result.out.index({inside.logical_not()}).abs().sum().item<float>(), 0)
      << "padding gives nothing";
  EXPECT_EQ(d_qkv.index({inside.logical_not()}).abs().sum().item<float>(), 0);
}

TEST_F(Ops, EmbeddingAddsRepeatedIds) {
  const at::Tensor ids = at::tensor({1, 4, 1, 0}, at::kLong), w = Random({5, 3}),
                   dy = Random({4, 3});
  at::Tensor d_w = at::zeros({5, 3});
  ops::EmbeddingBackward(dy, ids, d_w);
  ExpectClose(d_w,
              Autograd({w}, [&](const auto& l) { return l[0].index_select(0, ids); }, dy)[0], "dw");
}

TEST(LogitsChunk, IsEvenAndOfWholeTilesOnAGpu) {
  EXPECT_EQ(ops::LogitsChunk(8192, 152064, true), 2048);
  EXPECT_EQ(ops::LogitsChunk(100, 152064, true), 100);
  EXPECT_EQ(ops::LogitsChunk(8192, 152064, false), 27);
  EXPECT_EQ(ops::LogitsChunk(8192, int64_t{1} << 40, true), 1);
  for (const int64_t vocabulary : {32000, 128256, 152064}) {
    for (int64_t tokens = 1; tokens < 40000; tokens += 997) {
      const int64_t chunk = ops::LogitsChunk(tokens, vocabulary, true);
      EXPECT_TRUE(chunk == tokens || chunk % 128 == 0) << tokens;
      EXPECT_LE(chunk * vocabulary, ops::kLogitsChunkOnGpu) << tokens;
      const int64_t chunks = (tokens + chunk - 1) / chunk;
      EXPECT_GE(tokens - (chunks - 1) * chunk, chunk - 128 * chunks) << "even, " << tokens;
    }
  }
}

TEST_F(Ops, LinearCrossEntropyInOneOrManyChunks) {
  const at::Tensor x = Random({9, 4}), targets = at::randint(0, 11, {9}, at::kLong);
  at::Tensor weights = at::full({9}, 1.0 / 7);
  weights.narrow(0, 2, 2).zero_();  // two targets don't count
  for (const int64_t vocab :
       {int64_t{11}, int64_t{1} << 22}) {  // the larger one makes chunks of 4 tokens
    const at::Tensor w = Random({vocab, 4});
    const auto f = [&](const auto& l) {
      return at::cross_entropy_loss(l[0], targets, {}, at::Reduction::None);
    };
    const std::vector<at::Tensor> logits{at::mm(InDouble(x), InDouble(w).t())};
    const at::Tensor d_logits = Autograd(logits, f, InDouble(weights))[0];
    at::Tensor d_w = at::zeros_like(w);
    const ops::LossResult result = ops::LinearCrossEntropy(x, w, targets, weights, d_w);
    EXPECT_NEAR(result.loss[0].item<double>(), (f(logits) * weights).sum().item<double>(), 1e-5);
    ExpectProduct(result.dx, d_logits, w, "dx");
    ExpectClose(d_w, at::mm(d_logits.t(), InDouble(x)), "dw");
    const ops::LossResult frozen = ops::LinearCrossEntropy(x, w, targets, weights, {});
    EXPECT_TRUE(frozen.dx.equal(result.dx)) << "a frozen projection passes its gradient on";
    const ops::LossResult alone =
        ops::LinearCrossEntropy(x, w, targets, weights, {}, /*loss_only=*/true);
    EXPECT_EQ(alone.loss[0].item<double>(), result.loss[0].item<double>());
    EXPECT_FALSE(alone.dx.defined());
  }
}

TEST_F(Ops, ALowRankBranchOfTheOutputProjectionTrainsBesideIt) {
  const at::Tensor x = Random({9, 4}), inner = Random({9, 2}),
                   targets = at::randint(0, 11, {9}, at::kLong), weights = at::rand({9});
  for (const int64_t vocab : {int64_t{11}, int64_t{1} << 22}) {
    const at::Tensor w = Random({vocab, 4}), b = Random({vocab, 2});
    const auto f = [&](const auto& l) {
      return at::cross_entropy_loss(l[0], targets, {}, at::Reduction::None);
    };
    const std::vector<at::Tensor> logits{at::mm(InDouble(x), InDouble(w).t()) +
                                         at::mm(InDouble(inner), InDouble(b).t())};
    const at::Tensor d_logits = Autograd(logits, f, InDouble(weights))[0];
    const ops::LossBranch branch{inner, b, at::empty_like(inner), at::zeros_like(b)};
    const ops::LossResult result =
        ops::LinearCrossEntropy(x, w, targets, weights, {}, false, 0, &branch);
    EXPECT_NEAR(result.loss[0].item<double>(), (f(logits) * weights).sum().item<double>(), 1e-5);
    ExpectProduct(result.dx, d_logits, w, "dx");
    ExpectProduct(branch.d_inner, d_logits, b, "d_inner");
    ExpectClose(branch.d_b.tensor(), at::mm(d_logits.t(), InDouble(inner)), "d_b");
  }
}

TEST_F(Ops, ZLossIsTheWeightedSquareOfTheLogSumExp) {
  const at::Tensor x = Random({9, 4}), w = Random({11, 4}),
                   targets = at::randint(0, 11, {9}, at::kLong), weights = at::rand({9});
  constexpr double kZ = 0.3;
  const auto z = [&](const auto& l) {
    return at::logsumexp(at::mm(l[0], l[1].t()), 1).square() * kZ;
  };
  const auto f = [&](const auto& l) {
    return at::cross_entropy_loss(at::mm(l[0], l[1].t()), targets, {}, at::Reduction::None) + z(l);
  };
  const auto wanted = Autograd({x, w}, f, weights);
  at::Tensor d_w = at::zeros_like(w);
  const ops::LossResult result = ops::LinearCrossEntropy(x, w, targets, weights, d_w, false, kZ);
  EXPECT_NEAR(result.loss[1].item<double>(),
              (z(std::vector<at::Tensor>{x, w}) * weights).sum().item<double>(), 1e-5);
  ExpectClose(result.dx, wanted[0], "dx");
  ExpectClose(d_w, wanted[1], "dw");
}

TEST_F(Ops, ACapOfLogitsIsPartOfTheLoss) {
  const at::Tensor x = Random({9, 4}), w = Random({11, 4}) * 3, inner = Random({9, 2}),
                   b = Random({11, 2}), targets = at::randint(0, 11, {9}, at::kLong),
                   weights = at::rand({9});
  constexpr double kZ = 0.3, kCap = 2;
  const auto f = [&](const auto& l) {
    const at::Tensor logits =
        at::tanh((at::mm(l[0], l[1].t()) + at::mm(l[2], l[3].t())) / kCap) * kCap;
    return at::cross_entropy_loss(logits, targets, {}, at::Reduction::None) +
           at::logsumexp(logits, 1).square() * kZ;
  };
  const auto wanted = Autograd({x, w, inner, b}, f, weights);
  at::Tensor d_w = at::zeros_like(w);
  const ops::LossBranch branch{inner, b, at::empty_like(inner), at::zeros_like(b)};
  const ops::LossResult result =
      ops::LinearCrossEntropy(x, w, targets, weights, d_w, false, kZ, &branch, {}, kCap);
  EXPECT_NEAR(result.loss.sum().item<double>(),
              (f(std::vector<at::Tensor>{x, w, inner, b}) * weights).sum().item<double>(), 1e-5);
  ExpectClose(result.dx, wanted[0], "dx");
  ExpectClose(d_w, wanted[1], "dw");
  ExpectClose(branch.d_inner, wanted[2], "d inner");
  ExpectClose(branch.d_b.tensor(), wanted[3], "db");
}

TEST_F(Ops, LongRopeTablesFollowTransformers) {
  ModelConfig c = Tiny();
  c.partial_rotary_factor = 0.5;
  c.rope.type = "longrope", c.rope.factor = 4, c.rope.original_max_position_embeddings = 16;
  c.rope.short_factor = {1, 2}, c.rope.long_factor = {1.5, 8};
  // modeling_rope_utils._compute_longrope_parameters by hand: sqrt(1 + ln 4 / ln 16), and for theta
  // 10000 and 4 elements the frequencies 1 and 0.01.
  const double attention = std::sqrt(1.5);
  for (const int64_t length : {16, 17}) {
    const ops::RopeTables tables = ops::MakeRopeTables(c, length, at::kCPU);
    const std::vector<double>& factors = length > 16 ? c.rope.long_factor : c.rope.short_factor;
    for (int i = 0; i < 2; ++i)
      EXPECT_NEAR(tables.sin[1][i].item<double>(),
                  attention * std::sin((i == 0 ? 1 : 0.01) / factors[i]), 1e-6)
          << length << " " << i;
  }
  c.rope.attention_factor = 1.25;
  EXPECT_NEAR(ops::MakeRopeTables(c, 1, at::kCPU).cos[0][0].item<double>(), 1.25, 1e-6);
}

TEST_F(Ops, LayersWithAWindowHaveABaseOfTheirOwnWithoutScaling) {
  ModelConfig c = Tiny();
  c.rope.type = "linear", c.rope.factor = 8, c.local_rope_theta = 100;
  const ops::RopeTables all = ops::MakeRopeTables(c, 2, at::kCPU),
                        local = ops::MakeRopeTables(c, 2, at::kCPU, /*local=*/true);
  EXPECT_NEAR(all.sin[1][2].item<double>(), std::sin(0.01 / 8), 1e-6);
  EXPECT_NEAR(local.sin[1][2].item<double>(), std::sin(0.1), 1e-6);
}

TEST_F(Ops, ScaledRotaryTablesFollowTransformers) {
  ModelConfig c = Tiny();
  c.rope = {"llama3", 8, 1, 4, 16};
  const at::Tensor scaled = ops::MakeRopeTables(c, 2, at::kCPU).sin.select(0, 1).asin();
  // modeling_rope_utils._compute_llama3_parameters by hand, theta 10000, head_dim 8, original
  // length 16: wavelengths 2π, 62.8, 628, 6283; 16 / 4 = 4 and 16 / 1 = 16 bound the smoothed band.
  const double smooth = (16.0 / 6.283185307179586 - 1) / 3;
  const double wanted[] = {(1 - smooth) / 8 + smooth, 0.1 / 8, 0.01 / 8, 0.001 / 8};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(scaled[i].item<double>(), wanted[i], 1e-6) << i;
}

TEST_F(Ops, YarnTablesFollowTransformers) {
  ModelConfig c = Tiny();
  c.rope.type = "yarn", c.rope.factor = 4, c.rope.original_max_position_embeddings = 128;
  // modeling_rope_utils._compute_yarn_parameters by hand, theta 10000, head_dim 8: the pairs that
  // turn 32 times and once in 128 positions are -0.196 and 1.31, so the ramp goes from 0 to 2, and
  // the pairs' shares of interpolation are 0, 1/2, 1, 1.
  const double wanted[] = {1, 0.1 * (0.5 + 0.5 / 4), 0.01 / 4, 0.001 / 4};
  const double factor = 0.1 * std::log(4.0) + 1;
  const ops::RopeTables tables = ops::MakeRopeTables(c, 2, at::kCPU);
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(tables.sin[1][i].item<double>(), factor * std::sin(wanted[i]), 1e-6) << i;
    EXPECT_NEAR(tables.cos[1][i].item<double>(), factor * std::cos(wanted[i]), 1e-6) << i;
  }
  c.rope.mscale = 2, c.rope.mscale_all_dim = 1;
  EXPECT_NEAR(ops::MakeRopeTables(c, 1, at::kCPU).cos[0][0].item<double>(),
              (0.2 * std::log(4.0) + 1) / factor, 1e-6);
  c.rope.attention_factor = 1.5;
  EXPECT_NEAR(ops::MakeRopeTables(c, 1, at::kCPU).cos[0][0].item<double>(), 1.5, 1e-6);
}

// The whole model through the engine, against autograd through plain ATen, in one and two
// micro-batches.
ModelConfig WithEverything() {
  ModelConfig c = Tiny(true);
  c.qkv_bias = c.out_bias = c.mlp_bias = c.qk_norm = true;
  c.head_dim = 12;  // not hidden_size / num_heads
  c.sliding_window = 3, c.sliding_layers = {false, true};
  return c;
}
// What Gemma 2 and 3 have between them.
ModelConfig LikeGemma() {
  ModelConfig c = Tiny(true);
  c.head_dim = 12, c.query_pre_attn_scalar = 20;
  c.norms_from_one = c.post_norms = c.scaled_embeddings = c.qk_norm = true;
  c.activation = Activation::kGeluTanh;
  c.attention_softcap = 1.5, c.final_softcap = 2, c.local_rope_theta = 100;
  c.sliding_window = 3, c.sliding_layers = {true, false};
  return c;
}
ModelConfig ModelOfKind(const std::string& kind) {
  return kind == "everything" ? WithEverything()
         : kind == "gemma"    ? LikeGemma()
                              : Tiny(kind == "tied");
}
class Model : public ::testing::TestWithParam<std::tuple<const char*, int, RecomputeMode>> {};

TEST_P(Model, LossAndAllGradientsEqualAutograd) {
  at::NoGradGuard no_grad;
  const auto [kind, micros, recompute] = GetParam();
  const bool tied = std::string(kind) != "untied";
  const ModelConfig c = ModelOfKind(kind);
  const int64_t batch = 4, s = 6;
  std::unique_ptr<World> world = World::Connect({}, at::kCPU);
  Engine engine(c, world.get(),
                {.max_length = s, .flats = {.zero_stage = 1}, .recompute = recompute});
  for (const auto& flat : engine.flats()) {
    InitialiseMasters(*flat, 3, 0.3, c.norms_from_one);
    const at::Tensor masters = flat->Owned(FlatParam::kMaster).clone();
    for (const Segment& segment : flat->layout().segments()) {  // norms and biases that show
      if (segment.shape.size() == 1)
        masters.narrow(0, segment.offset, segment.numel).add_(at::randn({segment.numel}), 0.3);
    }
    flat->SetOwned(FlatParam::kMaster, masters);
  }
  engine.UnshardAll();
  at::manual_seed(2);
  const at::Tensor ids = at::randint(0, 37, {batch * s}, at::kLong),
                   targets = at::randint(0, 37, {batch * s}, at::kLong);
  std::vector<BatchMeta> batches;
  const int64_t part = batch / micros;
  for (int m = 0; m < micros; ++m) {
    batches.push_back({part, s, ids.narrow(0, m * part * s, part * s),
                       targets.narrow(0, m * part * s, part * s),
                       at::full({part * s}, 1.0 / (batch * s))});
  }
  const double loss = engine.Run(batches).loss;

  std::map<std::string, at::Tensor> w;
  at::AutoGradMode grad(true);
  for (const auto& flat : engine.flats()) {
    for (size_t i = 0; i < flat->layout().segments().size(); ++i)
      w[flat->layout().segments()[i].name] =
          flat->Weight(i).detach().clone().set_requires_grad(true);
  }
  const ops::RopeTables rope = ops::MakeRopeTables(c, s, at::kCPU);
  const ops::RopeTables local =
      c.local_rope_theta > 0 ? ops::MakeRopeTables(c, s, at::kCPU, /*local=*/true) : rope;
  const ops::ScoreRule rule{
      c.query_pre_attn_scalar > 0 ? 1 / std::sqrt(static_cast<double>(c.query_pre_attn_scalar)) : 0,
      c.attention_softcap};
  const auto norm = [&](const at::Tensor& x, const at::Tensor& scale) {
    return x * at::rsqrt(x.square().mean({-1}, true) + c.rms_norm_eps) *
           (c.norms_from_one ? scale + 1 : scale);
  };
  const auto post_norm = [&](const at::Tensor& x, const std::string& name) {
    return c.post_norms ? norm(x, w.at(name)) : x;
  };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor y = at::mm(x, w.at(name + ".weight").t());
    return w.contains(name + ".bias") ? y + w.at(name + ".bias") : y;
  };
  const auto norm_heads = [&](const at::Tensor& x, const std::string& name) {
    return w.contains(name) ? norm(x.view({batch * s, -1, c.head_dim}), w.at(name)).view_as(x) : x;
  };
  at::Tensor x = w["model.embed_tokens.weight"].index_select(0, ids);
  if (c.scaled_embeddings) x = x * std::sqrt(24.0);
  for (int i = 0; i < 2; ++i) {
    const std::string p = "model.layers." + std::to_string(i) + ".";
    const at::Tensor n1 = norm(x, w[p + "input_layernorm.weight"]);
    const at::Tensor qkv =
        at::cat({norm_heads(linear(n1, p + "self_attn.q_proj"), p + "self_attn.q_norm.weight"),
                 norm_heads(linear(n1, p + "self_attn.k_proj"), p + "self_attn.k_norm.weight"),
                 linear(n1, p + "self_attn.v_proj")},
                1);
    const ops::RopeTables& own = c.Window(i) > 0 ? local : rope;
    x = x + post_norm(linear(PlainAttention(qkv, c, own, batch, c.Window(i), rule),
                             p + "self_attn.o_proj"),
                      p + "post_attention_layernorm.weight");
    const at::Tensor n2 = norm(x, w[p + (c.post_norms ? "pre_feedforward_layernorm.weight"
                                                      : "post_attention_layernorm.weight")]);
    const at::Tensor gate = linear(n2, p + "mlp.gate_proj");
    x = x + post_norm(linear((c.post_norms ? at::gelu(gate, "tanh") : at::silu(gate)) *
                                 linear(n2, p + "mlp.up_proj"),
                             p + "mlp.down_proj"),
                      p + "post_feedforward_layernorm.weight");
  }
  const at::Tensor head = w[tied ? "model.embed_tokens.weight" : "lm_head.weight"];
  at::Tensor logits = at::mm(norm(x, w["model.norm.weight"]), head.t());
  if (c.final_softcap > 0) logits = at::tanh(logits / c.final_softcap) * c.final_softcap;
  const at::Tensor wanted = at::cross_entropy_loss(logits, targets);
  wanted.backward();
  EXPECT_NEAR(loss, wanted.item<double>(), 2e-6);
  EXPECT_EQ(w.contains("model.layers.1.mlp.down_proj.bias"), c.mlp_bias);
  int64_t parameters = 0;
  for (const auto& [name, weight] : w) parameters += weight.numel();
  EXPECT_EQ(c.NumParameters(), parameters);
  for (const auto& flat : engine.flats()) {
    for (size_t i = 0; i < flat->layout().segments().size(); ++i) {
      const std::string& name = flat->layout().segments()[i].name;
      ExpectClose(flat->Gradient(i), w[name].grad(), name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    KindsMicroBatchesAndRecompute, Model,
    ::testing::Combine(::testing::Values("untied", "tied", "everything", "gemma"),
                       ::testing::Values(1, 2),
                       ::testing::Values(RecomputeMode::kNone, RecomputeMode::kPointwise,
                                         RecomputeMode::kKeepAttention, RecomputeMode::kFull)));

}  // namespace
}  // namespace muster::trainer
