#include "sim/faults/row_checks.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/job_defaults.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {
namespace {

constexpr int64_t kSlackNs = 2 * kSecond;  // of a decision that is made when it is due

bool Released(const pb::AttemptRecord& attempt) {
  return std::all_of(attempt.parts().begin(), attempt.parts().end(), Over);
}

// The program's own fault, which spends its budget.
bool SpendsBudget(pb::Cause cause) {
  return cause == pb::PROGRAM_ERROR || cause == pb::KILLED || cause == pb::OUT_OF_MEMORY ||
         cause == pb::OUT_OF_DISK || cause == pb::SETUP_FAILED || cause == pb::HANG;
}

std::string TaskName(const pb::JobRecord& job, int t) {
  return absl::StrCat(job.uid(), "/", job.spec().tasks(t).name());
}

// The queue and those above it: a/x, a.
std::vector<std::string> Path(std::string queue) {
  std::vector<std::string> path;
  while (!queue.empty()) {
    path.push_back(queue);
    const size_t slash = queue.rfind('/');
    queue.resize(slash == std::string::npos ? 0 : slash);
  }
  return path;
}

bool IsBelow(const std::string& queue, const std::string& above) {
  return queue == above || absl::StartsWith(queue, above + "/");
}

std::string FlavourOf(const pb::TaskSpec& spec, const pb::AttemptRecord& attempt) {
  return spec.resources().gpus_milli() > 0 ? attempt.flavour() : "cpu";
}

int64_t WorkerMilli(const pb::TaskSpec& spec) {
  return spec.resources().gpus_milli() > 0 ? spec.resources().gpus_milli()
                                           : spec.resources().cpus_milli();
}

const pb::AttemptRecord* Current(const pb::TaskRecord& task) {
  if (task.attempts().empty()) return nullptr;
  const pb::AttemptRecord& newest = *task.attempts().rbegin();
  return newest.end_ns() == 0 ? &newest : nullptr;
}

// Processes of an attempt that failed before anybody had asked them to end: with an exit code after
// which its task is not tried again, or otherwise.
struct OwnFailures {
  int32_t for_good = 0, others = 0;
};

OwnFailures FailuresOf(const pb::TaskSpec& spec, const pb::AttemptRecord& attempt) {
  OwnFailures failures;
  const auto& codes = spec.final_exit_codes();
  for (const pb::HostPart& part : attempt.parts()) {
    for (const pb::WorkerExit& exit : part.exits()) {
      if (part.stop_sent() && !exit.own()) continue;
      if (exit.exit_code() == 0 && exit.signal() == 0 && !exit.oom()) continue;
      const bool for_good = exit.signal() == 0 && !exit.oom() &&
                            std::find(codes.begin(), codes.end(), exit.exit_code()) != codes.end();
      ++(for_good ? failures.for_good : failures.others);
    }
  }
  return failures;
}

bool NewestEndsForGood(const pb::TaskSpec& spec, const pb::TaskRecord& task) {
  return !task.attempts().empty() && FailuresOf(spec, *task.attempts().rbegin()).for_good > 0;
}

}  // namespace

void RowChecks::ReadQueues(const std::string& above, const pb::QueueSpec& spec) {
  const std::string path = above.empty() ? spec.name() : absl::StrCat(above, "/", spec.name());
  Queue& queue = queues_[path];
  for (const auto& [flavour, quota] : spec.quota()) {
    if (quota.has_limit_milli()) queue.limit_milli[flavour] = quota.limit_milli();
  }
  for (const pb::QueueSpec& child : spec.queues()) ReadQueues(path, child);
}

void RowChecks::OnConfiguration(const pb::ConfigurationRecord& configuration) {
  queues_.clear();
  for (const pb::QueueSpec& queue : configuration.queues().queues()) ReadQueues("", queue);
}

void RowChecks::OnHost(int64_t now_ns, const std::string& name, const pb::HostRecord& after) {
  HostTimes& times = times_[name];
  const bool speaks = after.state() == pb::HOST_UP || after.state() == pb::HOST_NEVER_SEEN;
  if (speaks && times.left_ns != 0) times = {0, now_ns};
  if (!speaks && times.left_ns == 0) times.left_ns = now_ns;
}

