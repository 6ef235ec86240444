#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/spec/placement_defaults.h"
#include "common/spec/workers.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/block_room.h"
#include "scheduler/ask/capacity.h"
#include "scheduler/ask/check_groups.h"
#include "scheduler/ask/words/workers_text.h"
#include "scheduler/state/directories.h"
#include "scheduler/state/topology.h"

namespace muster {
namespace {

// Workers of this task that an empty host of this shape holds.
int64_t WorkersOn(const pb::TaskSpec& task, const pb::Inventory& shape) {
  const Demand demand = WorkerDemand(task, shape);
  int64_t workers = std::numeric_limits<int32_t>::max();
  const auto bound = [&](int64_t has, int64_t wants) {
    if (wants > 0) workers = std::min(workers, has / wants);
  };
  if (demand.gpus_milli >= 1000) bound(shape.devices_size(), demand.gpus_milli / 1000);
  if (const RankUnits units = RankUnitsOf(task, /*wishes=*/0); units.island_gpus > 1) {
    std::map<int32_t, int64_t> by_island;
    for (const pb::Device& device : shape.devices()) ++by_island[device.island()];
    bound(InWholeIslands(units, by_island), demand.gpus_milli / 1000);
  }
  if (demand.gpus_milli > 0 && demand.gpus_milli < 1000)
    bound(1000 * static_cast<int64_t>(shape.devices_size()), 1000);
  bound(shape.cpus_milli(), demand.cpus_milli);
  bound(shape.memory_bytes(), demand.memory_bytes);
  bound(shape.disk_bytes(), demand.disk_bytes);
  return workers;
}

struct PoolRoom {
  std::string cluster, flavour;
  int64_t workers =
      0;  // that fit into the empty pool, or into the largest of its domains that the task requires
  bool open_ended = false;  // any host may join, and none has: nobody knows
};

bool Holds(const PoolRoom& pool, const pb::TaskSpec& task) {
  return pool.open_ended || pool.workers >= task.workers().min();
}

// Where a limit of the queue's path is below what the least gang takes of this flavour, or of
// "cpu": "2 h100 in research"; else "".
std::string Over(const State& state, int32_t leaf, const std::string& flavour,
                 int64_t demand_milli) {
  for (int32_t n = leaf; n >= 0; n = state.queues().nodes[n].parent) {
    const QueueNode& node = state.queues().nodes[n];
    const auto quota = node.spec.quota().find(flavour);
    if (quota == node.spec.quota().end() || !quota->second.has_limit_milli() ||
        quota->second.limit_milli() >= demand_milli)
      continue;
    return absl::StrCat("queue ", node.path, " is limited to ",
                        FormatMilli(quota->second.limit_milli()), " ", flavour);
  }
  return "";
}

// The flavours of the task that every limit on the queue's path admits.
std::vector<std::string> Admitted(const State& state, int32_t leaf, const pb::TaskSpec& task) {
  std::vector<std::string> admitted;
  for (const std::string& flavour : task.resources().gpu_types()) {
    if (Over(state, leaf, flavour, task.workers().min() * task.resources().gpus_milli()).empty())
      admitted.push_back(flavour);
  }
  return admitted;
}

// The pools that a task may use, with what they hold when empty. With `one_that_holds`: only the
// first that holds it, as far as was counted to know that; none if none does. Most submissions end
// there, with the first host.
std::vector<PoolRoom> PoolsOf(const State& state, const pb::JobSpec& spec, const pb::TaskSpec& task,
                              bool one_that_holds = false) {
  std::vector<PoolRoom> pools;
  std::vector<std::string> flavours = {""};
  if (task.resources().gpus_milli() > 0) {
    flavours = Admitted(state, state.queues().Find(spec.queue()), task);
    if (flavours.empty())
      flavours.assign(task.resources().gpu_types().begin(),
                      task.resources().gpu_types().end());  // refused for that (CheckQueue)
  }
  for (size_t c = 0; c < state.clusters().size(); ++c) {
    const ClusterRow& cluster = state.clusters()[c];
    if (!spec.clusters().empty() && std::find(spec.clusters().begin(), spec.clusters().end(),
                                              cluster.name) == spec.clusters().end())
      continue;
    for (const std::string& flavour : flavours) {
      PoolRoom pool{cluster.name, flavour};
      bool any = false;
      pb::Inventory made;
      std::map<std::string, int64_t> domains;
      BlockRoom room(task);
      for (HostId id : state.hosts()) {
        const HostRow& host = state.host(id);
        if (host.cluster != static_cast<int32_t>(c)) continue;
        any = true;
        const pb::Inventory& shape = ShapeOf(state, host, &made);
        if (flavour.empty() || shape.flavour() == flavour) {
          // An island is taken for its host: how devices are connected is known of hosts that have
          // joined only.
          int64_t& workers = domains[DomainOf(task.topology().required(), host)];
          workers += room.Add(host, WorkersOn(task, shape), task.topology().required());
          pool.workers = std::max(pool.workers, workers);
        }
        if (one_that_holds && Holds(pool, task)) return {pool};
      }
      pool.open_ended = cluster.spec.open() && !any;
      if (one_that_holds && Holds(pool, task)) return {pool};
      pools.push_back(pool);
    }
  }
  if (one_that_holds) pools.clear();
  return pools;
}

std::string Amount(int resource, int64_t amount, const std::string& flavours) {
  if (resource == 0) return absl::StrCat(FormatMilli(amount), " ", flavours);
  return resource == 1 ? absl::StrCat(FormatMilli(amount), amount == 1000 ? " core" : " cores")
                       : FormatSize(amount);
}

// Why no host holds a single worker: the largest there is of what lacks, and what to write instead.
std::string TooLargeForAHost(const State& state, const pb::JobSpec& spec,
                             const pb::TaskSpec& task) {
  constexpr int kResources = 4;
  const char* const kFields[kResources] = {"gpus", "cpus", "memory", "disk"};
  const std::string flavours = absl::StrJoin(task.resources().gpu_types(), " or ");
  int64_t most[kResources] = {-1, -1, -1, -1}, wants[kResources] = {};
  std::string where[kResources];
  for (HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    const std::string& cluster = state.clusters()[host.cluster].name;
    if (!spec.clusters().empty() &&
        std::find(spec.clusters().begin(), spec.clusters().end(), cluster) == spec.clusters().end())
      continue;
    const pb::Inventory shape = ShapeOf(state, host);
    const auto& types = task.resources().gpu_types();
    if (task.resources().gpus_milli() > 0 &&
        std::find(types.begin(), types.end(), shape.flavour()) == types.end())
      continue;
    const Demand demand = WorkerDemand(task, shape);
    const int64_t has[kResources] = {1000 * static_cast<int64_t>(shape.devices_size()),
                                     shape.cpus_milli(), shape.memory_bytes(), shape.disk_bytes()};
    const int64_t needs[kResources] = {demand.gpus_milli, demand.cpus_milli, demand.memory_bytes,
                                       demand.disk_bytes};
    for (int r = 0; r < kResources; ++r) {
      if (has[r] <= most[r]) continue;
      most[r] = has[r];
      wants[r] = needs[r];
      where[r] = state.HostName(id);
    }
  }
  if (where[0].empty()) {
    std::vector<std::string> names(spec.clusters().begin(), spec.clusters().end());
    return absl::StrCat(
        "no host of ", names.empty() ? "any cluster" : absl::StrJoin(names, ", "), " has ",
        flavours.empty() ? "cores" : flavours,
        "\nAllow more clusters, or other gpu_types; what there is: muster cluster list");
  }
  for (int r = 0; r < kResources; ++r) {
    if (wants[r] <= most[r]) continue;
    return absl::StrCat("a worker takes ", Amount(r, wants[r], flavours),
                        " of one host; the largest host has ", Amount(r, most[r], flavours), " (",
                        where[r], ")\nIt can start with  ", kFields[r], ": ",
                        r < 2 ? FormatMilli(most[r]) : FormatSize(most[r]),
                        r == 0 && task.workers().max() == 1 ? "  and more workers" : "");
  }
  std::vector<std::string> all;
  for (int r = 0; r < kResources; ++r) {
    if (wants[r] > 0) all.push_back(Amount(r, wants[r], flavours));
  }
  return absl::StrCat("a worker takes ", absl::StrJoin(all, ", "),
                      " of one host, and no host has all of that\nAsk for less of one of them; "
                      "what hosts have: muster host list");
}

// Where it is for its blocks of ranks that no pool holds it, or none holds even one of them; else
// "". `best`: workers that some pool holds.
std::string BlocksTooLarge(const State& state, const pb::JobSpec& spec, const pb::TaskSpec& task,
                           int64_t best) {
  if (!BlockRoom(task).asks()) return "";
  pb::TaskSpec apart = task;
  apart.mutable_topology()->clear_blocks();
  const int64_t step = StepOf(task.workers());
  if (const auto pools = PoolsOf(state, spec, apart, /*one_that_holds=*/true); !pools.empty()) {
    const std::string fewer =
        best < step ? "" : absl::StrCat(" workers: ", best / step * step, ", or with");
    return absl::StrCat(pools[0].cluster, " holds its ", task.workers().min(), " workers, but not ",
                        BlocksText(task), "\nIt can start with ", fewer,
                        " smaller blocks, wider levels, or preferred in place of required");
  }
  apart.mutable_workers()->set_min(1);
  if (best >= step || PoolsOf(state, spec, apart, /*one_that_holds=*/true).empty()) return "";
  return absl::StrCat("no cluster holds a block of ranks of ", LargestBlockOf(task),
                      " workers (topology.blocks), and its ", task.workers().min(),
                      " workers don't fit\nUse smaller blocks or wider levels, and fewer workers");
}

// That it can't start with as few workers as the `best` pool holds, which are no step.
std::string TooFewForAStep(const pb::JobSpec& spec, const pb::TaskSpec& task, int64_t best) {
  const int32_t step = task.workers().multiple_of();
  const pb::TaskSpec own = WithoutFilledPlacement(spec, task);
  if (own.workers().multiple_of() == 0) {
    const bool has_blocks = !own.topology().blocks().empty();
    if (task.trainer_json().empty())
      return absl::StrCat("It can't start with fewer than ", step,
                          " workers, which one block of ranks takes (topology.blocks)",
                          "; use smaller blocks");
    return absl::StrCat(
        "It can't start with fewer than ", step, " workers, which one replica of the model takes",
        has_blocks ? " in whole blocks of ranks (trainer.parallel, topology.blocks)"
                   : " (trainer.parallel)",
        "; share the model out among fewer ranks", has_blocks ? ", or use smaller blocks" : "");
  }
  return absl::StrCat("It can't start with ", step, " workers, as multiple_of asks for",
                      "; use a multiple_of of at most ", best);
}

// The second line says what would be accepted.
std::string TooLarge(const State& state, const pb::JobSpec& spec, const pb::TaskSpec& task,
                     const std::vector<PoolRoom>& pools) {
  int64_t best = 0;
  for (const PoolRoom& pool : pools) best = std::max(best, pool.workers);
  if (const std::string text = BlocksTooLarge(state, spec, task, best); !text.empty()) return text;
  if (best == 0) return TooLargeForAHost(state, spec, task);
  const bool gpus = task.resources().gpus_milli() > 0;
  const int64_t each_milli = gpus ? task.resources().gpus_milli() : task.resources().cpus_milli();
  const pb::TopologyLevel required = task.topology().required();
  const bool within = Binds(required);
  const std::string domain =
      within ? absl::AsciiStrToLower(pb::TopologyLevel_Name(required)) : "cluster";
  std::string text =
      absl::StrCat(task.workers().min(), " workers x ", FormatMilli(each_milli), " = ",
                   FormatMilli(each_milli * task.workers().min()), " ",
                   gpus ? absl::StrJoin(task.resources().gpu_types(), " or ") : "cores", " in one ",
                   domain, "; ");
  for (const PoolRoom& pool : pools) {
    absl::StrAppend(
        &text, &pool == &pools[0] ? "" : ", ", pool.cluster,
        pools.size() > 1 && !pool.flavour.empty() ? absl::StrCat(" (", pool.flavour, ")") : "",
        " holds ", pool.workers, pool.workers == 1 ? " worker" : " workers",
        within ? absl::StrCat(" in one ", domain) : "");
  }
  pb::Workers fewer = task.workers();
  if (const int32_t step = fewer.multiple_of(); step > 1) {
    if (best < step)
      return absl::StrCat(text, "\n", TooFewForAStep(spec, task, best),
                          within ? ", or a wider topology.required" : "");
    best = best / step * step;
  }
  absl::StrAppend(&text, "\nIt can start with  workers: ", best);
  if (within) absl::StrAppend(&text, ", or with a wider topology.required");
  fewer.set_min(static_cast<int32_t>(best));
  if (fewer.max() > 1) absl::StrAppend(&text, "  or  workers: ", WorkersText(fewer));
  return text;
}

// The clusters that hold each task of a job, by name.
using Fits = std::vector<std::set<std::string>>;

// Whether the job may use `cluster` after its directory was made in `first`.
bool ReachesDirectory(const State& state, const ClusterRow& first, const std::string& cluster) {
  return cluster == first.name ||
         (!first.spec.job_storage().empty() &&
          Reaches(state.cluster_file(), first.spec.job_storage(), cluster));
}

bool AnyReached(const State& state, const ClusterRow& first, const std::set<std::string>& fits) {
  return std::any_of(fits.begin(), fits.end(), [&](const std::string& cluster) {
    return ReachesDirectory(state, first, cluster);
  });
}

// The first pair of tasks that no storage brings together; all of them, if each pair has one.
std::vector<int> Apart(const State& state, const Fits& fits) {
  const int tasks = static_cast<int>(fits.size());
  const auto together = [&](int a, int b) {
    return std::any_of(
        state.clusters().begin(), state.clusters().end(), [&](const ClusterRow& first) {
          return AnyReached(state, first, fits[a]) && AnyReached(state, first, fits[b]);
        });
  };
  for (int b = 1; b < tasks; ++b) {
    for (int a = 0; a < b; ++a) {
      if (!together(a, b)) return {a, b};
    }
  }
  std::vector<int> all;
  for (int t = 0; t < tasks; ++t) all.push_back(t);
  return all;
}

std::string ApartText(const pb::JobSpec& spec, const Fits& fits, const std::vector<int>& named) {
  std::string text;
  for (const int t : named) {
    const char* between = t == named.front() ? "" : t == named.back() ? " and " : ", ";
    absl::StrAppend(&text, between, "task ", spec.tasks(t).name(), " fits only in ",
                    absl::StrJoin(fits[t], ", "));
  }
  absl::StrAppend(&text, ", but tasks of one job share its directory, and no storage reaches ",
                  named.size() == 2 ? "both" : "all of these",
                  "\nChange what they ask for so that they fit in one cluster, submit them as "
                  "jobs of their own, or give the clusters one job_storage");
  return text;
}

// Keeps the job to these clusters, in its own order, or the configured one.
void KeepTo(const State& state, const std::set<std::string>& good, pb::JobSpec* spec) {
  std::vector<std::string> order(spec->clusters().begin(), spec->clusters().end());
  if (order.empty()) {
    for (const ClusterRow& cluster : state.clusters()) order.push_back(cluster.name);
  }
  spec->clear_clusters();
  for (const std::string& cluster : order) {
    if (good.contains(cluster)) spec->add_clusters(cluster);
  }
}

// Tasks of one job share its directory: once one of them is placed, the others may only go to
// clusters that reach it. Refuses a job whose tasks fit one by one, but not in clusters with a
// storage in common; else keeps the job to clusters where all of it fits.
void CheckTogether(const State& state, Resolution* resolution) {
  pb::JobSpec& spec = resolution->resolved;
  if (spec.tasks_size() < 2) return;
  Fits fits(spec.tasks_size());
  for (int t = 0; t < spec.tasks_size(); ++t) {
    for (const PoolRoom& pool : PoolsOf(state, spec, spec.tasks(t))) {
      if (Holds(pool, spec.tasks(t))) fits[t].insert(pool.cluster);
    }
  }
  std::set<std::string> allowed, good;
  for (const ClusterRow& first : state.clusters()) {
    if (!spec.clusters().empty() && std::find(spec.clusters().begin(), spec.clusters().end(),
                                              first.name) == spec.clusters().end())
      continue;
    allowed.insert(first.name);
    const bool all = std::all_of(fits.begin(), fits.end(), [&](const std::set<std::string>& of) {
      return AnyReached(state, first, of);
    });
    if (!all) continue;
    for (const std::set<std::string>& of : fits) {
      for (const std::string& cluster : of) {
        if (ReachesDirectory(state, first, cluster)) good.insert(cluster);
      }
    }
  }
  if (good.empty()) {
    const std::vector<int> named = Apart(state, fits);
    resolution->problems.push_back(
        {TaskFieldPath(spec, named.back(), "resources"), ApartText(spec, fits, named)});
    resolution->never_fits = true;
    return;
  }
  // Placing the first task elsewhere would leave another waiting for ever.
  if (good.size() < allowed.size()) KeepTo(state, good, &spec);
}

// What begins from another job's checkpoints would begin anew, without a word, in a cluster that
// reaches none of them.
void KeepToCheckpoints(const State& state, Resolution* resolution) {
  pb::JobSpec& spec = resolution->resolved;
  std::set<std::string> allowed(spec.clusters().begin(), spec.clusters().end());
  if (allowed.empty()) {
    for (const ClusterRow& cluster : state.clusters()) allowed.insert(cluster.name);
  }
  std::set<std::string> good = allowed;
  for (int t = 0; t < spec.tasks_size(); ++t) {
    const auto& paths = spec.tasks(t).checkpoint().resume_from();
    if (paths.empty()) continue;
    std::set<std::string> storages;
    for (const std::string& path : paths) storages.insert(StorageOfPath(state, path));
    std::erase_if(good, [&](const std::string& cluster) {
      return std::none_of(storages.begin(), storages.end(), [&](const std::string& storage) {
        return storage.empty() || Reaches(state.cluster_file(), storage, cluster);
      });
    });
    if (!good.empty()) continue;
    resolution->problems.push_back(
        {TaskFieldPath(spec, t, "checkpoint.resume_from"),
         absl::StrCat(
             "they lie in storage ", absl::StrJoin(storages, ", "),
             ", which none of the job's clusters reaches: ", absl::StrJoin(allowed, ", "))});
    return;
  }
  if (good.size() < allowed.size()) KeepTo(state, good, &spec);
}

// Tasks of one job that may run at the same time as `task`, itself among them: all but those that
// come before it or after it.
std::vector<int> Beside(const pb::JobSpec& spec, int task) {
  std::map<std::string, int> at;
  for (int t = 0; t < spec.tasks_size(); ++t) at[spec.tasks(t).name()] = t;
  const auto before = [&](int first) {
    std::set<int> reached;
    std::vector<int> left = {first};
    while (!left.empty()) {
      const int t = left.back();
      left.pop_back();
      for (const std::string& name : spec.tasks(t).after()) {
        if (const auto it = at.find(name); it != at.end() && reached.insert(it->second).second)
          left.push_back(it->second);
      }
    }
    return reached;
  };
  const std::set<int> earlier = before(task);
  std::vector<int> beside;
  for (int t = 0; t < spec.tasks_size(); ++t) {
    if (t == task || (!earlier.contains(t) && !before(t).contains(task))) beside.push_back(t);
  }
  return beside;
}

// Refuses what the limits on the queue's path, or the queue's bounds, can never admit.
void CheckQueue(const State& state, int32_t leaf, const pb::JobSpec& spec, Resolution* resolution) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    const pb::TaskSpec& task = spec.tasks(t);
    const auto never = [&](const std::string& field, int64_t demand_milli, const std::string& what,
                           const std::string& why) {
      resolution->problems.push_back(
          {TaskFieldPath(spec, t, field),
           absl::StrCat("it needs ", FormatMilli(demand_milli), what, "; ", why,
                        "\nAsk for less, or submit to another queue: muster queue list")});
      resolution->never_fits = true;
    };
    const int64_t gpus_milli = task.workers().min() * task.resources().gpus_milli();
    if (gpus_milli > 0 && Admitted(state, leaf, task).empty()) {
      std::vector<std::string> why;
      for (const std::string& flavour : task.resources().gpu_types())
        why.push_back(Over(state, leaf, flavour, gpus_milli));
      never("workers", gpus_milli, "", absl::StrJoin(why, ", "));
    }
    const int64_t cpus_milli = task.workers().min() * task.resources().cpus_milli();
    if (const std::string why = Over(state, leaf, "cpu", cpus_milli);
        cpus_milli > 0 && !why.empty())
      never("resources.cpus", cpus_milli, " cores", why);
    int64_t most_milli = 0;  // of the job beside this task, all at their largest
    for (const int other : Beside(spec, t)) {
      const pb::TaskSpec& its = spec.tasks(other);
      most_milli +=
          std::max(its.workers().min(), its.workers().max()) * its.resources().gpus_milli();
    }
    for (int32_t n = leaf; n >= 0; n = state.queues().nodes[n].parent) {
      const QueueNode& node = state.queues().nodes[n];
      if (gpus_milli > 0 && node.spec.max_gpus_per_job_milli() > 0 &&
          most_milli > node.spec.max_gpus_per_job_milli()) {
        resolution->problems.push_back(
            {TaskFieldPath(spec, t, "resources.gpus"),
             absl::StrCat("the job may hold ", FormatMilli(most_milli),
                          " GPUs at its largest; queue ", node.path, " allows a job ",
                          FormatMilli(node.spec.max_gpus_per_job_milli()))});
      }
      if (node.spec.max_time_limit_ns() > 0 &&
          task.time_limit_ns() > node.spec.max_time_limit_ns()) {
        resolution->problems.push_back(
            {TaskFieldPath(spec, t, "time_limit"),
             absl::StrCat(FormatDuration(task.time_limit_ns()), " is above the ",
                          FormatDuration(node.spec.max_time_limit_ns()), " that queue ", node.path,
                          " allows")});
      }
    }
  }
}

}  // namespace

