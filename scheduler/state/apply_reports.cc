// Apply: what hosts say of themselves and of attempts; how attempts, tasks and jobs end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/job_defaults.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "scheduler/state/applier.h"
#include "scheduler/state/usage.h"

namespace muster {
namespace {

constexpr int64_t kMaxBackoffNs = 5 * kMinute;
constexpr size_t kMaxDetailBytes = 4096;  // of what an attempt refused to load

// What only the scheduler decides: a host repeats it of an attempt that it was told to stop.
bool Ordered(pb::Cause cause) {
  return Moved(cause) || cause == pb::CANCEL || cause == pb::TIME_LIMIT || cause == pb::HANG ||
         cause == pb::OUT_OF_DISK || cause == pb::EXPORT_FAILED || cause == pb::NOT_NEEDED;
}

int64_t Backoff(int64_t first_ns, int32_t failures) {
  int64_t backoff_ns = first_ns > 0 ? first_ns : kSecond;
  for (int32_t i = 1; i < failures && backoff_ns < kMaxBackoffNs; ++i) backoff_ns *= 2;
  return std::min(backoff_ns, kMaxBackoffNs);
}

// Every worker exited 0 and no stop was carried out before that (contract 13).
bool Succeeded(const AttemptRow& attempt) {
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [](const PartRow& part) {
    return part.phase == pb::GONE && !part.lost && !part.stop_sent && !part.exits.empty() &&
           (part.cause == pb::CAUSE_UNSPECIFIED || part.cause == pb::DONE) &&
           std::all_of(part.exits.begin(), part.exits.end(), [](const pb::WorkerExit& exit) {
             return exit.exit_code() == 0 && exit.signal() == 0 && !exit.oom();
           });
  });
}

// It made progress: what failed it before is over.
void Forgive(TaskRow* task) {
  task->infra_failures = task->hosts_lost = 0;
  task->faults_tried_ns = 0;
}

// Nothing of the attempt runs any more, since now. How long it may still wait for its export is no
// time of its program's.
void BookRun(const pb::TaskSpec& spec, const AttemptRow& attempt, int64_t now_ns, TaskRow* task) {
  task->used_gpu_ms += static_cast<int64_t>(static_cast<__int128>(DevicesMilli(attempt, spec)) *
                                            (now_ns - attempt.place_ns) / kSecond);
  if (attempt.start_ns != 0) task->ran_ns += now_ns - attempt.start_ns;
}

struct End {
  pb::Cause cause = pb::HOST_LOST;
  std::string detail;
};

// Of an attempt that succeeded: what became of its export decides.
End EndOfSuccess(const TaskRow& task) {
  if (task.export_state != "staged" && task.export_state != "failed") return {pb::DONE, ""};
  const AttemptRow* staged = nullptr;
  for (const AttemptRow& a : task.attempts) {
    if (!a.export_staged.empty()) staged = &a;
  }
  const std::string stays =
      staged == nullptr ? "" : absl::StrCat("the export stays at ", staged->export_staged);
  if (task.export_state == "staged")
    return {pb::CANCEL, absl::StrCat("before its export was published; ", stays)};
  return {pb::EXPORT_FAILED,
          absl::StrCat(task.export_failures, " times: ", task.export_detail, "; ", stays)};
}

// What ended the task's attempt, of which nothing runs any more.
End EndOf(const pb::TaskSpec& spec, const TaskRow& task, const AttemptRow& attempt) {
  End end{pb::HOST_LOST, attempt.detail};
  const bool lost = std::any_of(attempt.parts.begin(), attempt.parts.end(),
                                [](const PartRow& part) { return part.lost; });
  if (Succeeded(attempt)) {
    end = EndOfSuccess(task);
  } else if (attempt.state == pb::TASK_STOPPING) {
    end.cause = attempt.cause;
    // Stopped because one lost a peer: the peer may have told its own end meanwhile. Stopped to
    // move: it may have said before that no other try would help.
    const std::optional<Failure> failure = FirstFailure(attempt);
    if (failure.has_value() &&
        (end.cause == pb::NETWORK_FAILURE || (Moved(end.cause) && SaysFinal(spec, *failure))))
      end = {failure->cause, failure->detail};
  } else if (const std::optional<Failure> failure = FirstFailure(attempt)) {
    end = {failure->cause, failure->detail};
  } else if (attempt.start_ns == 0 &&
             std::none_of(attempt.parts.begin(), attempt.parts.end(), [](const PartRow& part) {
               return part.lost || part.stop_sent || !part.exits.empty();
             })) {
    end.cause = pb::LAUNCH_FAILED;
  } else if (end.detail.empty()) {
    for (const PartRow& part : attempt.parts) {
      if (end.detail.empty()) end.detail = part.detail;
    }
    if (end.detail.empty()) end.detail = "its host stopped it or lost track of it";
  }
  // A member that failed after another was lost failed because of that.
  if (lost && end.cause != pb::CANCEL && end.cause != pb::TIME_LIMIT && end.cause != pb::NOT_NEEDED)
    end.cause = pb::HOST_LOST;
  return end;
}

}  // namespace

