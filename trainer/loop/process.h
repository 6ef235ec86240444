// What of torch is the whole process's.
#pragma once

#include "trainer/loop/config.h"

namespace muster::trainer {

// Threads, kernels and memory; before anything is computed. `gpu`: this rank computes on one.
// `local_size`: ranks on this host.
void PrepareProcess(bool gpu, int local_size, const TrainConfig& config);

}  // namespace muster::trainer
