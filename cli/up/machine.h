// What `muster up` finds on this machine, and the files it writes for the daemon and the agent from it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace muster {

inline constexpr char kUpCluster[] = "local";
inline constexpr char kUpHost[] = "localhost";  // fixed: a container's changing name must not orphan its jobs
inline constexpr char kUpQueue[] = "default";

struct Machine {
  int gpus = 0;    // NVIDIA devices that the driver shows; then the agent probes them itself
  int slots = 0;   // declared stand-ins, where there is no GPU
  int cpus = 1;    // that this process may use
  int64_t memory_bytes = 0;
  int64_t disk_bytes = 0;
};

// `slots` > 0: declare so many stand-ins, whatever is found.
Machine ProbeMachine(const std::string& data_dir, int slots);

std::string HostYaml(const Machine& machine);  // the declared inventory; only where there are slots
std::string ClustersYaml(const std::string& data_dir);
std::string QueuesYaml(const Machine& machine);

}  // namespace muster
