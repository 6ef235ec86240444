// The sentence that says for which other jobs a job waits.
#pragma once

#include <string>

#include "scheduler/state/state.h"

namespace muster {

// "waits for jobs 17, 18 to succeed and job 19 to end, expected by 14:05:00 UTC": of a job that
// awaits others. By when is told where it is known of all of them; of arrays it isn't.
std::string AfterText(const State& state, const JobRow& job);

}  // namespace muster
