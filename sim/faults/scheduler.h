// One process of the scheduler: the real engine and the real sessions over a store that fails and
// dies as it is told. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/engine/engine.h"
#include "scheduler/store/store.h"
#include "sim/faults/network.h"
#include "sim/faults/standstill.h"

namespace muster::sim::faults {

// Thrown where the scheduler dies.
struct SchedulerDies {};

// What is on the scheduler's disk, and the faults of that disk.
struct Database {
  std::string store_id;
  uint64_t epoch = 0;
  std::string instance;
  uint64_t last_commit = 0;
  std::map<std::pair<std::string, std::string>, std::string> rows;
  bool adopt = false;  // it is a backup: the next scheduler adopts it
  std::string sqlite;  // directory of the real store; empty: what stands above is the store

  int64_t dies_before = 0, dies_after = 0, fails = 0,
          fails_done = 0;  // at so many commits from now; 0: it doesn't
  int64_t full_until_ns = 0;
};

class Scheduler final : public Network::SchedulerEnd {
 public:
  struct Setup {
    pb::ClusterFile clusters;
    pb::QueueTree queues;
    SchedulingOptions scheduling;
    std::string refused_plans;  // directory of reproducers, which is to stay empty (contract 20)
  };

  // Opens the store as musterd does. `died` is called (from the heap) once it has ended; the object
  // may be destroyed then.
  Scheduler(Shared* shared, Database* database, Network* network, const Setup& setup, uint64_t seed,
            std::function<void(Scheduler*)> died);
  ~Scheduler() override;

  bool alive() const { return engine_ != nullptr; }
  bool owns_store() const;
  // From now on it serves a store of its own, a copy of which is the one that counts: nothing that
  // it acknowledges does.
  void ServeAlone(Database* its_own);
  bool alone() const { return alone_; }
  Engine* engine() { return engine_.get(); }
  void Die();                    // SIGKILL
  void Pause(int64_t until_ns);  // SIGSTOP; what comes meanwhile is taken in later
  void JumpClock(int64_t by_ns) {
    wall_offset_ns_ += by_ns;
    shared_->checker.OnClockSet();
    Wake();
  }
  // What its State counts as used or kept of hosts.
  std::vector<std::string> Held() const;
  // Something was queued for the engine.
  void Wake();

  void Received(const std::shared_ptr<AgentStream>& stream, int32_t host,
                const pb::AgentMessage& message) override;
  void Closed(const AgentStream* stream) override;
  void Sends(int32_t host, const pb::SchedulerMessage& message) override;
  // It owns the store and sends this to host i, now.
  std::function<void(int32_t, const pb::SchedulerMessage&)> sends;
  // Of host i: cluster/host.
  std::function<std::string(int32_t)> name_of;

 private:
  class FaultyStore;
  class SchedulerClock;

  template <typename F>
  void Guard(F f);
  void Step();
  void Look();
  void CheckRefusedPlans();
  void Tick();
  void Compare();
  std::unique_ptr<SqliteStore> Open();

  Shared* const shared_;
  Database* const database_;  // where it began; ServeAlone leaves it to others
  Network* const network_;
  const std::string refused_plans_;
  const std::function<void(Scheduler*)> died_;
  Random random_;
  int64_t wall_offset_ns_ = 0;
  Standstill pause_{&shared_->heap};
  bool alone_ = false;
  bool read_only_ = false;  // an agent has seen a later store than this one
  bool step_planned_ = false;
  bool stepping_ = false;
  int64_t wake_ns_ = INT64_MAX;
  int64_t ticked_ns_ = 0;
  std::shared_ptr<bool> life_ = std::make_shared<bool>(true);  // false: timers do nothing
  std::unique_ptr<SchedulerClock> clock_;
  std::unique_ptr<FaultyStore> store_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace muster::sim::faults
