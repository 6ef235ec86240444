// Stops that no claim causes: cancel, failure, limits, drain, lost state directories.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/job_defaults.h"
#include "common/base/units.h"
#include "scheduler/decide/round.h"

namespace muster {
namespace {

// After its grace: for the kill, what the host still writes, and the way there and back.
constexpr int64_t kAnswerNs = 2 * kMinute;

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

}  // namespace

int64_t Round::AnswerDueNs(const Gang& gang) const {
  return std::max(gang.current->stop_ns, s_.listens_since_ns()) + gang.current->grace_ns +
         kAnswerNs;
}

void Round::WakeAt(int64_t at_ns) {
  plan_.next_wake_ns = std::min(plan_.next_wake_ns, std::max(at_ns, now_ns_));
}

int64_t Round::Grace(const pb::TaskSpec& spec) const {
  return spec.has_grace_ns() ? spec.grace_ns() : kDefaultGraceNs;
}

void Round::Stop(const Gang& gang, pb::Cause cause, const std::string& detail, int64_t grace_ns,
                 int32_t next_workers, const pb::AttemptKey* claimant) {
  pb::AttemptStopping* stopping = stops_.emplace_back().mutable_attempt_stopping();
  *stopping->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.current->number);
  stopping->set_cause(cause);
  stopping->set_detail(detail);
  stopping->set_grace_ns(grace_ns);
  stopping->set_next_workers(next_workers);
  if (claimant != nullptr) *stopping->mutable_claimant() = *claimant;
  stopped_[IndexOf(gang)] = true;
  stops_now_.push_back(IndexOf(gang));
  if (AllOver(*gang.current))
    WakeAt(now_ns_);  // nobody will answer: what follows is the next decision's
  failed_.clear();
  future_.Release(gang.wants, *gang.current);
  if (gang.bound_pool >= 0 && !gang.may_be_lost)
    AddUse(&use_future_, gang, gang.bound_pool, -gang.current->workers);
}

void Round::StopWhatMust() {
  std::vector<int32_t> due;
  for (const auto& [wake_ns, task] : m_.wakes) {
    if (wake_ns > now_ns_) {
      WakeAt(wake_ns);
      break;
    }
    due.push_back(m_.gang_of.at(task));
  }
  std::sort(due.begin(), due.end());
  for (const int32_t b : due) {
    const Gang& gang = m_.gangs[b];
    const AttemptRow& attempt = *gang.current;
    const JobRow& job = *gang.job;
    const int64_t grace_ns = Grace(*gang.spec);
    const TaskRow* failed = nullptr;
    int32_t failed_index = 0;
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      if (job.tasks[t].state == pb::TASK_FAILED && failed == nullptr) {
        failed = &job.tasks[t];
        failed_index = static_cast<int32_t>(t);
      }
    }
    if (job.cancel_requested) {
      Stop(gang, pb::CANCEL, job.detail, grace_ns);
      continue;
    }
    if (failed != nullptr) {
      Stop(gang, pb::CANCEL, absl::StrCat("task ", job.task_spec(failed_index).name(), " failed"),
           grace_ns);
      continue;
    }
    if (const std::optional<Failure> failure = FirstFailure(attempt)) {
      Stop(gang, failure->cause, failure->detail, 0);  // a gang that failed is killed at once
      continue;
    }
    // One member's host stopped it, or no longer knows it, and nobody here asked for that: the
    // others would wait for it for ever.
    if (std::any_of(attempt.parts.begin(), attempt.parts.end(), [](const PartRow& part) {
          return part.phase == pb::GONE && !part.lost && (part.stop_sent || part.exits.empty());
        })) {
      Stop(gang, pb::HOST_LOST, "a host of the gang stopped its part or lost track of it",
           grace_ns);
      continue;
    }
    bool strange = false;
    std::string drained;
    for (const PartRow& part : attempt.parts) {
      if (part.over()) continue;
      const HostRow& host = s_.host(part.host);
      const ClusterRow& cluster = s_.clusters()[host.cluster];
      if (part.state_id != host.state_id) strange = true;
      if (host.drained || cluster.drained) {
        const std::string& reason = host.drained ? host.drain_reason : cluster.drain_reason;
        drained = absl::StrCat(host.drained ? s_.HostName(part.host) : cluster.name, " is drained",
                               reason.empty() ? "" : ": ", reason);
      }
    }
    if (strange) {
      Stop(gang, pb::HOST_LOST, "a host came back with a new state directory", 0);
      continue;
    }
    // The loss before this attempt was one too many; it was placed all the same, as a loss needs
    // the next placement (CONTRACTS 9).
    if (gang.row->hosts_lost >= kHostsLostInRow) {
      Stop(gang, pb::HOST_LOST, "see the attempts before this one", 0);
      continue;
    }
    if (const int64_t at_ns = LaunchDueNs(s_, attempt); at_ns <= now_ns_) {
      Stop(gang, pb::LAUNCH_FAILED, LaunchIsLate(s_, attempt), 0);
      continue;
    } else if (at_ns != kUnbounded) {
      WakeAt(at_ns);
    }
    if (gang.spec->time_limit_ns() > 0 && attempt.start_ns != 0) {
      const int64_t at_ns =
          attempt.start_ns + std::max<int64_t>(0, gang.spec->time_limit_ns() - gang.row->ran_ns);
      if (at_ns <= now_ns_) {
        Stop(gang, pb::TIME_LIMIT,
             absl::StrCat("ran for ", FormatDuration(gang.spec->time_limit_ns())), grace_ns);
        continue;
      }
      WakeAt(at_ns);
    }
    if (const int64_t at_ns = HangNs(s_, *gang.spec, *gang.row, attempt); at_ns <= now_ns_) {
      Stop(gang, pb::HANG,
           absl::StrCat("no progress for ", FormatDuration(gang.spec->hang_timeout_ns())), 0);
      continue;
    } else if (at_ns != kUnbounded) {
      WakeAt(at_ns);
    }
    if (!drained.empty()) Stop(gang, pb::DRAIN, drained, grace_ns);
  }
}

void Round::EndWhatIsOver() {
  for (const int32_t b : m_.stopping) {
    const Gang& gang = m_.gangs[b];
    if (!gang.ends || !gang.may_be_lost || !AllOver(*gang.current)) continue;
    Lose(gang, "the job ends without it");
    if (!ending_.insert(gang.job).second) continue;
    WakeAt(now_ns_);  // S is another one without the job, and nothing else need happen
    // What else runs of it ends with it, before anything is done for it; where it was cancelled,
    // that was said already.
    for (size_t t = 0; t < gang.job->tasks.size(); ++t) {
      const auto other = m_.gang_of.find({gang.job->number, static_cast<int32_t>(t)});
      if (other == m_.gang_of.end()) continue;
      const Gang& sibling = m_.gangs[other->second];
      if (!sibling.running() || stopped_[other->second]) continue;
      Stop(sibling, pb::CANCEL, absl::StrCat("task ", gang.spec->name(), " failed"),
           Grace(*sibling.spec));
    }
  }
  if (ending_.empty()) return;
  for (std::vector<int32_t>* gangs : {&entitled_, &outside_}) {
    std::erase_if(*gangs, [&](int32_t b) { return ending_.contains(m_.gangs[b].job); });
  }
}

}  // namespace muster
