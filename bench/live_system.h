// The scheduler as musterd wires it, without gRPC: SQLite store, engine on a thread of its own,
// sessions. For measurements.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/engine/engine.h"
#include "scheduler/store/store.h"

namespace muster::bench {

namespace pb = ::muster::v1;

class LiveSystem {
 public:
  // A fresh store in `directory`, synchronous=FULL as always. Ends the process, saying why, where
  // that can't be. `check_plans`: as EngineOptions has it.
  LiveSystem(const std::string& directory, const SchedulingOptions& scheduling,
             bool check_plans = true);
  ~LiveSystem();

  // Clusters and queues, durable when it returns. Before Run.
  void Configure(const pb::ClusterFile& clusters, const pb::QueueTree& queues);
  void Observe(Engine::Observer observer) { engine_->Observe(std::move(observer)); }
  void Run();

  Engine& engine() { return *engine_; }
  Sessions& sessions() { return *sessions_; }

 private:
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Engine> engine_;
  std::thread stepping_, ticking_;
  std::atomic<bool> stopping_ = false;
};

// Says why and ends the process with 2, as after wrong usage.
[[noreturn]] void Die(const std::string& why);

// What 99 of 100 didn't exceed.
inline double Milliseconds(const Durations& durations) {
  return static_cast<double>(durations.PerMilleNs(990)) / 1e6;
}

// Unix nanoseconds -> seconds since another such time.
double SecondsSince(int64_t then_ns);

}  // namespace muster::bench
