// A task with `ray`: what its workers run, and the rules of the field. docs/ray.md.
#pragma once

#include "common/spec/check_spec.h"

namespace muster {

// What each worker runs in place of the task's own program: the launcher, which makes the cluster
// and runs that program on the head.
pb::Run RayLauncher(const pb::TaskSpec& task);

void CheckRay(const pb::JobSpec& spec, const SpecRules& rules);

}  // namespace muster
