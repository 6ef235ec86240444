// muster-agent's loop: one thread that feeds the Reconciler from the stream, the shims' files and
// their ends, and sends what it says.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/host/nvml.h"
#include "agent/host/processes.h"
#include "agent/host/state_dir.h"
#include "muster/v1/cluster.pb.h"
#include "network/identity.h"

namespace muster::agent {

struct AgentOptions {
  std::string server;  // unix:///path; else `identity` says where the scheduler is
  std::optional<Identity> identity;
  std::string identity_file;
  std::string cluster;
  std::string host;
  bool single_user = false;
  v1::Inventory inventory;
  LaunchHost launch;
  PortRange ports;
  std::string cgroup;          // HostCgroups
  std::shared_ptr<Nvml> nvml;  // what tells of the devices' errors; nullptr: nothing
  Retention retention;
};

// Until SIGTERM or SIGINT (then OK; the attempts go on), or the scheduler refuses this agent for
// good. Blocks SIGTERM and SIGINT in every thread: call before any other thread is made.
absl::Status RunAgent(const AgentOptions& options, std::unique_ptr<StateDirectory> state);

}  // namespace muster::agent
