// Whom the devices of a pool are with, for whom they are kept, and who stands before whom. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// A task that starts later, and for which devices are kept until then.
struct KeptFor {
  uint64_t job = 0;      // its number
  int64_t start_ns = 0;  // Unix time; 0 = unknown
};

// Works each answer out when it is asked for the first time, so that the descriptions of many tasks
// of one State share it. One thread.
class PoolHolders {
 public:
  // `state` must outlive it, unchanged.
  explicit PoolHolders(const State& state) : state_(state) {}

  // The jobs that hold most of the flavour ("cpu": cores, whatever holds them) in the cluster,
  // largest first, at most nine.
  const std::vector<uint64_t>& Of(int32_t cluster, const std::string& flavour);
  // The same of cores on the hosts that have devices of the flavour.
  const std::vector<uint64_t>& OfCoresBeside(int32_t cluster, const std::string& flavour);
  // For whom devices of the flavour ("cpu": hosts' cores) are kept in the cluster, soonest first,
  // unknown starts last.
  const std::vector<KeptFor>& KeptIn(int32_t cluster, const std::string& flavour);
  // Thousandths that the queue's jobs hold now, with those of the queues below it. `queue` is an
  // index of State::queues().
  int64_t UsedMilli(int32_t queue, const std::string& flavour);
  // Jobs of the queue that wait for the flavour, and that `plan`, the same at each call, counts
  // among what the queue is entitled to run.
  const std::vector<uint64_t>& Entitled(const Plan& plan, const std::string& queue,
                                        const std::string& flavour);

 private:
  using Pool = std::pair<int32_t, std::string>;
  // On hosts with devices of the flavour, if it isn't empty: most of these devices, or of cores.
  const std::vector<uint64_t>& Most(int32_t cluster, const std::string& flavour, bool cores);

  const State& state_;
  std::map<std::pair<Pool, bool>, std::vector<uint64_t>> most_;
  bool kept_known_ = false, entitled_known_ = false;
  std::map<Pool, std::vector<KeptFor>> kept_;
  std::vector<std::map<std::string, int64_t>> use_;  // by queue; empty: not known yet
  std::map<std::pair<std::string, std::string>, std::vector<uint64_t>> entitled_;
};

}  // namespace muster
