// An agent of a simulated host: the loop that ships (agent/daemon/loop.h) with the real Reconciler
// and the real state directory, over a model of its stream, its clock and its disk. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agent/daemon/loop.h"
#include "agent/host/state_dir.h"
#include "agent/reconcile/retry.h"
#include "sim/faults/network.h"
#include "sim/faults/standstill.h"

namespace muster::sim::faults {

// Thrown by a use of the agent's files: the process is killed there.
struct AgentDies {};

// The state directory with a full disk and deaths between its calls.
class FaultyFiles final : public agent::Files {
 public:
  FaultyFiles(agent::Files* files, Machine* machine, int64_t* dies_in, Shared* shared)
      : files_(files),
        machine_(machine),
        dies_in_(dies_in),
        shared_(shared),
        counters_(shared->counters) {}

  absl::Status PersistPrepared(const agent::AttemptRecord& record, bool durable) override;
  absl::StatusOr<agent::Claim> ClaimStopped(const agent::AttemptRecord& record) override;
  absl::Status PersistStop(const agent::AttemptRecord& record) override {
    return Do([&] { return files_->PersistStop(record); });
  }
  absl::Status Renew(const agent::AttemptRecord& record) override {
    return Do([&] { return files_->Renew(record); });
  }
  absl::Status PersistOutcome(const agent::AttemptRecord& record) override {
    return Do([&] { return files_->PersistOutcome(record); });
  }
  absl::Status KeepGpus(const agent::AttemptRecord& record) override {
    return Do([&] { return files_->KeepGpus(record); }, /*acts=*/false);
  }
  absl::Status PersistSeen(const agent::Seen& seen, bool synced) override {
    return Do([&] { return files_->PersistSeen(seen, synced); }, /*acts=*/false);
  }
  absl::Status Forget(const agent::AttemptId& id) override {
    return Do([&] { return files_->Forget(id); });
  }
  absl::Status Publish(const agent::AttemptRecord& record, const std::string& staged,
                       const std::string& target) override;

  // Storage doesn't answer yet.
  std::function<void()> answers_late;

 private:
  // acts: it has an effect that a command wanted.
  template <typename F>
  absl::Status Do(F f, bool acts = true) {
    const bool dies = *dies_in_ > 0 && --*dies_in_ == 0;
    const bool after = dies && machine_->random()->OneIn(2);
    if (dies && !after) Die("agents killed before a file was written");
    if (machine_->DiskFull()) {
      ++counters_["files not written: disk full"];
      return absl::ResourceExhaustedError("No space left on device");
    }
    absl::Status status = f();
    if (status.ok() && acts) machine_->acted();
    if (after) Die("agents killed after a file was written");
    return status;
  }
  [[noreturn]] void Die(Counter counter) {
    ++counters_[counter];
    throw AgentDies();
  }

  agent::Files* const files_;
  Machine* const machine_;
  int64_t* const dies_in_;  // uses of files; 0: it doesn't
  Shared* const shared_;
  Counters& counters_;
};

class SimAgent final : public Network::AgentEnd,
                       private agent::AgentClock,
                       private agent::Link,
                       private agent::Shims {
 public:
  SimAgent(Shared* shared, Machine* machine, Network* network, int32_t host,
           pb::Inventory inventory);

  void Start();             // no effect if it runs or the machine is off
  void Die(bool silently);  // killed; its files and its shims stay
  void DieAtUse(int64_t uses) { dies_in_ = uses; }
  void Sleep(int64_t until_ns);  // its machine does: as Pause
  void Pause(int64_t until_ns);  // SIGSTOP; what comes meanwhile, its timers too, it takes in later
  // It gives up its stream, what is under way on it included, and opens another; with `silently`
  // the scheduler isn't told.
  void Reconnect(bool silently = false);
  // Its driver tells of a critical error of a device.
  void TellFault(int32_t device);
  bool runs() const { return loop_ != nullptr; }
  // The devices that it has given out, and to whom.
  std::vector<std::string> Held() const;

  void Received(uint64_t stream, const pb::SchedulerMessage& message) override;
  void Closed(uint64_t stream) override;

 private:
  // Tells its loop, and gives it its turn; a death at a use of files ends the agent.
  template <typename F>
  void Tell(F f);
  // Now, or once it goes on if it is paused; never if it is dead by then.
  void Act(std::function<void()> what);
  void TurnAt(int64_t boot_ns);
  void Connect();
  void Disconnected();
  void Retry();
  void Hear(uint64_t stream, const pb::SchedulerMessage& message);
  bool BeginCheck(const pb::CheckHost& check);

  // ---- its kernel ----
  int64_t WallNs() override { return machine_->WallNs(); }
  int64_t BootNs() override { return machine_->BootNs(); }
  void Send(uint64_t generation, v1::AgentMessage message) override;
  void Restart(const std::string& why) override;
  size_t queued_bytes() override { return 0; }
  void Watch(const agent::AttemptId&) override {}  // Machine tells of all
  void Unwatch(const agent::AttemptId&) override {}
  // From here on it goes by what the attempt's files say, not by the message under way.
  bool Lives(const agent::AttemptId& id) override {
    acting_.reset();
    return machine_->ShimLives(id);
  }
  // A shim's processes die with it here.
  bool KillStrays(const agent::AttemptId&, bool) override { return false; }
  void Ended(const agent::AttemptId&) override {}
  void RemoveCgroup(const agent::AttemptId&) override {}
  void ReleasePort(const agent::AttemptId&) override {}

  Shared* const shared_;
  Machine* const machine_;
  Network* const network_;
  const int32_t host_;
  const pb::Inventory inventory_;
  const bool checks_;  // false: as an agent one release older
  uint64_t life_ = 0;  // which of its processes; timers of an earlier one do nothing
  std::unique_ptr<agent::StateDirectory> state_;
  std::unique_ptr<FaultyFiles> files_;
  std::unique_ptr<agent::AgentLoop> loop_;
  uint64_t turns_ = 0;
  bool checking_ = false;
  uint64_t stream_ = 0;  // the loop's generation; 0: none
  agent::Retry retry_{0};
  bool spoke_ = false, refused_ = false;  // the scheduler, on the present stream
  // Epoch and commit of the message under way.
  std::optional<std::pair<uint64_t, uint64_t>> acting_;
  int64_t dies_in_ = 0;
  Standstill pause_{&shared_->heap};
};

}  // namespace muster::sim::faults
