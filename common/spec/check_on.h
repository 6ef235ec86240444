// The rules of a job that runs on another one's devices (`on`), as far as the file alone tells,
// and what tells its processes.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

// Where such a job's processes find on which attempt's devices they run: UID.NUMBER, the uid of its
// job and its number.
inline constexpr const char* kHolderVariable = "MUSTER_ON";

void CheckOn(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
