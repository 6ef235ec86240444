// The operations of kernels.h for the CPU, in vectors of 16 floats, in three forms for three
// instruction sets.
#pragma once

#include "trainer/ops/cuda/kernels.h"

namespace muster::trainer::kernels {

// Of a form; and of the best that this machine has. Threads are OpenMP's, as ATen's are.
const Kernels& HostKernels(CpuForm form);
const Kernels& HostKernels();

// UpdateAdamW over the runs.
void AdamWOnHost(const AdamWArguments& a, Stream);

}  // namespace muster::trainer::kernels
