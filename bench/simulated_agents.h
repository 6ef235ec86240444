// Agents of simulated hosts, in real time, in one thread. Nothing takes time there but the work: a
// prepared attempt is told as Prepared, a started one as Started, a gang ends with exit 0 after its
// runtime, and what is stopped ends at once.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "bench/live_system.h"
#include "common/base/clock.h"
#include "sim/agents/agents.h"

namespace muster::bench {

class SimulatedAgents : private sim::Programs {
 public:
  // How long a gang runs, once all of it has started.
  using RuntimeNs = std::function<int64_t(const pb::Prepare&)>;

  // `sessions` must outlive it. Says Hello for each host; the engine must be stepping.
  SimulatedAgents(Sessions* sessions, const pb::ClusterFile& clusters, RuntimeNs runtime_ns)
      : runtime_ns_(std::move(runtime_ns)),
        agents_(sessions, sim::HostsOf(clusters, "declared-").value(), sim::HostOptions(), this,
                RealClock()->WallNs()),
        thread_([this] { Run(); }) {}
  ~SimulatedAgents() override {
    agents_.Wake();
    thread_.join();
  }

  // Waits until every host was welcomed.
  void WaitWelcomed() { agents_.WaitWelcomed(); }

 private:
  sim::Work WorkOf(const pb::Prepare& prepare) override {
    return {runtime_ns_(prepare) * prepare.gang_workers(), 0, ""};
  }
  void Failed(const sim::SimulatedHost& host, const absl::Status& status) override {
    Die(host.name + ": " + std::string(status.message()));
  }
  void Run() {
    agents_.Join();
    agents_.WaitWelcomed();
    agents_.BeginHeartbeats(SessionOptions().heartbeat_ns);
    agents_.LiveUntil(RealClock(), sim::kNever);
  }

  const RuntimeNs runtime_ns_;
  sim::Agents agents_;
  std::thread thread_;
};

}  // namespace muster::bench
