// What State derives from jobs to find them again: who waits, what is reserved, what queues use,
// which task ended last under its name.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/units.h"
#include "scheduler/state/applier.h"

namespace muster {
namespace {

// Of newest_done_: tasks of equal owner and names are expected to run alike.
std::string DoneKey(const JobRow& job, int32_t task) {
  std::string key = IdempotencyIndexKey(job.owner, job.spec->name());
  key.push_back('\0');
  return key.append(job.task_spec(task).name());
}

}  // namespace

void Applier::InsertLoaded(JobRow job) {
  const uint64_t number = job.number;
  s_.job_by_uid_.Set(job.uid, number);
  if (!job.idempotency_key.empty()) {
    s_.job_by_key_.Set(IdempotencyIndexKey(job.owner, job.idempotency_key), number);
  }
  const bool finished = job.finished();
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    if (job.tasks[t].reservation != nullptr) {
      IndexReservation({number, static_cast<int32_t>(t)}, *job.tasks[t].reservation, true);
    }
    if (job.tasks[t].attempts.empty()) continue;
    const AttemptRow& attempt = job.tasks[t].attempts.back();
    if (attempt.ended() || attempt.released()) continue;
    CountUse(job, static_cast<int32_t>(t), attempt, 1);
    for (const PartRow& part : attempt.parts) {
      std::vector<AttemptRef>& refs = s_.hosts_.Mutable(static_cast<size_t>(part.host))->attempts;
      const AttemptRef ref{number, static_cast<int32_t>(t), attempt.number};
      refs.insert(std::lower_bound(refs.begin(), refs.end(), ref), ref);
    }
  }
  for (size_t t = 0; t < job.tasks.size(); ++t) RefreshStagedExport(job, static_cast<int32_t>(t));
  if (const JobRow* first = job.member == 0 ? nullptr : s_.FindJob(job.array);
      first != nullptr && *first->spec_bytes == *job.spec_bytes) {
    job.spec = first->spec;  // one for the whole array
    job.spec_bytes = first->spec_bytes;
  }
  *s_.jobs_.Mutable(number) = std::move(job);
  const JobRow& row = *s_.FindJob(number);
  if (finished) {
    InsertFinished(number);
  } else {
    std::vector<uint64_t>& active = *Own(&s_.active_);
    active.insert(std::lower_bound(active.begin(), active.end(), number), number);
    CountMember(row, 1);
    IndexAwaited(row, true);
    IndexDue(row, true);
    IndexHosted(row, true);
  }
  IndexWaiting(number);
}

void Applier::IndexWaiting(uint64_t number) {
  const JobRow* job = s_.FindJob(number);
  std::vector<TaskRef> now;
  for (size_t t = 0; job != nullptr && !job->finished() && t < job->tasks.size(); ++t) {
    if (job->tasks[t].waiting() || job->tasks[t].state == pb::TASK_BLOCKED)
      now.push_back({number, static_cast<int32_t>(t)});
  }
  const std::vector<TaskRef>& known = *s_.waiting_;
  const auto first = std::lower_bound(known.begin(), known.end(), TaskRef{number, 0});
  auto last = first;
  while (last != known.end() && last->job == number) ++last;
  if (std::equal(first, last, now.begin(), now.end())) return;
  const auto from = first - known.begin(), to = last - known.begin();
  std::vector<TaskRef>& all = *Own(&s_.waiting_);
  all.erase(all.begin() + from, all.begin() + to);
  all.insert(all.begin() + from, now.begin(), now.end());
}

void Applier::RefreshStagedExport(const JobRow& job, int32_t task) {
  const TaskRow& row = job.tasks[task];
  const AttemptRef first{job.number, task, 0};
  const auto known = s_.staged_exports_->lower_bound(first);
  const bool listed =
      known != s_.staged_exports_->end() && known->job == job.number && known->task == task;
  const bool staged = row.export_state == "staged" && !job.finished();
  if (listed == staged) return;
  std::set<AttemptRef> refs = *s_.staged_exports_;
  if (listed) {
    refs.erase(refs.lower_bound(first), refs.lower_bound({job.number, task + 1, 0}));
  } else {
    for (const AttemptRow& attempt : row.attempts) {
      if (!attempt.export_staged.empty()) refs.insert({job.number, task, attempt.number});
    }
  }
  s_.staged_exports_ = std::make_shared<const std::set<AttemptRef>>(std::move(refs));
}

