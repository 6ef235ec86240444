// Whom a change would stop or shrink.
#pragma once

#include <optional>
#include <vector>

#include "muster/v1/job_service.pb.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

// What the stop takes from its job and how that goes on; nullopt if `state` doesn't know the attempt.
std::optional<pb::PreviewResponse::Taken> TakenBy(const State& state, const pb::AttemptStopping& stopping);

// The jobs that the decision right after this tree was applied would stop or shrink, and that it wouldn't without; by number.
// `resolved` is of ResolveQueues. What later decisions take, when min_runtime or a backoff is over, is not in it.
std::vector<pb::PreviewResponse::Taken> Evictions(const State& state, const pb::QueueTree& resolved, int64_t now_ns, const SchedulingOptions& options);

}  // namespace muster
