#include "agent/reconcile/reconciler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/reconcile/exits.h"
#include "agent/reconcile/progress_messages.h"
#include "common/base/log.h"

namespace muster::agent {
namespace {

std::string Describe(const AttemptId& id) {
  return absl::StrCat(id.job_uid, "/", id.task, "/", id.attempt);
}

void LogFailure(const char* what, const AttemptId& id, const absl::Status& status) {
  LogError("agent failed",
           {{"doing", what}, {"attempt", Describe(id)}, {"error", std::string(status.message())}});
}

// More than the scheduler keeps of a task: while it can't be reached a job may tell thousands.
constexpr size_t kCheckpointsUnacknowledged = 100;

// What the job names and this host doesn't have is the job's mistake; what the scheduler was asked
// for and didn't come is nobody's; all else is the host's.
v1::Cause CauseOf(const absl::Status& failed) {
  return absl::IsInvalidArgument(failed) ? v1::PROGRAM_ERROR
         : absl::IsAborted(failed)       ? v1::NETWORK_FAILURE
                                         : v1::LAUNCH_FAILED;
}

}  // namespace

Reconciler::Reconciler(HostIds identity, std::vector<AttemptRecord> records, Seen seen,
                       Files* files, Processes* processes, Sender* sender)
    : identity_(std::move(identity)),
      files_(files),
      processes_(processes),
      sender_(sender),
      seen_(std::move(seen)),
      seen_kept_(seen_) {
  for (AttemptRecord& record : records) {
    const AttemptId id = record.id;
    // What is kept of an attempt whose shim was killed was kept before this was told.
    if (record.cause == v1::CAUSE_UNSPECIFIED && !record.stop.has_value())
      record.cause = LaunchCause(record.exits);
    records_[id] = std::move(record);
  }
}

const AttemptRecord* Reconciler::Find(const AttemptId& id) const {
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : &found->second;
}

void Reconciler::OnDisconnected() {
  session_.Clear();
  forgotten_.clear();
}

bool Reconciler::See(const v1::SchedulerMessage& message) {
  const v1::SessionKey& key = message.session();
  const Seen before = seen_;
  Seen next = seen_;
  if (key.epoch() > next.epoch || next.store_id.empty()) {
    next.store_id = key.store_id();
    next.epoch = key.epoch();
    next.commit = 0;  // of this epoch: where a backup was restored, they count from there
    next.mac.clear();
  }
  if (key.epoch() == next.epoch && message.commit() >= next.commit) {
    next.commit = message.commit();
    next.mac = message.mac();
  }
  seen_ = next;
  // The epoch is worth a sync. Not so the commit number: it is kept before anything is done because
  // of it, and of what else is heard every now and then.
  const bool other = seen_.epoch != seen_kept_.epoch || seen_.store_id != seen_kept_.store_id;
  const bool acts = !message.has_welcome() &&
                    (!message.has_heartbeat_ack() || !message.heartbeat_ack().renews().empty());
  // What an agent of the release before has kept has no MAC.
  const bool first_mac = seen_kept_.mac.empty() && !seen_.mac.empty();
  if (!other && !first_mac && seen_.commit < seen_kept_.commit + (acts ? 1 : 64)) return true;
  if (const absl::Status status = files_->PersistSeen(seen_, /*synced=*/other); !status.ok()) {
    LogError("agent failed",
             {{"doing", other ? "remember the epoch" : "remember the commit number"},
              {"error", std::string(status.message())}});
    // An epoch beyond the next one may be that of an adopted store, while the one that it is a copy
    // of is still served: whoever forgets the epoch could follow that one again.
    if (seen_.epoch > before.epoch + 1) {
      seen_ = before;
      return false;
    }
    return !acts;
  }
  seen_kept_ = seen_;
  return true;
}

bool Reconciler::OnMessage(const v1::SchedulerMessage& message, int64_t now_ns) {
  if (message.has_welcome()) {
    if (message.session().session().empty() || message.session().state_id() != identity_.state_id)
      return false;
    if (!See(message)) return true;  // as if it had never come
    session_ = message.session();
    metrics_sent_.clear();  // what was said meanwhile reached nobody
    usages_sent_.clear();
    times_sent_.clear();
    exits_told_.clear();
    acknowledged_ns_ = hello_ns_;
    forgotten_.clear();
    RepeatReports();
    return true;
  }
  const v1::SessionKey& key = message.session();
  if (!has_session() || key.session() != session_.session() || key.epoch() != session_.epoch() ||
      key.store_id() != session_.store_id() || key.state_id() != session_.state_id()) {
    LogWarn("command dropped", {{"why", "not of this session"}, {"epoch", key.epoch()}});
    return true;
  }
  if (!See(message)) return true;  // as if it had never come: the scheduler repeats it
  switch (message.body_case()) {
    case v1::SchedulerMessage::kPrepare:
      OnCommand(message.prepare().key(),
                message.prepare().start_at_once() ? Command::kPrepareAndStart : Command::kPrepare,
                message, now_ns);
      return true;
    case v1::SchedulerMessage::kStart:
      OnCommand(message.start().key(), Command::kStart, message, now_ns);
      return true;
    case v1::SchedulerMessage::kStop:
      OnCommand(message.stop().key(), Command::kStop, message, now_ns);
      return true;
    case v1::SchedulerMessage::kForget:
      OnCommand(message.forget().key(), Command::kForget, message, now_ns);
      return true;
    case v1::SchedulerMessage::kQuery:
      OnCommand(message.query().key(), Command::kQuery, message, now_ns);
      return true;
    case v1::SchedulerMessage::kPublish:
      OnPublish(message.publish());
      return true;
    case v1::SchedulerMessage::kCheckpointAck: {
      const auto found = records_.find(IdOf(message.checkpoint_ack().key()));
      if (found == records_.end() ||
          message.checkpoint_ack().sequence() <= found->second.checkpoint_acked)
        return true;
      found->second.checkpoint_acked = message.checkpoint_ack().sequence();
      std::erase_if(found->second.checkpoints, [&](const v1::CheckpointReport& checkpoint) {
        return checkpoint.sequence() <= found->second.checkpoint_acked;
      });
      // If this is not remembered, the checkpoint is reported once more: no harm.
      if (const absl::Status status = files_->PersistOutcome(found->second); !status.ok())
        LogFailure("remember", found->first, status);
      return true;
    }
    case v1::SchedulerMessage::kHeartbeatAck:
      OnHeartbeatAck(message.heartbeat_ack());
      return true;
    default:
      return false;
  }
}

// A fence is put off to the time when the heartbeat was sent, not when its answer came (contract
// 9).
void Reconciler::OnHeartbeatAck(const v1::HeartbeatAck& ack) {
  acknowledged_ns_ = std::max(acknowledged_ns_, ack.sent_boottime_ns());
  for (const v1::AttemptKey& key : ack.renews()) {
    const auto found = records_.find(IdOf(key));
    if (found == records_.end()) continue;
    AttemptRecord& record = found->second;
    if (record.gone() || record.prepare.task().when_unreachable() != v1::FENCE ||
        ack.sent_boottime_ns() <= record.renewed_ns)
      continue;
    record.renewed_ns = ack.sent_boottime_ns();
    // Without it the shim stops the attempt early: safe.
    if (const absl::Status status = files_->Renew(record); !status.ok())
      LogFailure("renew", record.id, status);
  }
}

void Reconciler::OnCommand(const v1::AttemptKey& key, Command command,
                           const v1::SchedulerMessage& message, int64_t now_ns) {
  const AttemptId id = IdOf(key);
  if (!IsValid(id)) {
    LogWarn("command dropped", {{"why", "no such attempt id"}, {"attempt", Describe(id)}});
    return;
  }
  const auto found = records_.find(id);
  AttemptRecord* record = found == records_.end() ? nullptr : &found->second;
  Situation situation{record, forgotten_.count(id) > 0,
                      record != nullptr && processes_->ShimLives(id), identity_.boot_id};
  const Decision decision = Decide(situation, command);
  switch (decision.action) {
    case Action::kIgnore:
      return;
    case Action::kReport:
      Report(*record);
      return;
    case Action::kPrepare:
      if (PrepareNew(message.prepare())) Report(records_.at(id));
      return;
    case Action::kSpawn:
      if (decision.prepare_first && !PrepareNew(message.prepare())) return;
      record = &records_.at(id);
      if (message.has_start()) {
        record->master_address = message.start().master_address();
        record->master_port = message.start().master_port();
      }
      Spawn(record);
      return;
    case Action::kRefuse: {
      AttemptRecord fresh;
      if (record != nullptr) fresh = *record;
      fresh.id = id;
      fresh.end_ns = now_ns;
      // Not the cause of a stop: who ordered it knows that, and would take it for this host's own.
      Refuse(std::move(fresh), decision.cause, decision.detail,
             message.has_stop() ? &message.stop() : nullptr);
      return;
    }
    case Action::kStop:
      Stop(record, message.stop());
      return;
    case Action::kForget: {
      if (const absl::Status status = files_->Forget(id); !status.ok()) {
        LogFailure("forget", id, status);
        return;
      }
      records_.erase(id);
      lines_read_.erase(id);
      metrics_sent_.erase(id);
      times_sent_.erase(id);
      exits_told_.erase(id);
      usages_sent_.erase(id);
      forgotten_.insert(id);
      return;
    }
  }
}

bool Reconciler::PrepareNew(const v1::Prepare& prepare) {
  AttemptRecord record;
  record.id = IdOf(prepare.key());
  record.prepare = prepare;
  record.boot_id = identity_.boot_id;
  absl::StatusOr<int32_t> port = processes_->Prepare(prepare);
  absl::Status status = port.status();
  if (absl::IsUnavailable(status)) return false;  // under way: as if this had not come yet
  if (status.ok()) {
    record.port = *port;
    record.prepared = true;
    if (prepare.start_at_once()) {
      record.master_address = "127.0.0.1";
      record.master_port = record.port;
    }
    // A gang's host is told to be Prepared, which is a promise; what is prepared and started by one
    // command promises nothing until its shim claims it (decision 018).
    record.durable = !prepare.start_at_once();
    status = files_->PersistPrepared(record, record.durable);
  }
  if (!status.ok()) {
    record.prepared = false;
    Refuse(std::move(record), CauseOf(status), std::string(status.message()), nullptr);
    return false;
  }
  const AttemptId id = record.id;
  records_[id] = std::move(record);
  return true;
}

void Reconciler::Spawn(AttemptRecord* record) {
  record->renewed_ns = std::max(record->renewed_ns, acknowledged_ns_);
  const absl::Status status = processes_->SpawnShim(*record);
  if (status.ok() || absl::IsUnavailable(status)) return;  // under way: as if this had not come yet
  Refuse(*record, CauseOf(status), std::string(status.message()), nullptr);
}

void Reconciler::Refuse(AttemptRecord record, v1::Cause cause, std::string detail,
                        const v1::Stop* stop) {
  const absl::StatusOr<Claim> winner = files_->ClaimStopped(record);
  if (!winner.ok()) {
    // Nothing may be said that isn't durable; the scheduler repeats its command.
    LogFailure("write the claim", record.id, winner.status());
    return;
  }
  record.claim = *winner;
  if (*winner == Claim::kStopped) {
    record.cause = cause;
    record.detail = std::move(detail);
    if (const absl::Status status = files_->PersistOutcome(record); !status.ok())
      LogFailure("remember", record.id, status);
  }
  const AttemptId id = record.id;
  AttemptRecord& kept = records_[id];
  kept = std::move(record);
  if (kept.claim == Claim::kStarted && stop != nullptr) {
    Stop(&kept, *stop);  // the shim was faster
  } else {
    Report(kept);
  }
}

void Reconciler::Stop(AttemptRecord* record, const v1::Stop& stop) {
  StopRecord order{stop.cause(), stop.grace_ns()};
  if (record->stop.has_value()) {
    order.cause = record->stop->cause;  // the first cause stays
    order.grace_ns = std::min(order.grace_ns, record->stop->grace_ns);
  }
  if (!record->stop.has_value() || order != *record->stop) {
    const std::optional<StopRecord> before = record->stop;
    record->stop = order;
    if (const absl::Status status = files_->PersistStop(*record); !status.ok()) {
      LogFailure("record a stop", record->id, status);
      record->stop = before;
      return;
    }
  }
  processes_->SignalShim(record->id);
  Report(*record);
}

void Reconciler::OnPublish(const v1::Publish& publish) {
  v1::AgentMessage message;
  v1::ExportReport* report = message.mutable_export_report();
  *report->mutable_key() = publish.key();
  report->set_staged(publish.staged());
  report->set_target(publish.target());
  const auto found = records_.find(IdOf(publish.key()));
  if (found == records_.end() || !found->second.prepared) {
    // Its record was lost, and with it what its paths are relative to. Silence would be waited for,
    // for ever.
    report->set_detail(absl::StrCat(identity_.cluster, "/", identity_.host,
                                    " knows nothing of this attempt any more"));
    Send(std::move(message));
    return;
  }
  AttemptRecord& record = found->second;
  const absl::Status status = record.published
                                  ? absl::OkStatus()
                                  : files_->Publish(record, publish.staged(), publish.target());
  if (absl::IsUnavailable(status)) return;  // under way
  if (status.ok()) {
    report->set_published(true);
    record.published = true;
    record.export_report = *report;
    if (const absl::Status kept = files_->PersistOutcome(record); !kept.ok())
      LogFailure("remember", record.id, kept);
  } else {
    report->set_detail(Shortened(std::string(status.message())));
  }
  Send(std::move(message));
}

void Reconciler::OnLine(AttemptRecord* record, const std::string& json, int64_t at_ns) {
  const std::optional<ProgressLine> line = ParseProgressLine(json);
  if (!line.has_value()) return;
  const v1::AttemptKey key = KeyOf(record->id);
  if (line->checkpoint.has_value() || line->exported.has_value()) {
    if (!record->prepared)
      return;  // power loss took the record, and with it where its checkpoints and exports belong
    if (!record->durable) {
      // From here on others rely on what the record says.
      const absl::Status status = files_->PersistPrepared(*record, /*durable=*/true);
      record->durable = status.ok();
      if (!status.ok()) LogFailure("keep the record", record->id, status);
    }
  }
  if (line->checkpoint.has_value()) {
    v1::CheckpointReport report = MessageOf(*line->checkpoint);
    *report.mutable_key() = key;
    report.set_sequence(++record->checkpoints_told);
    report.mutable_checkpoint()->set_attempt(record->id.attempt);
    report.mutable_checkpoint()->set_at_ns(at_ns);
    report.mutable_checkpoint()->set_storage(record->prepare.checkpoint_storage());
    if (report.loaded_step() < 0 && report.loaded_path().empty() && record->loaded.has_value()) {
      // Said in a line of its own: the first checkpoint of an attempt names what it loaded
      // (contract 12).
      report.set_loaded_step(record->loaded->step());
      report.set_loaded_path(record->loaded->path());
    }
    if (report.sequence() > record->checkpoint_acked) {
      // The first one stays: it names what the attempt loaded. Of the others the newest do.
      std::vector<v1::CheckpointReport>& waiting = record->checkpoints;
      waiting.push_back(report);
      if (waiting.size() > kCheckpointsUnacknowledged) waiting.erase(waiting.begin() + 1);
      v1::AgentMessage message;
      *message.mutable_checkpoint() = std::move(report);
      Send(std::move(message));
    }
  }
  if (line->loaded.has_value()) {
    record->loaded = MessageOf(*line->loaded);
    *record->loaded->mutable_key() = key;
    v1::AgentMessage message;
    *message.mutable_loaded() = *record->loaded;
    Send(std::move(message));
  }
  if (line->exported.has_value() && !record->published) {
    record->export_report = MessageOf(*line->exported);
    *record->export_report->mutable_key() = key;
    v1::AgentMessage message;
    *message.mutable_export_report() = *record->export_report;
    Send(std::move(message));
  }
}

void Reconciler::OnShim(const AttemptId& id, const ShimNews& news, int64_t now_ns) {
  const auto found = records_.find(id);
  if (found == records_.end()) return;
  AttemptRecord& record = found->second;
  // Lines first: a checkpoint is told before the end of the attempt that wrote it.
  size_t& read = lines_read_[id];
  for (read = std::max(read, news.lines_before); read < news.lines_before + news.lines.size();
       ++read) {
    const size_t i = read - news.lines_before;
    OnLine(&record, news.lines[i], news.lines_at_ns[i]);
  }
  const std::pair<std::string, int64_t> newest(
      news.metrics, news.metrics_at_ns);  // a line that is said twice is told twice
  if (!news.metrics.empty() && metrics_sent_[id] != newest) {
    metrics_sent_[id] = newest;
    const std::optional<ProgressLine> line = ParseProgressLine(news.metrics);
    if (line.has_value() && line->metrics.has_value()) {
      v1::AgentMessage message;
      *message.mutable_progress()->mutable_key() = KeyOf(id);
      *message.mutable_progress()->mutable_progress() = MessageOf(*line->metrics);
      message.mutable_progress()->mutable_progress()->set_at_ns(news.metrics_at_ns);
      message.mutable_progress()->mutable_progress()->set_attempt(id.attempt);
      Send(std::move(message));
    }
  }
  if (!news.times.empty()) {
    v1::AgentMessage message;
    *message.mutable_progress()->mutable_key() = KeyOf(id);
    *message.mutable_progress()->mutable_times() = {news.times.begin(), news.times.end()};
    if (std::string said = message.SerializeAsString(); times_sent_[id] != said) {
      times_sent_[id] = std::move(said);
      Send(std::move(message));
    }
  }
  if (news.usage.ran_ns() > 0) record.usage = news.usage;
  if (record.gone()) return;
  bool changed = false;
  if (record.claim == Claim::kNone && news.claim != Claim::kNone) {
    record.claim = news.claim;
    changed = true;
  }
  if (news.start_ns.has_value() && record.start_ns != *news.start_ns)
    record.start_ns = *news.start_ns;
  if (record.claim == Claim::kStarted) {
    if (news.exits.size() > record.exits.size()) {
      record.exits = news.exits;
      TellCollision(record.port, &record.exits);
      changed = true;
    }
    if (news.final) {
      record.ended = true;
      record.exits = news.exits;
      TellCollision(record.port, &record.exits);
      record.stop_sent = news.stop_sent;
      record.end_ns = news.end_ns;
      if (news.fenced && !record.stop.has_value()) {
        record.cause = v1::HOST_LOST;
        record.detail = "stopped by its fence: no word of the scheduler for fence_after";
        if (const absl::Status status = files_->PersistOutcome(record); !status.ok())
          LogFailure("remember", id, status);
      }
      changed = true;
    } else if (!news.alive) {
      // The shim died without exit records, and took its processes along.
      const bool rebooted = record.boot_id != identity_.boot_id;
      record.ended = true;
      record.stop_sent = record.stop.has_value();
      record.end_ns = now_ns;
      record.detail = rebooted ? "the host was restarted" : "its shim was killed";
      if (rebooted) record.cause = v1::HOST_LOST;
      FillExits(&record, record.detail, now_ns);
      if (const absl::Status status = files_->PersistOutcome(record); !status.ok())
        LogFailure("remember", id, status);
      changed = true;
    }
  }
  if (record.cause == v1::CAUSE_UNSPECIFIED && !record.stop.has_value())
    record.cause = LaunchCause(record.exits);
  if (record.gone() && !record.gpus.slots.empty()) KeepGpus(record);
  if (changed) Report(record);
}

}  // namespace muster::agent
