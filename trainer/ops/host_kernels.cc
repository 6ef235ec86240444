#include "trainer/ops/host_kernels.h"

#define MUSTER_KERNELS_FORM plain
#include "trainer/ops/host_kernels_body.h"

namespace muster::trainer::kernels {

const Kernels& HostKernelsAvx2();
const Kernels& HostKernelsAvx512();

const Kernels& HostKernels(CpuForm form) {
#if defined(__x86_64__)
  if (form == CpuForm::kAvx512) return HostKernelsAvx512();
  if (form == CpuForm::kAvx2) return HostKernelsAvx2();
#endif
  return plain::kAll;
}

const Kernels& HostKernels() {
  static const Kernels& best = HostKernels(BestCpuForm());
  return best;
}

void AdamWOnHost(const AdamWArguments& a, Stream) {
  for (int r = 0; r < a.runs; ++r) {
    AdamWStep step = a.step;
    if (!a.run[r].decay) step.keep = 1;
    const int64_t at = a.run[r].begin;
    const auto forward = [at](auto* p, int64_t size) {
      return p == nullptr ? p
                          : reinterpret_cast<decltype(p)>(reinterpret_cast<uintptr_t>(p) +
                                                          static_cast<uintptr_t>(at * size));
    };
    AdamWSpan span = a.span;
    span.masters = forward(span.masters, 4), span.weights = forward(span.weights, 2),
    span.low_bits = forward(span.low_bits, 2);
    span.gradient = forward(span.gradient, span.gradient_bf16 ? 2 : 4);
    span.exp_avg = forward(span.exp_avg, span.moments_bf16 ? 2 : 4),
    span.exp_avg_sq = forward(span.exp_avg_sq, span.moments_bf16 ? 2 : 4);
    span.first_element = a.run[r].number, span.numel = a.run[r].numel;
    UpdateAdamW(BestCpuForm(), step, span);
  }
}

}  // namespace muster::trainer::kernels
