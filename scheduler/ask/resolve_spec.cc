#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/capacity.h"

namespace muster {
namespace {

// Path of a task's field, as the user wrote it.
std::string TaskPath(const pb::JobSpec& spec, int task, const std::string& field) {
  if (spec.tasks_size() == 1 && spec.tasks(0).name() == "main") return field;
  return absl::StrCat("tasks[", task, "].", field);
}

// Workers of this task that an empty host of this shape holds.
int64_t WorkersOn(const pb::TaskSpec& task, const pb::Inventory& shape) {
  const Demand demand = WorkerDemand(task, shape);
  int64_t workers = std::numeric_limits<int32_t>::max();
  const auto bound = [&](int64_t has, int64_t wants) {
    if (wants > 0) workers = std::min(workers, has / wants);
  };
  if (demand.gpus_milli >= 1000) bound(shape.devices_size(), demand.gpus_milli / 1000);
  if (demand.gpus_milli > 0 && demand.gpus_milli < 1000) bound(1000 * static_cast<int64_t>(shape.devices_size()), 1000);
  bound(shape.cpus_milli(), demand.cpus_milli);
  bound(shape.memory_bytes(), demand.memory_bytes);
  bound(shape.disk_bytes(), demand.disk_bytes);
  return workers;
}

struct Cell {
  std::string cluster, flavour;
  int64_t workers = 0;      // that fit into the empty cell
  bool open_ended = false;  // any host may join, and none has: nobody knows
};

// The cells that a task may use, with what they hold when empty.
std::vector<Cell> CellsOf(const State& state, const pb::JobSpec& spec, const pb::TaskSpec& task) {
  std::vector<Cell> cells;
  std::vector<std::string> flavours(task.resources().gpu_types().begin(), task.resources().gpu_types().end());
  if (task.resources().gpus_milli() == 0) flavours = {""};
  for (size_t c = 0; c < state.clusters().size(); ++c) {
    const ClusterRow& cluster = state.clusters()[c];
    if (!spec.clusters().empty() && std::find(spec.clusters().begin(), spec.clusters().end(), cluster.name) == spec.clusters().end()) continue;
    for (const std::string& flavour : flavours) {
      Cell cell{cluster.name, flavour};
      bool any = false;
      pb::Inventory made;
      for (HostId id : state.hosts()) {
        const HostRow& host = state.host(id);
        if (host.cluster != static_cast<int32_t>(c)) continue;
        any = true;
        const pb::Inventory& shape = ShapeOf(state, host, &made);
        if (flavour.empty() || shape.flavour() == flavour) cell.workers += WorkersOn(task, shape);
      }
      cell.open_ended = cluster.spec.open() && !any;
      cells.push_back(cell);
    }
  }
  return cells;
}

std::string TooLarge(const pb::TaskSpec& task, const std::vector<Cell>& cells) {
  const std::string each = task.resources().gpus_milli() > 0
                               ? absl::StrCat(FormatMilli(task.resources().gpus_milli()), " ", absl::StrJoin(task.resources().gpu_types(), " or "))
                               : absl::StrCat(FormatMilli(task.resources().cpus_milli()), " cores");
  std::string text = absl::StrCat("this job can never start: ", task.workers().min(), task.workers().min() == 1 ? " worker" : " workers",
                                  " x ", each, " in one cluster");
  int64_t best = 0;
  for (const Cell& cell : cells) {
    absl::StrAppend(&text, &cell == &cells[0] ? "; " : ", ", cell.cluster, cell.flavour.empty() ? "" : absl::StrCat(" ", cell.flavour),
                    " holds ", cell.workers);
    best = std::max(best, cell.workers);
  }
  if (best > 0) absl::StrAppend(&text, ". It can start with workers: ", best);
  return text;
}

// Refuses what the limits on the queue's path, or the queue's bounds, can never admit.
void CheckQueue(const State& state, int32_t leaf, const pb::JobSpec& spec, Resolution* resolution) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    const pb::TaskSpec& task = spec.tasks(t);
    for (int32_t n = leaf; n >= 0; n = state.queues().nodes[n].parent) {
      const QueueNode& node = state.queues().nodes[n];
      if (task.resources().gpus_milli() > 0) {
        const int64_t demand_milli = task.workers().min() * task.resources().gpus_milli();
        bool admitted = false;
        std::string why;
        for (const std::string& flavour : task.resources().gpu_types()) {
          const auto quota = node.spec.quota().find(flavour);
          const bool over = quota != node.spec.quota().end() && quota->second.has_limit_milli() && quota->second.limit_milli() < demand_milli;
          admitted = admitted || !over;
          if (over) absl::StrAppend(&why, why.empty() ? "" : ", ", FormatMilli(quota->second.limit_milli()), " ", flavour);
        }
        if (!admitted) {
          resolution->problems.push_back({TaskPath(spec, t, "workers"),
                                          absl::StrCat("this job can never start: it needs ", FormatMilli(demand_milli), ", queue ", node.path,
                                                       " is limited to ", why)});
          resolution->never_fits = true;
        }
        if (node.spec.max_gpus_per_job_milli() > 0 && demand_milli > node.spec.max_gpus_per_job_milli()) {
          resolution->problems.push_back({TaskPath(spec, t, "resources.gpus"),
                                          absl::StrCat(FormatMilli(demand_milli), " GPUs; queue ", node.path, " allows a job ",
                                                       FormatMilli(node.spec.max_gpus_per_job_milli()))});
        }
      }
      if (node.spec.max_time_limit_ns() > 0 && task.time_limit_ns() > node.spec.max_time_limit_ns()) {
        resolution->problems.push_back({TaskPath(spec, t, "time_limit"),
                                        absl::StrCat(FormatDuration(task.time_limit_ns()), " is above the ",
                                                     FormatDuration(node.spec.max_time_limit_ns()), " that queue ", node.path, " allows")});
      }
    }
  }
}

}  // namespace

