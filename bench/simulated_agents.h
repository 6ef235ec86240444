// Agents of simulated hosts, in real time, in one thread: they speak the agent protocol with a
// Sessions of the same process.
//
// What they do is what an agent with its shims does, less the work: a prepared attempt is told as
// Prepared, a started one as Started, ends with exit 0 after its runtime, and a stopped one ends at
// once. Commands may be repeated; ends are said again when asked. No message is lost here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/v1/agent.pb.h"
#include "scheduler/agents/sessions.h"

namespace muster::bench {

namespace pb = ::muster::v1;

struct SimulatedHost {
  std::string cluster, name;
  pb::Inventory inventory;
};

class SimulatedAgents {
 public:
  // How long the attempt's processes run, from its Prepare.
  using RuntimeNs = std::function<int64_t(const pb::Prepare&)>;

  // `sessions` must outlive it. Says Hello for each host; the engine must be stepping.
  SimulatedAgents(Sessions* sessions, std::vector<SimulatedHost> hosts, RuntimeNs runtime_ns);
  ~SimulatedAgents();

  // Waits until every host was welcomed.
  void WaitWelcomed();

 private:
  class Stream;
  struct Attempt {
    pb::AttemptReport report;
    int32_t first_rank = 0, ranks = 0;
    int64_t runtime_ns = 0;
  };
  struct Host {
    SimulatedHost what;
    std::shared_ptr<Stream> stream;
    pb::SessionKey session;
    uint64_t heartbeats = 0;
    std::map<std::string, Attempt> attempts;  // by job uid/task/number, until forgotten
  };
  struct Timer {
    int64_t at_ns;
    size_t host;
    std::string attempt;  // empty: a heartbeat
    bool operator>(const Timer& other) const { return at_ns > other.at_ns; }
  };

  void Run();
  void On(size_t host, const pb::SchedulerMessage& message);
  void Start(size_t host, const std::string& id);
  void End(size_t host, const std::string& id, bool stopped);
  void Say(size_t host, pb::AgentMessage message);
  void Report(size_t host, const pb::AttemptReport& report);
  void Heartbeat(size_t host);

  Sessions* const sessions_;
  const RuntimeNs runtime_ns_;
  std::vector<Host> hosts_;  // the thread's, as are the timers
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  int64_t heartbeat_ns_ = 5'000'000'000;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<size_t, pb::SchedulerMessage>> inbox_;
  size_t welcomed_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster::bench
