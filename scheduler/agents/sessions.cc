#include "scheduler/agents/sessions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/pki/sha256.h"
#include "scheduler/agents/check_message.h"
#include "scheduler/agents/seen_mac.h"
#include "scheduler/engine/commands.h"
#include "scheduler/state/bytes.h"

namespace muster {
namespace {

// Of a session's words, of all attempts together, so that repetitions cost nothing. Above it all
// are forgotten, and what is repeated is an event once more, without effect.
constexpr size_t kMostRemembered = 20'000;

// The attempt has a part on this host, in whatever state.
bool IsOn(const State& state, const pb::AttemptKey& key, const std::string& cluster,
          const std::string& host) {
  const AttemptRow* attempt = state.FindAttempt(key);
  if (attempt == nullptr) return false;
  const HostId id = state.FindHost(cluster, host);
  for (const PartRow& part : attempt->parts) {
    if (part.host == id) return true;
  }
  return false;
}

// Of the ranks on that host: of others' it knows nothing, nor is it believed; nor of what is none.
google::protobuf::RepeatedPtrField<pb::RankTime> OwnTimes(const pb::ProgressReport& report,
                                                          const pb::TaskSpec& task,
                                                          const AttemptRow& attempt, HostId id) {
  google::protobuf::RepeatedPtrField<pb::RankTime> own;
  const int32_t processes = std::max(1, task.processes_per_worker());
  for (const PartRow& part : attempt.parts) {
    if (part.host != id) continue;
    for (const pb::RankTime& time : report.times()) {
      const int32_t worker = time.rank() / processes - part.first_group_rank;
      if (worker >= 0 && worker < part.workers) *own.Add() = time;
    }
  }
  return own;
}

// An attempt that may run there lives on the acknowledgement of heartbeats.
bool HasFences(const State& state, HostId id) {
  if (id == kNoHost) return false;
  for (const AttemptRef& ref : state.host(id).attempts) {
    if (state.FindJob(ref.job)->task_spec(ref.task).when_unreachable() == pb::FENCE) return true;
  }
  return false;
}

// The longest wait of a fence there that is over after so long a silence: what is fenced has been
// stopped by its shim then, a stray as well. 0: none is.
int64_t ProvedQuietNs(const State& state, const HostRow& host, int64_t quiet_ns) {
  int64_t proved_ns = 0;
  const auto prove = [&](const pb::TaskSpec& task) {
    const int64_t wait_ns = FenceWaitNs(task);
    if (wait_ns <= quiet_ns) proved_ns = std::max(proved_ns, wait_ns);
  };
  for (const AttemptRef& ref : host.attempts) prove(state.FindJob(ref.job)->task_spec(ref.task));
  for (const LostRow& lost : host.lost) {
    const JobRow* job = lost.stray() ? state.FindJobByUid(lost.key.job_uid()) : nullptr;
    const int32_t task = job == nullptr ? -1 : TaskIndex(*job->spec, lost.key.task());
    if (task >= 0) prove(job->task_spec(task));
  }
  return proved_ns;
}

}  // namespace

Sessions::Sessions(SessionOptions options, Clock* clock)
    : options_(std::move(options)), clock_(clock), started_ns_(clock->BootNs()) {}

void Sessions::Attach(Engine* engine) { engine_ = engine; }

void Sessions::Session::BoundTold() {
  if (told_words < kMostRemembered) return;
  told.clear();
  told_words = 0;
}

std::string Sessions::DigestOf(const google::protobuf::Message& said) {
  return Sha256(said.SerializeAsString());
}

absl::Status Sessions::Receive(const std::shared_ptr<AgentStream>& stream,
                               const pb::AgentMessage& message) {
  if (absl::Status status = CheckAgentMessage(message); !status.ok()) return status;
  if (message.has_hello()) return ReceiveHello(stream, message.hello());
  std::shared_ptr<Session> session;
  {
    std::lock_guard lock(mutex_);
    const auto it = streams_.find(stream.get());
    if (it == streams_.end()) return absl::InvalidArgumentError("the first message must be hello");
    session = it->second;
    HostEntry& entry = hosts_[Name(session->cluster, session->host)];
    const bool dead = entry.session != session || message.session().session() != session->id;
    session->pace->Take(message.has_heartbeat() && !dead ? Pace::kMessageNs : Pace::kLightNs,
                        clock_->BootNs());
    if (dead) return absl::OkStatus();
    Heard(&entry, *session);
    // It names the session, so it has its Welcome, and remembers the epoch: no other server of this
    // store is followed from now on.
    entry.answered = true;
  }
  switch (message.body_case()) {
    case pb::AgentMessage::kHeartbeat:
      if (!message.heartbeat().usages().empty())
        usage_.Told(engine_->Snapshot()->state, session->cluster, session->host,
                    message.heartbeat().usages());
      Heartbeat(session, message.heartbeat());
      break;
    case pb::AgentMessage::kReport:
      Report(session, message.report());
      break;
    case pb::AgentMessage::kProgress:
      Progressed(*session, message.progress());
      break;
    case pb::AgentMessage::kCheckpoint:
      Checkpointed(session, message.checkpoint());
      break;
    case pb::AgentMessage::kExportReport:
      Exported(session, message);
      break;
    case pb::AgentMessage::kLoaded:
      Loaded(session, message);
      break;
    case pb::AgentMessage::kLogChunk:
      Deliver(*session, message.log_chunk());
      break;
    case pb::AgentMessage::kFault:
      Fault(session, message.fault());
      break;
    case pb::AgentMessage::kChecked:
      Checked(session, message.checked());
      break;
    case pb::AgentMessage::kHello:
    case pb::AgentMessage::BODY_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

void Sessions::Heard(HostEntry* entry, const Session& session) {
  entry->heard_ns = clock_->BootNs();
  entry->heard_wall_ns = clock_->WallNs();
  entry->posted_quiet_ns = 0;
  if (entry->posted == pb::HOST_UP) return;
  entry->posted = pb::HOST_UP;
  pb::Event event;
  event.mutable_host_state()->set_cluster(session.cluster);
  event.mutable_host_state()->set_host(session.host);
  event.mutable_host_state()->set_state(pb::HOST_UP);
  engine_->Post(std::move(event));
}

// What lives on it may be fenced and replaced by a scheduler that has taken over: it is
// acknowledged only once a commit has shown that none has, with the host's word in it (contract
// 17).
void Sessions::Heartbeat(const std::shared_ptr<Session>& session, const pb::Heartbeat& heartbeat) {
  const std::shared_ptr<const View> view = engine_->Snapshot();
  if (!HasFences(view->state, view->state.FindHost(session->cluster, session->host)))
    return Acknowledge(session, heartbeat);
  engine_->Call(
      [](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        return std::vector<pb::Event>();
      },
      [this, session, heartbeat](absl::Status status) {
        if (status.ok()) Acknowledge(session, heartbeat);
      });
}

void Sessions::Acknowledge(const std::shared_ptr<Session>& session,
                           const pb::Heartbeat& heartbeat) {
  const std::shared_ptr<const View> view = engine_->Snapshot();
  pb::SchedulerMessage message;
  pb::HeartbeatAck* ack = message.mutable_heartbeat_ack();
  ack->set_sent_boottime_ns(heartbeat.sent_boottime_ns());
  ack->set_sequence(heartbeat.sequence());
  if (const HostId id = view->state.FindHost(session->cluster, session->host); id != kNoHost) {
    for (const AttemptRef& ref : view->state.host(id).attempts) {
      const JobRow* job = view->state.FindJob(ref.job);
      const AttemptRow* attempt = view->state.FindAttempt(ref);
      if (job == nullptr || attempt == nullptr) continue;
      for (const PartRow& part : attempt->parts) {
        if (part.host == id && !part.over()) *ack->add_renews() = KeyOf(*job, ref.task, ref.number);
      }
    }
  }
  std::lock_guard lock(mutex_);
  SendOn(session.get(), std::move(message));
  if (!session->welcomed) return;
  // What still holds is said again, unless it was said a moment ago.
  const int64_t now_ns = clock_->BootNs();
  std::map<std::string, int64_t> holds;
  for (pb::SchedulerMessage& command : CommandsFor(view->state, session->cluster, session->host)) {
    const std::string bytes = DeterministicBytes(command);
    const auto it = session->sent.find(bytes);
    if (it != session->sent.end() && now_ns - it->second < options_.heartbeat_ns * 3 / 4) {
      holds[bytes] = it->second;
      continue;
    }
    holds[bytes] = now_ns;
    SendOn(session.get(), std::move(command));
  }
  session->sent = std::move(holds);
  // A host whose disk was full could not answer.
  for (const auto& [key, query] : session->asked) SendOn(session.get(), query);
}

void Sessions::Report(const std::shared_ptr<Session>& session, const pb::AttemptReport& report) {
  const std::string key = AttemptText(report.key());
  const std::shared_ptr<const View> view = engine_->Snapshot();
  {
    std::lock_guard lock(mutex_);
    session->asked.erase(key);
    std::string digest = DigestOf(report);
    if (session->reports.size() >= kMostRemembered) session->reports.clear();
    std::string& last = session->reports[key];
    // A repetition says nothing new, but an end has to be answered: it goes through the engine
    // again.
    if (last == digest && (report.phase() != pb::GONE || AwaitsExport(view->state, report.key())))
      return;
    last = std::move(digest);
  }
  pb::Event event;
  pb::AttemptReported* reported = event.mutable_attempt_reported();
  reported->set_cluster(session->cluster);
  reported->set_host(session->host);
  reported->set_state_id(session->state_id);
  *reported->mutable_report() = report;
  Post(session, std::move(event));
}

void Sessions::Progressed(const Session& session, const pb::ProgressReport& report) {
  const std::shared_ptr<const View> view = engine_->Snapshot();
  if (!IsOn(view->state, report.key(), session.cluster, session.host)) return;
  if (report.times_size() > 0) Timed(session, *view, report);
  if (!report.has_progress()) return;
  pb::ProgressSeen seen;
  *seen.mutable_key() = report.key();
  *seen.mutable_progress() = report.progress();
  seen.mutable_progress()->set_attempt(seen.key().attempt());
  engine_->PostProgress(seen);
}

void Sessions::Exported(const std::shared_ptr<Session>& session, const pb::AgentMessage& message) {
  const pb::ExportReport& report = message.export_report();
  const std::shared_ptr<const View> view = engine_->Snapshot();
  if (!IsOn(view->state, report.key(), session->cluster, session->host)) return;
  pb::Event event;
  if (report.published() || !report.detail().empty()) {
    *event.mutable_export_published()->mutable_key() = report.key();
    event.mutable_export_published()->set_detail(report.detail());
  } else {
    *event.mutable_export_staged()->mutable_key() = report.key();
    event.mutable_export_staged()->set_staged(report.staged());
    event.mutable_export_staged()->set_target(report.target());
  }
  if (report.detail().empty()) {
    PostOnce(session, report.key(), DigestOf(message), std::move(event));
  } else if (AwaitsExport(view->state, report.key())) {
    Post(session, std::move(event));  // each failed try counts, however alike they are
  }
}

void Sessions::Loaded(const std::shared_ptr<Session>& session, const pb::AgentMessage& message) {
  const pb::LoadedReport& report = message.loaded();
  if (!IsOn(engine_->Snapshot()->state, report.key(), session->cluster, session->host)) return;
  pb::Event event;
  *event.mutable_loaded_seen()->mutable_key() = report.key();
  event.mutable_loaded_seen()->set_step(report.step());
  event.mutable_loaded_seen()->set_path(report.path());
  *event.mutable_loaded_seen()->mutable_refused() = report.refused();
  PostOnce(session, report.key(), DigestOf(message), std::move(event));
}

void Sessions::Checkpointed(const std::shared_ptr<Session>& session,
                            const pb::CheckpointReport& report) {
  const std::string attempt = AttemptText(report.key());
  const auto acknowledge = [this, session, attempt, key = report.key(),
                            sequence = report.sequence()](const absl::Status& status) {
    std::lock_guard lock(mutex_);
    if (!status.ok()) return;
    if (const auto told = session->told.find(attempt);
        told != session->told.end() && told->second.acknowledged.insert(sequence).second)
      ++session->told_words;
    pb::SchedulerMessage message;
    *message.mutable_checkpoint_ack()->mutable_key() = key;
    message.mutable_checkpoint_ack()->set_sequence(sequence);
    SendOn(session.get(), std::move(message));
  };
  bool durable = !IsOn(engine_->Snapshot()->state, report.key(), session->cluster,
                       session->host);  // of nobody: without effect
  if (!durable) {
    std::lock_guard lock(mutex_);
    session->BoundTold();
    Session::Told& told = session->told[attempt];
    durable = told.acknowledged.contains(report.sequence());
    if (!durable && !told.posted.insert(absl::StrCat("#", report.sequence())).second)
      return;  // its commit is under way
    if (!durable) ++session->told_words;
  }
  if (durable) {
    acknowledge(absl::OkStatus());
    return;
  }
  pb::Event event;
  pb::CheckpointSeen* seen = event.mutable_checkpoint_seen();
  *seen->mutable_key() = report.key();
  *seen->mutable_checkpoint() = report.checkpoint();
  seen->mutable_checkpoint()->set_attempt(report.key().attempt());
  seen->set_loaded_step(report.loaded_step());
  seen->set_loaded_path(report.loaded_path());
  Post(session, std::move(event), acknowledge);
}

// What its host says that is new.
void Sessions::Post(const std::shared_ptr<Session>& session, pb::Event event, Engine::Done done) {
  {
    std::lock_guard lock(mutex_);
    session->pace->Take(Pace::CostOf(event.ByteSizeLong()), clock_->BootNs());
  }
  engine_->Post(std::move(event), std::move(done));
}

int64_t Sessions::RestNs(const AgentStream* stream) {
  std::lock_guard lock(mutex_);
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return 0;
  Session& session = *it->second;
  const int64_t rest_ns = session.pace->RestNs(clock_->BootNs());
  if (rest_ns == 0) return 0;
  ++rests_;
  if (!std::exchange(session.told_pace, true)) {
    LogWarn("a host says too much: it is read on more slowly, and nothing of it is lost",
            {{"cluster", session.cluster}, {"host", session.host}});
  }
  return rest_ns;
}

uint64_t Sessions::Rests() const {
  std::lock_guard lock(mutex_);
  return rests_;
}

void Sessions::PostOnce(const std::shared_ptr<Session>& session, const pb::AttemptKey& attempt,
                        const std::string& identity, pb::Event event) {
  {
    std::lock_guard lock(mutex_);
    session->BoundTold();
    if (!session->told[AttemptText(attempt)].posted.insert(identity).second) return;
    ++session->told_words;
  }
  Post(session, std::move(event));
}

// Its host repeats it for some minutes, at each heartbeat.
void Sessions::Fault(const std::shared_ptr<Session>& session, const pb::HostFault& fault) {
  {
    std::lock_guard lock(mutex_);
    const int64_t now_ns = clock_->BootNs();
    std::erase_if(session->faults,
                  [&](const auto& known) { return now_ns - known.second >= options_.lease_ns; });
    if (!session->faults.insert_or_assign(DigestOf(fault), now_ns).second) return;
  }
  pb::Event event;
  event.mutable_host_fault()->set_cluster(session->cluster);
  event.mutable_host_fault()->set_host(session->host);
  *event.mutable_host_fault()->mutable_fault() = fault;
  Post(session, std::move(event));
}

void Sessions::Timed(const Session& session, const View& view, const pb::ProgressReport& report) {
  const JobRow* job = nullptr;
  int32_t task = 0;
  const AttemptRow* attempt = view.state.FindAttempt(report.key(), &job, &task);
  if (attempt == nullptr || attempt->state != pb::TASK_RUNNING) return;
  const auto times = OwnTimes(report, job->task_spec(task), *attempt,
                              view.state.FindHost(session.cluster, session.host));
  std::vector<pb::StragglerSeen> news;
  {
    std::lock_guard lock(mutex_);
    news = stragglers_.Told(report.key(), *attempt, times);
    session.pace->Take(static_cast<int64_t>(news.size()) * Pace::kMessageNs, clock_->BootNs());
  }
  for (pb::StragglerSeen& seen : news) {
    LogWarn(seen.permille() == 0 ? "a rank is no longer slower than its gang"
                                 : "a rank is slower than its gang",
            {{"job", seen.key().job_uid()},
             {"task", seen.key().task()},
             {"attempt", seen.key().attempt()},
             {"rank", seen.rank()},
             {"permille", seen.permille()}});
    pb::Event event;
    *event.mutable_straggler() = std::move(seen);
    engine_->Post(std::move(event));
  }
}

void Sessions::Closed(const AgentStream* stream) {
  std::vector<std::pair<uint64_t, LogSink>> broken;
  {
    std::lock_guard lock(mutex_);
    const auto it = streams_.find(stream);
    if (it == streams_.end()) return;
    const std::shared_ptr<Session> session = it->second;
    streams_.erase(it);
    HostEntry& entry = hosts_[Name(session->cluster, session->host)];
    if (entry.session != session) return;  // replaced
    entry.session = nullptr;
    LogInfo("agent disconnected", {{"cluster", session->cluster},
                                   {"host", session->host},
                                   {"session", session->id.substr(0, 8)}});
    broken = TakeLogsOf(*session);
  }
  EndLogs(broken, kDisconnected);
}

// A scheduler that another has replaced finds out by its next commit, which may be long in coming
// where nothing happens: until then agents would stay with it. So there is one a lease at least.
void Sessions::ProveOwnership() {
  const int64_t now_ns = clock_->BootNs();
  {
    std::lock_guard lock(mutex_);
    if (now_ns - proved_ns_ < options_.lease_ns) return;
    proved_ns_ = now_ns;
  }
  engine_->Call(
      [](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        return std::vector<pb::Event>();
      },
      nullptr);
}

void Sessions::StoodStill() {
  LogWarn("the scheduler stood still; hosts have a full lease again");
  listens_ns_ = clock_->BootNs();
}

void Sessions::Tick() {
  ProveOwnership();
  const std::shared_ptr<const View> view = engine_->Snapshot();
  const int64_t now_ns = clock_->BootNs();
  const int64_t silent_ns =
      options_.heartbeat_ns * 5 / 2;  // two missed, and half of one for its way
  std::vector<std::pair<uint64_t, LogSink>> waited;
  {
    std::lock_guard lock(mutex_);
    waited = TakeLogs(
        [&](const LogStream& log) { return log.waiting.request() != 0 && log.until_ns <= now_ns; });
  }
  EndLogs(waited, kNotConnected);
  std::lock_guard lock(mutex_);
  stragglers_.Forget(view->state);
  usage_.Forget(view->state, now_ns);
  for (const HostId id : view->state.hosts()) {
    const HostRow& row = view->state.host(id);
    if (!row.quarantines.empty() || told_quarantines_.contains(id))
      LookAtQuarantines(view->state, id);
    if (row.state == pb::HOST_NEVER_SEEN || row.state == pb::HOST_STATE_UNSPECIFIED) continue;
    const std::string& cluster = view->state.clusters()[row.cluster].name;
    HostEntry& entry = hosts_[Name(cluster, row.name)];
    if (entry.posted == pb::HOST_STATE_UNSPECIFIED) entry.posted = row.state;
    const int64_t quiet_ns = now_ns - (entry.heard_ns != 0 ? entry.heard_ns : started_ns_);
    pb::HostState now = entry.posted;
    if (std::min(quiet_ns, now_ns - listens_ns_) >= options_.lease_ns) {
      now = pb::HOST_UNREACHABLE;
    } else if (entry.posted == pb::HOST_UP && (entry.heard_ns == 0 || quiet_ns >= silent_ns)) {
      now = pb::HOST_SILENT;
    } else if (entry.posted == pb::HOST_UNREACHABLE && entry.heard_ns == 0 &&
               quiet_ns < options_.lease_ns) {
      now = pb::HOST_SILENT;  // it may have spoken to the process before this one: it has a full
                              // lease again
    }
    if (now == entry.posted) {
      const int64_t proved_ns = ProvedQuietNs(view->state, row, quiet_ns);
      if (now != pb::HOST_UNREACHABLE || proved_ns <= std::max(entry.posted_quiet_ns, row.quiet_ns))
        continue;
      entry.posted_quiet_ns = proved_ns;
      pb::Event event;
      event.mutable_host_state()->set_cluster(cluster);
      event.mutable_host_state()->set_host(row.name);
      event.mutable_host_state()->set_state(now);
      event.mutable_host_state()->set_quiet_ns(proved_ns);
      engine_->Post(std::move(event));
      continue;
    }
    entry.posted = now;
    LogWarn(now == pb::HOST_SILENT ? "host is silent" : "host is unreachable",
            {{"cluster", cluster}, {"host", row.name}});
    pb::Event event;
    event.mutable_host_state()->set_cluster(cluster);
    event.mutable_host_state()->set_host(row.name);
    event.mutable_host_state()->set_state(now);
    engine_->Post(std::move(event));
  }
}

void Sessions::Send(const std::string& cluster, const std::string& host,
                    const pb::SchedulerMessage& message) {
  std::lock_guard lock(mutex_);
  const auto it = hosts_.find(Name(cluster, host));
  if (it == hosts_.end() || it->second.session == nullptr || !it->second.session->welcomed) return;
  Session* session = it->second.session.get();
  if (!message.has_forget() &&
      !session->sent.emplace(DeterministicBytes(message), clock_->BootNs()).second)
    return;
  if (message.has_forget()) {
    const std::string attempt = AttemptText(message.forget().key());
    session->reports.erase(attempt);
    if (const auto told = session->told.find(attempt); told != session->told.end()) {
      session->told_words -= told->second.posted.size() + told->second.acknowledged.size();
      session->told.erase(told);
    }
  }
  SendOn(session, message);
}

void Sessions::SendOn(Session* session, pb::SchedulerMessage message) {
  if (restored_) return;  // nothing of this store counts any more
  pb::SessionKey* key = message.mutable_session();
  key->set_store_id(options_.store_id);
  key->set_epoch(options_.epoch);
  key->set_session(session->id);
  key->set_state_id(session->state_id);
  message.set_commit(engine_->Snapshot()->commit);
  message.set_mac(MacOf(message.commit()));
  session->stream->Send(message);
}

const std::string& Sessions::MacOf(uint64_t commit) {
  if (mac_.empty() || mac_commit_ != commit) {
    mac_ = MacOfSeen(options_.mac_key, options_.store_id, options_.epoch, commit);
    mac_commit_ = commit;
  }
  return mac_;
}

uint64_t Sessions::Unproved() const {
  std::lock_guard lock(mutex_);
  return unproved_;
}

size_t Sessions::Connected() const {
  std::lock_guard lock(mutex_);
  return streams_.size();
}

bool Sessions::Speaks(const std::string& cluster, const std::string& host) const {
  std::lock_guard lock(mutex_);
  const auto it = hosts_.find(Name(cluster, host));
  return it != hosts_.end() && it->second.heard_ns != 0 &&
         clock_->BootNs() - it->second.heard_ns < options_.lease_ns;
}

int64_t Sessions::LastHeardNs(const std::string& cluster, const std::string& host) const {
  std::lock_guard lock(mutex_);
  const auto it = hosts_.find(Name(cluster, host));
  return it == hosts_.end() ? 0 : it->second.heard_wall_ns;
}

}  // namespace muster