SpecContext SpecContextOf(const State& state) {
  SpecContext context;
  std::map<std::string, std::set<std::string>> flavours;
  // Neighbours are of one kind mostly, and the newest schema counts: this is done for each submission, over all hosts.
  pb::Inventory made;
  std::pair<std::string, int32_t> last;
  const std::string* schema = nullptr;
  for (HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (!host.inventory.trainer_schema_json().empty()) schema = &host.inventory.trainer_schema_json();
    const pb::Inventory& shape = ShapeOf(state, host, &made);
    if (shape.flavour().empty() || (shape.flavour() == last.first && host.cluster == last.second)) continue;
    last = {shape.flavour(), host.cluster};
    flavours[shape.flavour()].insert(state.clusters()[host.cluster].name);
  }
  if (schema != nullptr) context.trainer_schema_json = *schema;
  for (const auto& [flavour, clusters] : flavours) context.flavours[flavour].assign(clusters.begin(), clusters.end());
  for (const ClusterRow& cluster : state.clusters()) context.clusters.push_back(cluster.name);
  for (size_t n = 1; n < state.queues().nodes.size(); ++n) {
    if (state.queues().leaf(static_cast<int32_t>(n))) context.queues.push_back(state.queues().nodes[n].path);
  }
  std::set<std::string> storages;
  for (const auto& [name, storage] : state.cluster_file().storages()) storages.insert(name);
  context.storages.assign(storages.begin(), storages.end());
  return context;
}

Resolution ResolveSpec(const State& state, const pb::JobSpec& spec, const SpecDefaults& defaults) {
  Resolution resolution;
  resolution.resolved = spec;
  const SpecContext context = SpecContextOf(state);
  if (resolution.resolved.queue().empty() && context.queues.size() == 1) resolution.resolved.set_queue(context.queues[0]);
  resolution.problems = CheckSpec(resolution.resolved, context);
  const int32_t leaf = state.queues().Find(resolution.resolved.queue());
  if (resolution.resolved.queue().empty()) {
    resolution.problems.push_back({"queue", absl::StrCat("missing; there are ", absl::StrJoin(context.queues, ", "))});
  } else if (resolution.problems.empty() && (leaf < 0 || !state.queues().leaf(leaf))) {
    resolution.problems.push_back({"queue", absl::StrCat("\"", resolution.resolved.queue(), "\" is no queue that holds jobs; there are ",
                                                         absl::StrJoin(context.queues, ", "))});
  }
  if (!resolution.ok()) return resolution;

  SpecDefaults filled = defaults;
  int64_t queue_limit_ns = 0;
  for (int32_t n = leaf; n >= 0; n = state.queues().nodes[n].parent) {
    const int64_t limit_ns = state.queues().nodes[n].spec.max_time_limit_ns();
    if (limit_ns > 0 && (queue_limit_ns == 0 || limit_ns < queue_limit_ns)) queue_limit_ns = limit_ns;
  }
  if (queue_limit_ns > 0) filled.time_limit_ns = queue_limit_ns;
  ApplyDefaults(&resolution.resolved, filled);

  CheckQueue(state, leaf, resolution.resolved, &resolution);
  bool only_size = resolution.problems.empty() || resolution.never_fits;
  for (int t = 0; t < resolution.resolved.tasks_size(); ++t) {
    const pb::TaskSpec& task = resolution.resolved.tasks(t);
    const std::vector<Cell> cells = CellsOf(state, resolution.resolved, task);
    const bool fits = std::any_of(cells.begin(), cells.end(), [&](const Cell& cell) { return cell.open_ended || cell.workers >= task.workers().min(); });
    if (fits) continue;
    if (cells.empty()) {
      resolution.problems.push_back({"clusters", "no cluster is configured that it may use"});
      only_size = false;
      continue;
    }
    resolution.problems.push_back({TaskPath(resolution.resolved, t, task.workers().min() > 1 ? "workers" : "resources"), TooLarge(task, cells)});
    resolution.never_fits = true;
  }
  resolution.never_fits = resolution.never_fits && only_size;
  return resolution;
}

}  // namespace muster