void RowChecks::CheckTimeLimit(int64_t now_ns, const std::string& name, const pb::TaskSpec& spec,
                               const pb::TaskRecord* before, const pb::TaskRecord& after) {
  const auto runs = limit_over_ns_.find(name);
  const bool ran = runs != limit_over_ns_.end();
  const int64_t was_over_ns = ran ? runs->second : 0;
  if (ran) limit_over_ns_.erase(runs);
  const pb::AttemptRecord* current = Current(after);
  if (spec.time_limit_ns() == 0 || current == nullptr) return;
  if (current->state() == pb::TASK_STOPPING) {
    const pb::AttemptRecord* known = before != nullptr ? Current(*before) : nullptr;
    const bool stops_now = known == nullptr || known->state() != pb::TASK_STOPPING;
    if (stops_now && current->cause() == pb::TIME_LIMIT) {
      ++counters_["attempts stopped at their time limit"];
      if (current->number() > 1) ++counters_["later attempts stopped at their time limit"];
      if (ran && now_ns < was_over_ns)
        violate_(absl::StrCat("its time limit would be over in ",
                              FormatDuration(was_over_ns - now_ns), ": ", name));
    }
    return;
  }
  if (current->start_ns() == 0 || Released(*current)) return;
  limit_over_ns_[name] = current->start_ns() + spec.time_limit_ns() - progress_[name].ran_ns;
}

void RowChecks::CheckMultiples(const std::string& name, const pb::TaskSpec& spec,
                               const pb::TaskRecord* before, const pb::TaskRecord& after) {
  const int32_t step = spec.workers().multiple_of();
  if (step <= 1) return;
  const auto check = [&](int32_t workers, const char* what) {
    if (workers % step != 0)
      violate_(absl::StrCat("it ", what, workers, " workers, no multiple of ", step, ": ", name));
  };
  check(after.wanted_workers(), "is to come back with ");
  check(after.reservation().workers(), "has devices kept for ");
  for (const pb::AttemptRecord& attempt : after.attempts()) {
    int32_t placed = 0;
    for (const pb::Placement& placement : attempt.placements()) placed += placement.workers();
    check(attempt.workers(), "has ");
    check(attempt.next_workers(), "is to go on with ");
    check(placed, "is placed with ");
  }
  if (after.attempts().empty()) return;
  const pb::AttemptRecord& newest = *after.attempts().rbegin();
  const pb::AttemptRecord* known =
      before == nullptr || before->attempts().empty() ? nullptr : &*before->attempts().rbegin();
  if (known != nullptr && known->number() == newest.number()) return;
  ++counters_["gangs in multiples that were placed"];
  if (known != nullptr && known->workers() != newest.workers())
    ++counters_["gangs in multiples that came back larger or smaller"];
}

void RowChecks::CheckFinalExits(const std::string& name, const pb::TaskSpec& spec,
                                const pb::TaskRecord* before, const pb::TaskRecord& after) {
  if (spec.final_exit_codes().empty()) return;
  for (const pb::AttemptRecord& attempt : after.attempts()) {
    if (attempt.end_ns() == 0 || attempt.cause() != pb::PROGRAM_ERROR) continue;
    const OwnFailures failures = FailuresOf(spec, attempt);
    if (failures.for_good == 0 || failures.others > 0) continue;  // what came first decides
    const bool newest = attempt.number() == after.attempts().rbegin()->number();
    if (!newest || after.state() == pb::TASK_WAITING)
      violate_(absl::StrCat("it is tried again after a final exit code: ", name));
  }
  const bool fails =
      after.state() == pb::TASK_FAILED && (before == nullptr || before->state() != pb::TASK_FAILED);
  if (fails && NewestEndsForGood(spec, after))
    ++counters_["tasks that ended for good by an exit code"];
}

