// A host: its boots and clocks, the files that an agent finds again, and the shims that run on it
// (sim_shim.h). Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/host/state_dir.h"
#include "agent/reconcile/ports.h"
#include "common/base/fnv.h"
#include "sim/faults/checks.h"
#include "sim/faults/config.h"
#include "sim/faults/programs.h"
#include "sim/heap.h"

namespace muster::sim::faults {

// What all parts of a simulated world share.
struct Shared {
  Config config;
  Heap heap;
  Counters counters;
  Checker checker;
  Programs programs;
  std::string storage;  // directory of what lies on the clusters' shared storage, /shared
  // The scheduler that owns the store sends something to a host.
  std::function<void(const pb::SchedulerMessage&)> sends;
  uint64_t digest = kFnv1aBegin;  // of everything that was committed and everything that ran

  Shared(const Config& config, uint64_t seed)
      : config(config),
        heap(1'800'000'000 * kSecond, seed ^ 0x5bd1e995),
        checker(&counters),
        programs(config, seed, &heap) {}
  void Digest(const std::string& text) { digest = Fnv1a(text, digest); }
};

class SimShim;

class Machine final : public agent::Processes {
 public:
  // `directory`: an empty one, the host's own.
  Machine(Shared* shared, std::string cluster, std::string name, std::string directory,
          uint64_t seed);
  ~Machine() override;

  const std::string& cluster() const { return cluster_; }
  const std::string& name() const { return name_; }
  std::string full_name() const { return cluster_ + "/" + name_; }
  const std::string& state_directory() const { return directory_; }
  const std::string& boot_id() const { return boot_id_; }
  bool on() const { return on_; }
  int64_t WallNs() const { return shared_->heap.now_ns() + wall_offset_ns_; }
  // CLOCK_BOOTTIME, which drifts.
  int64_t BootNs() const { return BootAt(shared_->heap.now_ns()); }
  Random* random() { return &random_; }
  std::string DirectoryOf(const agent::AttemptId& id) const;
  // Shims, and what each has its attempt's devices for.
  std::vector<std::string> Held() const;

  // A shim's files may have changed: called a little later, if there is anybody to listen.
  std::function<void(const agent::AttemptId&)> changed;
  // One of its shims is gone: likewise.
  std::function<void(const agent::AttemptId&)> shim_ended;
  // Something was done that a command of the scheduler wanted.
  std::function<void()> acted;
  // An attempt's marker was written, and isn't synced yet.
  std::function<void()> marked;
  // A shim of a task with a fence begins late.
  std::function<void()> begins_late;

  absl::StatusOr<int32_t> Prepare(const v1::Prepare& prepare) override;
  absl::Status SpawnShim(const agent::AttemptRecord& record) override;
  void SignalShim(const agent::AttemptId& id) override;
  bool ShimLives(const agent::AttemptId& id) override { return shims_.count(id) > 0; }
  // What was never synced is lost with the power.
  void PowerOff();
  void PowerOn();
  void KillAnyShim();
  // The next one that claims, before it starts anything.
  void KillNextClaim() { dies_at_claim_ = true; }
  // SIGSTOP; their processes go on.
  void PauseShims(int64_t until_ns);
  // The machine sleeps: nothing runs on it, and CLOCK_BOOTTIME goes on. Its agent is paused by the
  // caller.
  void Sleep(int64_t until_ns);
  bool asleep() const { return shared_->heap.now_ns() < asleep_until_ns_; }
  int64_t asleep_until_ns() const { return asleep_until_ns_; }
  // Whether the marker of an attempt would survive that.
  void MarkSynced(const agent::AttemptId& id, bool synced);
  // The state directory is lost: there is an empty one.
  void ForgetState();
  // How an agent makes a new one there.
  agent::StateDirectory::Making Making();
  // What is left of the names that an agent keeps commit numbers by when the power goes: not always
  // the newest (agent/host/state_dir.h).
  void LoseSeen();

  // A device fails its checks until then.
  void Sicken(int32_t device, int64_t until_ns) {
    int64_t& sick_until_ns = sick_until_ns_[device];
    sick_until_ns = std::max(sick_until_ns, until_ns);
  }
  void Recover() { sick_until_ns_.clear(); }
  // Whether a check of the device, or of the whole host (-1), passes now.
  bool Fit(int32_t device) const;

  // Faults, until a time.
  int64_t disk_full_until_ns = 0;
  int64_t launch_fails_until_ns = 0;
  int64_t late_shims_until_ns = 0;
  int64_t late_shims_ns = 0;
  void JumpClock(int64_t by_ns) { wall_offset_ns_ += by_ns; }
  bool DiskFull() const { return shared_->heap.now_ns() < disk_full_until_ns; }
  bool StorageHangs() const { return shared_->programs.StorageHangs(); }

  // For its shims.
  void Tell(const agent::AttemptId& id);  // a file of the attempt has changed
  void ShimEnded(const agent::AttemptId& id);
  bool TakeDeathAtClaim() { return std::exchange(dies_at_claim_, false); }

 private:
  std::string NewId();
  void EndForgottenShims();
  int64_t BootAt(int64_t true_ns) const {
    return true_ns - began_ns_ + (true_ns - began_ns_) / 1'000'000 * drift_ppm_;
  }
  void Awake();
  void LoseUnsynced(const agent::AttemptId& id);
  void TearFiles();

  Shared* const shared_;
  const std::string cluster_, name_, directory_;
  Random random_;
  std::string boot_id_;
  bool on_ = true;
  int64_t began_ns_ = 0;
  int64_t drift_ppm_ = 0;  // of its boot clock; at most what FenceWaitNs allows for
  int64_t wall_offset_ns_ = 0;
  int64_t asleep_until_ns_ = 0;
  int32_t next_port_ = 20000;
  std::map<agent::AttemptId, std::shared_ptr<SimShim>> shims_;  // alive
  bool dies_at_claim_ = false;
  std::string next_state_id_;                 // of the next state directory that is made
  std::set<agent::AttemptId> unsynced_;       // their markers
  std::map<int32_t, int64_t> sick_until_ns_;  // by device
};

}  // namespace muster::sim::faults
