// Questions to a snapshot: what a job, queue, host or cluster looks like now, and what would happen
// if. Pure; nothing changes.
//
// All functions are thread-safe on snapshots that nobody writes. Plan is the newest step's
// (verdicts, entitled use).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/spec.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job.pb.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/ask/future.h"
#include "scheduler/ask/holders.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// ---- as things are ----

// Verdicts carry their sentence in `text`. `holders` (optional) is of this State: one for the
// descriptions of many jobs spares each of them a look at all hosts.
pb::Job DescribeJob(const State& state, const Plan& plan, const JobRow& job,
                    PoolHolders* holders = nullptr);
// The whole array of this member 0; `telling` is its TellingMember, described.
pb::Job DescribeArray(const State& state, const JobRow& first, pb::Job telling);
// Why the task waits, by the newest plan, with names, whom it waits for, and the sentence. Without
// a code if the plan has no verdict for it.
pb::Verdict DescribeVerdict(const State& state, const Plan& plan, const JobRow& job, int32_t task,
                            PoolHolders* holders = nullptr);
// A sentence for people: "waits for 2 more h100-80g in phx to become free; held by job 318". When
// it starts is not in it: that is expected_start_ns, which a forecast may know better
// (AddForecast).
std::string VerdictText(const State& state, const JobRow& job, int32_t task,
                        const pb::Verdict& verdict);
// "the rest of research/nlp's share is for job 174, whose turn comes first": why a queue that uses
// less than it is entitled to starts another only where that takes nothing from anybody. `ahead`:
// those jobs, as far as they are known.
std::string ShareLeftText(const JobRow& job, const std::vector<uint64_t>& ahead);
// Why its present attempt, or the one that it waits for, may be in another cluster than its first,
// and when that was so; "" if it isn't.
std::string SpillText(const State& state, const JobRow& job, int32_t task);
// NOT_FOUND if there is no such queue.
absl::StatusOr<pb::Queue> DescribeQueue(const State& state, const Plan& plan,
                                        const std::string& path);
std::vector<pb::Queue> DescribeQueues(const State& state,
                                      const Plan& plan);  // depth first, without the root
pb::Host DescribeHost(const State& state, HostId host);
pb::Cluster DescribeCluster(const State& state, int32_t cluster);
pb::LedgerResponse DescribeLedger(const State& state);
// Unfinished jobs with an attempt on this cluster or cluster/host: what a drain would move.
// Ascending.
std::vector<uint64_t> JobsOn(const State& state, const std::string& target);

// ---- before a change ----

// What the checker of common/spec may know of this system: flavours with their clusters, queues,
// storages. Of queues only `queue` where that one holds jobs, as each submission asks; else all.
SpecContext SpecContextOf(const State& state, const std::string& queue);

// Fills the defaults, the queue's maximum for time_limit among them, and checks the spec against
// its own rules and this State: unknown queue, cluster, flavour or storage; limits; max_time_limit;
// demand that no allowed cluster can ever hold, with the numbers; tasks that fit only in clusters
// without a storage in common. On success *resolved is what to store (kept to the clusters where
// all of its tasks fit); else the problems say all that is wrong, at once. With `wait_for_capacity`
// hosts are on their way: demand that no cluster can hold is no problem. Clusters that are for one
// user's jobs alone count where that is the `owner`.
struct Resolution {
  pb::JobSpec resolved;
  std::vector<FieldProblem> problems;
  bool never_fits =
      false;              // the only problems are that it can never run here (FAILED_PRECONDITION)
  bool may_wait = false;  // never_fits, but for the hosts that there are: it would be accepted with
                          // wait_for_capacity
  bool by_itself = false;  // refused for what it says, whatever hosts there are
  std::string not_now;  // it can't be checked yet (UNAVAILABLE): the trainer's schema isn't known
  bool ok() const { return problems.empty() && not_now.empty(); }
};
Resolution ResolveSpec(const State& state, const pb::JobSpec& spec, const SpecDefaults& defaults,
                       bool wait_for_capacity = false, const std::string& owner = "");

// Splits plain guarantees over the clusters and checks the tree against itself and the pools of the
// clusters file.
struct QueueResolution {
  pb::QueueTree resolved;
  std::vector<FieldProblem> problems;
  std::vector<std::string> changes;  // one line a queue that changes
  bool ok() const { return problems.empty(); }
};
QueueResolution ResolveQueues(const State& state, const pb::QueueTree& tree);

// Where `resolved` would run, when, and whom it would take from: the real Decide on a changed copy
// of `state` and what follows from it, one candidate a pool that it may use, and a line for each
// cluster that it may not, with the reason.
pb::PreviewResponse Preview(const State& state, const pb::JobSpec& resolved,
                            const std::string& owner, int64_t now_ns,
                            const SchedulingOptions& scheduling, const FutureOptions& options = {});

}  // namespace muster
