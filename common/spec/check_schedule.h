// The rules of a job's not_before and schedule.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

void CheckSchedule(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