// ---- hosts ----

void Applier::SetHostState(HostRow* host, pb::HostState state) {
  if (host->state == state) return;
  if (state == pb::HOST_UP) {
    if (host->silent_since_ns != 0) host->spoke_ns = s_.now_ns_;
    host->silent_since_ns = 0;
    host->quiet_ns = 0;  // whatever was proved of its processes holds no more
    host->confirmed_off_by.clear();
    host->fence_detail.clear();
  } else if (host->silent_since_ns == 0) {
    host->silent_since_ns = s_.now_ns_;
  }
  host->state = state;
  host->state_since_ns = s_.now_ns_;
}

// Nothing of the attempt has run on this host since it spoke last.
void Applier::GoneOff(AttemptRow* attempt, const HostRow& host) {
  const int64_t since_ns = host.silent_since_ns != 0 ? host.silent_since_ns : s_.now_ns_;
  if (attempt->off_since_ns == 0 || since_ns < attempt->off_since_ns)
    attempt->off_since_ns = since_ns;
}

void Applier::On(const pb::HostHello& e) {
  const bool known = s_.FindHost(e.cluster(), e.host()) != kNoHost;
  const HostId id = FindOrAddHost(e.cluster(), e.host());
  if (id == kNoHost) return;
  if (known && s_.host(id).boot_id != e.boot_id()) {
    const std::vector<AttemptRef> refs(s_.host(id).attempts.begin(), s_.host(id).attempts.end());
    for (const AttemptRef& ref : refs) {
      AttemptRow* attempt = &Job(ref.job)->tasks[ref.task].attempts.back();
      if (attempt->number == ref.number) GoneOff(attempt, s_.host(id));
    }
  }
  HostRow* host = Host(id);
  host->state_id = e.state_id();
  if (host->boot_id != e.boot_id()) host->fault_ns = 0;  // its clock may have been set
  host->boot_id = e.boot_id();
  KeepQuarantines(id, e.inventory());
  SetHostState(host, pb::HOST_UP);
  NewRound();
  if (!known) OrderHost(id);
  RefreshHost(id);
}

void Applier::On(const pb::HostStateChanged& e) {
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (id == kNoHost || s_.host(id).state == pb::HOST_NEVER_SEEN) return;
  if (e.state() != pb::HOST_UP && e.state() != pb::HOST_SILENT && e.state() != pb::HOST_UNREACHABLE)
    return;
  const bool quieter = e.state() == pb::HOST_UNREACHABLE && e.quiet_ns() > s_.host(id).quiet_ns;
  if (s_.host(id).state == e.state() && !quieter) return;
  SetHostState(Host(id), e.state());
  if (quieter) Host(id)->quiet_ns = e.quiet_ns();
  NewRound();
  RefreshHost(id);
}

void Applier::On(const pb::HostConfirmedOff& e) {
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (id == kNoHost || s_.host(id).state != pb::HOST_UNREACHABLE ||
      !s_.host(id).confirmed_off_by.empty())
    return;
  Host(id)->confirmed_off_by = e.by().empty() ? "somebody" : e.by();
  Host(id)->fence_detail.clear();
  NewRound();
  RefreshHost(id);
}

