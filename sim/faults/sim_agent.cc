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

constexpr int32_t kXid = 94;  // a contained memory error: blames its device, which needs no reset
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
  absl::Status status = Do([&] {
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
  // Under way: a thread waits for the storage (agent/host/storage_threads.h). Who is started anew
  // then, or gets a new session, does it again.
  if (machine_->StorageHangs()) {
    ++counters_["exports that waited for storage"];
    answers_late();
    return absl::UnavailableError("under way");
  }
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
  if (!status.ok()) shared_->checker.OnExportRefused(record.prepare.key());
  return absl::Status(status.code(),
                      absl::StrReplaceAll(status.message(), {{shared_->storage, ""}}));
}

SimAgent::SimAgent(Shared* shared, Machine* machine, Network* network, int32_t host,
                   pb::Inventory inventory)
    : shared_(shared),
      machine_(machine),
      network_(network),
      host_(host),
      inventory_(std::move(inventory)),
      checks_(host % 4 != 3) {
  machine_->acted = [this] {
    if (acting_) shared_->checker.OnActed(machine_->full_name(), acting_->first, acting_->second);
  };
  machine_->changed = [this](const agent::AttemptId& id) {
    Act([this, id] { Tell([&] { loop_->OnFiles(id); }); });
  };
  machine_->shim_ended = [this](const agent::AttemptId& id) {
    Act([this, id] { Tell([&] { loop_->OnShimEnded(id); }); });
  };
}

template <typename F>
void SimAgent::Tell(F f) {
  try {
    f();
    if (runs()) TurnAt(loop_->Turn());
  } catch (const AgentDies&) {
    Die(/*silently=*/false);
    shared_->heap.After(kRestartNs, [this] { Start(); });
  }
}

void SimAgent::TurnAt(int64_t boot_ns) {
  shared_->heap.After(std::max(kMillisecond, boot_ns - BootNs()),
                      [this, life = life_, turn = ++turns_] {
                        if (life != life_ || turn != turns_) return;  // it has had another since
                        Act([this, life, turn] {
                          if (life == life_ && turn == turns_) Tell([] {});
                        });
                      });
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
      agent::StateDirectory::Open(machine_->state_directory(), machine_->Making());
  MUSTER_CHECK_MSG(state.ok(), state.status().ToString().c_str());
  state_ = *std::move(state);
  absl::StatusOr<std::vector<agent::AttemptRecord>> records = state_->Load();
  MUSTER_CHECK_MSG(records.ok(), records.status().ToString().c_str());
  files_ = std::make_unique<FaultyFiles>(state_.get(), machine_, &dies_in_, shared_);
  files_->answers_late = [this] {
    shared_->heap.At(shared_->programs.storage_hangs_until_ns + 1, [this, life = life_] {
      if (life == life_) Reconnect();
    });
  };
  agent::AgentLoop::Options options;
  options.identity = {machine_->cluster(), machine_->name(), state_->state_id(),
                      machine_->boot_id()};
  options.inventory = inventory_;
  options.sweep_ns = shared_->config.heartbeat_ns;  // as often as a run of ten thousand can afford
  agent::AgentLoop::Ports ports{this, this, this, files_.get(), machine_, state_.get(), nullptr};
  if (checks_) {
    ports.check_host = [this](const pb::CheckHost& check, const pb::Inventory&) {
      return BeginCheck(check);
    };
  }
  loop_ =
      std::make_unique<agent::AgentLoop>(std::move(options), std::move(ports), *std::move(records));
  Tell([&] { loop_->Begin(); });
  if (!runs()) return;
  retry_ = agent::Retry(shared_->heap.now_ns());
  spoke_ = refused_ = false;
  Connect();
}

void SimAgent::Die(bool silently) {
  if (!runs()) return;
  ++life_;
  dies_in_ = 0;
  if (std::exchange(checking_, false))
    ++shared_->counters["checks of hosts that died with their agent"];
  pause_.Die();
  acting_.reset();
  loop_ = nullptr;
  files_ = nullptr;
  state_ = nullptr;
  const uint64_t stream = std::exchange(stream_, 0);
  if (stream != 0) network_->Leave(stream, silently);
}

std::vector<std::string> SimAgent::Held() const {
  std::vector<std::string> held;
  if (!runs()) return held;
  for (const auto& [id, record] : loop_->attempts().records()) {
    held.push_back(absl::StrCat("the agent of ", machine_->full_name(), " holds ",
                                record.prepare.here().devices_size(), " devices for ",
                                Checker::Text(agent::KeyOf(id))));
  }
  return held;
}

// ---- its stream, as agent/daemon/connection.h keeps one ----

void SimAgent::Connect() {
  stream_ = network_->Connect(host_, this);
  if (stream_ == 0) return Retry();
  Tell([&] { loop_->OnOpened(stream_); });
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
  Tell([&] { loop_->OnClosed("the stream has ended"); });
  if (runs()) Retry();
}

void SimAgent::Reconnect(bool silently) {
  Act([this, silently] {
    if (stream_ == 0) return;
    network_->Leave(stream_, silently);
    Disconnected();
  });
}

void SimAgent::TellFault(int32_t device) {
  Act([this, device] { Tell([&] { loop_->OnDeviceEvent(device, kXid); }); });
}

// One at a time; it dies with its agent (agent/host/host_check.h).
bool SimAgent::BeginCheck(const pb::CheckHost& check) {
  if (std::exchange(checking_, true)) return false;
  // A sick device's driver may hang.
  const int64_t most_ns = machine_->Fit(check.device()) ? kSecond : check.timeout_ns();
  const int64_t takes_ns = machine_->random()->Between(kMillisecond, most_ns);
  shared_->heap.After(takes_ns, [this, check, life = life_] {
    if (life != life_) return;
    checking_ = false;
    pb::HostChecked checked;
    checked.set_request(check.request());
    checked.set_passed(machine_->Fit(check.device()));
    if (!checked.passed()) checked.set_detail("it is not fit");
    shared_->checker.OnHostChecked(shared_->heap.now_ns(), machine_->full_name(), check.device(),
                                   checked.passed());
    Act([this, life, checked] {
      if (life == life_) Tell([&] { loop_->OnChecked(checked); });
    });
  });
  return true;
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
  if (stream != stream_) {
    // Of a stream that it has left: what belongs to no present session has to be without effect
    // (contract 1).
    if (!message.has_welcome() && !message.has_refused() && loop_->attempts().has_session())
      ++shared_->counters["commands of another session"];
    return Tell([&] { loop_->OnMessage(stream, message); });
  }
  shared_->checker.OnAgentHeard(shared_->heap.now_ns(), machine_->full_name());
  (message.has_refused() ? refused_ : spoke_) = true;
  if (message.has_refused()) {
    ++shared_->counters[message.refused().final() ? Counter("agents refused for good")
                                                  : Counter("agents refused")];
  }
  if (message.has_welcome()) ++shared_->counters["sessions"];
  acting_ = {message.session().epoch(), message.commit()};
  Tell([&] {
    loop_->OnMessage(stream, message);
    acting_.reset();
  });
  if (message.has_welcome() && runs() && !loop_->attempts().has_session())
    ++shared_->counters["welcomes that an agent could not keep the epoch of"];
}

void SimAgent::Send(uint64_t generation, v1::AgentMessage message) {
  if (generation != stream_ || stream_ == 0) return;
  if (message.has_hello())
    shared_->checker.OnHello(shared_->heap.now_ns(), machine_->full_name(), message.hello());
  network_->Send(stream_, message);
}

// Nothing else here asks for another stream.
void SimAgent::Restart(const std::string&) {
  ++shared_->counters["sessions ended by the agent's lease"];
  shared_->heap.After(0, [this, life = life_, stream = stream_] {
    if (life == life_ && stream == stream_) Reconnect();
  });
}

}  // namespace muster::sim::faults
