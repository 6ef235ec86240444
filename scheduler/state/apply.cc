// Apply: each event to its method; steps and what users say. Queues, clusters and drains are in
// apply_configuration.cc, who may come over a network in apply_trust.cc, plans in apply_plans.cc,
// what hosts say in apply_reports.cc and apply_quarantine.cc, arrays in apply_arrays.cc, jobs after
// jobs and at times in apply_successors.cc. What is derived: indexes.cc, host_use.cc, ledger.cc.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "scheduler/state/applier.h"
#include "scheduler/state/directories.h"
#include "scheduler/state/queue_order.h"
#include "scheduler/state/strays.h"

namespace muster {

void Apply(State* state, const pb::Event& event) { Applier(state).Apply(event); }

void Applier::Apply(const pb::Event& event) {
  Carry(event);
  SettleSuccessors();
  for (const uint64_t number : written_) IndexWaiting(number);
  written_.clear();
}

void Applier::Carry(const pb::Event& event) {
  switch (event.body_case()) {
    case pb::Event::kStep:
      return On(event.step());
    case pb::Event::kJobSubmitted:
      return On(event.job_submitted());
    case pb::Event::kJobCancel:
      return On(event.job_cancel());
    case pb::Event::kJobDue:
      return On(event.job_due());
    case pb::Event::kQueuesApplied:
      return On(event.queues_applied());
    case pb::Event::kClustersConfigured:
      return On(event.clusters_configured());
    case pb::Event::kDrainChanged:
      return On(event.drain_changed());
    case pb::Event::kBindingChanged:
      return SetBinding(event.binding_changed().binding(), event.binding_changed().revoked());
    case pb::Event::kAuthorityChanged:
      return On(event.authority_changed());
    case pb::Event::kJoinToken:
      return On(event.join_token());
    case pb::Event::kNetworkUser:
      return On(event.network_user());
    case pb::Event::kCertificateIssued:
      return On(event.certificate_issued());
    case pb::Event::kCertificatesRevoked:
      return On(event.certificates_revoked());
    case pb::Event::kHostConfirmedOff:
      return On(event.host_confirmed_off());
    case pb::Event::kStoreAdopted:
      return On(event.store_adopted());
    case pb::Event::kHostHello:
      return On(event.host_hello());
    case pb::Event::kHostState:
      return On(event.host_state());
    case pb::Event::kAttemptReported:
      return On(event.attempt_reported());
    case pb::Event::kGangPrepared:
      return On(event.gang_prepared());
    case pb::Event::kCheckpointSeen:
      return On(event.checkpoint_seen());
    case pb::Event::kProgressSeen:
      return On(event.progress_seen());
    case pb::Event::kExportStaged:
      return On(event.export_staged());
    case pb::Event::kExportPublished:
      return On(event.export_published());
    case pb::Event::kLoadedSeen:
      return On(event.loaded_seen());
    case pb::Event::kAttemptPlaced:
      return On(event.attempt_placed());
    case pb::Event::kAttemptStopping:
      return On(event.attempt_stopping());
    case pb::Event::kAttemptLost:
      return On(event.attempt_lost());
    case pb::Event::kClusterOpened:
      return On(event.cluster_opened());
    case pb::Event::kTaskFailed:
      return On(event.task_failed());
    case pb::Event::kReservation:
      return On(event.reservation());
    case pb::Event::kHostFault:
      return On(event.host_fault());
    case pb::Event::kStraggler:
      return On(event.straggler());
    case pb::Event::kQuarantineReleased:
      return On(event.quarantine_released());
    case pb::Event::kHostFenceFailed:
      return On(event.host_fence_failed());
    case pb::Event::kHostCheckFailed:
      return On(event.host_check_failed());
    case pb::Event::kTimer:
    case pb::Event::BODY_NOT_SET:
      return;
  }
}

// ---- access ----

JobRow* Applier::Job(uint64_t number) {
  if (s_.jobs_.Find(number) == nullptr) return nullptr;
  JobRow* job = s_.jobs_.Mutable(number);
  if (s_.changed_jobs_.insert(number).second) ++job->version;
  if (written_.empty() || written_.back() != number) written_.push_back(number);
  return job;
}

HostRow* Applier::Host(HostId id) {
  s_.changed_hosts_.insert(id);
  return s_.hosts_.Mutable(static_cast<size_t>(id));
}

void Applier::NewRound() {
  ++s_.round_;
  s_.meta_changed_ = true;
}

Applier::Found Applier::FindNewest(const pb::AttemptKey& key) {
  const JobRow* row = nullptr;
  Found found;
  const AttemptRow* attempt = s_.FindAttempt(key, &row, &found.index);
  if (attempt == nullptr || row->tasks[found.index].attempts.back().number != key.attempt())
    return found;
  found.job = Job(row->number);
  found.task = &found.job->tasks[found.index];
  found.attempt = &found.task->attempts.back();
  MUSTER_CHECK(found.attempt->number == key.attempt());
  return found;
}

void Applier::RefreshHostsOf(const AttemptRow& attempt) {
  for (const PartRow& part : attempt.parts) RefreshHost(part.host);
}

// ---- steps and users ----

void Applier::On(const pb::StepStarted& e) {
  const int64_t before_ns = s_.now_ns_;
  s_.now_ns_ = std::max(s_.now_ns_, e.now_ns());
  if (e.epoch() != 0) s_.epoch_ = e.epoch();
  if (e.restart_backoff_ns() > 0) s_.restart_backoff_ns_ = e.restart_backoff_ns();
  if (e.listens_again()) s_.listens_since_ns_ = s_.now_ns_;
  s_.meta_changed_ = true;
  BookLedger(s_.now_ns_);
  TickHistory();
  const std::vector<QueueNode>& nodes = s_.queues_->nodes;
  const bool by_length = std::any_of(nodes.begin(), nodes.end(),
                                     [](const QueueNode& node) { return node.shortest_first; });
  if (by_length && before_ns / kOrderTickNs != s_.now_ns_ / kOrderTickNs) TickOrder();
  ForgetOldJobs();
  ForgetExpired();
}

void Applier::ForgetOldJobs() {
  size_t gone = 0;
  while (gone < s_.finished_->size()) {
    const JobRow& job = *s_.FindJob((*s_.finished_)[gone]);
    const int64_t jobs = static_cast<int64_t>(s_.finished_->size() - gone) - s_.finished_members_;
    if (jobs + s_.finished_members_ / kMembersKeptAsOne <= kFinishedJobsKept &&
        EndOfWhole(job) + kFinishedKeptNs > s_.now_ns_)
      break;
    // Of an array all of it: its members end together, so they stand side by side.
    const size_t rows = job.array == 0 ? 1 : static_cast<size_t>(MembersOf(*job.spec));
    for (size_t i = 0; i < rows; ++i) {
      const JobRow& row = *s_.FindJob((*s_.finished_)[gone++]);
      s_.finished_members_ -= row.array == 0 ? 0 : 1;
      DropFromIndexes(row);
      s_.changed_jobs_.insert(row.number);
      s_.jobs_.Erase(row.number);
    }
  }
  if (gone == 0) return;
  Own(&s_.finished_)
      ->erase(s_.finished_->begin(), s_.finished_->begin() + static_cast<int64_t>(gone));
  // A host that still holds what a forgotten job lost there no longer knows its share of CPU and
  // memory.
  for (const HostId id : *s_.host_order_) {
    if (!s_.host(id).lost.empty()) RefreshHost(id);
  }
}

void Applier::On(const pb::JobSubmitted& e) {
  const int32_t members = std::max(1, e.members());
  if (e.number() == 0 || e.uid().empty() ||
      (e.members() != 0 && e.members() != MembersOf(e.spec())))
    return;
  for (int32_t m = 0; m < members; ++m) {
    if (s_.FindJob(e.number() + static_cast<uint64_t>(m)) != nullptr ||
        s_.FindJobByUid(MemberUid(e.uid(), m)) != nullptr)
      return;
  }
  JobRow job;
  job.number = e.number();
  job.uid = e.uid();
  job.owner = e.owner();
  job.SetSpec(e.spec());
  job.idempotency_key = e.idempotency_key();
  job.request_hash = e.request_hash();
  job.umask = e.umask();
  job.submit_ns = s_.now_ns_;
  SetPredecessors(e, &job);
  job.not_before_ns = e.not_before_ns() > s_.now_ns_ ? e.not_before_ns() : 0;
  job.previous = e.previous();
  for (const pb::TaskSpec& spec : e.spec().tasks()) {
    TaskRow task;
    const bool free = spec.after().empty() && e.predecessors().empty() && job.not_before_ns == 0;
    task.state = free ? pb::TASK_WAITING : pb::TASK_BLOCKED;
    task.waiting_since_ns = s_.now_ns_;
    // As if an attempt before the first had told them, the oldest first.
    // By index: clang 14 can't read libstdc++'s views.
    for (int i = spec.checkpoint().resume_from_size() - 1; i >= 0; --i) {
      const std::string& path = spec.checkpoint().resume_from(i);
      pb::Checkpoint& checkpoint = task.checkpoints.emplace_back();
      checkpoint.set_path(path);
      checkpoint.set_storage(StorageOfPath(s_, path));
    }
    job.tasks.push_back(std::move(task));
  }
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    job.tasks[t].expected_run_ns =
        ExpectedRun(job, static_cast<int32_t>(t),
                    std::max(1, e.spec().tasks(static_cast<int>(t)).workers().min()));
  }
  const int32_t queue = s_.queues_->Find(e.spec().queue());
  if (queue >= 0 && job.holder == 0 && s_.queues_->nodes[queue].shortest_first)
    job.band = BandOf(WorkLeftOf(job, s_.now_ns_).milli_ns, kFrontBand);
  const uint64_t next = e.number() + static_cast<uint64_t>(members);
  s_.next_job_number_ = std::max(s_.next_job_number_, next);
  if (s_.FindJob(e.previous()) != nullptr) Job(e.previous())->next = e.number();
  NewRound();
  if (e.members() == 0) {
    s_.changed_jobs_.insert(e.number());
    const JobRow* holder = job.holder == 0 ? nullptr : s_.FindJob(job.holder);
    if (job.holder != 0 && (holder == nullptr || holder->finished()))
      ended_.emplace_back(job.holder, false);
    return InsertLoaded(std::move(job));
  }
  job.array = e.number();
  const int32_t at_a_time = MembersAtATime(e.spec());
  for (int32_t m = 0; m < members; ++m) {
    JobRow member = job;
    member.number = job.array + static_cast<uint64_t>(m);
    member.member = m;
    member.uid = MemberUid(e.uid(), m);
    if (m > 0) member.idempotency_key.clear();  // it finds the array
    member.later = m >= at_a_time;
    for (TaskRow& task : member.tasks) {
      if (member.later) task.state = pb::TASK_BLOCKED;
    }
    s_.changed_jobs_.insert(member.number);
    InsertLoaded(std::move(member));
  }
}

