#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/ops/fused.h"
#include "trainer/ops/ops.h"

namespace muster::trainer::ops {
namespace {

// Writes x to out, its first elements rotated by the tables' angles (their negative when `sign` is
// -1). x, out: [..., S, D] views.
void Rotate(const at::Tensor& x, const at::Tensor& out, const at::Tensor& cos,
            const at::Tensor& sin, int sign) {
  const int64_t half = cos.size(-1), rest = x.size(-1) - 2 * half;
  const at::Tensor x1 = x.narrow(-1, 0, half), x2 = x.narrow(-1, half, half);
  at::Tensor y1 = out.narrow(-1, 0, half), y2 = out.narrow(-1, half, half);
  at::mul_out(y1, x1, cos);
  y1.addcmul_(x2, sin, -sign);
  at::mul_out(y2, x2, cos);
  y2.addcmul_(x1, sin, sign);
  if (rest > 0) out.narrow(-1, 2 * half, rest).copy_(x.narrow(-1, 2 * half, rest));
}

// YaRN's ramp: 0 for the pairs below `low`, which keep their frequencies, to 1 from `high` on,
// which are interpolated.
at::Tensor YarnRamp(const ModelConfig& config) {
  const int64_t d = config.RotaryDim();
  const auto pair_of = [&](double rotations) {
    return static_cast<double>(d) *
           std::log(static_cast<double>(config.rope.original_max_position_embeddings) /
                    (rotations * 2 * M_PI)) /
           (2 * std::log(config.rope_theta));
  };
  double low = pair_of(config.rope.beta_fast), high = pair_of(config.rope.beta_slow);
  if (config.rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(d - 1));
  if (low == high) high += 0.001;
  return ((at::arange(d / 2, at::TensorOptions().dtype(at::kFloat)) - low) / (high - low))
      .clamp_(0, 1);
}

// The transformers formulas (modeling_rope_utils.py) in fp32, in the same order of operations.
at::Tensor InverseFrequencies(const ModelConfig& config, int64_t length, bool local) {
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat);
  const int64_t rotated = config.RotaryDim();
  const at::Tensor exponent = at::arange(0, rotated, 2, fp32) / static_cast<double>(rotated);
  const at::Tensor periods =
      at::pow(local ? config.local_rope_theta : config.rope_theta, exponent);  // [R / 2]
  at::Tensor inverse = 1.0 / periods;
  if (local) return inverse;
  if (config.rope.type == "longrope") {
    const bool longer = length > config.rope.original_max_position_embeddings;
    const std::vector<double>& factors =
        longer ? config.rope.long_factor : config.rope.short_factor;
    return 1.0 / (at::tensor(factors, fp32) * periods);
  }
  if (config.rope.type == "linear") return inverse / config.rope.factor;
  if (config.rope.type == "yarn") {
    const at::Tensor kept = 1 - YarnRamp(config);
    return 1.0 / (config.rope.factor * periods) * (1 - kept) + inverse * kept;
  }
  if (config.rope.type != "llama3") return inverse;
  const double original = static_cast<double>(config.rope.original_max_position_embeddings);
  const double low = config.rope.low_freq_factor, high = config.rope.high_freq_factor;
  const at::Tensor wavelength = 2 * M_PI / inverse;
  at::Tensor scaled = at::where(wavelength > original / low, inverse / config.rope.factor, inverse);
  const at::Tensor smooth = (original / wavelength - low) / (high - low);
  const at::Tensor smoothed = (1 - smooth) * scaled / config.rope.factor + smooth * scaled;
  const at::Tensor medium =
      (wavelength >= original / high).logical_and(wavelength <= original / low);
  return at::where(medium, smoothed, scaled);
}

}  // namespace

