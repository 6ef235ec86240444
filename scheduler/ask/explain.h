// Why a job waits, and what would help: explanation by counterfactual. Each answer is the real
// Decide, and what follows from it, on a changed copy of the present; nothing is guessed from the
// verdict's code.
#pragma once

#include <cstdint>

#include "muster/v1/job_service.pb.h"
#include "scheduler/ask/forecast.h"
#include "scheduler/ask/future.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

inline constexpr int kRelaxationsShown = 8;

// `plan` is the newest step's. Everything but `job` is filled. It ends soon after all the time is
// spent; `complete` tells. Thread-safe on snapshots.
pb::ExplainResponse Explain(const State& state, const Plan& plan, uint64_t job, int64_t now_ns,
                            const SchedulingOptions& scheduling, const Spent& spent = {});

}  // namespace muster
