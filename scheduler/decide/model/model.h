// What Decide works on: the pools, and the tasks that want or hold devices.
//
// Inside of scheduler/decide. A gang is a task at its minimum size; its growth workers are counted
// with it. ModelUpkeep (model_upkeep.h) makes a Model from State and brings it up to date;
// everything else only reads it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

using HostSlices = std::vector<HostSlice>;

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
inline constexpr char kCpuFlavour[] = "cpu";  // pools of work without GPUs

// The devices of one flavour in one cluster; for work without GPUs the CPUs of the cluster's hosts.
struct Pool {
  int32_t cluster = 0;
  int32_t flavour = 0;          // index in Model::flavours
  int64_t capacity_milli = 0;   // healthy now
  int64_t known_milli = 0;      // of all hosts ever heard from and not removed, up or not
  std::vector<HostId> hosts;    // in State's order; never empty
  int64_t charged_milli = 0;    // to units of S
  int64_t host_cpus_milli = 0;  // of CPUs: what units of S with devices take on their hosts
};

// What a queue is promised and may take of one flavour.
struct FlavourQuota {
  bool listed = false;  // else without quota
  int64_t guarantee_milli = 0;
  int64_t limit_milli = kUnbounded;
  int64_t weight = 1;  // 0..2^20
};

// The rows that it names belong to the State that the model was last brought up to. A gang that is
// no unit (blocked, finished, held in the queue without devices) has empty rows, no leaf and no
// pools: it neither wants a place nor holds anything.
struct alignas(64) Gang {
  Gang();

  // Some tens of thousands wait or run, and a decision goes through many of them: what it asks of
  // each stands together.
  TaskRef ref;
  int32_t leaf = -1;  // queue node
  int32_t min_workers = 1;
  // Equal where one place serves as well as the other: size, demand and topology are the same.
  int32_t shape = 0;

  // Of tasks that start together: the one that stands for all of them in the entitled set. -1: it
  // starts alone. See together.h.
  int32_t leader = -1;                            // index of the task
  struct Together {                               // of the leader: what the group has at least
    int64_t milli = 0;                            // devices (or CPUs) in the leader's pool
    int64_t cpus_milli = 0, host_cpus_milli = 0;  // beside devices, as worker_cpus_milli and so on
    int32_t bound_pool = -1;                      // where it runs, as far as it does
    bool operator==(const Together&) const = default;
  } together;

  // Its part of the entitled set (Entitlement fills it).
  int32_t charge = -1;  // pool
  bool entitled = false;
  bool guaranteed = false;  // accepted within its leaf's guarantee
  bool charged_as_bound =
      false;  // to the pool that it is bound to, not to the first of its list with room

  bool unit = false;     // it wants a place, or holds one
  bool gpus = false;     // its workers want devices
  bool waiting = false;  // wants a placement, its backoff apart
  // Why a waiting task is no unit: other tasks come first; or its queue is held, gone or no leaf,
  // or its job ends, or is astray.
  bool blocked = false, held = false;
  bool astray = false;           // a stray of its job may run (strays.h)
  bool unreachable = false;      // a host of what it runs as can't be reached
  bool reserved = false;         // State has a reservation for it
  bool stopping = false;         // what it runs as is being stopped
  bool ends = false;             // cancelled, failed or out of time: it won't start again
  bool may_be_lost = false;      // its hosts can't be reached and it may be replaced
  bool binds_others = false;     // where it is placed binds the other tasks of its job
  bool all_opened = true;        // every one of its pools
  bool takeable = false;         // it is in Model::takeable
  bool hosted = false;           // on another job's devices (hosted.h): no unit of S, in no pool
  int64_t worker_milli = 0;      // devices' (or CPUs') thousandths a worker
  int64_t backoff_until_ns = 0;  // of what waits

  absl::InlinedVector<int32_t, 4> pools;    // in order of preference
  absl::InlinedVector<uint8_t, 16> opened;  // parallel to pools
  int64_t spill_ns = 0;  // when it was last opened a cluster for the attempt that waits; 0: not yet
  uint64_t evicted_round = 0;  // as TaskRow's

