// The operations of ops.h by our kernels, a GPU's (trainer/ops/cuda/kernels.h) or the CPU's
// (trainer/ops/host_kernels.h): same arguments, same meaning, results within rounding. ops.cc's
// functions come here by themselves where a kernel may be used. Memory that isn't contiguous, and
// widths that a kernel can't do, stay with ATen.
#pragma once

#include <optional>

#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/ops.h"

namespace muster::trainer::ops::fused {

// Whether kernels are used at all (trainer.reference_ops says no); for all threads, before any
// work.
void Allow(bool allowed);
bool Allowed();
// Was this program built with nvcc?
bool Compiled();
// Tests: other kernels for tensors in the CPU's memory.
void UseOnCpu(const kernels::Kernels* table);

// Those that may work on x's memory; null: none. x is fp32 or bf16.
const kernels::Kernels* KernelsFor(const at::Tensor& x);
// x's current stream; null on a CPU.
kernels::Stream StreamOf(const at::Tensor& x);
// What the last launch on x's device said; throws c10::Error.
void CheckLaunch(const at::Tensor& x);

// Each returns nothing, or false, where it can't.
std::optional<ResidualNormResult> ResidualRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                                  const at::Tensor& w, double eps,
                                                  bool from_one = false);
std::optional<at::Tensor> RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                                          const at::Tensor& w, const at::Tensor& rstd,
                                          const at::Tensor& d_w, const at::Tensor& residual,
                                          bool from_one = false);
// `by_token`: in memory heads are [B, S, H, D], as FlashAttention takes them without a copy. The
// backward takes either.
std::optional<Heads> SplitAndRotate(const at::Tensor& qkv, int64_t batch, const ModelConfig& config,
                                    const RopeTables& rope, const at::Tensor& positions,
                                    bool by_token = false);
std::optional<at::Tensor> SplitAndRotateBackward(const Heads& d_heads, const ModelConfig& config,
                                                 const RopeTables& rope,
                                                 const at::Tensor& positions);
std::optional<at::Tensor> SwiGlu(const at::Tensor& gate_up);
std::optional<at::Tensor> SwiGluBackward(const at::Tensor& d_y, const at::Tensor& gate_up);
// In place; what stood there. Nothing where the columns don't begin at multiples of 16 bytes.
std::optional<HeadNormResult> NormHeads(const at::Tensor& qkv, int64_t begin, int64_t heads,
                                        const at::Tensor& w, double eps, bool from_one = false);
bool NormHeadsBackward(const at::Tensor& d_qkv, int64_t begin, const HeadNormResult& before,
                       const at::Tensor& w, const at::Tensor& d_w, bool from_one = false);
bool EmbeddingBackward(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& d_w);
// Adds the squares of all of `values` to *total, which lies beside them.
bool AddSquares(const at::Tensor& values, kernels::ExactSum* total);
// Whether Dropout can draw beside x; and x [B·S, d] as it leaves it: of row r, the stream named by
// what hashes to `prefix` and numbers[r].
bool DrawsBeside(const at::Tensor& x);
at::Tensor Dropout(const at::Tensor& x, const at::Tensor& numbers, uint64_t seed, uint64_t prefix,
                   double share);
// Turns logits [n, V] into d logits, in place (loss_only: leaves them); loss and z-loss sums in
// double, [2]. `losses` [n] double, where given, gets each row's.
std::optional<at::Tensor> CrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                                       const at::Tensor& weights, bool loss_only, double z_loss,
                                       const at::Tensor& losses = {});

}  // namespace muster::trainer::ops::fused
