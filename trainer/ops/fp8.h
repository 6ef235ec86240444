// Products of numbers in 8 bits (FP8; Micikevicius et al., arXiv 2209.05433): e4m3 for weights and
// activations, and e5m2, which has more range and a digit less, for gradients of activations
// (section 3 there). A matrix has one scale, made of its own largest absolute value ("current
// scaling"). Sums are fp32. Nothing here waits for a GPU.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "trainer/ops/gradient_sum.h"

namespace muster::trainer::ops::fp8 {

inline constexpr at::ScalarType kForward = at::kFloat8_e4m3fn, kBackward = at::kFloat8_e5m2;
// What both widths of a weight must be a multiple of, on GPUs and so everywhere.
inline constexpr int64_t kMultiple = 16;

// A matrix [rows, columns] is codes · step.
struct Matrix {
  at::Tensor codes;
  at::Tensor step;  // fp32 [], on the same device
};

// The largest absolute value of x [rows, columns], fp32 []. `counts` [rows]: 0 leaves a row out;
// undefined: all count.
at::Tensor Largest(const at::Tensor& x, const at::Tensor& counts = {});
// x as numbers of `type`, where `largest` becomes the type's largest; what is beyond, too.
Matrix Quantise(const at::Tensor& x, const at::Tensor& largest, at::ScalarType type);
// Its columns as rows; `filled` up with zeros to a multiple of that many of them.
Matrix Transposed(const Matrix& x, int64_t filled = 1);
// a · bᵀ of a [m, k] and b [n, k], as numbers of `type`: [m, n]. Not both are of gradients.
at::Tensor Product(const Matrix& a, const Matrix& b, at::ScalarType type);

// d_w += dyᵀ · x, of dy [rows, out] and x [rows, in]; put off where ops::PutOffWeights says so.
void AddWeightGradient(const Matrix& dy, const Matrix& x, const GradientSum& d_w);

}  // namespace muster::trainer::ops::fp8