void Applier::On(const pb::HostFenceFailed& e) {
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (id == kNoHost || s_.host(id).state != pb::HOST_UNREACHABLE ||
      !s_.host(id).confirmed_off_by.empty())
    return;
  Host(id)->fence_detail = e.detail();
}

// ---- attempts ----

// Nobody here knows of it, and its processes may run: it is stopped like a Lost one, until its host
// says Gone (contract 19). What it holds there isn't known.
void Applier::KeepStray(HostId id, const pb::AttemptReported& e) {
  const pb::AttemptKey& key = e.report().key();
  if (e.report().phase() == pb::ATTEMPT_PHASE_UNSPECIFIED || e.report().phase() == pb::GONE ||
      s_.host(id).lost.size() >= kStraysKept)
    return;
  for (const LostRow& lost : s_.host(id).lost) {
    if (lost.key.job_uid() == key.job_uid() && lost.key.task() == key.task() &&
        lost.key.attempt() == key.attempt())
      return;
  }
  LostRow stray;
  stray.key = key;
  stray.placement.set_host(s_.host(id).name);
  stray.state_id = e.state_id();
  Host(id)->lost.push_back(std::move(stray));
  NewRound();
  RefreshHost(id);
}

void Applier::On(const pb::AttemptReported& e) {
  const pb::AttemptReport& report = e.report();
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (id == kNoHost) return;
  if (report.phase() == pb::GONE) {
    const auto same = [&](const LostRow& lost) {
      return lost.key.job_uid() == report.key().job_uid() &&
             lost.key.task() == report.key().task() && lost.key.attempt() == report.key().attempt();
    };
    const std::vector<LostRow>& lost = s_.host(id).lost;
    if (std::any_of(lost.begin(), lost.end(), same)) {
      std::erase_if(Host(id)->lost, same);
      NewRound();
      RefreshHost(id);
    }
  }
  // What it would change is looked up before anything is marked as changed: most reports are
  // repetitions.
  const AttemptRow* seen = s_.FindAttempt(report.key());
  if (seen == nullptr) return KeepStray(id, e);
  if (seen->ended()) return;
  const auto at = std::find_if(seen->parts.begin(), seen->parts.end(),
                               [&](const PartRow& part) { return part.host == id; });
  if (at == seen->parts.end() || at->over() || report.phase() < at->phase) return;
  if (report.phase() != pb::GONE && at->state_id != e.state_id()) return;
  const size_t index = static_cast<size_t>(at - seen->parts.begin());

  const Found found = FindNewest(report.key());
  if (!found) return;
  AttemptRow* attempt = found.attempt;
  PartRow* part = &attempt->parts[index];
  // Its end or failure; that of a stop is not news from outside.
  if (attempt->state != pb::TASK_STOPPING && report.phase() > part->phase &&
      (report.phase() == pb::EXITED || report.phase() == pb::GONE))
    NewRound();
  // The ends of some of its processes were told, and now its host knows nothing of it: the others'
  // are lost, and may have been any. Where one of those that were told is a failure, that is why it
  // ends.
  if (report.phase() == pb::GONE && report.exits().empty() && !part->exits.empty() &&
      part->cause == pb::CAUSE_UNSPECIFIED && !FirstFailure(*attempt).has_value()) {
    part->cause = pb::HOST_LOST;
    part->detail = "its host lost track of it";
  }
  part->phase = report.phase();
  part->stop_sent = part->stop_sent || report.stop_sent();
  const bool over = report.phase() == pb::EXITED || report.phase() == pb::GONE;
  if (over && report.has_usage() && part->usage == nullptr)
    part->usage = PlausibleUsage(report.usage());
  if (part->fills_disk.empty()) part->fills_disk = report.fills_disk();
  for (const pb::WorkerExit& exit : report.exits()) {
    const auto known = std::lower_bound(
        part->exits.begin(), part->exits.end(), exit,
        [](const pb::WorkerExit& a, const pb::WorkerExit& b) { return a.rank() < b.rank(); });
    if (known == part->exits.end() || known->rank() != exit.rank()) part->exits.insert(known, exit);
  }
  if (part->cause == pb::CAUSE_UNSPECIFIED) {
    // Nobody here ordered that: its host stopped it, whatever it calls it.
    part->cause = Ordered(report.cause()) && attempt->state != pb::TASK_STOPPING ? pb::HOST_LOST
                                                                                 : report.cause();
    part->detail = report.detail();
  }
  if (index == 0 && report.phase() == pb::PREPARED) attempt->master_port = report.rendezvous_port();
  const auto started = [](const PartRow& p) {
    return p.phase == pb::STARTED || p.phase == pb::EXITED ||
           (p.phase == pb::GONE && !p.exits.empty());
  };
  if (attempt->state == pb::TASK_STARTING &&
      std::all_of(attempt->parts.begin(), attempt->parts.end(), started)) {
    attempt->state = found.task->state = pb::TASK_RUNNING;
    attempt->start_ns = s_.now_ns_;
    if (found.job->start_ns == 0) found.job->start_ns = s_.now_ns_;
    RefreshHostsOf(*attempt);
  }
  if (attempt->released()) Release(found);
}

