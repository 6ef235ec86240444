// What the engine acts through: the store and the link to the agents. The daemon has real ones, the
// simulator its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "muster/v1/agent.pb.h"
#include "scheduler/state/state.h"

namespace muster {

namespace pb = ::muster::v1;

// One engine step as it becomes durable: its events and the rows they changed, together or not at
// all.
struct Transaction {
  uint64_t commit = 0;              // contiguous: the store's newest commit + 1
  int64_t now_ns = 0;               // Unix time of the step; retention is measured with it
  std::vector<std::string> events;  // serialized pb::Event, in the order they were applied
  std::vector<RowChange> rows;
};

// Called by the engine's thread only.
class Store {
 public:
  virtual ~Store() = default;
  // Durable when it returns OK. After any error nobody knows whether it is (contract 18): the
  // engine must not answer anybody, and the process has to end and recover.
  virtual absl::Status Commit(const Transaction& transaction) = 0;
  // False: Commit doesn't read the rows, so they need not be made.
  virtual bool WantsRows() const { return true; }
  // Nothing is queued: time for housekeeping, a few milliseconds at most.
  virtual void Idle() {}
};

// Carries commands to agents. Called by the engine's thread only, after the commit that they follow
// from. May lose, repeat or delay messages; the engine is level-triggered. Must not call back into
// Engine::Step.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  // What the host `cluster/host` should be told now. Only `body` is set; the link fills in session
  // and commit. The same command may be given again after any step in which it still holds.
  virtual void Send(const std::string& cluster, const std::string& host,
                    const pb::SchedulerMessage& message) = 0;
};

}  // namespace muster
