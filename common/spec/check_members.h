// The rules of array, sweep and independent_workers.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

void CheckMembers(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