void RowChecks::OnJob(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after) {
  const bool ends = after.end_ns() != 0 || after.cancel_requested();
  for (int t = 0; t < after.tasks_size(); ++t) {
    const pb::TaskRecord& task = after.tasks(t);
    const pb::TaskSpec& spec = after.spec().tasks(t);
    const std::string name = TaskName(after, t);
    if (ends && task.has_reservation())
      violate_(absl::StrCat("devices are kept for a job that ",
                            after.end_ns() != 0 ? "has ended" : "is cancelled", ": ", name));
    const bool moved =
        task.cause() == pb::PREEMPTION || task.cause() == pb::DRAIN || task.cause() == pb::RESIZE;
    if (task.state() == pb::TASK_FAILED && moved)
      violate_(absl::StrCat("it fails because others were let in: ", name));
    Progress& progress = progress_[name];
    const int32_t budget = MaxRestartsOf(after.spec(), t, after.member());
    for (const pb::AttemptRecord& attempt : task.attempts()) {
      if (attempt.number() <= progress.ended) continue;
      if (attempt.end_ns() == 0) {
        if (progress.failed > budget)
          violate_(absl::StrCat("it is started once more after ", progress.failed,
                                " failures of its own, with a budget of ", budget, ": ", name));
        continue;
      }
      progress.ended = attempt.number();
      if (attempt.start_ns() != 0) progress.ran_ns += attempt.end_ns() - attempt.start_ns();
      if (SpendsBudget(attempt.cause())) ++progress.failed;
      if (progress.failed == budget + 1) ++counters_["budgets of restarts that were spent"];
    }
    if (task.state() == pb::TASK_FAILED && SpendsBudget(task.cause()) &&
        progress.failed <= budget && !NewestEndsForGood(spec, task))
      violate_(absl::StrCat("it fails after ", progress.failed,
                            " failures of its own, with a budget of ", budget, ": ", name));
    const pb::TaskRecord* old = before != nullptr ? &before->tasks(t) : nullptr;
    CheckTimeLimit(now_ns, name, spec, old, task);
    CheckMultiples(name, spec, old, task);
    CheckFinalExits(name, spec, old, task);
  }
}

void RowChecks::Committed(int64_t now_ns, bool restoring,
                          const std::set<std::pair<std::string, std::string>>& placed) {
  for (const auto& [uid, task] : placed) CheckLimits(jobs_.at(uid), task);
  if (!restoring) {
    for (const auto& [name, over_ns] : limit_over_ns_) {
      if (now_ns > over_ns + kSlackNs)
        violate_(absl::StrCat("its time limit is over since ", FormatDuration(now_ns - over_ns),
                              ", and it isn't stopped: ", name));
    }
  }
}

bool RowChecks::CantBeReached(const pb::AttemptRecord& attempt) const {
  for (int p = 0; p < attempt.placements_size(); ++p) {
    const auto host =
        hosts_.find(absl::StrCat(attempt.cluster(), "/", attempt.placements(p).host()));
    if (host != hosts_.end() && host->second.state() == pb::HOST_UNREACHABLE) return true;
  }
  return false;
}

// What can't be reached may have been given to others, and is left out.
int64_t RowChecks::HeldBelow(const std::string& queue, const std::string& flavour) const {
  int64_t milli = 0;
  for (const auto& [uid, job] : jobs_) {
    if (job.end_ns() != 0 || !IsBelow(job.spec().queue(), queue)) continue;
    if (!job.spec().on().empty()) continue;  // its holder is charged
    for (int t = 0; t < job.tasks_size(); ++t) {
      const pb::AttemptRecord* current = Current(job.tasks(t));
      const pb::TaskSpec& spec = job.spec().tasks(t);
      if (current == nullptr || Released(*current) || FlavourOf(spec, *current) != flavour ||
          CantBeReached(*current))
        continue;
      milli += current->workers() * WorkerMilli(spec);
    }
  }
  return milli;
}

