// The hosts of a replay: the engine's commands go to the model of hosts, and what that says comes
// back as the engine's events.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "muster/v1/record.pb.h"
#include "scheduler/engine/ports.h"
#include "sim/hosts.h"
#include "sim/trace.h"

namespace muster::sim {

// Uid of the job at this index of the trace, and back; -1 for a uid that TraceUid didn't make.
std::string TraceUid(size_t index);
int32_t TraceIndex(std::string_view uid);

class Fleet : public AgentLink {
 public:
  // An event for the engine. `urgent` says that a decision may depend on it: not a start, progress
  // or a checkpoint.
  using Post = std::function<void(pb::Event event, bool urgent)>;

  // `trace` and `heap` must outlive the fleet.
  Fleet(const HostOptions& options, std::vector<SimulatedHost> hosts, const Trace* trace,
        Heap* heap, Post post);

  // Every host is there.
  void Join();
  void Send(const std::string& cluster, const std::string& host,
            const pb::SchedulerMessage& message) override;

 private:
  void Say(int32_t host, pb::AgentMessage message);

  const std::vector<SimulatedHost> hosts_;
  std::map<std::string, int32_t> numbers_;  // by cluster/host
  const Post post_;
  Hosts model_;
};

}  // namespace muster::sim
