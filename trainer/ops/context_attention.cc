#include "trainer/ops/context_attention.h"

#include <optional>

namespace muster::trainer::ops {
namespace {

// What a call works on: q [Q, H, D], k and v [K, Hkv, D].
struct Gathered {
  at::Tensor q, k, v;
};

// [B, H, S, D] → [B·S, H, D]; of one row a view, whose strides are others.
at::Tensor AsRows(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape({-1, heads.size(1), heads.size(3)});
}

Gathered GatherFor(const ContextCall& call, const at::Tensor& q_rows,
                   const at::Tensor& keys_values) {
  const at::Tensor both = keys_values.index_select(0, call.keys);
  const int64_t hkv = both.size(1) / 2;
  return {q_rows.index_select(0, call.queries), both.narrow(1, 0, hkv), both.narrow(1, hkv, hkv)};
}

// One sequence's heads out of a call's: q [Hkv, G·n, D], k and v [Hkv, m, D].
struct OneSequence {
  at::Tensor q, k, v;
};
OneSequence Cut(const Gathered& all, const ContextCall::Sequence& one, int64_t query, int64_t key) {
  const int64_t h = all.q.size(1), hkv = all.k.size(1), d = all.q.size(2);
  const auto cut = [](const at::Tensor& x, int64_t begin, int64_t count) {
    return x.narrow(0, begin, count).transpose(0, 1);
  };
  return {cut(all.q, query, one.queries).reshape({hkv, h / hkv * one.queries, d}),
          cut(all.k, key, one.keys), cut(all.v, key, one.keys)};
}

// Calls `body` for each sequence with where its queries, keys and probabilities begin; returns
// where the next probabilities do.
template <class Body>
int64_t ForEachSequence(const ContextCall& call, int64_t heads, int64_t probabilities,
                        const Body& body) {
  int64_t query = 0, key = 0;
  for (const ContextCall::Sequence& one : call.sequences) {
    body(one, query, key, probabilities);
    query += one.queries, key += one.keys, probabilities += heads * one.queries * one.keys;
  }
  return probabilities;
}

// The plain way, into `out` [Q, H, D] and `probabilities`, from `at` on.
int64_t PlainForward(const Gathered& all, const ContextCall& call, const at::Tensor& mask,
                     const at::Tensor& out, const at::Tensor& probabilities, int64_t at,
                     const ScoreRule& rule) {
  const int64_t h = all.q.size(1), hkv = all.k.size(1), d = all.q.size(2);
  return ForEachSequence(call, h, at, [&](const auto& one, int64_t query, int64_t key, int64_t p) {
    const int64_t n = one.queries, m = one.keys;
    const OneSequence own = Cut(all, one, query, key);
    at::Tensor scores = Scores(own.q, own.k, rule);  // [Hkv, G·n, m]
    // The last query is the last key.
    scores.view({h, n, m}).add_(mask.narrow(0, m - n, n).narrow(1, 0, m));
    at::Tensor found = probabilities.narrow(0, p, h * n * m).view({hkv, h / hkv * n, m});
    at::_softmax_out(found, scores, 2, /*half_to_float=*/false);
    out.narrow(0, query, n).copy_(at::bmm(found, own.v).view({h, n, d}).transpose(0, 1));
  });
}

// Into d_q [Q, H, D] and d_keys_values [K, 2·Hkv, D].
int64_t PlainBackward(const at::Tensor& d_out, const Gathered& all, const ContextCall& call,
                      const at::Tensor& probabilities, int64_t at, const at::Tensor& d_q,
                      const at::Tensor& d_keys_values, const ScoreRule& rule) {
  const int64_t h = all.q.size(1), hkv = all.k.size(1), d = all.q.size(2);
  return ForEachSequence(call, h, at, [&](const auto& one, int64_t query, int64_t key, int64_t p) {
    const int64_t n = one.queries, m = one.keys;
    const OneSequence own = Cut(all, one, query, key);
    const at::Tensor found = probabilities.narrow(0, p, h * n * m).view({hkv, h / hkv * n, m});
    const at::Tensor d_o = d_out.narrow(0, query, n).transpose(0, 1).reshape({hkv, h / hkv * n, d});
    const at::Tensor d_p = at::bmm(d_o, own.v.transpose(1, 2));  // [Hkv, G·n, m]
    const at::Tensor d_scores = at::_softmax_backward_data(d_p, found, 2, d_p.scalar_type());
    ScoresBackward(d_scores, own.q, own.k, rule);
    const auto put = [&](int64_t head, const at::Tensor& part) {
      d_keys_values.narrow(0, key, m).narrow(1, head, hkv).copy_(part.transpose(0, 1));
    };
    d_q.narrow(0, query, n).copy_(at::bmm(d_scores, own.k).view({h, n, d}).transpose(0, 1));
    put(0, at::bmm(d_scores.transpose(1, 2), own.q));
    put(hkv, at::bmm(found.transpose(1, 2), d_o));
  });
}

std::optional<int64_t> Before(int64_t window) {
  return window > 0 ? std::optional<int64_t>(window - 1) : std::nullopt;
}
std::optional<int64_t> After(int64_t window) {
  return window > 0 ? std::optional<int64_t>(0) : std::nullopt;
}

// FlashAttention aligns a causal mask at the end by itself.
FlashResult FlashForward(const Gathered& all, const ContextCall& call, int64_t window,
                         double scale) {
  auto [out, log_sum, random_state, unused, debug] = at::_flash_attention_forward(
      all.q, all.k, all.v, call.query_bounds, call.key_bounds, call.longest_queries,
      call.longest_keys, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale,
      Before(window), After(window));
  return {out, log_sum, random_state};
}

// As PlainBackward.
void FlashBackward(const at::Tensor& d_out, const Gathered& all, const ContextCall& call,
                   const FlashResult& result, int64_t window, double scale, const at::Tensor& d_q,
                   const at::Tensor& d_keys_values) {
  const int64_t hkv = all.k.size(1);
  const at::Tensor unused = at::empty({0}, all.q.options().dtype(at::kLong));
  auto [of_q, of_k, of_v] = at::_flash_attention_backward(
      d_out, all.q, all.k, all.v, result.out, result.log_sum, call.query_bounds, call.key_bounds,
      call.longest_queries, call.longest_keys, /*dropout_p=*/0.0, /*is_causal=*/true,
      result.random_state, unused, scale, Before(window), After(window));
  d_q.copy_(of_q);
  d_keys_values.narrow(1, 0, hkv).copy_(of_k);
  d_keys_values.narrow(1, hkv, hkv).copy_(of_v);
}

int64_t ProbabilityCount(const std::vector<ContextCall>& calls, int64_t heads) {
  int64_t count = 0;
  for (const ContextCall& call : calls) {
    for (const ContextCall::Sequence& one : call.sequences) count += heads * one.queries * one.keys;
  }
  return count;
}

}  // namespace

at::Tensor KeysAndValues(const Heads& heads) {
  return at::cat({AsRows(heads.k), AsRows(heads.v)}, 1);
}

FlashResult ContextAttention(const at::Tensor& q, const at::Tensor& keys_values,
                             const std::vector<ContextCall>& calls, AttentionKind kind,
                             const at::Tensor& mask, int64_t window, const ScoreRule& rule) {
  const at::Tensor rows = AsRows(q);
  FlashResult result{at::zeros(rows.sizes(), rows.options()), {}, {}};
  std::vector<at::Tensor> log_sums;  // [H, Q] of each call
  const bool flash = kind == AttentionKind::kFlash;
  if (!flash) result.log_sum = at::empty({ProbabilityCount(calls, q.size(1))}, q.options());
  int64_t at = 0;
  for (const ContextCall& call : calls) {
    const Gathered all = GatherFor(call, rows, keys_values);
    if (flash) {
      FlashResult one = FlashForward(all, call, window, rule.ScaleOf(q.size(3)));
      result.out.index_copy_(0, call.queries, one.out);
      log_sums.push_back(one.log_sum);
      result.random_state = one.random_state;  // of no dropout: any will do
    } else {
      const at::Tensor out = at::empty_like(all.q);
      at = PlainForward(all, call, mask, out, result.log_sum, at, rule);
      result.out.index_copy_(0, call.queries, out);
    }
  }
  if (!log_sums.empty()) result.log_sum = at::cat(log_sums, 1);
  result.out = result.out.view({rows.size(0), -1});
  return result;
}

ContextGradients ContextAttentionBackward(const at::Tensor& d_out, const at::Tensor& q,
                                          const at::Tensor& keys_values, const FlashResult& result,
                                          const std::vector<ContextCall>& calls, AttentionKind kind,
                                          int64_t window, const ScoreRule& rule) {
  const at::Tensor rows = AsRows(q), d_rows = at::zeros(rows.sizes(), rows.options());
  ContextGradients found{{},
                         at::zeros(keys_values.sizes(), keys_values.options().dtype(at::kFloat))};
  const auto pick = [&](const at::Tensor& all, const ContextCall& call) {
    return all.view(rows.sizes()).index_select(0, call.queries);
  };
  int64_t at = 0;
  for (const ContextCall& call : calls) {
    const Gathered all = GatherFor(call, rows, keys_values);
    const at::Tensor d_q = at::empty_like(all.q),
                     d_both = at::empty({call.keys.size(0), keys_values.size(1), q.size(3)},
                                        keys_values.options());
    if (kind == AttentionKind::kFlash) {
      const int64_t count = call.queries.size(0);
      const FlashResult one{pick(result.out, call),
                            result.log_sum.narrow(1, at, count).contiguous(), result.random_state};
      FlashBackward(pick(d_out, call), all, call, one, window, rule.ScaleOf(q.size(3)), d_q,
                    d_both);
      at += count;
    } else {
      at = PlainBackward(pick(d_out, call), all, call, result.log_sum, at, d_q, d_both, rule);
    }
    d_rows.index_copy_(0, call.queries, d_q);
    // No key twice: there is nothing whose order could differ.
    found.keys_values.index_add_(0, call.keys, d_both.to(at::kFloat));
  }
  found.q = d_rows.view({q.size(0), q.size(2), q.size(1), q.size(3)}).transpose(1, 2).contiguous();
  return found;
}

}  // namespace muster::trainer::ops
