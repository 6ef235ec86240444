#include "agent/shim/rules.h"

#include <algorithm>

namespace muster::shim {

bool MayStart(Claim claim, std::string_view prepared_boot_id, std::string_view boot_id) {
  return claim == Claim::kNone && prepared_boot_id == boot_id;
}

bool InTime(const Fence& fence, int64_t now_ns) { return !fence.Passed(now_ns); }

bool Rules::Stop(int64_t grace_ns, int64_t now_ns) {
  kill_at_ns_ = std::min(kill_at_ns_, now_ns + grace_ns);
  if (stop_sent_) return false;
  stop_sent_ = true;
  return grace_ns > 0;
}

bool Rules::StopByFence(const Fence& fence, int64_t grace_ns) {
  return Stop(grace_ns, fence.due_ns());
}

bool Rules::Exited(int32_t rank, int exit_code, int signal, std::string detail, int64_t wall_ns,
                   int64_t now_ns, bool own, bool oom) {
  if (!exits_.emplace(rank, Exit{rank, exit_code, signal, wall_ns, std::move(detail), own, oom})
           .second)
    return false;
  const bool failed = exit_code != 0 || signal != 0;
  if (failed && !stop_sent_) kill_at_ns_ = std::min(kill_at_ns_, now_ns + failure_kill_ns_);
  return true;
}

bool Rules::KillNow(int64_t now_ns) {
  if (killed_ || now_ns < kill_at_ns_) return false;
  killed_ = true;
  return true;
}

Exits Rules::Final(int64_t start_ns, int64_t end_ns) const {
  Exits out;
  out.start_ns = start_ns;
  out.end_ns = end_ns;
  out.stop_sent = stop_sent_;
  for (const auto& [rank, exit] : exits_) out.exits.push_back(exit);
  return out;
}

}  // namespace muster::shim
