#include "scheduler/ask/check_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/spec/together.h"
#include "scheduler/ask/capacity.h"

namespace muster {
namespace {

// What an empty host has.
struct Room {
  std::string flavour;
  int64_t gpus_milli = 0, cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
  pb::Inventory shape;

  bool Take(const pb::TaskSpec& task, const std::string& type) {
    const Demand demand = WorkerDemand(task, shape);
    if ((demand.gpus_milli > 0 && flavour != type) || gpus_milli < demand.gpus_milli ||
        cpus_milli < demand.cpus_milli || memory_bytes < demand.memory_bytes ||
        disk_bytes < demand.disk_bytes)
      return false;
    gpus_milli -= demand.gpus_milli;
    cpus_milli -= demand.cpus_milli;
    memory_bytes -= demand.memory_bytes;
    disk_bytes -= demand.disk_bytes;
    return true;
  }
};

std::vector<Room> RoomsOf(const State& state, int32_t cluster) {
  std::vector<Room> rooms;
  for (const HostId id : state.hosts()) {
    if (state.host(id).cluster != cluster) continue;
    Room& room = rooms.emplace_back();
    room.shape = ShapeOf(state, state.host(id));
    room.flavour = room.shape.flavour();
    room.gpus_milli = 1000 * static_cast<int64_t>(room.shape.devices_size());
    room.cpus_milli = room.shape.cpus_milli();
    room.memory_bytes = room.shape.memory_bytes();
    room.disk_bytes = room.shape.disk_bytes();
  }
  return rooms;
}

// Groups of more than one task, each by its first.
std::vector<std::vector<int>> GroupsOf(const pb::JobSpec& spec) {
  std::vector<std::vector<int>> groups;
  for (int t = 0; t < spec.tasks_size(); ++t) {
    std::vector<int> group = TogetherWith(spec, t);
    if (group.size() > 1 && group.front() == t) groups.push_back(std::move(group));
  }
  return groups;
}

// Types of GPU that the group may take, one of them; "" where it wants none.
std::vector<std::string> TypesOf(const pb::JobSpec& spec, const std::vector<int>& group) {
  for (const int t : group) {
    const pb::Resources& wants = spec.tasks(t).resources();
    if (wants.gpus_milli() > 0) return {wants.gpu_types().begin(), wants.gpu_types().end()};
  }
  return {""};
}

int64_t SumMilli(const pb::JobSpec& spec, const std::vector<int>& group, bool gpus) {
  int64_t milli = 0;
  for (const int t : group) {
    const pb::Resources& wants = spec.tasks(t).resources();
    milli += spec.tasks(t).workers().min() * (gpus ? wants.gpus_milli() : wants.cpus_milli());
  }
  return milli;
}

bool Holds(std::vector<Room> rooms, const pb::JobSpec& spec, std::vector<int> group,
           const std::string& type) {
  std::sort(group.begin(), group.end(), [&](int a, int b) {
    return spec.tasks(a).resources().gpus_milli() > spec.tasks(b).resources().gpus_milli();
  });
  return std::all_of(group.begin(), group.end(), [&](int t) {
    const pb::TaskSpec& task = spec.tasks(t);
    size_t at = 0;
    for (int32_t left = task.workers().min(); left > 0; --left) {
      while (at < rooms.size() && !rooms[at].Take(task, type)) ++at;
      if (at == rooms.size()) return false;
    }
    return true;
  });
}

std::string WantedText(const pb::JobSpec& spec, const std::vector<int>& group) {
  std::vector<std::string> names;
  for (const int t : group) names.push_back(spec.tasks(t).name());
  const int64_t gpus_milli = SumMilli(spec, group, true);
  return absl::StrCat(absl::StrJoin(names, ", "), " start together: ",
                      gpus_milli > 0
                          ? absl::StrCat(FormatMilli(gpus_milli), " GPUs")
                          : absl::StrCat(FormatMilli(SumMilli(spec, group, false)), " cores"),
                      " at once");
}

std::string PathOf(const std::vector<int>& group) {
  return absl::StrCat("tasks[", group.front(), "].with");
}

}  // namespace

std::vector<FieldProblem> CheckGroupLimits(const State& state, int32_t leaf,
                                           const pb::JobSpec& spec) {
  std::vector<FieldProblem> problems;
  for (const std::vector<int>& group : GroupsOf(spec)) {
    std::string why;
    bool any = false;
    for (const std::string& type : TypesOf(spec, group)) {
      const int64_t milli = SumMilli(spec, group, !type.empty());
      const std::string flavour = type.empty() ? "cpu" : type;
      bool over = false;
      for (int32_t n = leaf; n >= 0; n = state.queues().nodes[n].parent) {
        const QueueNode& node = state.queues().nodes[n];
        const auto quota = node.spec.quota().find(flavour);
        if (quota == node.spec.quota().end() || !quota->second.has_limit_milli() ||
            quota->second.limit_milli() >= milli)
          continue;
        over = true;
        why = absl::StrCat("queue ", node.path, " is limited to ",
                           FormatMilli(quota->second.limit_milli()), " ", flavour);
      }
      any = any || !over;
    }
    if (any) continue;
    problems.push_back({PathOf(group), absl::StrCat(WantedText(spec, group), "; ", why,
                                                    ".\nAsk for less, or let them start apart")});
  }
  return problems;
}

std::vector<FieldProblem> CheckGroupSizes(const State& state, const pb::JobSpec& spec) {
  std::vector<FieldProblem> problems;
  const std::vector<std::vector<int>> groups = GroupsOf(spec);
  if (groups.empty()) return problems;
  const std::set<std::string> allowed(spec.clusters().begin(), spec.clusters().end());
  std::map<std::string, std::vector<Room>> clusters;
  for (size_t c = 0; c < state.clusters().size(); ++c) {
    const ClusterRow& cluster = state.clusters()[c];
    if (allowed.empty() || allowed.contains(cluster.name))
      clusters[cluster.name] = RoomsOf(state, static_cast<int32_t>(c));
  }
  for (const std::vector<int>& group : groups) {
    const std::vector<std::string> types = TypesOf(spec, group);
    std::vector<std::string> names;
    bool holds = false;
    for (const auto& [name, rooms] : clusters) {
      names.push_back(name);
      // Of a cluster that any host may join nobody knows how large it will be.
      holds = holds || rooms.empty() ||
              std::any_of(types.begin(), types.end(),
                          [&](const std::string& type) { return Holds(rooms, spec, group, type); });
    }
    if (holds) continue;
    problems.push_back(
        {PathOf(group), absl::StrCat(WantedText(spec, group), ", and no cluster that it may use (",
                                     absl::StrJoin(names, ", "),
                                     ") has room for all of them when empty.\nAsk for less, or let "
                                     "them start apart")});
  }
  return problems;
}

}  // namespace muster