void Applier::On(const pb::GangPrepared& e) {
  const Found found = FindNewest(e.key());
  if (!found || !AllPrepared(*found.attempt)) return;
  found.attempt->state = found.task->state = pb::TASK_STARTING;
  found.attempt->master_address = e.master_address();
  if (e.master_port() != 0) found.attempt->master_port = e.master_port();
  RefreshHostsOf(*found.attempt);
}

void Applier::On(const pb::CheckpointSeen& e) {
  const Found found = FindNewest(e.key());
  if (!found || found.job->finished()) return;
  for (const PartRow& part : found.attempt->parts) {
    if (part.lost) return;  // Lost is final: later checkpoints have no effect (contract 9)
  }
  std::vector<pb::Checkpoint>& records = found.task->checkpoints;
  pb::Checkpoint checkpoint = e.checkpoint();
  checkpoint.set_attempt(e.key().attempt());
  const bool first = std::none_of(records.begin(), records.end(), [&](const pb::Checkpoint& c) {
    return c.attempt() == checkpoint.attempt();
  });
  if (first) {
    // Records newer than what it loaded belong to a branch that it left (contract 12).
    std::erase_if(records, [&](const pb::Checkpoint& c) { return c.step() > e.loaded_step(); });
    found.attempt->resumed_step = e.loaded_step();
    found.attempt->loaded_reported = true;
  }
  const bool known = std::any_of(records.begin(), records.end(), [&](const pb::Checkpoint& c) {
    return c.path() == checkpoint.path();
  });
  if (known) return;
  records.push_back(std::move(checkpoint));
  if (records.size() > static_cast<size_t>(kCheckpointsKept)) records.erase(records.begin());
  if (!found.attempt->ended()) found.attempt->last_checkpoint_ns = s_.now_ns_;
  Forgive(found.task);
}

void Applier::On(const pb::ProgressSeen& e) {
  const Found found = FindNewest(e.key());
  if (!found || found.attempt->ended()) return;
  pb::Progress& progress = found.task->progress;
  const bool known = progress.attempt() == e.key().attempt() &&
                     progress.at_ns() == e.progress().at_ns() && progress.heard_ns() != 0;
  const int64_t heard_ns =
      known ? progress.heard_ns() : s_.now_ns_;  // a line that is said again is no new one
  progress = e.progress();
  progress.set_attempt(e.key().attempt());
  progress.set_heard_ns(heard_ns);
  Forgive(found.task);
}

void Applier::On(const pb::LoadedSeen& e) {
  const Found found = FindNewest(e.key());
  if (!found || found.attempt->ended() || found.attempt->loaded_reported) return;
  found.attempt->loaded_reported = true;
  found.attempt->resumed_step = e.step();
  std::string& detail = found.attempt->detail;
  for (int i = 0; i < e.refused_size(); ++i) {
    if (detail.size() + e.refused(i).size() > kMaxDetailBytes) {
      absl::StrAppend(&detail, detail.empty() ? "" : "; ", "refused ", e.refused_size() - i,
                      i == 0 ? "" : " more");
      return;
    }
    absl::StrAppend(&detail, detail.empty() ? "" : "; ", "refused ", e.refused(i));
  }
}

