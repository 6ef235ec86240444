// Whom the devices of a cell are with. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/state/state.h"

namespace muster {

// Works a cell out when it is asked for the first time, so that the descriptions of many tasks of one State share it. One thread.
class CellHolders {
 public:
  // `state` must outlive it, unchanged.
  explicit CellHolders(const State& state) : state_(state) {}

  // The jobs that hold most of the flavour ("cpu": cores, whatever holds them) in the cluster, largest first, at most nine.
  const std::vector<uint64_t>& Of(int32_t cluster, const std::string& flavour);

 private:
  const State& state_;
  std::map<std::pair<int32_t, std::string>, std::vector<uint64_t>> cells_;
};

}  // namespace muster
