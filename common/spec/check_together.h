// The rules of tasks that start together: with and until.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

inline constexpr int kMostTasks = 64;     // of a job
inline constexpr int kMostTogether = 16;  // tasks that start together

void CheckTogether(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