// The first staging that is committed is the task's export, for good (contract 9).
void Applier::On(const pb::ExportStaged& e) {
  const Found found = FindNewest(e.key());
  if (!found || found.attempt->ended() || !found.task->export_state.empty()) return;
  for (const PartRow& part : found.attempt->parts) {
    if (part.lost) return;
  }
  found.task->export_state = "staged";
  found.attempt->export_staged = e.staged();
  found.attempt->export_target = e.target();
  RefreshStagedExport(*found.job, found.index);
}

void Applier::On(const pb::ExportPublished& e) {
  const JobRow* row = nullptr;
  int32_t index = 0;
  const AttemptRow* staged = s_.FindAttempt(e.key(), &row, &index);
  if (staged == nullptr || staged->export_staged.empty() || row->tasks[index].finished() ||
      row->tasks[index].export_state != "staged")
    return;
  JobRow* job = Job(row->number);
  TaskRow* task = &job->tasks[index];
  if (e.detail().empty()) {
    task->export_state = "published";
  } else {
    task->export_detail = e.detail();
    if (++task->export_failures < kExportTries) return;  // its host is told again
    task->export_state = "failed";
  }
  RefreshStagedExport(*job, index);
  if (!task->attempts.empty() && !task->attempts.back().ended() &&
      task->attempts.back().released()) {
    EndAttempt({job, index, task, &task->attempts.back()});
  }
}

void Applier::Release(const Found& found) {
  const AttemptRef ref{found.job->number, found.index, found.attempt->number};
  size_t held = 0;
  for (const PartRow& part : found.attempt->parts) {
    held += std::erase(s_.hosts_.Mutable(static_cast<size_t>(part.host))->attempts, ref);
    RefreshHost(part.host);
  }
  if (held > 0) {
    CountUse(*found.job, found.index, *found.attempt, -1);
    BookRun(found.job->task_spec(found.index), *found.attempt, s_.now_ns_, found.task);
  }
  // It ends with ExportPublished; cancelled, it waits for nothing.
  if (Succeeded(*found.attempt) && found.task->export_state == "staged" &&
      !found.job->cancel_requested)
    return;
  EndAttempt(found);
}

void Applier::EndAttempt(const Found& found) {
  AttemptRow* attempt = found.attempt;
  TaskRow* task = found.task;
  const bool stopping = attempt->state == pb::TASK_STOPPING,
             ordered = stopping && Ordered(attempt->cause);
  const auto [cause, detail] = EndOf(found.job->task_spec(found.index), *task, *attempt);
  if (!stopping || !Moved(cause)) NewRound();
  BookLoss(found, cause);
  attempt->cause = cause;
  attempt->detail = detail;
  attempt->end_ns = s_.now_ns_;
  BlameEnd(found);
  const bool job_ends = found.job->cancel_requested || found.job->state == pb::FAILED ||
                        std::any_of(found.job->tasks.begin(), found.job->tasks.end(),
                                    [](const TaskRow& t) { return t.state == pb::TASK_FAILED; });
  if (RanSoundly(*attempt)) task->hosts_lost = 0;
  attempt->state = cause == pb::DONE         ? pb::TASK_SUCCEEDED
                   : cause == pb::NOT_NEEDED ? pb::TASK_CANCELLED
                                             : pb::TASK_FAILED;
  // What nobody needs any more has done what it was for, however it ends.
  if (cause == pb::DONE || (!job_ends && NotNeeded(*found.job, found.index))) {
    task->state = pb::TASK_SUCCEEDED;
  } else if (job_ends || cause == pb::CANCEL) {
    attempt->state = task->state = pb::TASK_CANCELLED;
    task->cause = pb::CANCEL;
    task->detail = detail;
  } else if (cause == pb::TIME_LIMIT || cause == pb::EXPORT_FAILED) {
    FailTask(found.job, found.index, cause, detail);
  } else {
    task->state = pb::TASK_WAITING;
    task->waiting_since_ns = s_.now_ns_;
    if (Moved(cause)) {
      attempt->state = pb::TASK_CANCELLED;
      task->wanted_workers = attempt->next_workers;
    } else if (EndedForGood(found.job->task_spec(found.index), *attempt)) {
      FailTask(found.job, found.index, cause, detail);
    } else if (Infrastructure(cause)) {
      TryFaultAgain(found);
    } else if (cause == pb::HOST_LOST) {
      RestartLost(found, ordered);
    } else {
      RestartFailed(found);
    }
  }
  if (attempt->state == pb::TASK_FAILED && Infrastructure(cause))
    attempt->failed_host = FailedHost(*attempt);
  SettleJob(found.job);
}