RopeTables MakeRopeTables(const ModelConfig& config, int64_t length, at::Device device,
                          bool local) {
  const at::Tensor positions = at::arange(length, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles =
      at::outer(positions, InverseFrequencies(config, length, local));  // [S, R / 2]
  const double factor = local ? 1 : config.rope.AttentionFactor();
  return {angles.cos().mul_(factor).to(device), angles.sin().mul_(factor).to(device)};
}

namespace {

// cos and sin of every token's position, to be broadcast over heads: [S, R / 2] or [B, 1, S, R /
// 2].
RopeTables AtPositions(const RopeTables& rope, const at::Tensor& positions, int64_t batch,
                       int64_t length, at::ScalarType dtype) {
  if (!positions.defined())
    return {rope.cos.narrow(0, 0, length).to(dtype), rope.sin.narrow(0, 0, length).to(dtype)};
  const auto pick = [&](const at::Tensor& table) {
    return at::index_select(table, 0, positions).view({batch, 1, length, -1}).to(dtype);
  };
  return {pick(rope.cos), pick(rope.sin)};
}

}  // namespace

Heads SplitAndRotate(const at::Tensor& qkv, int64_t batch, const ModelConfig& config,
                     const RopeTables& rope, const at::Tensor& positions) {
  const bool by_token = ChooseAttention(qkv.options(), config) == AttentionKind::kFlash;
  if (const auto done = fused::SplitAndRotate(qkv, batch, config, rope, positions, by_token))
    return *done;
  const int64_t h = config.num_heads, hkv = config.num_kv_heads, d = config.head_dim;
  const int64_t length = qkv.size(0) / batch;
  const at::Tensor all =
      qkv.view({batch, length, h + 2 * hkv, d}).transpose(1, 2);  // [B, H + 2·Hkv, S, D]
  const auto [cos, sin] = AtPositions(rope, positions, batch, length, qkv.scalar_type());
  Heads heads{at::empty({batch, h, length, d}, qkv.options()),
              at::empty({batch, hkv, length, d}, qkv.options()),
              {}};
  Rotate(all.narrow(1, 0, h), heads.q, cos, sin, 1);
  Rotate(all.narrow(1, h, hkv), heads.k, cos, sin, 1);
  heads.v = all.narrow(1, h + hkv, hkv).contiguous();
  return heads;
}

at::Tensor SplitAndRotateBackward(const Heads& d_heads, const ModelConfig& config,
                                  const RopeTables& rope, const at::Tensor& positions) {
  if (const auto done = fused::SplitAndRotateBackward(d_heads, config, rope, positions))
    return *done;
  const int64_t h = config.num_heads, hkv = config.num_kv_heads, d = config.head_dim;
  const int64_t batch = d_heads.q.size(0), length = d_heads.q.size(2);
  at::Tensor d_qkv = at::empty({batch * length, (h + 2 * hkv) * d}, d_heads.q.options());
  const at::Tensor all = d_qkv.view({batch, length, h + 2 * hkv, d}).transpose(1, 2);
  const auto [cos, sin] = AtPositions(rope, positions, batch, length, d_qkv.scalar_type());
  Rotate(d_heads.q, all.narrow(1, 0, h), cos, sin,
         -1);  // the transpose of a rotation is the one back
  Rotate(d_heads.k, all.narrow(1, h, hkv), cos, sin, -1);
  all.narrow(1, h + hkv, hkv).copy_(d_heads.v);
  return d_qkv;
}

at::Tensor MakeCausalMask(const ModelConfig& config, int64_t length,
                          const at::TensorOptions& options, int64_t window) {
  const at::Tensor blocked =
      at::full({length, length}, -std::numeric_limits<double>::infinity(), options);
  at::Tensor square = blocked.triu(1);
  if (window > 0) square.add_(blocked.tril(-window));
  return square.repeat({config.num_heads / config.num_kv_heads, 1});  // [G·S, S]
}

double ScoreRule::ScaleOf(int64_t head_dim) const {
  return scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

at::Tensor Scores(const at::Tensor& q, const at::Tensor& k, const ScoreRule& rule) {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(rule.ScaleOf(q.size(2)));
  if (rule.softcap > 0) CapInPlace(scores, rule.softcap);
  return scores;
}

void ScoresBackward(const at::Tensor& d_scores, const at::Tensor& q, const at::Tensor& k,
                    const ScoreRule& rule) {
  if (rule.softcap > 0) d_scores.mul_(CapDerivative(Scores(q, k, rule), rule.softcap));
  d_scores.mul_(rule.ScaleOf(q.size(2)));
}

AttentionResult Attention(const Heads& heads, const at::Tensor& mask, const ScoreRule& rule) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3);
  const int64_t hkv = heads.k.size(1), g = h / hkv;
  const at::Tensor q = heads.q.view({b * hkv, g * s, d});
  const at::Tensor k = heads.k.view({b * hkv, s, d}), v = heads.v.view({b * hkv, s, d});
  const at::Tensor scores = rule.softcap > 0
                                ? Scores(q, k, rule).add_(mask.unsqueeze(0))
                                : at::baddbmm(mask.unsqueeze(0), q, k.transpose(1, 2), /*beta=*/1,
                                              /*alpha=*/rule.ScaleOf(d));  // [B·Hkv, G·S, S]
  at::Tensor probabilities = at::_softmax(scores, 2, /*half_to_float=*/false);
  const at::Tensor out = at::bmm(probabilities, v);  // [B·Hkv, G·S, D]
  return {out.view({b, h, s, d}).transpose(1, 2).reshape({b * s, h * d}), probabilities};
}

