#include "sim/fleet.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/units.h"

namespace muster::sim {
namespace {

constexpr char kTask[] = "main";

}  // namespace

std::string TraceUid(size_t index) { return absl::StrFormat("%032x", index + 1); }

int32_t TraceIndex(std::string_view uid) {
  uint32_t number = 0;
  if (uid.size() != 32) return -1;
  const char* const digits = uid.data() + 24;
  const auto [end, error] = std::from_chars(digits, digits + 8, number, 16);
  return error == std::errc() && end == digits + 8 && number > 0 ? static_cast<int32_t>(number - 1)
                                                                 : -1;
}

Fleet::Fleet(const FleetOptions& options, const pb::ClusterFile& clusters, const Trace* trace,
             Timeline* timeline, Post post)
    : options_(options),
      trace_(*trace),
      timeline_(timeline),
      post_(std::move(post)),
      gangs_(trace->jobs.size()) {
  for (const pb::ClusterSpec& cluster : clusters.clusters()) {
    for (const pb::HostSpec& host : cluster.hosts()) {
      const std::string name = absl::StrCat(cluster.name(), "/", host.name());
      host_of_[name] = static_cast<int32_t>(hosts_.size());
      hosts_.push_back({cluster.name(), host.name(), absl::StrCat("state-", name)});
    }
  }
}

void Fleet::SetKey(const Item& item, pb::AttemptKey* key) const {
  key->set_job_uid(TraceUid(static_cast<size_t>(item.job)));
  key->set_task(kTask);
  key->set_attempt(item.attempt);
}

Fleet::Gang* Fleet::GangOf(const Item& item) {
  Gang& gang = gangs_[item.job];
  return gang.attempt == item.attempt ? &gang : nullptr;
}

Fleet::Part* Fleet::PartOf(Gang* gang, int32_t host) {
  for (Part& part : gang->parts) {
    if (part.host == host) return &part;
  }
  gang->parts.push_back({});
  gang->parts.back().host = host;
  return &gang->parts.back();
}

void Fleet::Send(const std::string& cluster, const std::string& host,
                 const pb::SchedulerMessage& message) {
  Item item;
  const pb::AttemptKey* key = nullptr;
  switch (message.body_case()) {
    case pb::SchedulerMessage::kPrepare: {
      const pb::Prepare& prepare = message.prepare();
      key = &prepare.key();
      item.kind = Item::kPrepare;
      item.a = prepare.here().first_group_rank();
      item.b = prepare.here().workers();
      item.c = prepare.start_at_once() ? 1 : 0;
      break;
    }
    case pb::SchedulerMessage::kStart:
      key = &message.start().key();
      item.kind = Item::kStart;
      break;
    case pb::SchedulerMessage::kStop:
      key = &message.stop().key();
      item.kind = Item::kStop;
      item.a = message.stop().grace_ns() == 0 ? 1 : 0;
      break;
    default:
      return;  // acknowledgements and questions need no answer here: nothing is lost on this
               // network
  }
  item.job = TraceIndex(key->job_uid());
  item.attempt = key->attempt();
  const auto found = host_of_.find(absl::StrCat(cluster, "/", host));
  MUSTER_CHECK(item.job >= 0 && found != host_of_.end());
  item.host = found->second;
  Gang& gang = gangs_[item.job];
  if (gang.attempt < item.attempt) {
    gang = Gang();
    gang.attempt = item.attempt;
    if (message.has_prepare()) {
      const pb::Prepare& prepare = message.prepare();
      gang.workers = prepare.gang_workers();
      gang.processes = std::max(1, prepare.processes_per_worker());
      // A checkpoint's path ends with the work that it holds.
      if (prepare.resume_from_size() > 0) {
        const std::string& path = prepare.resume_from(0);
        if (!absl::SimpleAtoi(path.substr(path.rfind('/') + 1), &gang.done_at_start))
          gang.done_at_start = 0;
      }
    } else {
      gang.over = true;  // stopped before it was prepared anywhere
    }
  }
  timeline_->Add(timeline_->now_ns() + options_.latency_ns, item);
}

void Fleet::Run(const Item& item) {
  if (item.kind == Item::kReport) return PostReport(item);
  Gang* const gang = GangOf(item);
  if (gang == nullptr) return;
  switch (item.kind) {
    case Item::kPrepare:
      return OnPrepare(item);
    case Item::kPrepared:
      return OnPrepared(item);
    case Item::kStart: {
      Part* const part = PartOf(gang, item.host);
      if (part->phase == pb::PREPARED) Launch(item, gang, part);
      return;
    }
    case Item::kStop:
      return OnStop(item);
    case Item::kEnd:
      return End(item, PartOf(gang, item.host), item.b);
    case Item::kBegin: {
      if (gang->over) return;
      gang->working = true;
      gang->work_since_ns = timeline_->now_ns();
      const int64_t left = std::max<int64_t>(0, WorkOf(item.job) - gang->done_at_start);
      After(left / gang->workers, Item::kFinish, item);
      if (trace_.jobs[item.job].checkpoint_ns > 0)
        After(trace_.jobs[item.job].checkpoint_ns, Item::kCheckpoint, item);
      if (options_.tells_end) PostProgress(item);
      return;
    }
    case Item::kFinish:
      if (!gang->over) Finish(item, gang);
      return;
    case Item::kCheckpoint:
      if (gang->over) return;
      PostCheckpoint(item);
      After(trace_.jobs[item.job].checkpoint_ns, Item::kCheckpoint, item);
      return;
    default:
      return;
  }
}

void Fleet::OnPrepare(const Item& item) {
  Gang& gang = gangs_[item.job];
  Part* const part = PartOf(&gang, item.host);
  if (part->ranks != 0 || part->phase != pb::ATTEMPT_PHASE_UNSPECIFIED) return;  // repeated
  part->first_rank = item.a * gang.processes;
  part->ranks = item.b * gang.processes;
  After(options_.prepare_ns, Item::kPrepared, item);
}

void Fleet::OnPrepared(const Item& item) {
  Gang& gang = gangs_[item.job];
  Part* const part = PartOf(&gang, item.host);
  if (part->phase == pb::GONE) return;
  part->phase = pb::PREPARED;
  if (item.c != 0) {
    Launch(item, &gang, part);
  } else {
    Report(item, pb::PREPARED);
  }
}

void Fleet::Launch(const Item& item, Gang* gang, Part* part) {
  part->phase = pb::STARTED;
  part->started = true;
  Report(item, pb::STARTED);
  gang->workers_started += part->ranks / gang->processes;
  if (gang->workers_started == gang->workers) After(options_.launch_ns, Item::kBegin, item);
}

int64_t Fleet::DoneNow(int32_t job, const Gang& gang) const {
  if (!gang.working) return gang.done_at_start;
  return std::min(gang.done_at_start + (timeline_->now_ns() - gang.work_since_ns) * gang.workers,
                  WorkOf(job));
}

void Fleet::PostCheckpoint(const Item& item) {
  const Gang& gang = gangs_[item.job];
  const int64_t done = DoneNow(item.job, gang);
  pb::Event event;
  auto* seen = event.mutable_checkpoint_seen();
  SetKey(item, seen->mutable_key());
  seen->mutable_checkpoint()->set_step(done / kSecond);
  seen->mutable_checkpoint()->set_path(
      absl::StrCat("/sim/", item.job, "/", item.attempt, "/", done));
  seen->mutable_checkpoint()->set_attempt(item.attempt);
  seen->mutable_checkpoint()->set_at_ns(timeline_->now_ns());
  seen->set_loaded_step(gang.done_at_start == 0 ? -1 : gang.done_at_start / kSecond);
  post_(std::move(event), false);
}

// A gang's rate is constant here: its first report tells its end, and later ones would only repeat
// that.
void Fleet::PostProgress(const Item& item) {
  const Gang& gang = gangs_[item.job];
  const int64_t done = DoneNow(item.job, gang);
  pb::Event event;
  auto* seen = event.mutable_progress_seen();
  SetKey(item, seen->mutable_key());
  pb::Progress* progress = seen->mutable_progress();
  progress->set_step(done / kSecond);
  progress->set_total_steps(std::max<int64_t>(1, WorkOf(item.job) / kSecond));
  progress->set_at_ns(timeline_->now_ns());
  progress->set_attempt(item.attempt);
  progress->set_expected_end_ns(timeline_->now_ns() + (WorkOf(item.job) - done) / gang.workers);
  post_(std::move(event), false);
}

void Fleet::Finish(const Item& item, Gang* gang) {
  gang->over = true;
  for (Part& part : gang->parts) {
    Item end = item;
    end.host = part.host;
    End(end, &part, 0);
  }
}

// SIGTERM: checkpoint at the next step boundary, then exit 0; with grace 0 SIGKILL at once.
void Fleet::OnStop(const Item& item) {
  Gang& gang = gangs_[item.job];
  Part* const part = PartOf(&gang, item.host);
  if (part->phase == pb::GONE || part->stop_sent) return;
  part->stop_sent = true;
  if (part->phase != pb::STARTED) return End(item, part, 0);
  const bool kill = item.a != 0;
  if (!gang.over) {
    gang.over = true;
    if (!kill && gang.working) PostCheckpoint(item);
  }
  Item end = item;
  end.b = kill ? 9 : 0;
  After(kill ? 0 : options_.stop_ns, Item::kEnd, end);
}

void Fleet::End(const Item& item, Part* part, int32_t signal) {
  if (part->phase == pb::GONE) return;
  part->phase = pb::GONE;
  part->signal = signal;
  Report(item, pb::GONE);
}

void Fleet::Report(const Item& item, pb::AttemptPhase phase) {
  Item report = item;
  report.a = phase;
  report.value = timeline_->now_ns();
  After(options_.latency_ns, Item::kReport, report);
}

void Fleet::PostReport(const Item& item) {
  const auto phase = static_cast<pb::AttemptPhase>(item.a);
  Gang* const gang = GangOf(item);
  if (gang == nullptr) return;
  const Part& part = *PartOf(gang, item.host);
  const Host& host = hosts_[item.host];
  pb::Event event;
  auto* reported = event.mutable_attempt_reported();
  reported->set_cluster(host.cluster);
  reported->set_host(host.name);
  reported->set_state_id(host.state_id);
  pb::AttemptReport* report = reported->mutable_report();
  SetKey(item, report->mutable_key());
  report->set_phase(phase);
  if (phase == pb::PREPARED) report->set_rendezvous_port(20000);
  if (phase == pb::STARTED) report->set_start_ns(item.value);
  if (phase == pb::GONE) {
    report->set_end_ns(item.value);
    report->set_stop_sent(part.stop_sent);
    for (int32_t i = 0; part.started && i < part.ranks; ++i) {
      pb::WorkerExit* exit = report->add_exits();
      exit->set_rank(part.first_rank + i);
      exit->set_signal(part.signal);
      exit->set_at_ns(item.value);
    }
    if (!part.started) report->set_cause(pb::CANCEL);
  }
  post_(std::move(event), phase != pb::STARTED);
}

}  // namespace muster::sim
