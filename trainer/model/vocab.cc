#include "trainer/model/vocab.h"

#include <algorithm>

namespace muster::trainer {
namespace {

// Which of `ids` are outside the slice, and where the others stand in it; 0 for those outside.
struct Places {
  at::Tensor outside, in_slice;
};
Places PlacesOf(const at::Tensor& ids, const VocabSlice& slice) {
  const at::Tensor outside = ids.lt(slice.begin).logical_or_(ids.ge(slice.end));
  return {outside, ids.sub(slice.begin).masked_fill_(outside, 0)};
}

// log Σ exp of whole rows of logits and the target's, [n, 1] fp32 each, of which every rank has a
// stretch of the columns. The ranks' sums are added in double in their order: all get the same.
struct RowSums {
  at::Tensor log_sum, target;
};
RowSums SumRows(const at::Tensor& logits, const at::Tensor& target, const TensorGroup& ranks) {
  const at::Tensor most = logits.amax({1}, /*keepdim=*/true);
  // In fp32: ATen's sum to another type makes a copy of all that is summed.
  const at::Tensor sum = logits.sub(most).exp_().sum({1}, /*keepdim=*/true);
  const at::Tensor all =
      ranks.Stack(at::cat({most, sum, target}, 1).to(at::kDouble));  // [size, n, 3]
  const at::Tensor highest = all.select(2, 0).amax({0});             // [n]
  at::Tensor total = at::zeros_like(highest), found = at::zeros_like(highest);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const at::Tensor its = all[rank];
    total.add_(its.select(1, 1) * (its.select(1, 0) - highest).exp_());
    found.add_(its.select(1, 2));  // zero but on one
  }
  return {(highest + total.log_()).unsqueeze(1), found.unsqueeze(1)};
}

}  // namespace

at::Tensor VocabEmbedding(const at::Tensor& ids, const at::Tensor& w, const VocabSlice& slice,
                          const TensorGroup& ranks) {
  const Places places = PlacesOf(ids, slice);
  const at::Tensor rows =
      ops::Embedding(places.in_slice, w).masked_fill_(places.outside.unsqueeze(1), 0);
  return ranks.SumScatterTokens(rows);  // one summand isn't zero: exact
}

void VocabEmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids,
                            const ops::GradientSum& d_w, const VocabSlice& slice,
                            const TensorGroup& ranks) {
  if (!d_w.defined()) return;
  const Places places = PlacesOf(ids, slice);
  ops::EmbeddingBackward(
      ranks.GatherTokens(dy, ids.size(0)).masked_fill(places.outside.unsqueeze(1), 0),
      places.in_slice, d_w);
}

ops::LossResult VocabCrossEntropy(const at::Tensor& x, const at::Tensor& w,
                                  const at::Tensor& targets, const at::Tensor& weights,
                                  const ops::GradientSum& d_w, const VocabSlice& slice,
                                  const TensorGroup& ranks, bool loss_only, double z_loss,
                                  const ops::LossBranch* branch, const at::Tensor& token_losses,
                                  double softcap) {
  const int64_t tokens = x.size(0);
  // The same on every rank, whatever its slice.
  const int64_t widest = (slice.size + ranks.size() - 1) / ranks.size();
  const int64_t chunk = ops::LogitsChunk(tokens, widest, x.is_cuda());
  ops::LossResult result{at::zeros({2}, x.options().dtype(at::kDouble)),
                         loss_only ? at::Tensor() : at::empty_like(x)};
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t length = std::min(chunk, tokens - begin);
    const at::Tensor x_part = x.narrow(0, begin, length);
    const at::Tensor weight = weights.narrow(0, begin, length).unsqueeze(1);  // [n, 1]
    Places places = PlacesOf(targets.narrow(0, begin, length).unsqueeze(1), slice);
    at::Tensor logits = at::mm(x_part, w.t());  // [n, V / size]
    const at::Tensor inner =
        branch != nullptr ? branch->inner.narrow(0, begin, length) : at::Tensor();
    if (inner.defined()) logits.addmm_(inner, branch->b.t());
    at::Tensor slope;  // of the capped logits
    if (softcap > 0) {
      ops::CapInPlace(logits, softcap);
      if (!loss_only) slope = ops::CapDerivative(logits, softcap);
    }
    if (logits.scalar_type() != at::kFloat) logits = logits.to(at::kFloat);
    const RowSums rows =
        SumRows(logits, logits.gather(1, places.in_slice).masked_fill_(places.outside, 0), ranks);
    if (token_losses.defined())
      token_losses.narrow(0, begin, length)
          .copy_(((rows.log_sum - rows.target) * weight).squeeze(1));
    if (ranks.rank() == 0) {
      result.loss[0].add_(((rows.log_sum - rows.target) * weight).sum());
      if (z_loss > 0) result.loss[1].add_((rows.log_sum.square() * weight).sum(), z_loss);
    }
    if (loss_only) continue;
    const at::Tensor log_sum = rows.log_sum.to(at::kFloat);
    // softmax * scale - onehot * weight, in the place of the logits
    logits.sub_(log_sum).exp_();
    logits.mul_(z_loss > 0 ? weight * (log_sum * (2 * z_loss) + 1) : weight);
    logits.scatter_add_(1, places.in_slice, weight.neg().masked_fill_(places.outside, 0));
    at::Tensor d_logits = logits.to(x.scalar_type());
    if (slope.defined()) d_logits.mul_(slope);
    result.dx.narrow(0, begin, length).copy_(ops::LinearBackward(d_logits, x_part, w, d_w));
    if (inner.defined())
      branch->d_inner.narrow(0, begin, length)
          .copy_(ops::LinearBackward(d_logits, inner, branch->b, branch->d_b));
  }
  return result;
}

}  // namespace muster::trainer
