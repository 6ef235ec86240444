#include "trainer/ops/host_kernels.h"

#define MUSTER_KERNELS_FORM avx2
#include "trainer/ops/host_kernels_body.h"

namespace muster::trainer::kernels {

const Kernels& HostKernelsAvx2();
const Kernels& HostKernelsAvx2() { return avx2::kAll; }

}  // namespace muster::trainer::kernels