// Others of its tasks may hold more than a limit that was lowered since they were placed.
void RowChecks::CheckLimits(const pb::JobRecord& job, const std::string& task) {
  if (!job.spec().on().empty()) return;  // it adds nothing to what may have been lowered since
  std::set<std::string> flavours;
  for (int t = 0; t < job.tasks_size(); ++t) {
    const pb::AttemptRecord* current = Current(job.tasks(t));
    if (current != nullptr && job.spec().tasks(t).name() == task)
      flavours.insert(FlavourOf(job.spec().tasks(t), *current));
  }
  const std::vector<std::string> path = Path(job.spec().queue());
  for (const std::string& queue : path) {
    for (const std::string& flavour : flavours) {
      const auto known = queues_.find(queue);
      if (known == queues_.end()) continue;
      const auto limit = known->second.limit_milli.find(flavour);
      if (limit == known->second.limit_milli.end()) continue;
      ++counters_["starts below a limit"];
      if (queue != path.front()) ++counters_["starts below a limit further up"];
      const int64_t held = HeldBelow(queue, flavour);
      if (held > limit->second)
        violate_(absl::StrCat("queue ", queue, " holds ", held, " of at most ", limit->second, " ",
                              flavour, " once job ", job.number(), " is placed"));
    }
  }
}

// Contract 11.
void RowChecks::OnLost(int64_t now_ns, const std::string& cluster, const std::string& attempt) {
  int64_t newest_ns = 0, silent = 0, all = 0;
  const auto each = [&](const auto& look) {
    for (const auto& [name, host] : hosts_) {
      if (host.cluster() == cluster && host.state() != pb::HOST_NEVER_SEEN) look(name, host);
    }
  };
  each([&](const std::string& name, const pb::HostRecord&) {
    newest_ns = std::max(newest_ns, times_[name].left_ns);
  });
  each([&](const std::string& name, const pb::HostRecord& host) {
    const HostTimes& times = times_[name];
    // It was unreachable for two leases, after one of silence, when the others fell silent.
    if (host.state() == pb::HOST_UNREACHABLE && times.left_ns + 3 * lease_ns_ < newest_ns) return;
    ++all;
    const bool just_back = times.back_ns != 0 && times.back_ns + lease_ns_ > now_ns;
    silent += host.state() != pb::HOST_UP || just_back;
  });
  if (silent > 1) ++counters_["lost while other hosts of its cluster are silent"];
  if (silent >= 3 && 2 * silent > all)
    violate_(absl::StrCat("contract 11: lost while ", silent, " of ", all, " hosts of ", cluster,
                          " are silent: ", attempt));
}

void RowChecks::OnRestored() {
  progress_.clear();
  limit_over_ns_.clear();
  times_.clear();
  for (const auto& [name, host] : hosts_) times_[name] = {host.silent_since_ns(), host.spoke_ns()};
  for (const auto& [uid, job] : jobs_) {
    for (int t = 0; t < job.tasks_size(); ++t) {
      Progress& progress = progress_[TaskName(job, t)];
      progress.ran_ns = job.tasks(t).ran_ns();
      for (const pb::AttemptRecord& attempt : job.tasks(t).attempts()) {
        if (attempt.end_ns() == 0) continue;
        progress.ended = attempt.number();
        if (SpendsBudget(attempt.cause())) ++progress.failed;
      }
    }
  }
}

std::vector<std::string> RowChecks::Leaks() const {
  std::vector<std::string> leaks;
  for (const auto& [name, host] : hosts_) {
    for (const pb::LostAttempt& lost : host.lost())
      leaks.push_back(absl::StrCat(name, " has the row of a Lost attempt still, ",
                                   lost.key().job_uid(), "/", lost.key().task(), "/",
                                   lost.key().attempt()));
  }
  for (const auto& [uid, job] : jobs_) {
    if (job.later() || job.awaits_size() > 0 || job.not_before_ns() != 0)
      leaks.push_back(absl::StrCat("job ", job.number(), " has ended, and waits for others"));
    for (int t = 0; t < job.tasks_size(); ++t) {
      if (Current(job.tasks(t)) != nullptr || job.tasks(t).has_reservation())
        leaks.push_back(absl::StrCat("a task that has ended holds devices, ", TaskName(job, t)));
    }
  }
  return leaks;
}

}  // namespace muster::sim::faults
