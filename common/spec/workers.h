// A task's workers, as its spec has them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "muster/v1/job.pb.h"

namespace muster {

// Workers by which its gang starts, grows and becomes smaller: multiple_of, or 1.
inline int32_t StepOf(const v1::Workers& workers) { return std::max(1, workers.multiple_of()); }

// Processes of one of its workers, each of them a rank: one for a GPU, where its file doesn't say.
inline int64_t ProcessesOf(const v1::TaskSpec& task) {
  if (task.processes_per_worker() > 0) return task.processes_per_worker();
  return std::max<int64_t>(1, task.resources().gpus_milli() / 1'000);
}

}  // namespace muster