void Applier::CountUse(const JobRow& job, int32_t task, const AttemptRow& attempt, int64_t sign) {
  if (job.holder != 0) return;  // its holder is charged
  const pb::TaskSpec& spec = job.task_spec(task);
  const bool gpus = spec.resources().gpus_milli() > 0;
  const int64_t a_worker =
      gpus ? spec.resources().gpus_milli() : std::max<int64_t>(1, spec.resources().cpus_milli());
  auto& use = *Own(&s_.queue_use_);
  const auto at =
      use.emplace(std::make_pair(job.spec->queue(), gpus ? attempt.flavour : "cpu"), 0).first;
  at->second += sign * a_worker * attempt.workers;
  if (at->second == 0) use.erase(at);
}

void Applier::IndexReservation(const TaskRef& ref, const Reservation& reservation, bool there) {
  const auto set = [&](std::vector<TaskRef>* refs) {
    const auto at = std::lower_bound(refs->begin(), refs->end(), ref);
    const bool was = at != refs->end() && *at == ref;
    if (there && !was) refs->insert(at, ref);
    if (!there && was) refs->erase(at);
  };
  for (const HostSlice& part : reservation.parts)
    set(&s_.hosts_.Mutable(static_cast<size_t>(part.host))->reserved);
  std::vector<TaskRef> all = *s_.reserved_;
  set(&all);
  s_.reserved_ = std::make_shared<const std::vector<TaskRef>>(std::move(all));
}

void Applier::SetReservation(const TaskRef& ref, TaskRow* task,
                             std::shared_ptr<const Reservation> reservation) {
  const std::shared_ptr<const Reservation> before = std::move(task->reservation);
  task->reservation = std::move(reservation);
  if (before != nullptr) IndexReservation(ref, *before, false);
  if (task->reservation != nullptr) {
    IndexReservation(ref, *task->reservation, true);
    for (const HostSlice& part : task->reservation->parts) RefreshHost(part.host);
  }
  if (before != nullptr) {
    for (const HostSlice& part : before->parts) RefreshHost(part.host);
  }
}

void Applier::IndexDone(const JobRow& job) {
  if (job.spec->name().empty()) return;
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    if (job.tasks[t].state != pb::TASK_SUCCEEDED) continue;
    const std::string key = DoneKey(job, static_cast<int32_t>(t));
    const JobRow* known = s_.FindJob(s_.newest_done_.Find(key));
    if (known == nullptr || std::make_pair(EndOfWhole(*known), known->number) <
                                std::make_pair(EndOfWhole(job), job.number)) {
      s_.newest_done_.Set(key, job.number);
    }
  }
}

void Applier::DropFromIndexes(const JobRow& job) {
  s_.job_by_uid_.Erase(job.uid);
  if (!job.idempotency_key.empty()) {
    s_.job_by_key_.Erase(IdempotencyIndexKey(job.owner, job.idempotency_key));
  }
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    const std::string key = DoneKey(job, static_cast<int32_t>(t));
    if (s_.newest_done_.Find(key) == job.number) s_.newest_done_.Erase(key);
  }
}

int64_t Applier::ExpectedRun(const JobRow& job, int32_t task, int32_t workers) const {
  if (job.spec->name().empty()) return 0;
  const JobRow* done = s_.FindJob(s_.newest_done_.Find(DoneKey(job, task)));
  if (done == nullptr) return 0;
  const TaskRow& row = done->tasks[TaskIndex(*done->spec, job.task_spec(task).name())];
  const int32_t then = row.attempts.empty() ? 1 : row.attempts.back().workers;
  return static_cast<int64_t>(static_cast<__int128>(row.ran_ns) * then / std::max(1, workers));
}

}  // namespace muster
