// Attention of some queries of a micro-batch over keys that are gathered from all ranks which share
// out its rows (context parallelism; trainer/parallel/context_plan.h says who has which queries).
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/ops/ops.h"

namespace muster::trainer::ops {

// One call of attention: sequences of queries behind each other, each with keys of its own. The
// masks are causal and aligned at the end of both. No key stands twice in a call.
struct ContextCall {
  struct Sequence {
    int64_t queries = 0, keys = 0;
  };
  std::vector<Sequence> sequences;
  at::Tensor queries, keys;  // [Q], [K] int64: rows of this rank's tokens, and of the gathered ones
  // Where sequences begin and end, [n + 1] int32, and the longest ones'; for FlashAttention alone.
  at::Tensor query_bounds, key_bounds;
  int64_t longest_queries = 0, longest_keys = 0;
};

// A token's keys and then its values, of heads [B, Hkv, S, D] → [B·S, 2·Hkv, D]: what is gathered.
at::Tensor KeysAndValues(const Heads& heads);

// q [B, H, S, D] of this rank's tokens and all ranks' KeysAndValues, [R, 2·Hkv, D] → out [B·S,
// H·D], zero for tokens of no call, and what the backward needs: with FlashAttention the rows'
// log-sums, else the probabilities (log_sum). `mask`, for the plain way, may be for longer
// sequences than any.
FlashResult ContextAttention(const at::Tensor& q, const at::Tensor& keys_values,
                             const std::vector<ContextCall>& calls, AttentionKind kind,
                             const at::Tensor& mask, int64_t window, const ScoreRule& rule = {});

// → d_q [B, H, S, D] and the gradients of all gathered keys and values, [R, 2·Hkv, D] fp32, added
// up call by call.
struct ContextGradients {
  at::Tensor q, keys_values;
};
ContextGradients ContextAttentionBackward(const at::Tensor& d_out, const at::Tensor& q,
                                          const at::Tensor& keys_values, const FlashResult& result,
                                          const std::vector<ContextCall>& calls, AttentionKind kind,
                                          int64_t window, const ScoreRule& rule = {});

}  // namespace muster::trainer::ops
