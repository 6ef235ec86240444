// Whether hosts could hold a gang in its shape, by devices alone, beside what is not stopped for
// it. With nothing of scheduler/decide: State's rows are read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "scheduler/state/state.h"

namespace muster::sim {

class ShapeRoom {
 public:
  // What hosts of the flavour in the cluster have beside the attempts of jobs that stay.
  ShapeRoom(const State& state, int32_t cluster, const std::string& flavour,
            const std::function<bool(uint64_t job)>& stays);

  // Takes the reservation's devices out of it, as far as they are there.
  void Keep(const Reservation& reservation);

  // Takes a place for so many workers, each on one host, if there is one: on the fullest hosts
  // first.
  bool Take(int32_t workers, int64_t gpus_milli);

 private:
  std::map<HostId, size_t> at_;              // in hosts_
  std::vector<std::vector<int64_t>> hosts_;  // free thousandths by device
};

}  // namespace muster::sim