void Applier::On(const pb::JobCancelRequested& e) {
  const std::string detail = e.by().empty() ? "" : absl::StrCat("cancelled by ", e.by());
  if (!e.array()) return CancelJob(e.number(), detail);
  const JobRow* first = s_.FindJob(e.number());
  if (first == nullptr || first->array != first->number) return;
  // From behind: whose turn hasn't come ends before a turn becomes free, and what goes from the
  // indexes has little behind it.
  for (int32_t m = MembersOf(*first->spec); m-- > 0;)
    CancelJob(e.number() + static_cast<uint64_t>(m), detail);
}

void Applier::CancelJob(uint64_t number, const std::string& detail) {
  const JobRow* row = s_.FindJob(number);
  if (row == nullptr || row->finished() || row->cancel_requested) return;
  JobRow* job = Job(number);
  job->cancel_requested = true;
  job->detail = detail;
  // What has no process any more and waits for its export alone ends here: its host may never come
  // back.
  for (size_t t = 0; t < job->tasks.size(); ++t) {
    TaskRow* task = &job->tasks[t];
    if (task->current() != nullptr && task->current()->released())
      EndAttempt({job, static_cast<int32_t>(t), task, &task->attempts.back()});
  }
  NewRound();
  if (!job->finished()) SettleJob(job);
}