  const JobRow* job;
  const TaskRow* row;
  const pb::TaskSpec* spec;
  const AttemptRow* current = nullptr;   // that holds devices, stopping ones too; nullptr: it waits
  int64_t limit_left_ns = kUnbounded;    // how long it may run, what ran before taken off;
                                         // kUnbounded: as long as it likes
  int64_t history_left_ns = kUnbounded;  // and how long it would by history; kUnbounded: unknown
  int64_t submit_ns = 0;
  int64_t ran_ns = 0;  // so far, in attempts that have ended
  int64_t waiting_since_ns = 0;
  int32_t priority = 0;
  int32_t band = 0;         // of its job: among equal priorities the lowest goes first
  int32_t bound_pool = -1;  // where it runs
  int32_t left_pool = -1;   // where it was stopped only to come back

  // Of what runs, so that no row is read for it (ReadRun):
  int32_t workers = 0;
  int32_t max_workers = 1;             // that it may have
  int32_t step_workers = 1;            // it has multiples of so many, and grows by so many
  int64_t place_ns = 0, start_ns = 0;  // start_ns 0: not yet
  int64_t told_end_ns = 0;             // its program's word; 0: none
  int64_t steps = 0, steps_left = 0;   // since its start, by its progress; steps 0: unknown
  int64_t last_checkpoint_ns = 0;
  uint64_t place_round = 0;  // State::round() when it was placed

  int64_t resize_ns = 0;  // its start or its last growth
  // No earlier may it have to be stopped for a cause of its own (NextStopOf); 0: now.
  int64_t wake_ns = kUnbounded;
  bool knows_steps = false;  // its progress has a number of steps in all
  bool hosts_up = false;     // all that may have processes of it: one that doesn't answer wouldn't
                             // carry out a stop
  bool may_resize = false;   // it runs on all its hosts, and they may get work
  int32_t growth = 0;        // growth workers entitled (Entitlement), whole steps
  Demand wants;              // of a worker, as its spec has it
  Abilities needs = 0;       // of the agents that start it
  int64_t host_cpus_milli =
      0;  // that a worker with devices takes of its host, on the largest of its pools
  int64_t worker_cpus_milli = 0;  // the same, if a queue above it lists cpu; else 0

  // Another task stands for it in the entitled set.
  bool follows() const { return leader >= 0 && leader != ref.task; }
  // It is a unit of the entitled set, its own or its group's.
  bool counts() const { return leaf >= 0 && !pools.empty() && !follows(); }
  // What that unit wants at least, and where it runs, or ran and comes back to.
  int64_t unit_milli() const { return leader < 0 ? worker_milli * min_workers : together.milli; }
  int64_t unit_cpus_milli() const {
    return leader < 0 ? worker_cpus_milli * min_workers : together.cpus_milli;
  }
  int64_t unit_host_cpus_milli() const {
    return leader < 0 ? host_cpus_milli * min_workers : together.host_cpus_milli;
  }
  int32_t unit_bound_pool() const {
    if (leader >= 0) return together.bound_pool;
    return bound_pool >= 0 ? bound_pool : left_pool;
  }
  int32_t entitled_workers() const { return entitled ? min_workers + growth : 0; }
  bool running() const { return current != nullptr && !stopping; }
  bool wants_place() const { return waiting; }
  int64_t since_ns() const { return start_ns != 0 ? start_ns : place_ns; }
  // At most so many, of what it may have.
  int32_t InSteps(int32_t most) const { return most / step_workers * step_workers; }
  // How long it would run if it started now, by its limit and history; kUnbounded: unknown. History
  // that is used up says nothing.
  int64_t run_left_ns() const {
    return std::max<int64_t>(
        0, history_left_ns > 0 ? std::min(limit_left_ns, history_left_ns) : limit_left_ns);
  }
  // It runs, and not as S has it: outside S, elsewhere than it is charged, or with more workers.
  bool runs_beside_s() const {
    return running() && bound_pool >= 0 &&
           (!entitled || charge != bound_pool || workers > entitled_workers());
  }
  // It is being stopped to start again smaller or larger.
  bool ComesBack() const { return current != nullptr && stopping && current->next_workers > 0; }
};

