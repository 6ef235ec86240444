// What the names in a job's after and after_any mean for its submitter.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "muster/v1/job.pb.h"
#include "scheduler/access/users.h"
#include "scheduler/ask/check_after.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/history.h"

namespace muster {

// Who may not see a job finds none of that name. What only the history (which may be null) knows is
// read here, once; the answer reads nothing but the State that it is given, so the engine's thread
// may ask it. Errors are of the history.
absl::StatusOr<FindNamed> NamedFor(const std::shared_ptr<const View>& view, History* history,
                                   std::shared_ptr<const Principal> who, const pb::JobSpec& spec);

}  // namespace muster
