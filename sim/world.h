// A simulated fleet under the real engine: one thread, a virtual clock, one heap of events.
//
// Hosts answer commands as agents do (prepare, start, stop), after fixed latencies. A gang works
// while all of its hosts run it: its work is workers x duration, done at one worker-second a second
// and worker; it checkpoints at its interval and when it is stopped, tells its expected end, and
// exits 0 when the work is done. Nothing is random; the same input gives the same run. Who decides
// is Muster's Decide, or a peer's policy in its place (sim/peers/policies.h): everything else is
// the same.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"
#include "sim/fleet.h"
#include "sim/trace.h"

namespace muster::sim {

using DecideFunction = std::function<Plan(const State&, int64_t now_ns, const SchedulingOptions&)>;

struct WorldOptions {
  // Nobody asks here when something would start, and no decision depends on it: a decision is
  // cheaper than musterd's by these.
  SchedulingOptions scheduling = {.estimates = 0};
  HostOptions hosts = {.latency_ns = 5'000'000,
                       .prepare_ns = 200'000'000,
                       .launch_ns = 20'000'000'000,  // what a restart costs
                       .stop_ns = 5'000'000'000,
                       .progress_ns = kNever};
  DecideFunction decide;    // empty: Muster's
  bool check_plans = true;  // Validate each plan; peers' give no verdicts and need it off
  // What no decision depends on (starts, progress, checkpoints) may wait so long for the step that
  // something else causes.
  int64_t report_ns = 0;
  int64_t round_ns = 0;    // steps only at multiples of this; 0 = as soon as something happens
  int64_t horizon_ns = 0;  // end of the simulation; 0 = when every job has ended
  int64_t patience_ns = 600'000'000'000;  // a job that its queue's guarantee covers for longer
                                          // without starting is late
};

// A time during which a job held devices.
struct Segment {
  int64_t from_ns = 0, until_ns = -1;  // until -1: to the end of the simulation
  int32_t cluster = 0;                 // index in the clusters file
  int64_t gpus_milli = 0;
};

struct JobResult {
  uint64_t number = 0;
  std::string name;
  std::string queue;
  int64_t gpus_milli = 0;   // at its least size
  int64_t submit_ns = 0;    // since the start of the simulation, as all times here
  int64_t duration_ns = 0;  // of its work at that size
  int64_t start_ns = -1;    // first placement; -1 = never
  int64_t end_ns = -1;
  int evictions = 0;  // stops by preemption
  int resizes = 0;
  // While it waited although, in its queue's order, it fit what the queue is promised
  // (sim/tally.cc):
  int64_t late_ns = 0;  // longest time in which the queue held less there than that
  // Of that the longest in which hosts could have held it beside what guarantees cover (looked at
  // each minute); else it lacked hosts.
  int64_t late_room_ns = 0;
  // The same, where they could have at least on what a reservation keeps for an older job of its
  // queue.
  int64_t late_behind_ns = 0;
  std::string late_verdict;  // the newest that was given then
  int64_t overtaken_ns =
      0;  // time in which younger ones of the queue held it: of one such wait, the longest
  int64_t left_out_ns = 0;  // longest time without a place in the entitled set
  std::vector<Segment> segments;
  std::string refused;  // why it was not accepted
};

// Late, and not because hosts had no place for it: an older job of its queue has what there is.
inline bool IsLateBehind(const JobResult& job, int64_t patience_ns) {
  return job.late_ns > patience_ns && job.late_room_ns <= patience_ns &&
         job.late_behind_ns > patience_ns;
}

struct WorldResult {
  std::vector<JobResult> jobs;  // in trace order
  int64_t end_ns = 0;           // of the last job
  int64_t last_submit_ns = 0;
  int64_t steps = 0;               // of the engine
  int64_t step_ns = 0;             // real time of all steps
  int64_t real_ns = 0;             // real time of the simulation
  int64_t used_device_us = 0;      // devices x time, held by attempts, until the last submission
  int64_t capacity_device_us = 0;  // until then
  int evictions = 0;
  int late = 0;            // jobs with late_ns above patience_ns
  int late_with_room = 0;  // of them those with late_room_ns above it, too
  int late_behind = 0;     // of the others those with late_behind_ns above it
  int left_out = 0;        // jobs with left_out_ns above patience_ns
  int overtaken = 0;       // jobs with overtaken_ns above patience_ns
  uint64_t digest = 0;  // FNV-1a over every journalled event, in order: equal runs, equal digests
  std::vector<std::string> stuck;  // jobs that had not ended when nothing was left to happen
};

// Devices of a flavour in the whole file; flavour empty: of all.
int64_t DevicesOf(const pb::ClusterFile& clusters, const std::string& flavour);

// Runs `trace` to its end. INVALID_ARGUMENT when the cluster or queue configuration is refused.
absl::StatusOr<WorldResult> RunWorld(const pb::ClusterFile& clusters, const pb::QueueTree& queues,
                                     const Trace& trace, const WorldOptions& options);

}  // namespace muster::sim
