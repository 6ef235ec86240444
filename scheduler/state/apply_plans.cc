// Apply: what a plan decided.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/units.h"
#include "scheduler/state/applier.h"

namespace muster {

void Applier::On(const pb::AttemptPlaced& e) {
  const JobRow* row = s_.FindJobByUid(e.key().job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.key().task());
  const int32_t cluster = s_.FindCluster(e.cluster());
  if (index < 0 || cluster < 0 || e.placements().empty()) return;
  if (!row->tasks[index].waiting() || row->tasks[index].next_attempt != e.key().attempt()) return;
  AttemptRow attempt;
  for (const pb::Placement& placement : e.placements()) {
    PartRow part = ToPart(s_, e.cluster(), placement);
    const auto same_host = [&](const PartRow& other) { return other.host == part.host; };
    if (part.host == kNoHost || std::any_of(attempt.parts.begin(), attempt.parts.end(), same_host))
      return;
    attempt.parts.push_back(std::move(part));
    attempt.parts.back().state_id = s_.host(attempt.parts.back().host).state_id;
  }
  JobRow* job = Job(row->number);
  TaskRow* task = &job->tasks[index];
  // Its directory binds a job to the clusters that reach it, once: an outside event where that
  // leaves it fewer (decision 017).
  if (job->cluster.empty()) {
    const size_t before = AllowedClusters(s_, *job).size();
    job->cluster = e.cluster();
    if (AllowedClusters(s_, *job).size() != before) NewRound();
  }
  attempt.number = e.key().attempt();
  attempt.state = e.at_once() ? pb::TASK_STARTING : pb::TASK_PREPARING;
  attempt.cluster = cluster;
  attempt.flavour = e.flavour();
  attempt.workers = e.workers();
  attempt.place_ns = s_.now_ns_;
  attempt.place_round = s_.round_;
  attempt.holder_attempt = e.holder_attempt();
  attempt.resume_from.assign(e.resume_from().begin(), e.resume_from().end());
  if (!attempt.resume_from.empty()) {
    for (const pb::Checkpoint& checkpoint : task->checkpoints) {
      if (checkpoint.path() == attempt.resume_from.front())
        attempt.resumed_step = checkpoint.step();
    }
  }
  if (task->waiting()) task->waited_ns += s_.now_ns_ - task->waiting_since_ns;
  task->state = attempt.state;
  task->next_attempt = attempt.number + 1;
  task->claimed_attempt = 0;
  task->wanted_workers = 0;
  task->backoff_until_ns = 0;
  SetReservation({job->number, index}, task, nullptr);
  task->expected_run_ns = ExpectedRun(*job, index, e.workers());
  job->state = pb::RUNNING;
  const AttemptRef ref{job->number, index, attempt.number};
  if (task->attempts.size() >= kFinishedAttemptsKept) {
    // The export that was committed stays until it is published: only its own attempt's host can do
    // that.
    const auto old =
        std::find_if(task->attempts.begin(), task->attempts.end(), [&](const AttemptRow& a) {
          return a.export_staged.empty() || task->export_state != "staged";
        });
    task->attempts.erase(old);
  }
  task->attempts.push_back(std::move(attempt));
  CountUse(*job, index, task->attempts.back(), 1);
  for (const PartRow& part : task->attempts.back().parts) {
    std::vector<AttemptRef>& refs = s_.hosts_.Mutable(static_cast<size_t>(part.host))->attempts;
    const auto at = std::lower_bound(refs.begin(), refs.end(), ref);
    if (at == refs.end() || *at != ref) refs.insert(at, ref);
  }
  RefreshHostsOf(task->attempts.back());
}

void Applier::On(const pb::AttemptStopping& e) {
  const Found found = FindNewest(e.key());
  if (!found || found.attempt->ended() || found.attempt->released()) return;
  AttemptRow* attempt = found.attempt;
  // A second stop only makes a stop harder: the first cause stands (contract 13).
  if (attempt->state == pb::TASK_STOPPING) {
    attempt->grace_ns = std::min(attempt->grace_ns, e.grace_ns());
    return;
  }
  if (e.cause() == pb::LAUNCH_FAILED && !FirstFailure(*attempt).has_value()) {
    for (PartRow& part : attempt->parts) part.lags = LagsInLaunch(*attempt, part);
  }
  attempt->state = found.task->state = pb::TASK_STOPPING;
  attempt->cause = e.cause();
  attempt->detail = e.detail();
  attempt->grace_ns = e.grace_ns();
  attempt->next_workers = e.next_workers();
  if (e.cause() == pb::TIME_LIMIT) NewRound();
  if (e.cause() == pb::PREEMPTION && e.next_workers() == 0) found.task->evicted_round = s_.round_;
  attempt->stop_ns = s_.now_ns_;
  if (e.cause() == pb::RESIZE && e.next_workers() > attempt->workers)
    found.task->last_resize_ns = s_.now_ns_;
  RefreshHostsOf(*attempt);
  if (e.claimant().job_uid().empty()) return;
  attempt->claimant = e.claimant();
  const JobRow* claimant = s_.FindJobByUid(e.claimant().job_uid());
  const int32_t index = claimant == nullptr ? -1 : TaskIndex(*claimant->spec, e.claimant().task());
  if (index < 0 || claimant->finished() ||
      claimant->tasks[index].next_attempt != e.claimant().attempt())
    return;
  Job(claimant->number)->tasks[index].claimed_attempt = e.claimant().attempt();
}

void Applier::On(const pb::AttemptLost& e) {
  const Found found = FindNewest(e.key());
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (!found || found.attempt->ended() || id == kNoHost) return;
  for (PartRow& part : found.attempt->parts) {
    if (part.host != id || part.over()) continue;
    part.lost = true;
    HostRow* host = Host(id);
    GoneOff(found.attempt, *host);
    host->lost.push_back({e.key(), ToPlacement(s_, part), part.state_id});
    if (found.attempt->detail.empty()) found.attempt->detail = e.detail();
    RefreshHost(id);
  }
  if (found.attempt->released()) Release(found);
}

void Applier::On(const pb::ClusterOpened& e) {
  const JobRow* row = s_.FindJobByUid(e.job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.task());
  if (index < 0 || row->finished()) return;
  TaskRow* task = &Job(row->number)->tasks[index];
  const auto holds = [&](const std::vector<std::string>& list) {
    return std::find(list.begin(), list.end(), e.cluster()) != list.end();
  };
  const bool again = task->opened_attempt == task->next_attempt;
  if (!again) task->fronted.clear();
  if (again && holds(task->opened) && (!e.to_front() || holds(task->fronted))) return;
  task->opened_attempt = task->next_attempt;
  task->opened_ns = s_.now_ns_;
  task->spill_reason = e.reason();
  if (!holds(task->opened)) task->opened.push_back(e.cluster());
  if (e.to_front()) task->fronted.push_back(e.cluster());
  NewRound();
}

void Applier::On(const pb::TaskFailed& e) {
  const JobRow* row = s_.FindJobByUid(e.job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.task());
  if (index < 0 || row->finished() || row->tasks[index].finished() ||
      row->tasks[index].current() != nullptr)
    return;
  JobRow* job = Job(row->number);
  NewRound();
  FailTask(job, index, e.cause(), e.detail());
  SettleJob(job);
}

void Applier::On(const pb::ReservationChanged& e) {
  const JobRow* row = s_.FindJobByUid(e.key().job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.key().task());
  const int32_t cluster = s_.FindCluster(e.cluster());
  if (index < 0 || row->tasks[index].finished() ||
      row->tasks[index].next_attempt != e.key().attempt())
    return;
  std::shared_ptr<Reservation> reservation;
  if (!e.placements().empty()) {
    if (cluster < 0) return;
    reservation = std::make_shared<Reservation>();
    for (const pb::Placement& placement : e.placements()) {
      HostSlice slice = ToSlice(s_, e.cluster(), placement);
      const auto same_host = [&](const HostSlice& other) { return other.host == slice.host; };
      if (slice.host == kNoHost ||
          std::any_of(reservation->parts.begin(), reservation->parts.end(), same_host))
        return;
      reservation->parts.push_back(std::move(slice));
    }
    const Reservation* before = row->tasks[index].reservation.get();
    reservation->attempt = e.key().attempt();
    reservation->cluster = cluster;
    reservation->flavour = e.flavour();
    reservation->workers = e.workers();
    reservation->held = e.held();
    reservation->start_ns = e.start_ns();
    reservation->draining = e.draining();
    reservation->since_ns = before != nullptr ? before->since_ns : s_.now_ns_;
  }
  SetReservation({row->number, index}, &Job(row->number)->tasks[index], std::move(reservation));
}

}  // namespace muster
