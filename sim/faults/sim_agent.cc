#include "sim/faults/sim_agent.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/files.h"

namespace muster::sim::faults {
namespace {

constexpr int64_t kRestartNs = 3 * kSecond;  // until who started it starts it again

}  // namespace

absl::Status FaultyFiles::PersistPrepared(const agent::AttemptRecord& record, bool durable) {
  return Do([&] {
    absl::Status status = files_->PersistPrepared(record, durable);
    if (status.ok()) machine_->MarkSynced(record.id, durable);
    return status;
  });
}

absl::StatusOr<agent::Claim> FaultyFiles::ClaimStopped(const agent::AttemptRecord& record) {
  absl::StatusOr<agent::Claim> claim;
  const absl::Status status = Do([&] {
    claim = files_->ClaimStopped(record);
    return claim.status();
  });
  if (!status.ok()) return status;
  if (*claim == agent::Claim::kStarted) ++counters_["stops that lost the claim"];
  return claim;
}

// On the storage of this world, which the rest of it calls /shared.
absl::Status FaultyFiles::Publish(const agent::AttemptRecord& record, const std::string& staged,
                                  const std::string& target) {
  agent::AttemptRecord here = record;
  here.prepare.set_job_directory(shared_->storage + record.prepare.job_directory());
  const absl::Status status = Do([&] {
    const absl::Status done = files_->Publish(here, shared_->storage + staged, target);
    if (done.ok()) {
      const std::string by =
          ReadFile(absl::StrCat(here.prepare.job_directory(), "/", target, "/by")).value_or("");
      shared_->checker.OnPublished(shared_->heap.now_ns(), machine_->full_name(),
                                   record.prepare.key(), by);
    }
    return done;
  });
  return absl::Status(status.code(),
                      absl::StrReplaceAll(status.message(), {{shared_->storage, ""}}));
}

SimAgent::SimAgent(Shared* shared, Machine* machine, Network* network, int32_t host,
                   pb::Inventory inventory)
    : shared_(shared),
      machine_(machine),
      network_(network),
      host_(host),
      inventory_(std::move(inventory)) {
  machine_->acted = [this] {
    if (acting_) shared_->checker.OnActed(machine_->full_name(), acting_->first, acting_->second);
  };
  machine_->changed = [this](const agent::AttemptId& id) {
    Act([this, id] { Guard([&] { Refresh(id); }); });
  };
}

template <typename F>
void SimAgent::Guard(F f) {
  try {
    f();
    if (runs()) state_->CollectForgotten();
  } catch (const AgentDies&) {
    Die(/*silently=*/false);
    shared_->heap.After(kRestartNs, [this] { Start(); });
  }
}

void SimAgent::Act(std::function<void()> what) {
  if (runs()) pause_.Act(std::move(what));
}

void SimAgent::Sleep(int64_t until_ns) {
  if (runs()) pause_.Until(until_ns);
}

void SimAgent::Pause(int64_t until_ns) {
  if (runs()) ++shared_->counters["agents paused"];
  Sleep(until_ns);
}

void SimAgent::Start() {
  if (runs() || !machine_->on()) return;
  if (machine_->asleep()) return shared_->heap.At(machine_->asleep_until_ns(), [this] { Start(); });
  ++life_;
  absl::StatusOr<std::unique_ptr<agent::StateDirectory>> state =
      agent::StateDirectory::Open(machine_->state_directory());
  MUSTER_CHECK_MSG(state.ok(), state.status().ToString().c_str());
  state_ = *std::move(state);
  absl::StatusOr<std::vector<agent::AttemptRecord>> records = state_->Load();
  MUSTER_CHECK_MSG(records.ok(), records.status().ToString().c_str());
  files_ = std::make_unique<FaultyFiles>(state_.get(), machine_, &dies_in_, shared_);
  reconciler_ = std::make_unique<agent::Reconciler>(
      agent::Identity{machine_->cluster(), machine_->name(), state_->state_id(),
                      machine_->boot_id()},
      *std::move(records), state_->seen(), files_.get(), machine_, this);
  Guard([&] { WatchAttempts(true); });
  if (!runs()) return;
  retry_ = agent::Retry(shared_->heap.now_ns());
  spoke_ = refused_ = false;
  Connect();
}

void SimAgent::Die(bool silently) {
  if (!runs()) return;
  ++life_;
  dies_in_ = 0;
  pause_.Die();
  acting_.reset();
  reconciler_ = nullptr;
  files_ = nullptr;
  state_ = nullptr;
  watched_.clear();
  const uint64_t stream = std::exchange(stream_, 0);
  if (stream != 0) network_->Leave(stream, silently);
}

void SimAgent::Connect() {
  stream_ = network_->Connect(host_, this);
  if (stream_ == 0) return Retry();
  heard_ns_ = shared_->heap.now_ns();
  lease_ns_ = shared_->config.lease_ns;
  Guard([&] {
    WatchAttempts(true);
    v1::AgentMessage message = reconciler_->Hello(inventory_, machine_->BootNs());
    shared_->checker.OnHello(shared_->heap.now_ns(), machine_->full_name(),
                             message.hello().epoch_seen(), message.hello().commit_seen());
    network_->Send(stream_, std::move(message));
  });
  if (runs()) WatchLease(stream_);
}

void SimAgent::Retry() {
  const uint64_t life = life_;
  shared_->heap.After(retry_.After(shared_->heap.now_ns(), std::exchange(spoke_, false),
                                   std::exchange(refused_, false)),
                      [this, life] {
                        if (life != life_) return;
                        Act([this] {
                          if (stream_ == 0) Connect();
                        });
                      });
}

void SimAgent::Disconnected() {
  stream_ = 0;
  Guard([&] { reconciler_->OnDisconnected(); });
  if (runs()) Retry();
}

void SimAgent::Reconnect(bool silently) {
  Act([this, silently] {
    if (stream_ == 0) return;
    network_->Leave(stream_, silently);
    Disconnected();
  });
}

void SimAgent::Closed(uint64_t stream) {
  Act([this, stream] {
    if (stream == stream_) Disconnected();
  });
}

void SimAgent::Received(uint64_t stream, const pb::SchedulerMessage& message) {
  if (!runs()) return;
  if (!pause_.now()) return Hear(stream, message);  // most of the time: no copy
  pause_.Defer([this, stream, message] { Hear(stream, message); });
}

void SimAgent::Hear(uint64_t stream, const pb::SchedulerMessage& message) {
  if (stream == stream_) return Guard([&] { OnMessage(message); });
  // Of a stream that it has left: what belongs to no present session has to be without effect
  // (CONTRACTS 1).
  if (message.has_welcome() || message.has_refused() || !reconciler_->has_session()) return;
  ++shared_->counters["commands of another session"];
  Guard([&] { reconciler_->OnMessage(message, machine_->WallNs()); });
}

void SimAgent::OnMessage(const pb::SchedulerMessage& message) {
  heard_ns_ = shared_->heap.now_ns();
  shared_->checker.OnAgentHeard(heard_ns_, machine_->full_name());
  (message.has_refused() ? refused_ : spoke_) = true;
  if (message.has_refused()) {
    ++shared_->counters[message.refused().final() ? Counter("agents refused for good")
                                                  : Counter("agents refused")];
    return;
  }
  if (message.has_welcome()) {
    lease_ns_ = message.welcome().lease_ns();
    heartbeat_ns_ = message.welcome().heartbeat_ns();
    ++shared_->counters["sessions"];
  }
  const bool had = reconciler_->has_session();
  acting_ = {message.session().epoch(), message.commit()};
  MUSTER_CHECK(reconciler_->OnMessage(message, machine_->WallNs()));
  acting_.reset();
  if (!had && reconciler_->has_session()) {
    const uint64_t stream = stream_;
    BeatLater(stream);
  }
  WatchAttempts(false);
}

void SimAgent::Heartbeat(uint64_t stream) {
  if (!runs() || stream != stream_ || !reconciler_->has_session()) return;
  v1::AgentMessage message;
  *message.mutable_session() = reconciler_->session();
  message.mutable_heartbeat()->set_sent_boottime_ns(machine_->BootNs());
  message.mutable_heartbeat()->set_sequence(++beats_);
  Send(std::move(message));
  Guard([&] {
    reconciler_->RepeatReports();
    WatchAttempts(true);
  });
  BeatLater(stream);
}

void SimAgent::BeatLater(uint64_t stream) {
  shared_->heap.After(heartbeat_ns_,
                      [this, stream] { Act([this, stream] { Heartbeat(stream); }); });
}

void SimAgent::WatchLease(uint64_t stream) {
  const int64_t due_ns = heard_ns_ + lease_ns_;
  shared_->heap.At(due_ns, [this, stream] {
    Act([this, stream] {
      if (stream != stream_) return;
      if (shared_->heap.now_ns() < heard_ns_ + lease_ns_) return WatchLease(stream);
      ++shared_->counters["sessions ended by the agent's lease"];
      Reconnect();
    });
  });
}

void SimAgent::WatchAttempts(bool all) {
  std::vector<agent::AttemptId> live, over;
  for (const auto& [id, record] : reconciler_->records()) {
    const auto known = watched_.find(id);
    if (!record.gone() && (all || known == watched_.end() || !known->second.news.alive))
      live.push_back(id);
    if (record.gone() && record.claim == agent::Claim::kStarted && known == watched_.end())
      live.push_back(id);
  }
  for (const auto& [id, watched] : watched_) {
    if (reconciler_->Find(id) == nullptr) over.push_back(id);
  }
  for (const agent::AttemptId& id : over) watched_.erase(id);
  for (const agent::AttemptId& id : live) {
    watched_[id];
    Refresh(id);
  }
}

void SimAgent::Refresh(const agent::AttemptId& id) {
  const auto found = watched_.find(id);
  if (found == watched_.end() || reconciler_->Find(id) == nullptr) return;
  Watched& watched = found->second;
  const bool alive = machine_->ShimLives(id);
  if (!agent::ReadShimFiles(state_->AttemptDirectory(id), {}, &watched.events_read, &watched.news)
           .ok())
    return;
  watched.news.alive = alive;
  reconciler_->OnShim(id, watched.news, machine_->WallNs());
}

}  // namespace muster::sim::faults
