#include "trainer/ops/host_kernels.h"

#define MUSTER_KERNELS_FORM avx512
#include "trainer/ops/host_kernels_body.h"

namespace muster::trainer::kernels {

const Kernels& HostKernelsAvx512();
const Kernels& HostKernelsAvx512() { return avx512::kAll; }

}  // namespace muster::trainer::kernels
