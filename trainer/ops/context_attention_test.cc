// Attention that ranks share out by queries, all of them in one process, against attention of whole
// rows.
#include "trainer/ops/context_attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/data/context_rows.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kDim = 8;

ModelConfig Model() {
  ModelConfig c;
  c.num_heads = kHeads, c.num_kv_heads = kKeyHeads, c.head_dim = kDim;
  return c;
}

BatchMeta Whole(int64_t length, const std::vector<ops::DocumentSpan>& documents) {
  const int64_t tokens = kBatch * length;
  BatchMeta meta{.batch = kBatch, .length = length};
  meta.ids = at::arange(tokens), meta.targets = at::arange(tokens).add(1);
  meta.weights = at::ones({tokens});
  if (documents.empty()) return meta;
  meta.documents = documents;
  meta.positions = at::zeros({tokens}, at::kLong);
  for (const auto& [row, begin, end] : documents)
    meta.positions.narrow(0, row * length + begin, end - begin).copy_(at::arange(end - begin));
  return meta;
}

// Tokens' rows [B·S, …] that a part has; 0 where it only fills up.
at::Tensor Pick(const at::Tensor& rows, const BatchMeta& part) {
  at::Tensor picked = rows.index_select(0, part.ids);
  for (size_t i = 0; i < part.context->counts.size(); ++i) {
    if (part.context->counts[i] == 0) picked[static_cast<int64_t>(i)].zero_();
  }
  return picked;
}
at::Tensor AsRows(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape({-1, heads.size(1), heads.size(3)});
}
at::Tensor AsHeads(const at::Tensor& rows, int64_t length) {
  return rows.view({kBatch, length, rows.size(1), rows.size(2)}).transpose(1, 2).contiguous();
}
// Adds a part's rows to those of all tokens.
void PutBack(const at::Tensor& all, const at::Tensor& rows, const BatchMeta& part) {
  const at::Tensor counts = at::tensor(part.context->counts, at::kByte);
  all.index_add_(0, part.ids, rows * counts.view({-1, 1, 1}).to(rows.scalar_type()));
}

struct Found {
  at::Tensor out, q, k, v;  // [B·S, heads, D]: attention's result and gradients
};

// Where ranks compute, and how.
struct Way {
  at::Device device = at::kCPU;
  ops::AttentionKind kind = ops::AttentionKind::kPlain;

  bool flash() const { return kind == ops::AttentionKind::kFlash; }
  at::Tensor There(const at::Tensor& x) const {
    return x.to(device, flash() ? at::kBFloat16 : at::kFloat);
  }
};
at::Tensor Here(const at::Tensor& x) { return x.to(at::kCPU, at::kFloat); }

// With a window a scale and a cap, too; FlashAttention knows no cap.
ops::ScoreRule RuleFor(int64_t window, const Way& way) {
  return window > 0 ? ops::ScoreRule{0.5, way.flash() ? 0 : 1.5} : ops::ScoreRule{};
}

Found ByOne(const ops::Heads& heads, const at::Tensor& d_out, const BatchMeta& whole,
            int64_t window, const Way& way) {
  const at::Tensor mask = ops::MakeCausalMask(Model(), whole.length, d_out.options(), window);
  std::vector<ops::DocumentSpan> documents = whole.documents;
  for (int64_t row = 0; documents.size() < kBatch && !whole.positions.defined(); ++row)
    documents.push_back({row, 0, whole.length});
  const ops::AttentionResult result =
      ops::DocumentAttention(heads, mask, documents, RuleFor(window, way));
  const ops::Heads d =
      ops::DocumentAttentionBackward(d_out.view({-1, kHeads * kDim}), heads, result.probabilities,
                                     documents, RuleFor(window, way));
  return {result.out.view({-1, kHeads, kDim}), AsRows(d.q), AsRows(d.k), AsRows(d.v)};
}

