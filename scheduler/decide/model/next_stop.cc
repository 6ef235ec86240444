#include "scheduler/decide/model/next_stop.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/state/abilities.h"
#include "scheduler/state/hosted.h"

namespace muster {
namespace {

// Since when the scheduler and every host that the attempt isn't over on could hear each other;
// kUnbounded: one can't be heard now.
int64_t HeardSinceNs(const State& state, const AttemptRow& attempt) {
  int64_t since_ns = state.listens_since_ns();
  for (const PartRow& part : attempt.parts) {
    if (part.over()) continue;
    const HostRow& host = state.host(part.host);
    if (host.state != pb::HOST_UP) return kUnbounded;
    since_ns = std::max(since_ns, host.state_since_ns);
  }
  return since_ns;
}

// "h07 and 2 more haven't started it for 10m"
std::string LaunchIsLate(const State& state, const AttemptRow& attempt) {
  std::string first;
  int32_t others = -1;
  for (const PartRow& part : attempt.parts) {
    if (!LagsInLaunch(attempt, part)) continue;
    if (first.empty()) first = state.HostName(part.host);
    ++others;
  }
  const char* const what = attempt.state == pb::TASK_PREPARING ? "prepared" : "started";
  if (others < 0) return absl::StrCat("not ", what, " for ", FormatDuration(kLaunchTimeoutNs));
  const std::string more =
      others == 0 ? " hasn't " : absl::StrCat(" and ", others, " more haven't ");
  return absl::StrCat(first, more, what, " it for ", FormatDuration(kLaunchTimeoutNs));
}

// One member's host stopped it, or no longer knows it, and nobody here asked for that: the others
// would wait for it for ever.
bool LostTrackOf(const PartRow& part) {
  return part.phase == pb::GONE && !part.lost && (part.stop_sent || part.exits.empty());
}

// Why the host, or its cluster, is drained; empty: it isn't.
std::string Drained(const State& state, HostId id) {
  const HostRow& host = state.host(id);
  const ClusterRow& cluster = state.clusters()[host.cluster];
  if (!host.drained && !cluster.drained) return "";
  const std::string& reason = host.drained ? host.drain_reason : cluster.drain_reason;
  return absl::StrCat(host.drained ? state.HostName(id) : cluster.name, " is drained",
                      reason.empty() ? "" : ": ", reason);
}

int64_t TimeLimitNs(const pb::TaskSpec& spec, const TaskRow& row, const AttemptRow& attempt) {
  if (spec.time_limit_ns() <= 0 || attempt.start_ns == 0) return kUnbounded;
  return attempt.start_ns + std::max<int64_t>(0, spec.time_limit_ns() - row.ran_ns);
}

}  // namespace

NextStop NextStopOf(const State& state, const JobRow& job, int32_t task, const AttemptRow& attempt,
                    int64_t now_ns) {
  const TaskRow& row = job.tasks[task];
  const pb::TaskSpec& spec = job.task_spec(task);
  const int64_t grace_ns = GraceOf(spec);
  NextStop next;
  next.at_ns = kUnbounded;
  // Of what is due the first in this order counts, else the earliest.
  const auto consider = [&](int64_t at_ns, pb::Cause cause, int64_t grace_ns, const auto& detail) {
    if (next.at_ns <= now_ns || at_ns >= next.at_ns) return;
    next.at_ns = at_ns;
    if (at_ns > now_ns) return;
    next.cause = cause;
    next.detail = detail();
    next.grace_ns = grace_ns;
  };
  const auto at_once = [&](bool due, pb::Cause cause, int64_t grace_ns, const auto& detail) {
    consider(due ? 0 : kUnbounded, cause, grace_ns, detail);
  };

  at_once(job.cancel_requested, pb::CANCEL, grace_ns, [&] { return job.detail; });
  const auto failed = std::find_if(job.tasks.begin(), job.tasks.end(), [](const TaskRow& other) {
    return other.state == pb::TASK_FAILED;
  });
  at_once(failed != job.tasks.end(), pb::CANCEL, grace_ns, [&] {
    const auto index = static_cast<int32_t>(failed - job.tasks.begin());
    return absl::StrCat("task ", job.task_spec(index).name(), " failed");
  });
  at_once(NotNeeded(job, task), pb::NOT_NEEDED, grace_ns,
          [&] { return absl::StrJoin(spec.until(), ", "); });
  at_once(job.holder != 0 && !HolderGoesOn(state, job, attempt), pb::HOLDER, grace_ns, [&] {
    return absl::StrCat("job ", job.holder, ", on whose devices it ran, doesn't go on");
  });
  // A gang that failed is killed at once.
  const std::optional<Failure> failure = FirstFailure(attempt);
  at_once(failure.has_value(), failure.has_value() ? failure->cause : pb::CAUSE_UNSPECIFIED, 0,
          [&] { return failure->detail; });
  const Abilities needs = NeedsOf(*job.spec, spec);
  bool untracked = false, strange = false;
  std::string drained, unable, fills_disk;
  for (const PartRow& part : attempt.parts) {
    untracked = untracked || LostTrackOf(part);
    if (part.over()) continue;
    strange = strange || part.state_id != state.host(part.host).state_id;
    if (fills_disk.empty()) fills_disk = part.fills_disk;
    if (OutgrowsAgent(state.host(part.host), part, needs)) {
      unable = absl::StrCat(state.HostName(part.host), " now ",
                            WhyUnable(state.host(part.host).inventory, needs));
    }
    if (std::string why = Drained(state, part.host); !why.empty()) drained = std::move(why);
  }
  at_once(!fills_disk.empty(), pb::OUT_OF_DISK, 0, [&] { return fills_disk; });
  at_once(untracked, pb::HOST_LOST, grace_ns,
          [] { return "a host of the gang stopped its part or lost track of it"; });
  at_once(strange, pb::HOST_LOST, 0, [] { return "a host came back with a new state directory"; });
  at_once(!unable.empty(), pb::LAUNCH_FAILED, 0, [&] { return unable; });
  // The loss before this attempt was one too many; it was placed all the same, as a loss needs the
  // next placement (docs/contracts.md, 9).
  at_once(row.hosts_lost >= kHostsLostInRow, pb::HOST_LOST, 0,
          [] { return "see the attempts before this one"; });
  consider(LaunchDueNs(state, attempt), pb::LAUNCH_FAILED, 0,
           [&] { return LaunchIsLate(state, attempt); });
  consider(TimeLimitNs(spec, row, attempt), pb::TIME_LIMIT, grace_ns,
           [&] { return absl::StrCat("ran for ", FormatDuration(spec.time_limit_ns())); });
  consider(HangNs(state, spec, row, attempt), pb::HANG, 0, [&] {
    return absl::StrCat("no progress for ", FormatDuration(spec.hang_timeout_ns()));
  });
  at_once(!drained.empty(), pb::DRAIN, grace_ns, [&] { return drained; });
  return next;
}

int64_t LaunchDueNs(const State& state, const AttemptRow& attempt) {
  if (attempt.start_ns != 0) return kUnbounded;
  const int64_t heard_ns = HeardSinceNs(state, attempt);
  return heard_ns == kUnbounded ? kUnbounded
                                : std::max(heard_ns, attempt.place_ns) + kLaunchTimeoutNs;
}

int64_t HangNs(const State& state, const pb::TaskSpec& spec, const TaskRow& row,
               const AttemptRow& attempt) {
  if (spec.hang_timeout_ns() <= 0 || attempt.start_ns == 0) return kUnbounded;
  if (row.progress.attempt() != attempt.number || row.progress.heard_ns() == 0) return kUnbounded;
  const int64_t heard_ns = HeardSinceNs(state, attempt);
  if (heard_ns == kUnbounded) return kUnbounded;
  return std::max({heard_ns, row.progress.heard_ns(), attempt.last_checkpoint_ns}) +
         spec.hang_timeout_ns();
}

}  // namespace muster
