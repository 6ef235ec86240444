// Where a job stands in a queue that takes the shortest first.
#pragma once

#include <string>

#include "scheduler/state/state.h"

namespace muster {

// Whether it has a turn in its queue: something of it runs, or could as far as other jobs and the
// time go.
bool HasATurn(const JobRow& job);

// "behind 3 shorter jobs of research, whose order is shortest"; why it goes first, if it does.
// Empty in other queues, and where nobody is before it.
std::string OrderText(const State& state, const JobRow& job);

}  // namespace muster
