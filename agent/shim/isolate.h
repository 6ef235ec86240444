// Keeps an attempt's processes together, so that none outlives the shim and none is left when it ends (CONTRACTS 14).
//
// With the right to: a PID namespace of its own. Its first process does nothing but die with the shim, and the kernel then kills the rest.
// Without: PDEATHSIG for the workers, a subreaper for their orphans, and a guardian process that, when the shim dies, kills whatever
// carries the attempt's token in its environment.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/shim/times.h"

namespace muster::shim {

inline constexpr char kTokenVariable[] = "MUSTER_SHIM_TOKEN";

// Between looks for what was killed and may take its time to die, or can't be killed by us: each pause is twice the one before.
class Backoff {
 public:
  static constexpr int64_t kShortest = 2 * kMillisecond, kLongest = 250 * kMillisecond;

  void Pause();
  void Reset() { next_ns_ = kShortest; }
  int64_t next_ns() const { return next_ns_; }

 private:
  int64_t next_ns_ = kShortest;
};

// Sends SIGKILL to every process whose environment carries the token; how many it found. Our own process is spared.
int KillByToken(std::string_view token);

class Isolation {
 public:
  // Call once, before the first process. Never fails: falls back to the guardian.
  Isolation(std::string token, bool want_namespace);

  bool has_namespace() const { return has_namespace_; }
  pid_t keeper() const { return keeper_; }  // the namespace's first process, or the guardian

  // In a new child, before exec: dies with the shim from now on. False: the shim is dead already, exit.
  bool EnterChild(pid_t shim) const;

  // Kills what is left and waits until nothing is. Call when every process that matters has been reaped; reaps the rest.
  void KillAll();

 private:
  void StartKeeper();
  struct Pipes {
    int end[2];    // shim -> keeper, never written: its closing is the message
    int ready[2];  // keeper -> shim
  };
  int Keep(Pipes pipes) const;

  const std::string token_;
  bool has_namespace_ = false;
  pid_t keeper_ = -1;
  int keeper_pipe_ = -1;  // its other end is in the keeper: closed when the shim dies
};

}  // namespace muster::shim
