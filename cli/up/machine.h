// The files that `muster up` writes for the daemon and the agent. Without --slots the agent finds
// by itself what the machine has.
#pragma once

#include <string>

namespace muster {

inline constexpr char kUpCluster[] = "local";
inline constexpr char kUpHost[] =
    "localhost";  // fixed: a container's changing name must not orphan its jobs
inline constexpr char kUpQueue[] = "default";

std::string HostYaml(int slots);  // a declared inventory: stand-ins, with this machine's cpus and
                                  // memory; disk is found by the agent
std::string ClustersYaml(const std::string& data_dir);
std::string QueuesYaml();

}  // namespace muster
