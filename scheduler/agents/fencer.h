// Runs the cluster's fence_command for hosts that can't be reached and that work waits for
// (contract 9 of docs/contracts.md, `wait`).
//
// Its success is a word like an operator's: the host is off, committed as HostConfirmedOff by
// "fence_command". It holds for the time of being unreachable that the run was for, no later one: a
// host that speaks ends the run. Its failure is told in the verdict of what waits, and it is tried
// again, later each time. One run a host at a time, after a commit that proves that this process
// still owns the store (contract 17 of docs/contracts.md); never for a host that speaks, nor while
// most of its cluster is silent (contract 11): that is the network, and what runs there is left
// alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/run_program.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/engine/engine.h"

namespace muster {

// The words of a command with a host's names in place of {host} and {cluster}.
std::vector<std::string> FenceWords(const pb::ClusterSpec& cluster, const std::string& host);
// An unfinished part of an attempt there waits for the host, or a job for a stray of its own there:
// somebody has to say that it is off.
bool AwaitsFence(const State& state, const HostRow& host);

class Fencer {
 public:
  using Run = std::function<absl::StatusOr<ProgramEnd>(const ProgramOptions&)>;

  // All must outlive Stop. `run` is called on a thread of its own for each host.
  Fencer(Engine* engine, const Sessions* sessions, Clock* clock, int64_t lease_ns,
         Run run = RunProgram);
  ~Fencer() { Stop(); }

  // Asks for what is due and starts what was granted. Call it once a second or so, from one thread;
  // it never blocks for long.
  void Look();
  // Ends what runs. Nothing is started any more.
  void Stop();

  int64_t started() const { return started_; }  // runs so far; of Look's thread

 private:
  // Permission to run for a host, asked of the engine; which time of being unreachable it is for.
  // Written on the engine's thread before `answer` is.
  struct Permission {
    int64_t since_ns = 0;
    std::string state_id;
    enum : int { kOpen, kYes, kNo };
    std::atomic<int> answer = kOpen;
  };
  struct Entry {
    std::shared_ptr<Permission> permission;  // asked for; nullptr: not
    std::thread thread;
    std::atomic<bool> running = false;  // cleared by the thread at its end
    std::atomic<bool> cancel = false;
    int failures = 0;     // written by the thread while it runs
    int64_t next_ns = 0;  // BootNs
  };

  void Ask(const std::string& cluster, const std::string& host, Entry* entry);
  void Begin(const pb::ClusterSpec& cluster, const std::string& host, Entry* entry);
  void Fence(const std::string& cluster, const std::string& host, const ProgramOptions& options,
             Entry* entry);

  Engine* const engine_;
  const Sessions* const sessions_;
  Clock* const clock_;
  const int64_t lease_ns_;
  const Run run_;
  bool stopped_ = false;
  int64_t started_ = 0;
  std::map<std::string, Entry> entries_;  // by cluster/host; of Look's thread, but for what a
                                          // running one's own thread writes
};

}  // namespace muster
