// The model's operations, each with an explicit forward and backward, on any device that ATen knows. This is the plain
// reference; autograd is what the tests compare it with. Shapes: T = tokens (batch * sequence), d = hidden size.
// All functions are stateless; gradients of weights are added into the fp32 tensors given (`d_…`, accumulated in place);
// an undefined one is of a frozen weight, and its gradient isn't computed.
// To be called without autograd (at::NoGradGuard or InferenceMode).
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/config.h"

namespace muster::trainer::ops {

// y = x · wᵀ.  x [T, in], w [out, in] → [T, out]
at::Tensor Linear(const at::Tensor& x, const at::Tensor& w);
// Adds dyᵀ·x to d_w [out, in] (fp32) and returns dx [T, in].
at::Tensor LinearBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, const at::Tensor& d_w);

// y = x / rms(x) · w, statistics in fp32.  x [T, d], w [d] → y [T, d], rstd [T, 1] (fp32)
struct RmsNormResult {
  at::Tensor y, rstd;
};
RmsNormResult RmsNorm(const at::Tensor& x, const at::Tensor& w, double eps);
at::Tensor RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, const at::Tensor& rstd, const at::Tensor& d_w);

// Rotary embedding tables for positions 0..length-1: cos and sin [length, head_dim / 2], fp32.
struct RopeTables {
  at::Tensor cos, sin;
};
RopeTables MakeRopeTables(const ModelConfig& config, int64_t length, at::Device device);

// Splits qkv [B*S, (H + 2·Hkv)·D] into heads and rotates q and k (halves convention, as transformers has it).
// q [B, H, S, D], k and v [B, Hkv, S, D], contiguous.
struct Heads {
  at::Tensor q, k, v;
};
// positions [B*S]: each token's; undefined: 0..S-1 in every row.
Heads SplitAndRotate(const at::Tensor& qkv, int64_t batch, const ModelConfig& config, const RopeTables& rope, const at::Tensor& positions = {});
at::Tensor SplitAndRotateBackward(const Heads& d_heads, const ModelConfig& config, const RopeTables& rope, const at::Tensor& positions = {});

// Causal attention by plain batched products; grouped queries read their key head without copies.
// Returns out [B*S, H·D] and the probabilities [B·Hkv, G·S, S] that the backward needs.
struct AttentionResult {
  at::Tensor out, probabilities;
};
// The additive mask [G·S, S] (0 or -inf) that Attention wants, in the type of q.
at::Tensor MakeCausalMask(const ModelConfig& config, int64_t length, const at::TensorOptions& options);
AttentionResult Attention(const Heads& heads, const at::Tensor& mask);
Heads AttentionBackward(const at::Tensor& d_out, const Heads& heads, const at::Tensor& probabilities);

// Tokens [begin, end) of a row.
struct DocumentSpan {
  int64_t row = 0, begin = 0, end = 0;
};
// Causal attention inside each document alone, one document after another: a document's result doesn't depend on what it is
// packed with. Tokens of no document get zero. `mask` may be for longer sequences. probabilities: all documents' [Hkv, G·n, n],
// one behind the other, flat.
AttentionResult DocumentAttention(const Heads& heads, const at::Tensor& mask, const std::vector<DocumentSpan>& documents);
Heads DocumentAttentionBackward(const at::Tensor& d_out, const Heads& heads, const at::Tensor& probabilities, const std::vector<DocumentSpan>& documents);

// silu(gate) · up of gate_up [T, 2·F] → [T, F]
at::Tensor SwiGlu(const at::Tensor& gate_up);
// → d_gate_up [T, 2·F]
at::Tensor SwiGluBackward(const at::Tensor& d_y, const at::Tensor& gate_up);

// Rows of w [V, d] for ids [T] → [T, d]; the backward adds rows of dy to d_w.
at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& w);
void EmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& d_w);

// Cross-entropy of x·wᵀ against targets, with the backward in the same pass, a chunk of tokens at a time, so that the
// logits of all tokens never exist at once (the idea of Liger's fused linear cross-entropy).
// weights [T] fp32: what each token's loss counts, already divided by the global number of target tokens.
// Returns the weighted loss (summed in double, [] on x's device) and dx [T, d]; adds to d_w [V, d]. loss_only: neither.
struct LossResult {
  at::Tensor loss, dx;
};
LossResult LinearCrossEntropy(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets, const at::Tensor& weights,
                              const at::Tensor& d_w, bool loss_only = false);

}  // namespace muster::trainer::ops
