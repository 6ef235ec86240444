// What the shim decides, apart from every effect: whether an attempt may start here, when its processes are stopped and killed, and
// how they ended (CONTRACTS 3, 4, 13). The simulator of faults runs the same. Not thread-safe; times are CLOCK_BOOTTIME unless said.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "agent/shim/durable.h"
#include "agent/shim/format.h"

namespace muster::shim {

inline constexpr int64_t kNever = INT64_MAX;

// Whether the shim may try for the claim. `claim` is what it found: "started" by a shim that died starts nothing twice. Nothing that
// was prepared in an earlier boot starts.
bool MayStart(Claim claim, std::string_view prepared_boot_id, std::string_view boot_id);

class Rules {
 public:
  explicit Rules(int64_t failure_kill_ns) : failure_kill_ns_(failure_kill_ns) {}

  // An order to stop, however often; repeated orders only ever shorten the time. True: SIGTERM is to be sent now.
  bool Stop(int64_t grace_ns, int64_t now_ns);
  // A process ended. The first outcome of a rank wins: false, and nothing changes, if there is one.
  bool Exited(int32_t rank, int exit_code, int signal, std::string detail, int64_t wall_ns, int64_t now_ns);
  // True once, when the time to SIGKILL has come.
  bool KillNow(int64_t now_ns);

  bool stop_sent() const { return stop_sent_; }
  bool killed() const { return killed_; }
  int64_t kill_at_ns() const { return kill_at_ns_; }     // kNever: nothing is to be killed
  const std::map<int32_t, Exit>& exits() const { return exits_; }
  // For DIR/exits, once no process is left. Unix times.
  Exits Final(int64_t start_ns, int64_t end_ns) const;

 private:
  const int64_t failure_kill_ns_;
  std::map<int32_t, Exit> exits_;                        // by rank
  bool stop_sent_ = false;
  bool killed_ = false;
  int64_t kill_at_ns_ = kNever;
};

}  // namespace muster::shim
