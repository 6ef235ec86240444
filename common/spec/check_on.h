// The rules of a job that runs on another one's devices (`on`), as far as the file alone tells.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

void CheckOn(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