SpecContext SpecContextOf(const State& state, const std::string& queue) {
  SpecContext context;
  std::map<std::string, std::set<std::string>> flavours;
  // Neighbours are of one kind mostly, and the newest schema counts: this is done for each
  // submission, over all hosts.
  pb::Inventory made;
  std::pair<std::string, int32_t> last;
  const std::string* schema = nullptr;
  for (HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (!host.inventory.trainer_schema_json().empty())
      schema = &host.inventory.trainer_schema_json();
    const pb::Inventory& shape = ShapeOf(state, host, &made);
    if (shape.flavour().empty() || (shape.flavour() == last.first && host.cluster == last.second))
      continue;
    last = {shape.flavour(), host.cluster};
    flavours[shape.flavour()].insert(state.clusters()[host.cluster].name);
  }
  if (schema != nullptr) context.trainer_schema_json = *schema;
  for (const auto& [flavour, clusters] : flavours)
    context.flavours[flavour].assign(clusters.begin(), clusters.end());
  for (const ClusterRow& cluster : state.clusters()) context.clusters.push_back(cluster.name);
  if (const int32_t leaf = state.queues().Find(queue); leaf >= 0 && state.queues().leaf(leaf)) {
    context.queues = {queue};  // a submission needs no list of a thousand others
  } else {
    for (size_t n = 1; n < state.queues().nodes.size(); ++n) {
      if (state.queues().leaf(static_cast<int32_t>(n)))
        context.queues.push_back(state.queues().nodes[n].path);
    }
  }
  std::set<std::string> storages;
  for (const auto& [name, storage] : state.cluster_file().storages()) storages.insert(name);
  context.storages.assign(storages.begin(), storages.end());
  return context;
}

