// Whom a job or a change takes devices from, and what becomes of them, as a Future has it.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/v1/job_service.pb.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/ask/future.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

// What becomes of what is stopped at foreseen()[index]: "goes on with 2 workers", "goes on in dal",
// "waits 36m, then goes on from its checkpoint", "goes on with other devices"; as far as the future
// saw it.
std::string OutcomeOf(const Future& future, size_t index);
// One entry for each task that is stopped or shrunk for the job.
std::vector<pb::PreviewResponse::Taken> TakenFor(const Future& future, uint64_t job);
// The jobs that the decision right after this tree was applied would stop or shrink, and that it
// wouldn't without; by number. `resolved` is of ResolveQueues. What later decisions take, when
// min_runtime or a backoff is over, is not in it.
std::vector<pb::PreviewResponse::Taken> Evictions(const State& state, const pb::QueueTree& resolved,
                                                  int64_t now_ns, const SchedulingOptions& options);

}  // namespace muster
