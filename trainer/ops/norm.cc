#include "trainer/ops/fused.h"
#include "trainer/ops/ops.h"

namespace muster::trainer::ops {

RmsNormResult RmsNorm(const at::Tensor& x, const at::Tensor& w, double eps, bool from_one) {
  if (const auto done = fused::ResidualRmsNorm(x, {}, w, eps, from_one))
    return {done->y, done->rstd};
  const at::Tensor xf = x.to(at::kFloat);
  at::Tensor rstd = xf.square().mean({1}, /*keepdim=*/true).add_(eps).rsqrt_();  // [T, 1]
  if (from_one) return {(xf * rstd).mul_(w.to(at::kFloat) + 1).to(x.scalar_type()), rstd};
  if (x.scalar_type() == at::kFloat) return {(xf * rstd).mul_(w), rstd};
  return {(xf * rstd).to(x.scalar_type()).mul_(w), rstd};
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): whose last one it is wants it gone at the
// end
ResidualNormResult ResidualRmsNorm(at::Tensor x, const at::Tensor& residual, const at::Tensor& w,
                                   double eps, bool from_one) {
  if (const auto done = fused::ResidualRmsNorm(x, residual, w, eps, from_one)) return *done;
  x.add_(residual);
  const RmsNormResult norm = RmsNorm(x, w, eps, from_one);
  return {x, norm.y, norm.rstd};
}

at::Tensor RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                           const at::Tensor& rstd, const GradientSum& d_w,
                           const at::Tensor& residual, bool from_one) {
  const at::Tensor& sum = d_w.ToAdd();
  if (const auto done = fused::RmsNormBackward(dy, x, w, rstd, sum, residual, from_one))
    return *done;
  const at::Tensor dyf = dy.to(at::kFloat);
  const at::Tensor normed = x.to(at::kFloat) * rstd;  // [T, d]
  if (sum.defined()) sum.add_((dyf * normed).sum({0}));
  at::Tensor dn = dyf * (from_one ? w.to(at::kFloat) + 1 : w);  // d normed
  const at::Tensor mean = (dn * normed).mean({1}, /*keepdim=*/true);
  // dx = rstd * (dn - normed * mean(dn * normed))
  at::Tensor dx = dn.addcmul_(normed, mean, -1).mul_(rstd).to(x.scalar_type());
  return residual.defined() ? dx.add_(residual) : dx;
}

HeadNormResult NormHeads(const at::Tensor& qkv, int64_t begin, int64_t heads, const at::Tensor& w,
                         double eps, bool from_one) {
  if (const auto done = fused::NormHeads(qkv, begin, heads, w, eps, from_one)) return *done;
  const int64_t d = w.size(0);
  at::Tensor columns = qkv.narrow(1, begin, heads * d);
  const at::Tensor x = columns.reshape({qkv.size(0) * heads, d}).clone();
  RmsNormResult normed = RmsNorm(x, w, eps, from_one);
  columns.copy_(normed.y.view({qkv.size(0), heads * d}));
  return {x, normed.rstd};
}

void NormHeadsBackward(const at::Tensor& d_qkv, int64_t begin, const HeadNormResult& before,
                       const at::Tensor& w, const GradientSum& d_w, bool from_one) {
  if (fused::NormHeadsBackward(d_qkv, begin, before, w, d_w.ToAdd(), from_one)) return;
  const int64_t d = w.size(0), width = before.x.numel() / d_qkv.size(0);
  at::Tensor columns = d_qkv.narrow(1, begin, width);
  columns.copy_(
      RmsNormBackward(columns.reshape({-1, d}), before.x, w, before.rstd, d_w, {}, from_one)
          .view({d_qkv.size(0), width}));
}

at::Tensor GatedUnit(const at::Tensor& gate_up, Activation activation) {
  const int64_t f = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, f), up = gate_up.narrow(1, f, f);
  if (activation == Activation::kGeluTanh) return at::gelu(gate, "tanh").mul_(up);
  if (const auto done = fused::SwiGlu(gate_up)) return *done;
  return at::silu(gate).mul_(up);
}

at::Tensor GatedUnitBackward(const at::Tensor& d_y, const at::Tensor& gate_up,
                             Activation activation) {
  const bool silu = activation == Activation::kSilu;
  if (silu) {
    if (const auto done = fused::SwiGluBackward(d_y, gate_up)) return *done;
  }
  const int64_t f = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, f), up = gate_up.narrow(1, f, f);
  at::Tensor d = at::empty_like(gate_up);
  at::Tensor d_gate = d.narrow(1, 0, f), d_up = d.narrow(1, f, f);
  at::mul_out(d_up, d_y, silu ? at::silu(gate) : at::gelu(gate, "tanh"));
  if (silu)
    at::silu_backward_out(d_gate, at::mul(d_y, up), gate);
  else
    d_gate.copy_(at::gelu_backward(at::mul(d_y, up), gate, "tanh"));
  return d;
}

}  // namespace muster::trainer::ops
