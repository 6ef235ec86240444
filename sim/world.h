// A simulated fleet under the real engine: one thread, a virtual clock, one heap of events.
//
// Hosts answer commands as agents do (prepare, start, stop), after fixed latencies. A gang works while all of its hosts run
// it: its work is workers x duration, done at one worker-second a second and worker; it checkpoints at its interval and when
// it is stopped, reports progress, and exits 0 when the work is done. Nothing is random; the same input gives the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/queue.pb.h"
#include "muster/v1/record.pb.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/ports.h"
#include "sim/trace.h"

namespace muster::sim {

struct WorldOptions {
  SchedulingOptions scheduling;
  int64_t latency_ns = 5'000'000;             // of every message, one way
  int64_t prepare_ns = 200'000'000;           // prepare of a host
  int64_t launch_ns = 20'000'000'000;         // from Start to the first useful step: what a restart costs
  int64_t stop_ns = 5'000'000'000;            // from SIGTERM to a checkpoint and exit
  int64_t progress_ns = 60'000'000'000;       // between progress reports
  int64_t horizon_ns = 0;                     // end of the simulation; 0 = when every job has ended
};

struct JobResult {
  uint64_t number = 0;
  std::string name;
  std::string queue;
  int64_t gpus_milli = 0;                     // at its least size
  int64_t submit_ns = 0;                      // since the start of the simulation, as all times here
  int64_t start_ns = -1;                      // first placement; -1 = never
  int64_t end_ns = -1;
  int evictions = 0;                          // stops by preemption
  int resizes = 0;
  std::string refused;                        // why it was not accepted
};

struct WorldResult {
  std::vector<JobResult> jobs;                // in trace order
  int64_t end_ns = 0;
  int64_t steps = 0;                          // of the engine
  int64_t decide_ns = 0;                      // real time of all steps
  int64_t used_device_ns = 0;                 // devices x time, held by attempts
  int64_t capacity_device_ns = 0;             // until the end of the last job
  int evictions = 0;
  uint64_t digest = 0;                        // FNV-1a over every journalled event, in order: equal runs, equal digests
  std::vector<std::string> stuck;             // jobs that had not ended when nothing was left to happen
};

// FNV-1a, 64 bit (Fowler, Noll, Vo).
uint64_t Fnv1a(uint64_t digest, const std::string& bytes);

// Runs `trace` to its end. INVALID_ARGUMENT when the cluster or queue configuration is refused.
absl::StatusOr<WorldResult> RunWorld(const pb::ClusterFile& clusters, const pb::QueueTree& queues, const Trace& trace,
                                     const WorldOptions& options);

}  // namespace muster::sim