// After a fault of the infrastructure: elsewhere (HostsToAvoid), and for retry_faults_for.
void Applier::TryFaultAgain(const Found& found) {
  const AttemptRow& attempt = *found.attempt;
  TaskRow* task = found.task;
  const pb::TaskSpec& spec = found.job->task_spec(found.index);
  const int64_t patience_ns =
      spec.has_retry_faults_for_ns() ? spec.retry_faults_for_ns() : kDefaultRetryFaultsForNs;
  // The first fault begins the trying; what ran until then was none.
  if (task->infra_failures++ > 0)
    task->faults_tried_ns += std::min(attempt.end_ns - attempt.place_ns, kFaultTryNs);
  if (task->faults_tried_ns >= patience_ns) {
    const std::string tried =
        task->infra_failures == 1
            ? ""
            : absl::StrCat(task->infra_failures, " times in a row, tried again for ",
                           FormatDuration(patience_ns), ": ");
    FailTask(found.job, found.index, attempt.cause, absl::StrCat(tried, attempt.detail));
    return;
  }
  // The last pause is as long as there is time left, so that the last try is made at its end.
  const int64_t pause_ns = std::min(Backoff(s_.restart_backoff_ns_, task->infra_failures),
                                    patience_ns - task->faults_tried_ns);
  task->faults_tried_ns += pause_ns;
  task->backoff_until_ns = s_.now_ns_ + pause_ns;
}

// After the loss of a host, `ordered`: while it was being stopped for a reason of its own.
void Applier::RestartLost(const Found& found, bool ordered) {
  const AttemptRow& attempt = *found.attempt;
  TaskRow* task = found.task;
  if (!RanSoundly(attempt) && !ordered) ++task->hosts_lost;
  // What is lost has its next attempt placed by the same plan, and a place that is held for it is
  // nobody else's meanwhile.
  const bool lost = std::any_of(attempt.parts.begin(), attempt.parts.end(),
                                [](const PartRow& part) { return part.lost; });
  const bool held = task->reservation != nullptr && task->reservation->held &&
                    task->reservation->attempt == task->next_attempt;
  if (task->hosts_lost > 1 && !lost && !held)
    task->backoff_until_ns = s_.now_ns_ + Backoff(s_.restart_backoff_ns_, task->hosts_lost - 1);
  if (task->hosts_lost < kHostsLostInRow || lost) return;
  FailTask(
      found.job, found.index, attempt.cause,
      absl::StrCat(kHostsLostInRow,
                   " attempts in a row lost a host before they made progress: ", attempt.detail));
}

// After a failure of the program itself: within its budget.
void Applier::RestartFailed(const Found& found) {
  TaskRow* task = found.task;
  if (task->restarts_used >= MaxRestartsOf(*found.job->spec, found.index, found.job->member)) {
    FailTask(found.job, found.index, found.attempt->cause, found.attempt->detail);
    return;
  }
  ++task->restarts_used;
  // A program that ran for long is not one that fails at its start: it need not be kept from
  // trying.
  task->backoff_until_ns =
      s_.now_ns_ +
      Backoff(s_.restart_backoff_ns_, RanSoundly(*found.attempt) ? 1 : task->restarts_used);
}

