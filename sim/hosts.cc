#include "sim/hosts.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/engine/engine.h"

namespace muster::sim {

absl::StatusOr<std::vector<SimulatedHost>> HostsOf(const pb::ClusterFile& clusters,
                                                   const std::string& uuids) {
  std::vector<SimulatedHost> hosts;
  for (const pb::ClusterSpec& cluster : clusters.clusters()) {
    for (const pb::HostSpec& spec : cluster.hosts()) {
      const pb::Sku* const sku = SkuOf(clusters, cluster, spec);
      if (sku == nullptr)
        return absl::InvalidArgumentError(
            absl::StrCat("host ", spec.name(), " has an unknown SKU"));
      SimulatedHost& host = hosts.emplace_back();
      host.cluster = cluster.name();
      host.name = spec.name();
      FillInventory(*sku, uuids, &host.inventory);
      host.inventory.set_declared(true);
      host.inventory.set_address("127.0.0.1");
    }
  }
  return hosts;
}

std::pair<Hosts::Gang*, Hosts::Part*> Hosts::Make(const pb::AttemptKey& key, int32_t host) {
  const auto [it, fresh] = ids_.try_emplace(AttemptText(key), last_id_ + 1);
  Gang& gang = gangs_[it->second];
  if (fresh) {
    gang.id = ++last_id_;
    gang.key = key;
  }
  if (Part* part = Find(&gang, host)) return {&gang, part};
  gang.parts.push_back({});
  gang.parts.back().host = host;
  return {&gang, &gang.parts.back()};
}

Hosts::Gang* Hosts::Find(const pb::AttemptKey& key) {
  const auto it = ids_.find(AttemptText(key));
  return it == ids_.end() ? nullptr : &gangs_.at(it->second);
}

Hosts::Part* Hosts::Find(Gang* gang, int32_t host) {
  for (Part& part : gang->parts) {
    if (part.host == host) return &part;
  }
  return nullptr;
}

void Hosts::After(int64_t delay_ns, const Gang& gang, void (Hosts::*what)(Gang*)) {
  heap_->After(delay_ns, [this, id = gang.id, what] {
    const auto it = gangs_.find(id);
    if (it != gangs_.end() && !it->second.over) (this->*what)(&it->second);
  });
}

void Hosts::After(int64_t delay_ns, const Gang& gang, int32_t host,
                  void (Hosts::*what)(Gang*, Part*)) {
  heap_->After(delay_ns, [this, id = gang.id, host, what] {
    const auto it = gangs_.find(id);
    if (it == gangs_.end()) return;
    Part* const part = Find(&it->second, host);
    if (part != nullptr && part->phase != pb::GONE) (this->*what)(&it->second, part);
  });
}

void Hosts::Send(int32_t host, const pb::SchedulerMessage& message) {
  switch (message.body_case()) {
    case pb::SchedulerMessage::kPrepare:
      return OnPrepare(host, message.prepare());
    case pb::SchedulerMessage::kStart:
      if (const Gang* gang = Find(message.start().key()))
        After(options_.latency_ns, *gang, host, &Hosts::Start);
      return;
    case pb::SchedulerMessage::kStop: {
      Gang* const gang = Make(message.stop().key(), host).first;
      // Never heard of: it will never start.
      if (gang->ranks == 0) gang->over = true;
      const bool kill = message.stop().grace_ns() == 0;
      return After(options_.latency_ns, *gang, host, kill ? &Hosts::Kill : &Hosts::Terminate);
    }
    case pb::SchedulerMessage::kForget:
      return OnForget(host, message.forget().key());
    default:
      return;  // acknowledgements, and questions that nobody has to ask: nothing is lost here
  }
}

void Hosts::OnPrepare(int32_t host, const pb::Prepare& prepare) {
  const auto [gang, part] = Make(prepare.key(), host);
  const int32_t per_worker = std::max(1, prepare.processes_per_worker());
  if (gang->ranks == 0) {
    gang->workers = std::max(1, prepare.gang_workers());
    gang->ranks = gang->workers * per_worker;
    gang->work = work_of_(prepare);
    // A checkpoint's path ends with the work that it holds.
    const std::string path = prepare.resume_from_size() > 0 ? prepare.resume_from(0) : "";
    if (!gang->work.directory.empty() && absl::StartsWith(path, gang->work.directory) &&
        !absl::SimpleAtoi(path.substr(path.rfind('/') + 1), &gang->done_at_start_ns))
      gang->done_at_start_ns = 0;
  }
  if (prepare.here().first_group_rank() == 0) gang->first_host = host;
  if (part->ranks != 0) return;  // repeated
  part->first_rank = prepare.here().first_group_rank() * per_worker;
  part->ranks = prepare.here().workers() * per_worker;
  part->start_at_once = prepare.start_at_once();
  After(options_.latency_ns + options_.prepare_ns, *gang, host, &Hosts::Prepared);
}

void Hosts::Prepared(Gang* gang, Part* part) {
  part->phase = pb::PREPARED;
  if (part->start_at_once) return Launch(gang, part);
  Report(*gang, *part);
}

void Hosts::Start(Gang* gang, Part* part) {
  if (part->phase == pb::PREPARED) Launch(gang, part);
}

void Hosts::Launch(Gang* gang, Part* part) {
  part->phase = pb::STARTED;
  part->start_ns = heap_->now_ns();
  Report(*gang, *part);
  gang->ranks_started += part->ranks;
  if (gang->ranks_started == gang->ranks) After(options_.launch_ns, *gang, &Hosts::Begin);
}

void Hosts::Begin(Gang* gang) {
  gang->work_since_ns = heap_->now_ns();
  const int64_t left_ns = std::max<int64_t>(0, gang->work.total_ns - gang->done_at_start_ns);
  After(left_ns / gang->workers, *gang, &Hosts::Finish);
  if (gang->work.checkpoint_ns > 0)
    After(gang->work.checkpoint_ns, *gang, &Hosts::CheckpointInTime);
  if (options_.progress_ns > 0) TellProgress(gang);
}

void Hosts::Finish(Gang* gang) {
  gang->over = true;
  for (Part& part : gang->parts) End(gang, &part);
}

// At the next step boundary it writes a checkpoint and exits with 0.
void Hosts::Terminate(Gang* gang, Part* part) {
  const bool works = gang->work_since_ns >= 0 && !gang->over;
  if (!Stop(gang, part)) return;
  if (works) Checkpoint(gang);
  After(options_.stop_ns, *gang, part->host, &Hosts::End);
}

void Hosts::Kill(Gang* gang, Part* part) {
  if (!Stop(gang, part)) return;
  part->killed = true;
  After(0, *gang, part->host, &Hosts::End);
}

bool Hosts::Stop(Gang* gang, Part* part) {
  if (part->stop_sent) return false;
  part->stop_sent = true;
  if (part->phase != pb::STARTED) {
    End(gang, part);
    return false;
  }
  gang->over = true;
  return true;
}

void Hosts::End(Gang* gang, Part* part) {
  if (part->phase == pb::GONE) return;
  part->phase = pb::GONE;
  part->end_ns = heap_->now_ns();
  Report(*gang, *part);
}

int64_t Hosts::DoneNs(const Gang& gang) const {
  return std::min(gang.done_at_start_ns + (heap_->now_ns() - gang.work_since_ns) * gang.workers,
                  gang.work.total_ns);
}

void Hosts::CheckpointInTime(Gang* gang) {
  Checkpoint(gang);
  After(gang->work.checkpoint_ns, *gang, &Hosts::CheckpointInTime);
}

void Hosts::Checkpoint(Gang* gang) {
  if (gang->work.directory.empty()) return;
  const int64_t done_ns = DoneNs(*gang);
  pb::AgentMessage message;
  pb::CheckpointReport* const report = message.mutable_checkpoint();
  *report->mutable_key() = gang->key;
  report->set_sequence(++gang->checkpoints);
  report->set_loaded_step(gang->done_at_start_ns == 0 ? -1 : gang->done_at_start_ns / kSecond);
  pb::Checkpoint* const checkpoint = report->mutable_checkpoint();
  checkpoint->set_step(done_ns / kSecond);
  checkpoint->set_path(absl::StrCat(gang->work.directory, "/", gang->key.attempt(), "/", done_ns));
  checkpoint->set_attempt(gang->key.attempt());
  checkpoint->set_at_ns(heap_->now_ns());
  say_(gang->first_host, std::move(message));
}

// A gang's rate is constant here: its first report tells its end.
void Hosts::TellProgress(Gang* gang) {
  const int64_t now_ns = heap_->now_ns(), done_ns = DoneNs(*gang);
  pb::AgentMessage message;
  *message.mutable_progress()->mutable_key() = gang->key;
  pb::Progress* const progress = message.mutable_progress()->mutable_progress();
  progress->set_step(done_ns / kSecond);
  progress->set_total_steps(std::max<int64_t>(1, gang->work.total_ns / kSecond));
  progress->set_at_ns(now_ns);
  progress->set_attempt(gang->key.attempt());
  progress->set_expected_end_ns(now_ns + (gang->work.total_ns - done_ns) / gang->workers);
  say_(gang->first_host, std::move(message));
  if (options_.progress_ns == kNever) return;
  After(options_.progress_ns - now_ns % options_.progress_ns, *gang, &Hosts::TellProgress);
}

void Hosts::Report(const Gang& gang, const Part& part) {
  pb::AgentMessage message;
  pb::AttemptReport* const report = message.mutable_report();
  *report->mutable_key() = gang.key;
  report->set_phase(part.phase);
  if (part.phase == pb::PREPARED) report->set_rendezvous_port(20000);
  if (part.phase == pb::STARTED) report->set_start_ns(part.start_ns);
  if (part.phase == pb::GONE) {
    report->set_end_ns(part.end_ns);
    report->set_stop_sent(part.stop_sent);
    for (int32_t i = 0; part.start_ns >= 0 && i < part.ranks; ++i) {
      pb::WorkerExit* const exit = report->add_exits();
      exit->set_rank(part.first_rank + i);
      exit->set_signal(part.killed ? 9 : 0);
      exit->set_at_ns(part.end_ns);
    }
    if (part.start_ns < 0) report->set_cause(pb::CANCEL);
  }
  if (options_.latency_ns == 0) return say_(part.host, std::move(message));
  heap_->After(options_.latency_ns,
               [this, host = part.host, message = std::move(message)]() mutable {
                 say_(host, std::move(message));
               });
}

void Hosts::OnForget(int32_t host, const pb::AttemptKey& key) {
  const auto id = ids_.find(AttemptText(key));
  if (id == ids_.end()) return;
  std::vector<Part>& parts = gangs_.at(id->second).parts;
  std::erase_if(parts, [host](const Part& part) { return part.host == host; });
  if (!parts.empty()) return;
  gangs_.erase(id->second);
  ids_.erase(id);
}

}  // namespace muster::sim
