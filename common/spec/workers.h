// A task's workers, as its spec has them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "muster/v1/job.pb.h"

namespace muster {

// Workers by which its gang starts, grows and becomes smaller: multiple_of, or 1.
inline int32_t StepOf(const v1::Workers& workers) { return std::max(1, workers.multiple_of()); }

}  // namespace muster
