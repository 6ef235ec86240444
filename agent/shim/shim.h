// The shim: owns the processes of one attempt on one host, their logs, progress socket and exit
// codes. It outlives the agent.
//
// Life: lock the directory, read the spec, claim "started" (link(2), once for ever), run each
// worker's setup, then its processes; write what happens to DIR/events; obey DIR/stop (SIGUSR1
// says: look again); when no process is left, write DIR/exits durably and end. One thread, one poll
// loop, no dependency beyond libc.
#pragma once

#include <string>

namespace muster::shim {

enum ExitStatus : int {
  kShimDone = 0,  // processes ran and ended; DIR/exits says how
  kShimFailed =
      70,  // nothing was started, or the claim stands without exits: the agent works it out
  kShimNotClaimed = 71,  // the attempt was stopped before it started, or another shim has it
};

// Runs the attempt in `directory` to its end. The process must be single-threaded and exclusively
// the shim's.
int RunShim(const std::string& directory);

}  // namespace muster::shim
