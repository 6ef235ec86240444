// Free GPUs of a simulated fleet, and best-fit placement in them, for the peers' policies. Knows
// GPUs and clusters only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/state/state.h"

namespace muster::sim {

// What a gang takes of one host.
struct Taken {
  HostId host = kNoHost;
  int32_t workers = 0;
  std::vector<int32_t> devices;
  std::vector<int64_t> device_milli;  // empty: whole devices
};

class FreeGpus {
 public:
  // Free now, on hosts that may get work; with `empty`, as if nothing ran.
  FreeGpus(const State& state, bool empty);

  // The first of `clusters` that holds the gang, at the place that leaves the fewest free GPUs on a
  // host.
  std::optional<std::vector<Taken>> Place(const std::vector<int32_t>& clusters, int32_t workers,
                                          int64_t gpus_milli) const;
  void Take(const std::vector<Taken>& gang) { Change(gang, -1); }
  void Give(const std::vector<Taken>& gang) { Change(gang, 1); }
  // Exactly these devices are free.
  bool Has(const std::vector<Taken>& gang) const;
  int64_t FreeMilli(int32_t cluster) const { return clusters_[cluster].free_milli; }

 private:
  struct Host {
    HostId id = kNoHost;
    std::vector<int64_t> free_milli;  // of each device
    int32_t whole = 0;                // devices that are free entirely
  };
  struct Cluster {
    int64_t free_milli = 0;
    std::vector<int32_t> hosts;     // indexes in hosts_, in State's order
    std::vector<int32_t> by_whole;  // hosts with so many whole devices free
  };

  void Change(const std::vector<Taken>& gang, int64_t sign);
  Taken TakeFrom(const Host& host, int32_t workers, int64_t gpus_milli) const;

  std::vector<Host> hosts_;
  std::vector<int32_t> index_;       // by HostId
  std::vector<int32_t> cluster_of_;  // by index
  std::vector<Cluster> clusters_;
};

}  // namespace muster::sim
