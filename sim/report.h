// What a run says: summaries by queue or by policy, as tables for people and JSON for programs
// (sim/plot.py draws from it).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "muster/v1/cluster.pb.h"
#include "sim/world.h"

namespace muster::sim {

// Of a set of jobs. Times in nanoseconds; quantiles by the nearest rank.
struct Summary {
  int jobs = 0, started = 0, unfinished = 0, refused = 0;
  int64_t wait_mean_ns = 0, wait_p50_ns = 0, wait_p99_ns = 0,
          wait_max_ns = 0;  // submission to first start
  int64_t delay_mean_ns =
      0;  // all of a finished job's time in which its work could have run and didn't
  int64_t jct_mean_ns = 0;  // submission to end, of finished jobs
  int evictions = 0;
  // For longer than the patience, though in their queue's order its guarantee covered them
  // (JobResult):
  int late = 0;            // waiting for what the queue didn't hold
  int late_with_room = 0;  // of them those that hosts could have held for so long
  int late_behind = 0;  // of the others those for which an older one of their queue kept the room
  int64_t late_max_ns = 0;
  int left_out = 0;   // outside the entitled set
  int overtaken = 0;  // waiting for what younger ones of the queue held
  int64_t overtaken_max_ns = 0;
};

// Of all jobs of `queue`; empty: of all.
Summary Summarize(const WorldResult& result, const std::string& queue, int64_t patience_ns);
int64_t UtilisationPerMille(const WorldResult& result);  // devices held, until the last submission

std::string QueueTable(const WorldResult& result, int64_t patience_ns);
// One row a policy.
std::string PolicyTable(const std::vector<std::pair<std::string, WorldResult>>& runs,
                        int64_t patience_ns);

// One object a run: {"policy":…,"summary":{…},"queues":{…},"jobs":[…]}, in an array "runs"; `jobs`
// only with `with_jobs`. Times in seconds.
std::string Json(const pb::ClusterFile& clusters,
                 const std::vector<std::pair<std::string, WorldResult>>& runs, int64_t patience_ns,
                 bool with_jobs);

}  // namespace muster::sim
