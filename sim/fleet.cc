#include "sim/fleet.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/units.h"

namespace muster::sim {

void Timeline::At(int64_t when_ns, std::function<void()> what) {
  MUSTER_CHECK(when_ns >= now_ns_);
  entries_[{when_ns, sequence_++}] = Entry{std::move(what)};
}

int64_t Timeline::NextNs() const {
  return entries_.empty() ? std::numeric_limits<int64_t>::max() : entries_.begin()->first.first;
}

void Timeline::AdvanceTo(int64_t when_ns) {
  MUSTER_CHECK(when_ns >= now_ns_);
  now_ns_ = when_ns;
}

void Timeline::RunDue() {
  while (!entries_.empty() && entries_.begin()->first.first <= now_ns_) {
    const std::function<void()> what = std::move(entries_.begin()->second.what);
    entries_.erase(entries_.begin());
    what();
  }
}

Fleet::Fleet(const WorldOptions& options, Timeline* timeline, Post post,
             std::function<const TraceJob*(const std::string&)> job_of)
    : options_(options), timeline_(timeline), post_(std::move(post)), job_of_(std::move(job_of)) {}

std::string Fleet::GangId(const pb::AttemptKey& key) { return absl::StrCat(key.job_uid(), "/", key.task(), "/", key.attempt()); }

void Fleet::Deliver(const std::string& cluster, const std::string& host, const pb::SchedulerMessage& message) {
  const std::string name = absl::StrCat(cluster, "/", host);
  switch (message.body_case()) {
    case pb::SchedulerMessage::kPrepare: OnPrepare(name, message.prepare()); break;
    case pb::SchedulerMessage::kStart: OnStart(name, message.start().key()); break;
    case pb::SchedulerMessage::kStop: OnStop(name, message.stop()); break;
    default: break;  // acknowledgements and questions need no answer here: nothing is lost on this network
  }
}

void Fleet::Report(const std::string& host, const pb::AttemptReport& report) {
  pb::Event event;
  auto* reported = event.mutable_attempt_reported();
  const size_t slash = host.find('/');
  reported->set_cluster(host.substr(0, slash));
  reported->set_host(host.substr(slash + 1));
  reported->set_state_id(absl::StrCat("state-", host));
  *reported->mutable_report() = report;
  timeline_->At(timeline_->now_ns() + options_.latency_ns, [this, event] { post_(event); });
}

void Fleet::OnPrepare(const std::string& host, const pb::Prepare& prepare) {
  Gang& gang = gangs_[GangId(prepare.key())];
  if (gang.job == nullptr) {
    gang.key = prepare.key();
    gang.job = job_of_(prepare.key().job_uid());
    gang.workers = prepare.gang_workers();
    gang.processes = prepare.processes_per_worker();
    if (prepare.resume_from_size() > 0) {
      const auto found = work_at_checkpoint_.find(prepare.resume_from(0));
      if (found != work_at_checkpoint_.end()) gang.done_at_start = gang.checkpointed = found->second;
    }
  }
  Part& part = gang.parts[host];
  if (part.busy || part.phase != pb::ATTEMPT_PHASE_UNSPECIFIED) return;
  part.busy = true;
  part.first_rank = prepare.here().first_group_rank() * prepare.processes_per_worker();
  part.ranks = prepare.here().workers() * prepare.processes_per_worker();
  timeline_->At(timeline_->now_ns() + options_.prepare_ns, [this, host, gang = &gang, at_once = prepare.start_at_once()] {
    Part& prepared = gang->parts[host];
    if (prepared.phase == pb::GONE) return;
    prepared.busy = false;
    prepared.phase = pb::PREPARED;
    if (at_once) {
      Launch(host, gang);
      return;
    }
    pb::AttemptReport report;
    *report.mutable_key() = gang->key;
    report.set_phase(pb::PREPARED);
    report.set_rendezvous_port(20000);
    Report(host, report);
  });
}

void Fleet::OnStart(const std::string& host, const pb::AttemptKey& key) {
  const auto found = gangs_.find(GangId(key));
  if (found == gangs_.end()) return;
  const auto part = found->second.parts.find(host);
  if (part == found->second.parts.end() || part->second.phase != pb::PREPARED) return;
  Launch(host, &found->second);
}

void Fleet::Launch(const std::string& host, Gang* gang) {
  Part& part = gang->parts[host];
  part.phase = pb::STARTED;
  pb::AttemptReport report;
  *report.mutable_key() = gang->key;
  report.set_phase(pb::STARTED);
  report.set_start_ns(timeline_->now_ns());
  Report(host, report);
  gang->workers_started += part.ranks / gang->processes;
  if (gang->workers_started == gang->workers) After(options_.launch_ns, gang, &Fleet::BeginWork);
}

void Fleet::After(int64_t delay_ns, Gang* gang, void (Fleet::*what)(Gang*)) {
  timeline_->At(timeline_->now_ns() + delay_ns, [this, gang, what, generation = gang->generation] {
    if (gang->generation == generation && !gang->over) (this->*what)(gang);
  });
}

void Fleet::BeginWork(Gang* gang) {
  gang->working = true;
  gang->work_since_ns = timeline_->now_ns();
  const int64_t left = gang->job->duration_ns * gang->job->workers - gang->done_at_start;
  After(std::max<int64_t>(left, 0) / gang->workers, gang, &Fleet::Finish);
  ScheduleCheckpoint(gang);
  ScheduleProgress(gang);
}

int64_t Fleet::DoneNow(const Gang& gang) const {
  if (!gang.working) return gang.done_at_start;
  const int64_t done = gang.done_at_start + (timeline_->now_ns() - gang.work_since_ns) * gang.workers;
  return std::min(done, gang.job->duration_ns * gang.job->workers);
}

void Fleet::Checkpoint(Gang* gang, int64_t done) {
  gang->checkpointed = done;
  const std::string path = absl::StrCat("/sim/", GangId(gang->key), "/", done);
  work_at_checkpoint_[path] = done;
  pb::Event event;
  auto* seen = event.mutable_checkpoint_seen();
  *seen->mutable_key() = gang->key;
  seen->mutable_checkpoint()->set_step(done / kSecond);
  seen->mutable_checkpoint()->set_path(path);
  seen->mutable_checkpoint()->set_attempt(gang->key.attempt());
  seen->mutable_checkpoint()->set_at_ns(timeline_->now_ns());
  seen->set_loaded_step(gang->done_at_start == 0 ? -1 : gang->done_at_start / kSecond);
  timeline_->At(timeline_->now_ns() + options_.latency_ns, [this, event] { post_(event); });
}

void Fleet::ScheduleCheckpoint(Gang* gang) {
  if (gang->job->checkpoint_ns <= 0) return;
  timeline_->At(timeline_->now_ns() + gang->job->checkpoint_ns, [this, gang, generation = gang->generation] {
    if (gang->generation != generation || gang->over) return;
    Checkpoint(gang, DoneNow(*gang));
    ScheduleCheckpoint(gang);
  });
}

void Fleet::ScheduleProgress(Gang* gang) {
  pb::Event event;
  auto* seen = event.mutable_progress_seen();
  *seen->mutable_key() = gang->key;
  pb::Progress* progress = seen->mutable_progress();
  progress->set_step(DoneNow(*gang) / kSecond);
  progress->set_total_steps(std::max<int64_t>(1, gang->job->duration_ns * gang->job->workers / kSecond));
  progress->set_at_ns(timeline_->now_ns());
  progress->set_attempt(gang->key.attempt());
  timeline_->At(timeline_->now_ns() + options_.latency_ns, [this, event] { post_(event); });
  timeline_->At(timeline_->now_ns() + options_.progress_ns, [this, gang, generation = gang->generation] {
    if (gang->generation == generation && !gang->over) ScheduleProgress(gang);
  });
}

void Fleet::Finish(Gang* gang) {
  gang->over = true;
  for (const auto& [host, part] : gang->parts) End(gang, host, 0);
}

// SIGTERM: checkpoint at the next step boundary, then exit 0; with grace 0 SIGKILL at once.
void Fleet::OnStop(const std::string& host, const pb::Stop& stop) {
  Gang& gang = gangs_[GangId(stop.key())];
  if (gang.job == nullptr) {
    gang.key = stop.key();
    gang.job = job_of_(stop.key().job_uid());
    gang.over = true;
  }
  Part& part = gang.parts[host];
  if (part.phase == pb::GONE) {
    Report(host, part.gone);
    return;
  }
  if (part.stop_sent) return;
  part.stop_sent = true;
  if (part.phase != pb::STARTED) {
    End(&gang, host, 0);
    return;
  }
  const bool kill = stop.grace_ns() == 0;
  if (!gang.over) {
    gang.over = true;
    if (!kill && gang.working) Checkpoint(&gang, DoneNow(gang));
  }
  timeline_->At(timeline_->now_ns() + (kill ? 0 : options_.stop_ns), [this, gang = &gang, host, kill] { End(gang, host, kill ? 9 : 0); });
}

void Fleet::End(Gang* gang, const std::string& host, int signal) {
  Part& part = gang->parts[host];
  if (part.phase == pb::GONE) return;
  pb::AttemptReport& report = part.gone;
  *report.mutable_key() = gang->key;
  report.set_phase(pb::GONE);
  report.set_end_ns(timeline_->now_ns());
  report.set_stop_sent(part.stop_sent);
  for (int32_t i = 0; part.phase == pb::STARTED && i < part.ranks; ++i) {
    pb::WorkerExit* exit = report.add_exits();
    exit->set_rank(part.first_rank + i);
    exit->set_signal(signal);
    exit->set_at_ns(timeline_->now_ns());
  }
  if (part.phase != pb::STARTED) report.set_cause(pb::CANCEL);
  part.phase = pb::GONE;
  Report(host, report);
}

}  // namespace muster::sim