// ---- jobs ----

void Applier::FailTask(JobRow* job, int32_t index, pb::Cause cause, const std::string& detail) {
  TaskRow* task = &job->tasks[index];
  task->state = pb::TASK_FAILED;
  task->cause = cause;
  task->detail = detail;
  task->backoff_until_ns = 0;
  if (job->cause != pb::CAUSE_UNSPECIFIED) return;
  job->cause = cause;
  job->detail =
      job->tasks.size() == 1 ? detail : absl::StrCat(job->task_spec(index).name(), ": ", detail);
}

// Waiting tasks that others' success makes unneeded, and so on.
void Applier::EndUnneededTasks(JobRow* job) {
  for (bool again = true; again;) {
    again = false;
    for (size_t t = 0; t < job->tasks.size(); ++t) {
      TaskRow& task = job->tasks[t];
      if (!task.waiting() || !NotNeeded(*job, static_cast<int32_t>(t))) continue;
      task.state = pb::TASK_SUCCEEDED;
      task.backoff_until_ns = 0;
      again = true;
    }
  }
}

void Applier::SettleJob(JobRow* job) {
  const bool failed = std::any_of(job->tasks.begin(), job->tasks.end(),
                                  [](const TaskRow& t) { return t.state == pb::TASK_FAILED; });
  if (!failed && !job->cancel_requested) EndUnneededTasks(job);
  for (size_t t = 0; t < job->tasks.size(); ++t) {
    TaskRow& task = job->tasks[t];
    if (task.reservation != nullptr && (task.finished() || failed || job->cancel_requested)) {
      SetReservation({job->number, static_cast<int32_t>(t)}, &task, nullptr);
    }
    if (task.finished() || task.current() != nullptr) continue;
    if (failed || job->cancel_requested) {
      task.state = pb::TASK_CANCELLED;
      task.cause = pb::CANCEL;
    } else if (task.state == pb::TASK_BLOCKED && !job->later && job->awaits.empty() &&
               job->not_before_ns == 0) {
      const auto& after = job->spec->tasks(static_cast<int>(t)).after();
      const bool met = std::all_of(after.begin(), after.end(), [&](const std::string& name) {
        const int32_t before = TaskIndex(*job->spec, name);
        return before >= 0 && job->tasks[before].state == pb::TASK_SUCCEEDED;
      });
      if (!met) continue;
      task.state = pb::TASK_WAITING;
      task.waiting_since_ns = s_.now_ns_;
    }
  }
  const bool running = std::any_of(job->tasks.begin(), job->tasks.end(),
                                   [](const TaskRow& t) { return t.current() != nullptr; });
  const bool over = std::all_of(job->tasks.begin(), job->tasks.end(),
                                [](const TaskRow& t) { return t.finished(); });
  if (!over) {
    job->state = running ? pb::RUNNING : pb::WAITING;
    return;
  }
  const bool done = std::all_of(job->tasks.begin(), job->tasks.end(),
                                [](const TaskRow& t) { return t.state == pb::TASK_SUCCEEDED; });
  EndJob(job,
         done     ? pb::SUCCEEDED
         : failed ? pb::FAILED
                  : pb::CANCELLED,
         done || failed ? job->cause : pb::CANCEL);
}

void Applier::EndJob(JobRow* job, pb::JobState state, pb::Cause cause) {
  job->state = state;
  job->cause = cause;
  job->end_ns = s_.now_ns_;
  for (size_t t = 0; t < job->tasks.size(); ++t) RefreshStagedExport(*job, static_cast<int32_t>(t));
  std::vector<uint64_t>& active = *Own(&s_.active_);
  active.erase(std::lower_bound(active.begin(), active.end(), job->number));
  IndexAwaited(*job, false);
  IndexDue(*job, false);
  IndexHosted(*job, false);
  job->awaits.clear();
  job->not_before_ns = 0;
  ended_.emplace_back(job->number, false);
  if (job->array == 0) {
    InsertFinished(job->number);
  } else {
    EndMember(*job);
  }
}

}  // namespace muster