// Calls f(b) for each gang of the list. They lie far apart: what a look at one begins with is
// fetched some ahead.
template <typename F>
void EachOf(const std::vector<Gang>& gangs, const std::vector<int32_t>& list, F f) {
  constexpr size_t kAhead = 12;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i + kAhead < list.size()) {
      const char* line = reinterpret_cast<const char*>(&gangs[list[i + kAhead]]);
      for (int l = 0; l < 4; ++l) __builtin_prefetch(line + 64 * l);
    }
    f(list[i]);
  }
}

struct Model {
  std::vector<std::string> flavours;  // sorted; kCpuFlavour among them
  std::vector<Pool> pools;            // by cluster and flavour
  std::vector<Gang> gangs;            // by job number and task
  std::vector<int32_t> order;  // [gang] of those in S that wait, are being stopped or may be lost:
                               // of acceptance among them
  std::vector<int64_t> flavour_milli;          // capacity of each flavour
  std::vector<std::vector<int64_t>> entitled;  // [queue node][flavour]: U
  std::vector<int64_t> history;  // [queue node] decayed device-microseconds: orders equal shares
  std::map<TaskRef, int32_t> gang_of;  // units only

  // Of the gangs, so that nobody has to look at all of them; lists ascend.
  std::vector<std::vector<int32_t>> holding;  // [pool] that have devices there
  std::vector<std::vector<int32_t>>
      takeable;                        // [pool] that run there beside S: what claims may stop
  std::vector<int32_t> stopping;       // that have devices and are being stopped
  std::vector<int32_t> needs_verdict;  // that wait, or can't be reached: whoever gets a verdict
  std::vector<int32_t> growing;        // that run with less than their largest size
  std::vector<int32_t> followers;      // Gang::follows
  std::vector<int64_t> use;  // [queue node * flavours + flavour] held, but by what may be lost
  // Of what runs: Gang::wake_ns, without kUnbounded.
  std::set<std::pair<int64_t, TaskRef>> wakes;

  std::vector<FlavourQuota> quota;     // [queue node * flavours + flavour]
  std::vector<int32_t> parent, depth;  // of queue nodes; the root has -1 and 0
  std::vector<std::vector<bool>>
      reaches;  // [cluster][cluster]: the other one reaches its job_storage

  int32_t cpu = 0;  // index of kCpuFlavour

  // The gang that stands for this one in the entitled set; itself, if it starts alone.
  int32_t LeaderOf(int32_t b) const {
    return gangs[b].leader < 0 ? b : b - gangs[b].ref.task + gangs[b].leader;
  }
  const FlavourQuota& QuotaOf(int32_t node, int32_t flavour) const {
    return quota[node * flavours.size() + flavour];
  }
  int32_t FlavourIndex(const std::string& flavour) const;  // -1: none
  int32_t PoolOf(int32_t cluster, int32_t flavour) const;  // -1: none
  // Of a pool of devices: that of its cluster's CPUs; -1: the pool is one, or there is none.
  int32_t CpusBeside(int32_t pool) const {
    return pools[pool].flavour == cpu ? -1 : PoolOf(pools[pool].cluster, cpu);
  }
  bool Reaches(int32_t cluster, int32_t from) const {
    return cluster == from || reaches[cluster][from];
  }
};

// What the spec says of a worker; 0: left out, a share of its host (ShareOfHost).
Demand WantsOf(const pb::TaskSpec& spec);
// Every member of the attempt is Gone or may be declared lost, or will be once reachable members
// are stopped (contract 9), its cluster's mass loss apart.
bool MayBeLostAlone(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt);

// Fills what a Gang says of the attempt that runs (nullptr: none) and of how long it may;
// `gang.row` and `gang.spec` are set.
void ReadRun(const State& state, const AttemptRow* attempt, Gang* gang);

// When the attempt is expected to end: from its progress, else from history, else its time limit; 0
// = unknown.
int64_t ExpectedEnd(const Gang& gang, int64_t now_ns);

}  // namespace muster