namespace {

// In any of the clusters that it names, whoever may use them.
Resolution ResolveAnywhere(const State& state, const pb::JobSpec& spec,
                           const SpecDefaults& defaults, bool wait_for_capacity) {
  Resolution resolution;
  resolution.resolved = spec;
  const SpecContext context = SpecContextOf(state, spec.queue());
  if (resolution.resolved.queue().empty() && context.queues.size() == 1)
    resolution.resolved.set_queue(context.queues[0]);
  resolution.problems = CheckSpec(resolution.resolved, context);
  const int32_t leaf = state.queues().Find(resolution.resolved.queue());
  if (resolution.resolved.queue().empty()) {
    resolution.problems.push_back(
        {"queue", absl::StrCat("missing; there are ", absl::StrJoin(context.queues, ", "))});
  } else if (resolution.problems.empty() && (leaf < 0 || !state.queues().leaf(leaf))) {
    resolution.problems.push_back(
        {"queue", absl::StrCat("\"", resolution.resolved.queue(),
                               "\" is no queue that holds jobs; there are ",
                               absl::StrJoin(context.queues, ", "))});
  }
  resolution.by_itself = !resolution.ok();
  if (!resolution.ok()) return resolution;
  const auto trained = [](const pb::TaskSpec& task) { return !task.trainer_json().empty(); };
  if (context.trainer_schema_json.empty() &&
      std::any_of(spec.tasks().begin(), spec.tasks().end(), trained)) {
    resolution.not_now =
        "trainer: can't be checked yet: no host with muster-trainer has joined, so its schema "
        "isn't known. Try again in some seconds; who has "
        "joined: muster host list";
    return resolution;
  }

  SpecDefaults filled = defaults;
  int64_t queue_limit_ns = 0;
  for (int32_t n = leaf; n >= 0; n = state.queues().nodes[n].parent) {
    const int64_t limit_ns = state.queues().nodes[n].spec.max_time_limit_ns();
    if (limit_ns > 0 && (queue_limit_ns == 0 || limit_ns < queue_limit_ns))
      queue_limit_ns = limit_ns;
  }
  if (queue_limit_ns > 0) filled.time_limit_ns = queue_limit_ns;
  ApplyDefaults(&resolution.resolved, filled);

  KeepToCheckpoints(state, &resolution);
  if (!resolution.ok()) return resolution;
  CheckQueue(state, leaf, resolution.resolved, &resolution);
  if (resolution.ok()) {
    resolution.problems = CheckGroupLimits(state, leaf, resolution.resolved);
    resolution.never_fits = !resolution.ok();
  }
  const bool limits_hold = resolution.problems.empty();
  bool only_size = limits_hold || resolution.never_fits, all_fit = true;
  for (int t = 0; t < resolution.resolved.tasks_size(); ++t) {
    const pb::TaskSpec& task = resolution.resolved.tasks(t);
    if (!PoolsOf(state, resolution.resolved, task, /*one_that_holds=*/true).empty()) continue;
    const std::vector<PoolRoom> pools = PoolsOf(state, resolution.resolved, task);
    if (pools.empty()) {
      resolution.problems.push_back({"clusters", "no cluster is configured that it may use"});
      only_size = false;
      continue;
    }
    all_fit = false;
    if (wait_for_capacity) continue;
    resolution.problems.push_back(
        {TaskFieldPath(resolution.resolved, t, task.workers().min() > 1 ? "workers" : "resources"),
         TooLarge(state, resolution.resolved, task, pools)});
    resolution.never_fits = true;
  }
  if (resolution.ok() && !wait_for_capacity) {
    resolution.problems = CheckGroupSizes(state, resolution.resolved);
    resolution.never_fits = !resolution.ok();
  }
  if (resolution.ok() && !wait_for_capacity) CheckTogether(state, &resolution);
  if (resolution.ok() && wait_for_capacity && all_fit) {
    Resolution together = resolution;
    CheckTogether(state, &together);
    if (together.ok()) resolution = std::move(together);
  }
  resolution.never_fits = resolution.never_fits && only_size;
  resolution.may_wait = resolution.never_fits && limits_hold;
  return resolution;
}

// What it says of clusters that are for other users' jobs alone.
std::vector<FieldProblem> CheckWhoseClusters(const State& state, const pb::JobSpec& spec,
                                             const std::string& owner) {
  std::vector<FieldProblem> problems;
  for (int i = 0; i < spec.clusters_size(); ++i) {
    const int32_t c = state.FindCluster(spec.clusters(i));
    if (c < 0 || TakesJobsOf(state.clusters()[c].spec, owner)) continue;
    problems.push_back(
        {absl::StrCat("clusters[", i, "]"),
         absl::StrCat("cluster ", spec.clusters(i), " is for jobs of ",
                      state.clusters()[c].spec.only_user(), " alone; leave it out")});
  }
  return problems;
}

}  // namespace

