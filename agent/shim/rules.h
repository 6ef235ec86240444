// What the shim decides, apart from every effect: whether an attempt may start here, when its
// processes are stopped and killed, and how they ended (contracts 3, 4, 13 of docs/contracts.md).
// The simulator of faults runs the same. Not thread-safe; times are CLOCK_BOOTTIME unless said.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "agent/shim/durable.h"
#include "agent/shim/format.h"

namespace muster::shim {

inline constexpr int64_t kNever = INT64_MAX;

// Whether the shim may try for the claim. `claim` is what it found: "started" by a shim that died
// starts nothing twice. Nothing that was prepared in an earlier boot starts.
bool MayStart(Claim claim, std::string_view prepared_boot_id, std::string_view boot_id);

// `when_unreachable: fence` (contract 9): the attempt may run for so long after the sending time
// of the newest heartbeat that the scheduler acknowledged for it. CLOCK_BOOTTIME, which the agent
// and the shim of a host share.
class Fence {
 public:
  Fence() = default;  // none
  Fence(int64_t after_ns, int64_t renewed_ns) : after_ns_(after_ns), renewed_ns_(renewed_ns) {}

  void Renew(int64_t renewed_ns) {
    renewed_ns_ = renewed_ns > renewed_ns_ ? renewed_ns : renewed_ns_;
  }
  int64_t due_ns() const { return after_ns_ == 0 ? kNever : renewed_ns_ + after_ns_; }
  bool Passed(int64_t now_ns) const { return now_ns >= due_ns(); }

 private:
  int64_t after_ns_ = 0;
  int64_t renewed_ns_ = 0;
};

// Whether user code may be started: asked before the claim and after it, as either may have come
// late.
bool InTime(const Fence& fence, int64_t now_ns);

class Rules {
 public:
  explicit Rules(int64_t failure_kill_ns) : failure_kill_ns_(failure_kill_ns) {}

  // An order to stop, however often; repeated orders only ever shorten the time. True: SIGTERM is
  // to be sent now.
  bool Stop(int64_t grace_ns, int64_t now_ns);
  // Its fence has passed. The grace runs since that was due, not since it was seen: whoever waits
  // for it counts so, also while this slept.
  bool StopByFence(const Fence& fence, int64_t grace_ns);
  // A process ended. The first outcome of a rank wins: false, and nothing changes, if there is one.
  bool Exited(int32_t rank, int exit_code, int signal, std::string detail, int64_t wall_ns,
              int64_t now_ns, bool own = false, bool oom = false);
  // True once, when the time to SIGKILL has come.
  bool KillNow(int64_t now_ns);

  bool stop_sent() const { return stop_sent_; }
  bool killed() const { return killed_; }
  int64_t kill_at_ns() const { return kill_at_ns_; }  // kNever: nothing is to be killed
  const std::map<int32_t, Exit>& exits() const { return exits_; }
  // For DIR/exits, once no process is left. Unix times.
  Exits Final(int64_t start_ns, int64_t end_ns) const;

 private:
  const int64_t failure_kill_ns_;
  std::map<int32_t, Exit> exits_;  // by rank
  bool stop_sent_ = false;
  bool killed_ = false;
  int64_t kill_at_ns_ = kNever;
};

}  // namespace muster::shim
