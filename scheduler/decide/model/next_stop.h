// What stops a running attempt although nobody claims its devices: causes, when each of them comes
// about, and which is told. The one place that knows them.
//
// Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/state/state.h"

namespace muster {

struct NextStop {
  int64_t at_ns = 0;  // 0: at once; kUnbounded: never by itself
  // Of what is due at `now_ns`:
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;
  std::string detail;
  int64_t grace_ns = 0;
};

// Of the causes that are due at now_ns the one that is told, else the next one to come.
NextStop NextStopOf(const State& state, const JobRow& job, int32_t task, const AttemptRow& attempt,
                    int64_t now_ns);

// When the attempt that is prepared or started has taken too long for that (kLaunchTimeoutNs), its
// hosts up and the scheduler there to hear them all the time. kUnbounded: it runs, or one of its
// hosts can't be reached, which is another matter.
int64_t LaunchDueNs(const State& state, const AttemptRow& attempt);

// When the running attempt is taken for hung: it has said something, and then nothing new for
// hang_timeout while it could be heard all the time (its hosts were up, the scheduler ran). Times
// are the scheduler's. kUnbounded: not by itself.
int64_t HangNs(const State& state, const pb::TaskSpec& spec, const TaskRow& row,
               const AttemptRow& attempt);

}  // namespace muster