Heads AttentionBackward(const at::Tensor& d_out, const Heads& heads,
                        const at::Tensor& probabilities, const ScoreRule& rule) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3);
  const int64_t hkv = heads.k.size(1), g = h / hkv;
  const at::Tensor q = heads.q.view({b * hkv, g * s, d});
  const at::Tensor k = heads.k.view({b * hkv, s, d}), v = heads.v.view({b * hkv, s, d});
  const at::Tensor d_o = d_out.view({b, s, h, d}).transpose(1, 2).reshape({b * hkv, g * s, d});
  const at::Tensor d_v = at::bmm(probabilities.transpose(1, 2), d_o);  // [B·Hkv, S, D]
  const at::Tensor d_p = at::bmm(d_o, v.transpose(1, 2));              // [B·Hkv, G·S, S]
  const at::Tensor d_scores = at::_softmax_backward_data(d_p, probabilities, 2, d_p.scalar_type());
  ScoresBackward(d_scores, q, k, rule);
  const at::Tensor d_q = at::bmm(d_scores, k);
  const at::Tensor d_k = at::bmm(d_scores.transpose(1, 2), q);
  return {d_q.view({b, h, s, d}), d_k.view({b, hkv, s, d}), d_v.view({b, hkv, s, d})};
}

namespace {

// One document's heads: q [Hkv, G·n, D], k and v [Hkv, n, D].
Heads OfDocument(const Heads& heads, const DocumentSpan& span) {
  const int64_t h = heads.q.size(1), hkv = heads.k.size(1), d = heads.q.size(3),
                n = span.end - span.begin;
  const auto cut = [&](const at::Tensor& x) {
    return x.select(0, span.row).narrow(1, span.begin, n);
  };  // [heads, n, D]
  return {cut(heads.q).reshape({hkv, h / hkv * n, d}), cut(heads.k), cut(heads.v)};
}

int64_t ProbabilityCount(const Heads& heads, const DocumentSpan& span) {
  return heads.q.size(1) * (span.end - span.begin) * (span.end - span.begin);
}

}  // namespace

AttentionResult DocumentAttention(const Heads& heads, const at::Tensor& mask,
                                  const std::vector<DocumentSpan>& documents,
                                  const ScoreRule& rule) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3),
                hkv = heads.k.size(1);
  int64_t count = 0;
  for (const DocumentSpan& span : documents) count += ProbabilityCount(heads, span);
  AttentionResult result{at::zeros({b, s, h, d}, heads.q.options()),
                         at::empty({count}, heads.q.options())};
  int64_t at = 0;
  for (const DocumentSpan& span : documents) {
    const int64_t n = span.end - span.begin;
    const Heads own = OfDocument(heads, span);
    at::Tensor scores = Scores(own.q, own.k, rule);  // [Hkv, G·n, n]
    scores.view({h, n, n}).add_(mask.narrow(0, 0, n).narrow(1, 0, n));
    at::Tensor probabilities = result.probabilities.narrow(0, at, ProbabilityCount(heads, span))
                                   .view({hkv, h / hkv * n, n});
    at::_softmax_out(probabilities, scores, 2, /*half_to_float=*/false);
    const at::Tensor out = at::bmm(probabilities, own.v).view({h, n, d});
    result.out.select(0, span.row).narrow(0, span.begin, n).copy_(out.transpose(0, 1));
    at += ProbabilityCount(heads, span);
  }
  result.out = result.out.view({b * s, h * d});
  return result;
}

Heads DocumentAttentionBackward(const at::Tensor& d_out, const Heads& heads,
                                const at::Tensor& probabilities,
                                const std::vector<DocumentSpan>& documents, const ScoreRule& rule) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3),
                hkv = heads.k.size(1);
  Heads d_heads{at::zeros_like(heads.q), at::zeros_like(heads.k), at::zeros_like(heads.v)};
  int64_t at = 0;
  for (const DocumentSpan& span : documents) {
    const int64_t n = span.end - span.begin;
    const Heads own = OfDocument(heads, span);
    const at::Tensor p =
        probabilities.narrow(0, at, ProbabilityCount(heads, span)).view({hkv, h / hkv * n, n});
    const at::Tensor d_o = d_out.view({b, s, h, d})
                               .select(0, span.row)
                               .narrow(0, span.begin, n)
                               .transpose(0, 1)
                               .reshape({hkv, h / hkv * n, d});
    const at::Tensor d_p = at::bmm(d_o, own.v.transpose(1, 2));  // [Hkv, G·n, n]
    const at::Tensor d_scores = at::_softmax_backward_data(d_p, p, 2, d_p.scalar_type());
    ScoresBackward(d_scores, own.q, own.k, rule);
    const auto put = [&](const at::Tensor& all, const at::Tensor& part) {
      all.select(0, span.row).narrow(1, span.begin, n).copy_(part);
    };
    put(d_heads.q, at::bmm(d_scores, own.k).view({h, n, d}));
    put(d_heads.k, at::bmm(d_scores.transpose(1, 2), own.q));
    put(d_heads.v, at::bmm(p.transpose(1, 2), d_o));
    at += ProbabilityCount(heads, span);
  }
  return d_heads;
}

