// What is said of tasks that start together while they wait.
#pragma once

#include <string>

#include "scheduler/state/state.h"

namespace muster {

// "starts together with server, watcher": of a task that waits for a place for all of them. "": it
// starts alone, or beside what runs of them.
std::string StartsWithText(const JobRow& job, int32_t task);

// The sentence behind that, unless it begins with it or there is none.
std::string BehindStartsWith(const JobRow& job, int32_t task, const std::string& text);

// Of V_TOGETHER: which of the others keeps it waiting.
std::string WaitsForTogetherText(const State& state, const JobRow& job, int32_t task);

}  // namespace muster
