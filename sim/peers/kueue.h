// Kueue's performance generators (kubernetes-sigs/kueue, test/performance/scheduler/configs) as
// clusters, queues and jobs.
//
// What becomes what. A cohort is a queue with limit = the sum of its members' nominal quotas, a
// ClusterQueue a leaf below it with limit = nominalQuota + borrowingLimit. nominalQuota is the
// guarantee, where `guarantees` says so; else members share their cohort by equal weights. A
// workload is a job of one task: podCount workers of `request` CPUs, its priority kept. A topology
// makes the hosts (nodes of a rack of a block); a generator without one knows no hosts, so the
// cluster gets as many as never stand in the way: quota alone decides. `tasConstraint: required` or
// `preferred` at the rack becomes the task's topology; `balanced`, an even spread of slices that
// prefers the level, becomes preferred.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/job.pb.h"
#include "muster/v1/queue.pb.h"
#include "sim/trace.h"

namespace muster::sim {

namespace pb = ::muster::v1;

struct KueueJob {
  int64_t submit_ns = 0;  // after the start of the generator
  int64_t runtime_ns = 0;
  std::string class_name;  // small, medium, large-required-rack …
  pb::JobSpec spec;
};

struct KueueSetup {
  pb::ClusterFile clusters;  // one, `kueue`
  pb::QueueTree queues;
  std::string queue_class;     // of all ClusterQueues
  int64_t nominal_milli = 0;   // CPUs of all ClusterQueues together, in thousandths
  std::vector<KueueJob> jobs;  // by submit time, then queue
};

struct KueueOptions {
  bool guarantees = false;
  int32_t divide = 1;  // counts of workloads are divided by this, rounded up: for short runs
};

// INVALID_ARGUMENT with file:line for what is missing or has another form.
absl::StatusOr<KueueSetup> ParseKueueGenerator(std::string_view text, std::string_view filename,
                                               const KueueOptions& options);
// Whether a file looks like one: it has a top-level key `cohorts`.
bool LooksLikeKueueGenerator(std::string_view text);
// Its jobs as muster-sim runs them: they end when their time is over, and keep no checkpoints but
// when they are stopped.
Trace TraceOf(const KueueSetup& setup);

}  // namespace muster::sim
