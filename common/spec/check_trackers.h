// The rules of track and notify.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

void CheckTrackers(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
