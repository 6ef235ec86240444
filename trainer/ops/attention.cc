#include <cmath>
#include <limits>

#include "trainer/ops/ops.h"

namespace muster::trainer::ops {
namespace {

// Writes x rotated by the tables' angles (their negative when `sign` is -1) to out. x, out: [..., S, D] views.
void Rotate(const at::Tensor& x, at::Tensor out, const at::Tensor& cos, const at::Tensor& sin, int sign) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor x1 = x.narrow(-1, 0, half), x2 = x.narrow(-1, half, half);
  at::Tensor y1 = out.narrow(-1, 0, half), y2 = out.narrow(-1, half, half);
  at::mul_out(y1, x1, cos);
  y1.addcmul_(x2, sin, -sign);
  at::mul_out(y2, x2, cos);
  y2.addcmul_(x1, sin, sign);
}

// The transformers formulas (modeling_rope_utils.py) in fp32, in the same order of operations.
at::Tensor InverseFrequencies(const ModelConfig& config) {
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor exponent = at::arange(0, config.head_dim, 2, fp32) / static_cast<double>(config.head_dim);
  at::Tensor inverse = 1.0 / at::pow(config.rope_theta, exponent);  // [D / 2]
  if (config.rope.type == "linear") return inverse / config.rope.factor;
  if (config.rope.type != "llama3") return inverse;
  const double original = static_cast<double>(config.rope.original_max_position_embeddings);
  const double low = config.rope.low_freq_factor, high = config.rope.high_freq_factor;
  const at::Tensor wavelength = 2 * M_PI / inverse;
  at::Tensor scaled = at::where(wavelength > original / low, inverse / config.rope.factor, inverse);
  const at::Tensor smooth = (original / wavelength - low) / (high - low);
  const at::Tensor smoothed = (1 - smooth) * scaled / config.rope.factor + smooth * scaled;
  const at::Tensor medium = (wavelength >= original / high).logical_and(wavelength <= original / low);
  return at::where(medium, smoothed, scaled);
}

}  // namespace

RopeTables MakeRopeTables(const ModelConfig& config, int64_t length, at::Device device) {
  const at::Tensor positions = at::arange(length, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles = at::outer(positions, InverseFrequencies(config));  // [S, D / 2]
  return {angles.cos().to(device), angles.sin().to(device)};
}

Heads SplitAndRotate(const at::Tensor& qkv, int64_t batch, const ModelConfig& config, const RopeTables& rope) {
  const int64_t h = config.num_heads, hkv = config.num_kv_heads, d = config.head_dim;
  const int64_t length = qkv.size(0) / batch;
  const at::Tensor all = qkv.view({batch, length, h + 2 * hkv, d}).transpose(1, 2);  // [B, H + 2·Hkv, S, D]
  const at::Tensor cos = rope.cos.narrow(0, 0, length).to(qkv.scalar_type()), sin = rope.sin.narrow(0, 0, length).to(qkv.scalar_type());
  Heads heads{at::empty({batch, h, length, d}, qkv.options()), at::empty({batch, hkv, length, d}, qkv.options()), {}};
  Rotate(all.narrow(1, 0, h), heads.q, cos, sin, 1);
  Rotate(all.narrow(1, h, hkv), heads.k, cos, sin, 1);
  heads.v = all.narrow(1, h + hkv, hkv).contiguous();
  return heads;
}

at::Tensor SplitAndRotateBackward(const Heads& d_heads, const ModelConfig& config, const RopeTables& rope) {
  const int64_t h = config.num_heads, hkv = config.num_kv_heads, d = config.head_dim;
  const int64_t batch = d_heads.q.size(0), length = d_heads.q.size(2);
  at::Tensor d_qkv = at::empty({batch * length, (h + 2 * hkv) * d}, d_heads.q.options());
  const at::Tensor all = d_qkv.view({batch, length, h + 2 * hkv, d}).transpose(1, 2);
  const at::Tensor cos = rope.cos.narrow(0, 0, length).to(d_qkv.scalar_type()), sin = rope.sin.narrow(0, 0, length).to(d_qkv.scalar_type());
  Rotate(d_heads.q, all.narrow(1, 0, h), cos, sin, -1);  // the inverse of a rotation is its transpose
  Rotate(d_heads.k, all.narrow(1, h, hkv), cos, sin, -1);
  all.narrow(1, h + hkv, hkv).copy_(d_heads.v);
  return d_qkv;
}

at::Tensor MakeCausalMask(const ModelConfig& config, int64_t length, const at::TensorOptions& options) {
  const at::Tensor square = at::full({length, length}, -std::numeric_limits<double>::infinity(), options).triu_(1);
  return square.repeat({config.num_heads / config.num_kv_heads, 1});  // [G·S, S]
}

AttentionResult Attention(const Heads& heads, const at::Tensor& mask) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3);
  const int64_t hkv = heads.k.size(1), g = h / hkv;
  const at::Tensor q = heads.q.view({b * hkv, g * s, d});
  const at::Tensor k = heads.k.view({b * hkv, s, d}), v = heads.v.view({b * hkv, s, d});
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  const at::Tensor scores = at::baddbmm(mask.unsqueeze(0), q, k.transpose(1, 2), /*beta=*/1, /*alpha=*/scale);  // [B·Hkv, G·S, S]
  at::Tensor probabilities = at::_softmax(scores, 2, /*half_to_float=*/false);
  const at::Tensor out = at::bmm(probabilities, v);  // [B·Hkv, G·S, D]
  return {out.view({b, h, s, d}).transpose(1, 2).reshape({b * s, h * d}), probabilities};
}

Heads AttentionBackward(const at::Tensor& d_out, const Heads& heads, const at::Tensor& probabilities) {
  const int64_t b = heads.q.size(0), h = heads.q.size(1), s = heads.q.size(2), d = heads.q.size(3);
  const int64_t hkv = heads.k.size(1), g = h / hkv;
  const at::Tensor q = heads.q.view({b * hkv, g * s, d});
  const at::Tensor k = heads.k.view({b * hkv, s, d}), v = heads.v.view({b * hkv, s, d});
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  const at::Tensor d_o = d_out.view({b, s, h, d}).transpose(1, 2).reshape({b * hkv, g * s, d});
  const at::Tensor d_v = at::bmm(probabilities.transpose(1, 2), d_o);  // [B·Hkv, S, D]
  const at::Tensor d_p = at::bmm(d_o, v.transpose(1, 2));              // [B·Hkv, G·S, S]
  const at::Tensor d_scores = at::_softmax_backward_data(d_p, probabilities, 2, d_p.scalar_type()).mul_(scale);
  const at::Tensor d_q = at::bmm(d_scores, k);
  const at::Tensor d_k = at::bmm(d_scores.transpose(1, 2), q);
  return {d_q.view({b, h, s, d}), d_k.view({b, hkv, s, d}), d_v.view({b, hkv, s, d})};
}

}  // namespace muster::trainer::ops
