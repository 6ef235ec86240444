// What ended the processes of an attempt that failed, told from the last lines of their logs
// (agent/failures).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/v1/agent.pb.h"

namespace muster::agent {

// What the driver said of the devices that a rank may use: when (Unix time), and lines such as "Xid
// 79 on GPU 3".
struct DeviceEvents {
  // The attempt has devices here that aren't declared stand-ins; without any, what its log says of
  // devices is its program's mistake.
  bool held = false;
  std::map<int32_t, std::vector<std::pair<int64_t, std::string>>> by_rank;
  // Its program runs in an image, which can't be written: who tries made a mistake. What the host
  // shows in there is a storage as ever.
  struct Image {
    std::vector<std::string> shown;               // directories, where both have them
    std::string start;                            // where the program starts
    std::string mounts = "/proc/self/mountinfo";  // the host's
  };
  std::optional<Image> image;
};

// Sets cause and detail of each exit that is a failure of its own and has no cause yet. `logs`: the
// folder of its logs (agent/host/logs.h); one that is missing says nothing. Of `events` those count
// that came after `start_ns`, when the attempt began.
void TellCauses(const std::string& logs, const DeviceEvents& events, int64_t start_ns,
                std::vector<v1::WorkerExit>* exits);

}  // namespace muster::agent
