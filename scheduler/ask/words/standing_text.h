// How soon a task that runs beyond its queue's guarantee may be stopped for others.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/decide/decider.h"
#include "scheduler/state/state.h"

namespace muster {

// "borrowed: may be stopped at once for work within a guarantee". `start_ns`: of what runs; 0: it
// doesn't yet. "" where that can't be: it is within its queue's guarantee, or no queue is
// guaranteed any of what the task may run on.
std::string BorrowedText(const State& state, const pb::TaskSpec& spec, const Standing& standing,
                         int64_t start_ns, int64_t now_ns);

}  // namespace muster