AttentionKind ChooseAttention(bool gpu, bool kernels, at::ScalarType dtype,
                              const ModelConfig& config) {
  const bool flash = gpu && kernels && dtype == at::kBFloat16 && config.head_dim <= 256 &&
                     config.head_dim % 8 == 0 && config.attention_softcap == 0;
  return flash ? AttentionKind::kFlash : AttentionKind::kPlain;
}

AttentionKind ChooseAttention(const at::TensorOptions& options, const ModelConfig& config) {
  return ChooseAttention(options.device().is_cuda(), fused::Allowed(),
                         options.dtype().toScalarType(), config);
}

std::vector<int32_t> SequenceBounds(const std::vector<DocumentSpan>& documents, int64_t batch,
                                    int64_t length) {
  std::vector<int64_t> cuts = {0, batch * length};
  for (int64_t row = 1; row < batch; ++row) cuts.push_back(row * length);
  for (const DocumentSpan& span : documents)
    cuts.push_back(span.row * length + span.begin), cuts.push_back(span.row * length + span.end);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return {cuts.begin(), cuts.end()};
}

namespace {

// As FlashAttention wants them: [B, S, H, D], or [B·S, H, D] for sequences of their own lengths.
at::Tensor ForFlash(const at::Tensor& heads, bool packed) {
  const at::Tensor rows = heads.transpose(1, 2);
  return packed ? rows.reshape({-1, heads.size(1), heads.size(3)}) : rows;
}

std::optional<int64_t> Before(int64_t window) {
  return window > 0 ? std::optional<int64_t>(window - 1) : std::nullopt;
}
std::optional<int64_t> After(int64_t window) {
  return window > 0 ? std::optional<int64_t>(0) : std::nullopt;
}

}  // namespace

FlashResult FlashAttention(const Heads& heads, const FlashSequences& sequences, int64_t window,
                           const ScoreRule& rule) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3);
  const bool packed = sequences.bounds.defined();
  const std::optional<at::Tensor> bounds =
      packed ? std::optional<at::Tensor>(sequences.bounds) : std::nullopt;
  const int64_t longest = packed ? sequences.longest : s;
  auto [out, log_sum, random_state, unused, debug] = at::_flash_attention_forward(
      ForFlash(heads.q, packed), ForFlash(heads.k, packed), ForFlash(heads.v, packed), bounds,
      bounds, longest, longest, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, rule.ScaleOf(d), Before(window),
      After(window));
  return {out.reshape({b * s, h * d}), log_sum, random_state};
}

Heads FlashAttentionBackward(const at::Tensor& d_out, const Heads& heads, const FlashResult& result,
                             const FlashSequences& sequences, int64_t window,
                             const ScoreRule& rule) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3);
  const bool packed = sequences.bounds.defined();
  const std::vector<int64_t> shape =
      packed ? std::vector<int64_t>{b * s, h, d} : std::vector<int64_t>{b, s, h, d};
  const int64_t longest = packed ? sequences.longest : s;
  const at::Tensor unused = at::empty({0}, heads.q.options().dtype(at::kLong));
  auto [d_q, d_k, d_v] = at::_flash_attention_backward(
      d_out.view(shape), ForFlash(heads.q, packed), ForFlash(heads.k, packed),
      ForFlash(heads.v, packed), result.out.view(shape), result.log_sum, sequences.bounds,
      sequences.bounds, longest, longest, /*dropout_p=*/0.0, /*is_causal=*/true,
      result.random_state, unused, rule.ScaleOf(d), Before(window), After(window));
  const auto back = [&](const at::Tensor& x) { return x.reshape({b, s, -1, d}).transpose(1, 2); };
  return {back(d_q), back(d_k), back(d_v)};
}

}  // namespace muster::trainer::ops
