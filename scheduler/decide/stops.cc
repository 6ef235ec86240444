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

int64_t Round::AnswerDueNs(const Base& base) const {
  return std::max(base.current->stop_ns, s_.listens_since_ns()) + base.current->grace_ns +
         kAnswerNs;
}

void Round::LookAt(int64_t at_ns) {
  plan_.next_look_ns = std::min(plan_.next_look_ns, std::max(at_ns, now_ns_));
}

int64_t Round::Grace(const pb::TaskSpec& spec) const {
  return spec.has_grace_ns() ? spec.grace_ns() : kDefaultGraceNs;
}

void Round::Stop(const Base& base, pb::Cause cause, const std::string& detail, int64_t grace_ns,
                 int32_t next_workers, const pb::AttemptKey* claimant) {
  pb::AttemptStopping* stopping = stops_.emplace_back().mutable_attempt_stopping();
  *stopping->mutable_key() = KeyOf(*base.job, base.ref.task, base.current->number);
  stopping->set_cause(cause);
  stopping->set_detail(detail);
  stopping->set_grace_ns(grace_ns);
  stopping->set_next_workers(next_workers);
  if (claimant != nullptr) *stopping->mutable_claimant() = *claimant;
  stopped_[IndexOf(base)] = true;
  stops_now_.push_back(IndexOf(base));
  if (AllOver(*base.current))
    LookAt(now_ns_);  // nobody will answer: what follows is the next decision's
  failed_.clear();
  future_.Release(base.wants, *base.current);
  if (base.bound_cell >= 0 && !base.may_be_lost)
    AddUse(&use_future_, base, base.bound_cell, -base.current->workers);
}

void Round::StopWhatMust() {
  std::vector<int32_t> due;
  for (const auto& [look_ns, task] : m_.looks) {
    if (look_ns > now_ns_) {
      LookAt(look_ns);
      break;
    }
    due.push_back(m_.base_of.at(task));
  }
  std::sort(due.begin(), due.end());
  for (const int32_t b : due) {
    const Base& base = m_.bases[b];
    const AttemptRow& attempt = *base.current;
    const JobRow& job = *base.job;
    const int64_t grace_ns = Grace(*base.spec);
    const TaskRow* failed = nullptr;
    int32_t failed_index = 0;
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      if (job.tasks[t].state == pb::TASK_FAILED && failed == nullptr) {
        failed = &job.tasks[t];
        failed_index = static_cast<int32_t>(t);
      }
    }
    if (job.cancel_requested) {
      Stop(base, pb::CANCEL, job.detail, grace_ns);
      continue;
    }
    if (failed != nullptr) {
      Stop(base, pb::CANCEL, absl::StrCat("task ", job.task_spec(failed_index).name(), " failed"),
           grace_ns);
      continue;
    }
    if (const std::optional<Failure> failure = FirstFailure(attempt)) {
      Stop(base, failure->cause, failure->detail, 0);  // a gang that failed is killed at once
      continue;
    }
    // One member's host stopped it, or no longer knows it, and nobody here asked for that: the
    // others would wait for it for ever.
    if (std::any_of(attempt.parts.begin(), attempt.parts.end(), [](const PartRow& part) {
          return part.phase == pb::GONE && !part.lost && (part.stop_sent || part.exits.empty());
        })) {
      Stop(base, pb::HOST_LOST, "a host of the gang stopped its part or lost track of it",
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
      Stop(base, pb::HOST_LOST, "a host came back with a new state directory", 0);
      continue;
    }
    // The loss before this attempt was one too many; it was placed all the same, as a loss needs
    // the next placement (CONTRACTS 9).
    if (base.row->hosts_lost >= kHostsLostInRow) {
      Stop(base, pb::HOST_LOST, "see the attempts before this one", 0);
      continue;
    }
    if (const int64_t at_ns = LaunchDueNs(s_, attempt); at_ns <= now_ns_) {
      Stop(base, pb::LAUNCH_FAILED, LaunchIsLate(s_, attempt), 0);
      continue;
    } else if (at_ns != kUnbounded) {
      LookAt(at_ns);
    }
    if (base.spec->time_limit_ns() > 0 && attempt.start_ns != 0) {
      const int64_t at_ns =
          attempt.start_ns + std::max<int64_t>(0, base.spec->time_limit_ns() - base.row->ran_ns);
      if (at_ns <= now_ns_) {
        Stop(base, pb::TIME_LIMIT,
             absl::StrCat("ran for ", FormatDuration(base.spec->time_limit_ns())), grace_ns);
        continue;
      }
      LookAt(at_ns);
    }
    if (const int64_t at_ns = HangNs(s_, *base.spec, *base.row, attempt); at_ns <= now_ns_) {
      Stop(base, pb::HANG,
           absl::StrCat("no progress for ", FormatDuration(base.spec->hang_timeout_ns())), 0);
      continue;
    } else if (at_ns != kUnbounded) {
      LookAt(at_ns);
    }
    if (!drained.empty()) Stop(base, pb::DRAIN, drained, grace_ns);
  }
}

void Round::EndWhatIsOver() {
  for (const int32_t b : m_.stopping) {
    const Base& base = m_.bases[b];
    if (!base.ends || !base.may_be_lost || !AllOver(*base.current)) continue;
    Lose(base, "the job ends without it");
    if (!ending_.insert(base.job).second) continue;
    LookAt(now_ns_);  // S is another one without the job, and nothing else need happen
    // What else runs of it ends with it, before anything is done for it; where it was cancelled,
    // that was said already.
    for (size_t t = 0; t < base.job->tasks.size(); ++t) {
      const auto other = m_.base_of.find({base.job->number, static_cast<int32_t>(t)});
      if (other == m_.base_of.end()) continue;
      const Base& sibling = m_.bases[other->second];
      if (!sibling.running() || stopped_[other->second]) continue;
      Stop(sibling, pb::CANCEL, absl::StrCat("task ", base.spec->name(), " failed"),
           Grace(*sibling.spec));
    }
  }
  if (ending_.empty()) return;
  for (std::vector<int32_t>* bases : {&entitled_, &outside_}) {
    std::erase_if(*bases, [&](int32_t b) { return ending_.contains(m_.bases[b].job); });
  }
}

}  // namespace muster