Found ByRanks(const ops::Heads& heads, const at::Tensor& d_out, const BatchMeta& whole, int ranks,
              ContextSharding sharding, int64_t window, const Way& way) {
  const at::Tensor mask =
      way.There(ops::MakeCausalMask(Model(), whole.length + 2, d_out.options(), window));
  std::vector<BatchMeta> parts;
  std::vector<at::Tensor> gathered;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(TakeContextPart(whole, {rank, ranks, sharding}, /*bounds=*/way.flash()));
    if (way.device.is_cuda()) MoveContext(*parts.back().context, way.device);
    const auto own = [&](const at::Tensor& x) {
      return AsHeads(Pick(AsRows(x), parts[rank]), parts[rank].length);
    };
    gathered.push_back(ops::KeysAndValues({own(heads.q), own(heads.k), own(heads.v)}));
  }
  const at::Tensor keys_values = way.There(at::cat(gathered));
  Found found{at::zeros_like(d_out), at::zeros_like(d_out), {}, {}};
  at::Tensor d_gathered = at::zeros(keys_values.sizes(), at::kFloat);
  for (const BatchMeta& part : parts) {
    const at::Tensor q = way.There(AsHeads(Pick(AsRows(heads.q), part), part.length));
    const ops::FlashResult result = ops::ContextAttention(
        q, keys_values, part.context->calls, way.kind, mask, window, RuleFor(window, way));
    PutBack(found.out, Here(result.out).view({-1, kHeads, kDim}), part);
    const ops::ContextGradients d = ops::ContextAttentionBackward(
        way.There(Pick(d_out, part).view({-1, kHeads * kDim})), q, keys_values, result,
        part.context->calls, way.kind, window, RuleFor(window, way));
    PutBack(found.q, Here(AsRows(d.q)), part);
    EXPECT_EQ(d.keys_values.scalar_type(), at::kFloat);
    d_gathered.add_(Here(d.keys_values));
  }
  at::Tensor both = at::zeros({d_out.size(0), 2 * kKeyHeads, kDim});
  const int64_t tokens = parts[0].tokens();
  for (int rank = 0; rank < ranks; ++rank)
    PutBack(both, d_gathered.narrow(0, rank * tokens, tokens), parts[rank]);
  found.k = both.narrow(1, 0, kKeyHeads), found.v = both.narrow(1, kKeyHeads, kKeyHeads);
  return found;
}

void ExpectNear(const at::Tensor& found, const at::Tensor& wanted, const char* what) {
  EXPECT_LE((found - wanted).abs().max().item<double>(), 1e-5) << what;
}

TEST(ContextAttention, IsThatOfWholeRowsForAllLengthsWindowsAndShardings) {
  at::manual_seed(5);
  for (const int ranks : {2, 3, 4}) {
    const int64_t chunks = 2 * static_cast<int64_t>(ranks);
    for (const int64_t length : {int64_t{1}, chunks - 1, chunks, chunks + 1, 3 * chunks + 1}) {
      const int64_t third = length / 3;
      // Whole rows; one document a row, of which one leaves off early; and several.
      const std::vector<std::vector<ops::DocumentSpan>> rows = {
          {},
          {{0, 0, length}, {1, 0, std::max<int64_t>(1, length - 2)}},
          {{0, 0, third + 1}, {0, third + 1, std::max(third + 1, length - 1)}, {1, 0, length}}};
      for (std::vector<ops::DocumentSpan> documents : rows) {
        std::erase_if(documents, [](const auto& span) { return span.begin == span.end; });
        const BatchMeta whole = Whole(length, documents);
        const ops::Heads heads{at::randn({kBatch, kHeads, length, kDim}),
                               at::randn({kBatch, kKeyHeads, length, kDim}),
                               at::randn({kBatch, kKeyHeads, length, kDim})};
        const at::Tensor d_out = at::randn({kBatch * length, kHeads, kDim});
        for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{3}}) {
          const Found wanted = ByOne(heads, d_out, whole, window, {});
          for (const ContextSharding sharding :
               {ContextSharding::kSequence, ContextSharding::kDocument}) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, length " + std::to_string(length) +
                         ", window " + std::to_string(window) + ", sharding " +
                         std::to_string(static_cast<int>(sharding)));
            const Found found = ByRanks(heads, d_out, whole, ranks, sharding, window, {});
            ExpectNear(found.out, wanted.out, "out");
            ExpectNear(found.q, wanted.q, "d q");
            ExpectNear(found.k, wanted.k, "d k");
            ExpectNear(found.v, wanted.v, "d v");
          }
        }
      }
    }
  }
}

// On a GPU alone: by plain operations, and by FlashAttention.
class ContextOnGpu : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, ContextOnGpu, ::testing::Values("gpu"),
                         [](const auto& info) { return info.param; });

