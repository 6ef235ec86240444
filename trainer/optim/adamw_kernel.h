// AdamW (Loshchilov & Hutter 2019, as torch.optim.AdamW has it) on the CPU in one pass over memory:
// reads masters, gradient and moments, writes masters, moments and, where the model computes in
// bf16, its weights. Three forms of one body (adamw_body.h): AVX-512, AVX2 and plain C++; all do
// the same operations in the same order for each element, so their results are the same bits,
// wherever a range is cut.
#pragma once

#include <cstdint>

namespace muster::trainer {

// One update's numbers, the same for all elements of a span.
struct AdamWStep {
  float beta1 = 0, beta2 = 0;
  float one_minus_beta1 = 0, one_minus_beta2 = 0;
  float step_size = 0;     // learning rate / (1 - beta1^step)
  float inverse_root = 1;  // 1 / sqrt(1 - beta2^step)
  float epsilon = 0;
  float keep = 1;      // 1 - learning rate * weight decay
  float clip = 1;      // factor of the gradient
  uint32_t noise = 0;  // bf16 moments: what their rounding depends on beside the element
};

// A range of elements. Tensors of bf16 are given as their bits.
struct AdamWSpan {
  float* masters = nullptr;  // null: a master is `weights` and, below it, the 16 bits of `low_bits`
  uint16_t* weights = nullptr;  // bf16, rounded from the masters (half away from zero); null: the
                                // model computes with the masters
  uint16_t* low_bits = nullptr;
  const void* gradient = nullptr;
  bool gradient_bf16 = false;
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  bool moments_bf16 = false;   // rounded stochastically: nearest would lose what is below half a
                               // unit in the last place, for ever
  uint32_t first_element = 0;  // number of the first element
  int64_t numel = 0;
};

enum class CpuForm { kPlain, kAvx2, kAvx512 };
// The best that this machine has.
CpuForm BestCpuForm();

// Thread-safe for ranges that don't overlap.
void UpdateAdamW(CpuForm form, const AdamWStep& step, const AdamWSpan& span);

// fp32 → bf16 as UpdateAdamW rounds, and what is missing to the exact value (`low_bits`, may be
// null).
void SplitMasters(const float* masters, uint16_t* weights, uint16_t* low_bits, int64_t numel);
// The exact value again.
void JoinMasters(const uint16_t* weights, const uint16_t* low_bits, float* masters, int64_t numel);

}  // namespace muster::trainer
