// Peers of Muster's Decide, written as decide functions for the same engine: what else could
// schedule the same jobs.
//
// They know clusters (a job's list, in its order of preference), gang size, GPUs, and nothing of
// CPUs, topology or guarantees. They place best fit: on the host that is left with the fewest free
// GPUs, a gang on the fewest hosts of one cluster.
// - fifo: in order of submission; the first that doesn't fit blocks the others.
// - fifo-backfill: in order of submission; what doesn't fit is passed over.
// - drf: next the queue with the smallest dominant share (use / guarantee; Ghodsi et al., NSDI'11),
//   in it as fifo-backfill.
// - las: least attained service first, by preemption (Tiresias, NSDI'19, with continuous
//   priorities).
// - dlas: two queues by attained service (Tiresias' discretised LAS, threshold 3,200 GPU-seconds),
//   FIFO in each.
// - srtf: shortest remaining time first, by preemption, with the durations of the trace as an
//   oracle.
// - gavel: max-min fairness in rounds of a quantum: by time received over time due (Gavel, OSDI'20,
//   §5, one GPU type).
// Preemptive ones choose anew at each arrival and end and every `quantum_ns`, and stop nobody in
// its first quantum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/trace.h"
#include "sim/world.h"

namespace muster::sim {

struct PolicyOptions {
  int64_t quantum_ns = 300'000'000'000;
};

// Their names, `muster` first.
const std::vector<std::string>& PolicyNames();

// The function keeps what it has seen: one per run. Empty for `muster`. INVALID_ARGUMENT names the
// policies there are. `trace` must outlive the function.
absl::StatusOr<DecideFunction> MakePolicy(const std::string& name, const Trace* trace,
                                          const PolicyOptions& options);

}  // namespace muster::sim