Resolution ResolveSpec(const State& state, const pb::JobSpec& spec, const SpecDefaults& defaults,
                       bool wait_for_capacity, const std::string& owner) {
  const auto open = [&](const ClusterRow& cluster) { return TakesJobsOf(cluster.spec, owner); };
  if (std::all_of(state.clusters().begin(), state.clusters().end(), open))
    return ResolveAnywhere(state, spec, defaults, wait_for_capacity);
  pb::JobSpec kept = spec;  // to the clusters that are open to it
  for (const ClusterRow& cluster : state.clusters()) {
    if (spec.clusters().empty() && open(cluster)) kept.add_clusters(cluster.name);
  }
  Resolution refused;
  refused.problems = CheckWhoseClusters(state, spec, owner);
  if (kept.clusters().empty())
    refused.problems.push_back({"clusters", "each cluster is for jobs of another user alone"});
  if (!refused.ok()) {
    refused.resolved = spec;
    refused.by_itself = true;
    return refused;
  }
  Resolution resolution = ResolveAnywhere(state, kept, defaults, wait_for_capacity);
  // Not kept to fewer: then it may use clusters that come later, too.
  if (spec.clusters().empty() && resolution.resolved.clusters_size() == kept.clusters_size())
    resolution.resolved.clear_clusters();
  return resolution;
}

}  // namespace muster