// What was decided after the backup is not known: an attempt of a number that it gave away may have
// run, or run still. So no number below that of the adoption is given again, and what the backup
// does not show as running is stopped: a host that never heard of it claims it "stopped", one where
// it has ended says Gone (contracts 4, 19).
void Applier::On(const pb::StoreAdopted& e) {
  if (e.settled()) {
    s_.restoring_ = false;
    return NewRound();
  }
  if (e.epoch() <= s_.adopted_epoch_) return;
  s_.adopted_epoch_ = e.epoch();
  s_.restoring_ = true;
  const int32_t from = FirstAttemptSince(e.epoch());
  const std::vector<uint64_t> active = *s_.active_;
  for (const uint64_t number : active) {
    JobRow* job = Job(number);
    for (size_t t = 0; t < job->tasks.size(); ++t) {
      TaskRow* task = &job->tasks[t];
      if (task->reservation != nullptr)
        SetReservation({number, static_cast<int32_t>(t)}, task, nullptr);
      task->claimed_attempt = 0;
      if (!task->finished()) task->next_attempt = std::max(task->next_attempt + 1, from);
      AttemptRow* attempt = task->attempts.empty() || task->attempts.back().ended()
                                ? nullptr
                                : &task->attempts.back();
      if (attempt == nullptr || attempt->released() ||
          (attempt->state != pb::TASK_PREPARING && attempt->state != pb::TASK_STARTING))
        continue;
      attempt->state = task->state = pb::TASK_STOPPING;
      attempt->cause = pb::HOST_LOST;
      attempt->detail = "it was starting when the backup was made that is the store now";
      attempt->grace_ns = 0;
      attempt->stop_ns = s_.now_ns_;
      RefreshHostsOf(*attempt);
    }
  }
  NewRound();
}

}  // namespace muster