TEST_P(ContextOnGpu, IsThatOfWholeRowsOnTheHost) {
  const at::NoGradGuard no_grad;
  const at::Device device = *ChooseDevice(0);
  if (!device.is_cuda()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(5);
  const auto random = [](int64_t heads, int64_t length) {  // what bf16 can hold
    return at::randn({kBatch, heads, length, kDim}).to(at::kBFloat16).to(at::kFloat);
  };
  for (const int64_t length : {1, 2, 7, 64, 129, 300}) {
    const std::vector<std::vector<ops::DocumentSpan>> rows = {
        {}, {{0, 0, length / 3 + 1}, {0, length / 3 + 1, length}, {1, 0, (length + 1) / 2}}};
    for (std::vector<ops::DocumentSpan> documents : rows) {
      std::erase_if(documents, [](const auto& span) { return span.begin == span.end; });
      const BatchMeta whole = Whole(length, documents);
      const ops::Heads heads{random(kHeads, length), random(kKeyHeads, length),
                             random(kKeyHeads, length)};
      const at::Tensor d_out = AsRows(random(kHeads, length));
      // Probabilities are rounded to bf16 on the way.
      const double least = 0.1 * d_out.norm().item<double>();
      for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{40}}) {
        for (const ops::AttentionKind kind :
             {ops::AttentionKind::kPlain, ops::AttentionKind::kFlash}) {
          const Way way{device, kind};
          const Found wanted = ByOne(heads, d_out, whole, window, way);
          for (const ContextSharding sharding :
               {ContextSharding::kSequence, ContextSharding::kDocument}) {
            SCOPED_TRACE((way.flash() ? "FlashAttention, length " : "plain, length ") +
                         std::to_string(length) + ", window " + std::to_string(window));
            const Found found = ByRanks(heads, d_out, whole, 3, sharding, window, way);
            const auto expect = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
              EXPECT_LE((a - b).norm().item<double>() / std::max(least, b.norm().item<double>()),
                        way.flash() ? 2e-2 : 1e-5)
                  << what;
            };
            expect(found.out, wanted.out, "out");
            expect(found.q, wanted.q, "d q");
            expect(found.k, wanted.k, "d k");
            expect(found.v, wanted.v, "d v");
          }
        }
      }
    }
  }
}

TEST(ContextRows, ATokenKeepsItsTargetWeightAndPosition) {
  const std::vector<ops::DocumentSpan> documents = {{0, 0, 7}, {0, 7, 12}, {1, 0, 5}};
  BatchMeta whole = Whole(13, documents);
  whole.weights = at::arange(26).to(at::kFloat);
  for (const ContextSharding sharding : {ContextSharding::kSequence, ContextSharding::kDocument}) {
    int64_t tokens = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const BatchMeta part = TakeContextPart(whole, {rank, 2, sharding});
      EXPECT_EQ(part.batch, 2);
      EXPECT_EQ(part.length, 6);
      EXPECT_EQ(part.context->row_tokens, (std::vector<int64_t>{12, 5}));
      for (int64_t i = 0; i < part.tokens(); ++i) {
        if (part.context->counts[i] == 0) {
          EXPECT_EQ(part.weights[i].item<float>(), 0);
          continue;
        }
        ++tokens;
        const int64_t id = part.ids[i].item<int64_t>();
        EXPECT_EQ(part.targets[i].item<int64_t>(), id + 1);
        EXPECT_EQ(part.weights[i].item<float>(), static_cast<float>(id));
        EXPECT_EQ(part.positions[i].item<int64_t>(), whole.positions[id].item<int64_t>());
      }
    }
    EXPECT_EQ(tokens, 17);
  }
}

TEST(ContextRows, RowsWithoutDocumentsHaveThePositionsOfTheWholeSequence) {
  const BatchMeta whole = Whole(9, {});
  for (int rank = 0; rank < 2; ++rank) {
    const BatchMeta part = TakeContextPart(whole, {rank, 2, ContextSharding::kAuto});
    for (int64_t i = 0; i < part.tokens(); ++i) {
      if (part.context->counts[i] != 0)
        EXPECT_EQ(part.positions[i].item<int64_t>(), part.ids[i].item<int64_t>() % 9);
    }
  }
}

TEST(ContextRows, OneRankTakesAllAsItIs) {
  const BatchMeta whole = Whole(9, {});
  const BatchMeta part = TakeContextPart(whole, {});
  EXPECT_EQ(part.context, nullptr);
  EXPECT_TRUE(part.ids.is_same(whole.ids));
}

}  // namespace
}  // namespace muster::trainer
