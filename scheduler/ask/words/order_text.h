// Where a job stands in a queue that takes the shortest first.
#pragma once

#include <string>

#include "scheduler/state/state.h"

namespace muster {

// "behind 3 shorter jobs of research, whose order is shortest"; why it goes first, if it does.
// Empty in other queues, and where nobody is before it.
std::string OrderText(const State& state, const JobRow& job);

}  // namespace muster
