// The rules of a job's after and after_any, as far as the names alone tell.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

inline constexpr int kMostPredecessors = 64;  // of after and after_any together

void CheckPredecessors(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
