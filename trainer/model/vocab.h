// Embedding and loss where each rank of a tensor group has a slice of the vocabulary.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "trainer/ops/ops.h"
#include "trainer/parallel/tensor_group.h"

namespace muster::trainer {

// The tokens that a rank's rows of a table [end - begin, d] are for, of `size` in all.
struct VocabSlice {
  int64_t begin = 0, end = 0, size = 0;
};

// Rows of the whole table for ids [T] → this rank's part of the tokens; and the gradients of its
// own rows, from that part's, added to d_w.
at::Tensor VocabEmbedding(const at::Tensor& ids, const at::Tensor& w, const VocabSlice& slice,
                          const TensorGroup& ranks);
void VocabEmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids,
                            const ops::GradientSum& d_w, const VocabSlice& slice,
                            const TensorGroup& ranks);

// ops::LinearCrossEntropy of x [T, d], whose logits are shared out; branch's b is sliced as w is.
// The loss is counted on the group's first rank alone, token_losses on all; dx and d_inner are this
// rank's summands.
ops::LossResult VocabCrossEntropy(const at::Tensor& x, const at::Tensor& w,
                                  const at::Tensor& targets, const at::Tensor& weights,
                                  const ops::GradientSum& d_w, const VocabSlice& slice,
                                  const TensorGroup& ranks, bool loss_only, double z_loss,
                                  const ops::LossBranch* branch = nullptr,
                                  const at::Tensor& token_losses = {}, double softcap = 0);

}  // namespace muster::trainer
