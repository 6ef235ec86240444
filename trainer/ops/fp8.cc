#include "trainer/ops/fp8.h"

#include <limits>

#include "trainer/ops/ops.h"

namespace muster::trainer::ops::fp8 {
namespace {

// Below it a matrix counts as zero, so that no scale is infinite.
constexpr double kLeast = 1e-12;

double LargestOf(at::ScalarType type) {
  return type == kForward ? static_cast<double>(std::numeric_limits<c10::Float8_e4m3fn>::max())
                          : static_cast<double>(std::numeric_limits<c10::Float8_e5m2>::max());
}

}  // namespace

at::Tensor Largest(const at::Tensor& x, const at::Tensor& counts) {
  if (x.numel() == 0) return at::zeros({}, x.options().dtype(at::kFloat));
  const at::Tensor of_rows = at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(), {1},
                                                    /*keepdim=*/false, at::kFloat);
  return (counts.defined() ? of_rows * counts : of_rows).amax();
}

Matrix Quantise(const at::Tensor& x, const at::Tensor& largest, at::ScalarType type) {
  const double most = LargestOf(type);
  const at::Tensor step = largest.clamp_min(kLeast) / most;
  // The conversion alone would make NaN of what is beyond the largest.
  at::Tensor scaled = x.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  return {scaled.div_(step).clamp_(-most, most).to(type), step};
}

Matrix Transposed(const Matrix& x, int64_t filled) {
  const int64_t rows = x.codes.size(0), columns = x.codes.size(1);
  const int64_t width = (rows + filled - 1) / filled * filled;
  // Bytes: not all operations know numbers in 8 bits.
  const at::Tensor bytes = x.codes.view(at::kByte);
  at::Tensor turned = width == rows ? at::empty({columns, width}, bytes.options())
                                    : at::zeros({columns, width}, bytes.options());
  turned.narrow(1, 0, rows).copy_(bytes.t());
  return {turned.view(x.codes.scalar_type()), x.step};
}

at::Tensor Product(const Matrix& a, const Matrix& b, at::ScalarType type) {
  // ATen's on CPUs may be oneDNN's plain loops, which take seconds a step on some (those with AMX
  // for int8 alone); elsewhere it is this.
  if (!a.codes.is_cuda())
    return at::mm(a.codes.to(at::kFloat).mul_(a.step), b.codes.to(at::kFloat).mul_(b.step).t())
        .to(type);
  // Fast accumulation would sum in fewer bits than fp32.
  return at::_scaled_mm(a.codes, b.codes.t(), a.step, b.step, /*bias=*/{}, /*scale_result=*/{},
                        type, /*use_fast_accum=*/false);
}

void AddWeightGradient(const Matrix& dy, const Matrix& x, const GradientSum& d_w) {
  if (!d_w.defined()) return;
  AddOrPutOff([dy, x, d_w] {
    d_w.Add(Product(Transposed(dy, kMultiple), Transposed(x, kMultiple), at::kFloat));
  });
}

}  // namespace muster::trainer::ops::fp8
