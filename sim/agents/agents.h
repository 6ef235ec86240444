// Agents of simulated hosts in this process: they speak the agents' protocol with a real Sessions,
// and what they are told goes to the model of hosts. Programs says what runs there.
//
// Time comes from outside. One thread calls all functions but where it is said; a stream's Send may
// come from any thread and only fills the inbox.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/clock.h"
#include "scheduler/agents/sessions.h"
#include "sim/hosts.h"

namespace muster::sim {

// What runs on the hosts. Called by the agents' thread.
class Programs {
 public:
  virtual ~Programs() = default;
  // Asked once an attempt.
  virtual Work WorkOf(const pb::Prepare& prepare) = 0;
  // A host is told something, of which the model of hosts hears next.
  virtual void Told(int32_t /*host*/, const pb::SchedulerMessage& /*message*/) {}
  // A host says something; what is missing may be filled in.
  virtual void Saying(int32_t /*host*/, pb::AgentMessage* /*message*/) {}
  // A host's session ended, or refused what it said: nothing does that here but a mistake.
  virtual void Failed(const SimulatedHost& host, const absl::Status& status);
};

class Agents {
 public:
  // All but `hosts` must outlive it.
  Agents(Sessions* sessions, std::vector<SimulatedHost> hosts, const HostOptions& options,
         Programs* programs, int64_t now_ns);
  ~Agents();
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  // Every host says Hello. What they are answered arrives once the engine has stepped.
  void Join();
  // Waits until every host was welcomed. Thread-safe.
  void WaitWelcomed();
  // Every host says now that it lives, and from now on at each interval, the hosts spread over it.
  void BeginHeartbeats(int64_t interval_ns);

  // What was sent to the hosts since the last call is taken now.
  void TakeMail();
  // Everything that is due up to `now_ns`.
  void AdvanceTo(int64_t now_ns) { heap_.RunUntil(now_ns); }
  // Lives by the clock until then, or until Wake.
  void LiveUntil(Clock* clock, int64_t until_ns);
  // Ends LiveUntil for good. Thread-safe.
  void Wake();

  void Say(int32_t host, pb::AgentMessage message);

 private:
  class Stream;
  struct Host {
    SimulatedHost what;
    std::shared_ptr<Stream> stream;
    pb::SessionKey session;  // as the newest message gave it
    uint64_t heartbeats = 0;
  };
  struct Mail {
    int32_t host;
    pb::SchedulerMessage message;
  };

  void Beat(int32_t host);
  void BeatNext(int32_t host, int64_t every_ns);

  Sessions* const sessions_;
  Programs* const programs_;
  Heap heap_;
  Hosts model_;
  std::vector<Host> hosts_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Mail> inbox_;
  size_t welcomed_ = 0;
  bool awake_ = false;
};

}  // namespace muster::sim
