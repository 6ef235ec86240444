// What ranks with slices of one model tell each other, against the same computed by one.
#include "trainer/parallel/tensor_group.h"

#include <mutex>

#include <gtest/gtest.h>

#include "trainer/model/vocab.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {
namespace {

void OnSlices(int size, const std::function<void(const TensorGroup&)>& body) {
  OnRanks(size, [&](World& world) { body(TensorGroup(world.tensor())); }, 0, size);
}

at::Tensor Drawn(at::IntArrayRef shape, uint64_t seed) {
  static std::mutex mutex;  // the generator behind manual_seed is the process's
  const std::lock_guard<std::mutex> lock(mutex);
  at::manual_seed(seed);
  return at::randn(shape);
}

TEST(TensorGroup, PartsAreGatheredAndSummedWhateverTheNumberOfTokens) {
  for (const int size : {1, 2, 3}) {
    for (const int64_t tokens : {1, 2, 5, 6}) {
      OnSlices(size, [&](const TensorGroup& ranks) {
        const at::Tensor all = Drawn({tokens, 4}, 7), mine = all * (ranks.rank() + 1);
        const at::Tensor part = ranks.SumScatterTokens(mine);
        ASSERT_EQ(part.size(0), ranks.PartSize(tokens));
        const at::Tensor sum = ranks.GatherTokens(part, tokens);
        EXPECT_TRUE(at::allclose(sum, all * (size * (size + 1) / 2.0)));
        // What fills up the last parts is zero: it may be normed, and has no gradient.
        const int64_t filled = ranks.PartSize(tokens) * size;
        if (size > 1 && filled > tokens) {
          const at::Tensor rest =
              ranks.Stack(part).flatten(0, 1).narrow(0, tokens, filled - tokens);
          EXPECT_TRUE(rest.eq(0).all().item<bool>());
        }
      });
    }
  }
}

TEST(TensorGroup, SumsInFp32InTheOrderOfRanksAndRoundsOnce) {
  // 256 + 1 is 256 in bf16, and 258 is a number of bf16.
  OnSlices(3, [&](const TensorGroup& ranks) {
    const at::Tensor mine =
        at::full({3, 2}, ranks.rank() == 0 ? 256.0 : 1.0, at::TensorOptions().dtype(at::kBFloat16));
    EXPECT_TRUE(ranks.SumScatterTokens(mine).eq(258).all().item<bool>());
  });
}

constexpr int64_t kVocabulary = 37, kWidth = 8, kTokens = 11;

VocabSlice SliceFor(const TensorGroup& ranks) {
  const auto [begin, end] = PartOf(kVocabulary, ranks.rank(), ranks.size());
  return {begin, end, kVocabulary};
}
at::Tensor Ids() { return at::arange(kTokens).mul(10).remainder(kVocabulary); }

TEST(Vocab, AnEmbeddingInSlicesIsTheWholeTablesBitForBit) {
  const at::Tensor table = Drawn({kVocabulary, kWidth}, 1), d_y = Drawn({kTokens, kWidth}, 2);
  const at::Tensor wanted = ops::Embedding(Ids(), table);
  at::Tensor wanted_d = at::zeros({kVocabulary, kWidth});
  ops::EmbeddingBackward(d_y, Ids(), wanted_d);
  for (const int size : {2, 3}) {
    OnSlices(size, [&](const TensorGroup& ranks) {
      const VocabSlice slice = SliceFor(ranks);
      const at::Tensor own = table.narrow(0, slice.begin, slice.end - slice.begin);
      const at::Tensor part = VocabEmbedding(Ids(), own, slice, ranks);
      EXPECT_TRUE(at::equal(ranks.GatherTokens(part, kTokens), wanted));
      const int64_t n = ranks.PartSize(kTokens);
      const at::Tensor filled = at::cat({d_y, at::zeros({n * size - kTokens, kWidth})});
      const at::Tensor d_own = at::zeros_like(own);
      VocabEmbeddingBackward(filled.narrow(0, ranks.rank() * n, n), Ids(), d_own, slice, ranks);
      EXPECT_TRUE(at::equal(d_own, wanted_d.narrow(0, slice.begin, slice.end - slice.begin)));
    });
  }
}

TEST(Vocab, ALossOfSlicedLogitsIsThatOfWholeOnes) {
  const at::Tensor x = Drawn({kTokens, kWidth}, 3), w = Drawn({kVocabulary, kWidth}, 4) * 3;
  const at::Tensor weights = at::arange(kTokens).to(at::kFloat).div(100);  // one doesn't count
  for (const auto& [z_loss, softcap] : {std::pair(0.0, 0.0), {1e-2, 0.0}, {1e-2, 4.0}}) {
    at::Tensor wanted_d = at::zeros_like(w);
    const ops::LossResult wanted = ops::LinearCrossEntropy(x, w, Ids(), weights, wanted_d, false,
                                                           z_loss, nullptr, {}, softcap);
    for (const int size : {2, 3}) {
      for (const bool loss_only : {false, true}) {
        OnSlices(size, [&, z = z_loss, cap = softcap](const TensorGroup& ranks) {
          const VocabSlice slice = SliceFor(ranks);
          const at::Tensor own = w.narrow(0, slice.begin, slice.end - slice.begin);
          const at::Tensor d_own = at::zeros_like(own);
          const ops::LossResult found = VocabCrossEntropy(x, own, Ids(), weights, d_own, slice,
                                                          ranks, loss_only, z, nullptr, {}, cap);
          // Counted on one rank, not on each.
          EXPECT_TRUE(at::allclose(ranks.Stack(found.loss).sum(0), wanted.loss, 1e-6));
          if (loss_only) {
            EXPECT_FALSE(found.dx.defined());
            return;
          }
          EXPECT_TRUE(at::allclose(ranks.Stack(found.dx).sum(0), wanted.dx, 1e-4, 1e-7));
          EXPECT_TRUE(at::allclose(d_own, wanted_d.narrow(0, slice.begin, slice.end - slice.begin),
                                   1e-4, 1e-7));
        });
      }
    }
  }
}

TEST(Vocab, LogitsThatOverflowAloneDontOverflowTheLoss) {
  OnSlices(2, [&](const TensorGroup& ranks) {
    const VocabSlice slice = SliceFor(ranks);
    const at::Tensor w = at::full({kVocabulary, kWidth}, 50.0);
    const at::Tensor own = w.narrow(0, slice.begin, slice.end - slice.begin);
    const ops::LossResult found =
        VocabCrossEntropy(at::ones({kTokens, kWidth}), own, Ids(), at::ones({kTokens}),
                          at::zeros_like(own), slice, ranks, false, 0);
    const double loss = ranks.Stack(found.loss)[0][0].item<double>();
    EXPECT_NEAR(loss, kTokens * std::log(static_cast<double>(kVocabulary)), 1e-4);
  });
}

}  // namespace
}  // namespace muster::trainer
