#include "scheduler/decide/free_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace muster {
namespace {

// Free devices by island, the island with the fewest that still hold `count` first; else all, by index.
std::vector<int32_t> PickDevices(const pb::Inventory& inventory, const std::vector<int64_t>& free_milli, int64_t count) {
  std::map<int32_t, std::vector<int32_t>> islands;
  std::vector<int32_t> all;
  for (int32_t d = 0; d < inventory.devices_size(); ++d) {
    if (free_milli[d] != 1000) continue;
    islands[inventory.devices(d).island()].push_back(d);
    all.push_back(d);
  }
  const std::vector<int32_t>* best = nullptr;
  for (const auto& [island, devices] : islands) {
    if (static_cast<int64_t>(devices.size()) < count) continue;
    if (best == nullptr || devices.size() < best->size()) best = &devices;
  }
  std::vector<int32_t> picked = best != nullptr ? *best : all;
  picked.resize(static_cast<size_t>(std::min<int64_t>(count, static_cast<int64_t>(picked.size()))));
  return picked;
}

}  // namespace

FreeMap::FreeMap(const State& state) : state_(state) {
  HostId bound = 0;
  for (const HostId id : state.hosts()) bound = std::max(bound, id + 1);
  hosts_.resize(static_cast<size_t>(bound));
  for (const HostId id : state.hosts()) {
    const HostRow& row = state.host(id);
    HostFree& free = hosts_[id];
    free.usable = row.usable() && !state.clusters()[row.cluster].drained;
    for (int d = 0; d < row.inventory.devices_size(); ++d) {
      free.device_milli.push_back(row.inventory.devices(d).healthy() ? 1000 - row.device_used_milli[d] : 0);
    }
    free.cpus_milli = row.inventory.cpus_milli() - row.cpus_used_milli;
    free.memory_bytes = row.inventory.memory_bytes() - row.memory_used_bytes;
    free.disk_bytes = row.inventory.disk_bytes() - row.disk_used_bytes;
  }
}

HostFree& FreeMap::Write(HostId id) {
  undo_.emplace_back(id, hosts_[id]);
  return hosts_[id];
}

void FreeMap::UndoTo(size_t mark) {
  for (; undo_.size() > mark; undo_.pop_back()) hosts_[undo_.back().first] = std::move(undo_.back().second);
}

void FreeMap::LimitHost(HostId id, const HostFree& limit) {
  HostFree& mine = Write(id);
  for (size_t d = 0; d < mine.device_milli.size(); ++d) mine.device_milli[d] = std::min(mine.device_milli[d], limit.device_milli[d]);
  mine.cpus_milli = std::min(mine.cpus_milli, limit.cpus_milli);
  mine.memory_bytes = std::min(mine.memory_bytes, limit.memory_bytes);
  mine.disk_bytes = std::min(mine.disk_bytes, limit.disk_bytes);
}

void FreeMap::Close(HostId id) { Write(id).usable = false; }

bool FreeMap::Fits(const pb::TaskSpec& spec, const PlannedGang& gang) const {
  for (const PlannedPart& part : gang) {
    const HostFree& free = hosts_[part.host];
    if (!free.usable) return false;
    const Demand demand = WorkerDemand(spec, state_.host(part.host).inventory);
    const auto lacks = [&](int64_t has, int64_t a_worker) { return a_worker > 0 && has < part.workers * a_worker; };
    if (lacks(free.cpus_milli, demand.cpus_milli) || lacks(free.memory_bytes, demand.memory_bytes) || lacks(free.disk_bytes, demand.disk_bytes)) {
      return false;
    }
    for (size_t d = 0; d < part.devices.size(); ++d) {
      const int32_t device = part.devices[d];
      if (device < 0 || device >= static_cast<int32_t>(free.device_milli.size())) return false;
      if (free.device_milli[device] < (d < part.device_milli.size() ? part.device_milli[d] : 1000)) return false;
    }
  }
  return true;
}

void FreeMap::Change(const pb::TaskSpec& spec, const PlannedPart& part, int64_t sign) {
  HostFree& free = Write(part.host);
  const pb::Inventory& inventory = state_.host(part.host).inventory;
  const Demand demand = WorkerDemand(spec, inventory);
  free.cpus_milli += sign * part.workers * demand.cpus_milli;
  free.memory_bytes += sign * part.workers * demand.memory_bytes;
  free.disk_bytes += sign * part.workers * demand.disk_bytes;
  for (size_t d = 0; d < part.devices.size(); ++d) {
    const int32_t device = part.devices[d];
    if (device < 0 || device >= inventory.devices_size() || !inventory.devices(device).healthy()) continue;
    free.device_milli[device] += sign * (d < part.device_milli.size() ? part.device_milli[d] : 1000);
  }
}

void FreeMap::Release(const JobRow& job, int32_t task, const AttemptRow& attempt) {
  for (const PartRow& part : attempt.parts) {
    if (part.lost) continue;
    Change(job.task_spec(task), {part.host, part.workers, part.devices, part.device_milli}, 1);
  }
}

void FreeMap::Take(const pb::TaskSpec& spec, const PlannedGang& gang) {
  for (const PlannedPart& part : gang) Change(spec, part, -1);
}

void FreeMap::GiveBack(const pb::TaskSpec& spec, const PlannedGang& gang) {
  for (const PlannedPart& part : gang) Change(spec, part, 1);
}

void FreeMap::LimitTo(const FreeMap& other, const PlannedGang& gang) {
  for (const PlannedPart& part : gang) LimitHost(part.host, other.hosts_[part.host]);
}

int64_t FreeMap::FreeMilli(const Cell& cell, bool gpus) const {
  int64_t milli = 0;
  for (const HostId id : cell.hosts) {
    const HostFree& free = hosts_[id];
    if (!free.usable) continue;
    milli += gpus ? std::accumulate(free.device_milli.begin(), free.device_milli.end(), int64_t{0}) : std::max<int64_t>(0, free.cpus_milli);
  }
  return milli;
}

int32_t FreeMap::WorkersThatFit(const pb::TaskSpec& spec, HostId id) const {
  const HostFree& free = hosts_[id];
  if (!free.usable) return 0;
  const pb::Inventory& inventory = state_.host(id).inventory;
  const Demand demand = WorkerDemand(spec, inventory);
  int64_t workers = 1 << 20;
  if (demand.gpus_milli >= 1000) {
    const int64_t count = demand.gpus_milli / 1000;
    if (spec.topology().required() == pb::ISLAND) {
      std::map<int32_t, int64_t> islands;
      for (int d = 0; d < inventory.devices_size(); ++d) {
        if (free.device_milli[d] == 1000) ++islands[inventory.devices(d).island()];
      }
      workers = 0;
      for (const auto& [island, devices] : islands) workers = std::max(workers, devices / count);
    } else {
      workers = std::count(free.device_milli.begin(), free.device_milli.end(), 1000) / count;
    }
  } else if (demand.gpus_milli > 0) {
    workers = std::any_of(free.device_milli.begin(), free.device_milli.end(), [&](int64_t m) { return m >= demand.gpus_milli; });
  }
  if (demand.cpus_milli > 0) workers = std::min(workers, free.cpus_milli / demand.cpus_milli);
  if (demand.memory_bytes > 0) workers = std::min(workers, free.memory_bytes / demand.memory_bytes);
  if (demand.disk_bytes > 0) workers = std::min(workers, free.disk_bytes / demand.disk_bytes);
  return static_cast<int32_t>(std::max<int64_t>(0, workers));
}

PlannedPart FreeMap::Part(const pb::TaskSpec& spec, HostId id, int32_t workers) const {
  PlannedPart part;
  part.host = id;
  part.workers = workers;
  const int64_t gpus_milli = spec.resources().gpus_milli();
  std::vector<int64_t> free_milli = hosts_[id].device_milli;
  if (gpus_milli >= 1000) {
    // The whole part in one island where that holds it, else worker by worker.
    const pb::Inventory& inventory = state_.host(id).inventory;
    const int64_t count = gpus_milli / 1000;
    for (int32_t w = 0; w < workers; ++w) {
      std::vector<int32_t> picked;
      if (w == 0) {
        picked = PickDevices(inventory, free_milli, count * workers);
        const bool one_island = std::all_of(picked.begin(), picked.end(), [&](int32_t d) {
          return inventory.devices(d).island() == inventory.devices(picked.front()).island();
        });
        if (one_island) {
          part.devices = picked;
          return part;
        }
      }
      picked = PickDevices(inventory, free_milli, count);
      for (const int32_t device : picked) {
        free_milli[device] = 0;
        part.devices.push_back(device);
      }
    }
  } else if (gpus_milli > 0) {
    int32_t best = -1;
    for (int32_t d = 0; d < static_cast<int32_t>(free_milli.size()); ++d) {
      if (free_milli[d] >= gpus_milli && (best < 0 || free_milli[d] < free_milli[best])) best = d;
    }
    part.devices.push_back(best);
    part.device_milli.push_back(gpus_milli);
  }
  return part;
}

std::optional<PlannedGang> FreeMap::Place(const pb::TaskSpec& spec, int32_t workers, const Cell& cell) const {
  struct Group {
    int64_t workers = 0;
    std::vector<std::pair<int32_t, HostId>> hosts;   // how many fit
  };
  // What is left on a host by one-host placements: whole devices first, so that shared ones are filled up.
  const auto left = [&](HostId id) {
    const HostFree& free = hosts_[id];
    return std::make_tuple(std::count(free.device_milli.begin(), free.device_milli.end(), 1000),
                           std::accumulate(free.device_milli.begin(), free.device_milli.end(), int64_t{0}), free.cpus_milli);
  };
  std::vector<std::pair<int32_t, HostId>> fits;
  HostId single = kNoHost;
  int64_t total = 0;
  for (const HostId id : cell.hosts) {
    const int32_t here = WorkersThatFit(spec, id);
    if (here == 0) continue;
    fits.push_back({here, id});
    total += here;
    if (here >= workers && (single == kNoHost || left(id) < left(single))) single = id;
  }
  if (total < workers) return std::nullopt;
  if (single != kNoHost) return PlannedGang{Part(spec, single, workers)};

  const pb::TopologyLevel required = spec.topology().required();
  if (required == pb::ISLAND || required == pb::HOST) return std::nullopt;
  const auto gang = [&](Group group) {
    // Fewest hosts: the fullest first; the last one the tightest that holds the rest.
    std::stable_sort(group.hosts.begin(), group.hosts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    PlannedGang planned;
    int32_t rest = workers;
    for (size_t h = 0; rest > 0; ++h) {
      size_t use = h;
      if (group.hosts[h].first >= rest) {
        while (use + 1 < group.hosts.size() && group.hosts[use + 1].first >= rest) ++use;
      }
      const int32_t here = std::min(rest, group.hosts[use].first);
      planned.push_back(Part(spec, group.hosts[use].second, here));
      rest -= here;
    }
    return planned;
  };
  for (const pb::TopologyLevel level : {pb::RACK, pb::BLOCK, pb::CLUSTER}) {
    if (required != pb::TOPOLOGY_LEVEL_UNSPECIFIED && required < level) break;
    std::map<std::tuple<std::string, std::string>, Group> groups;
    for (const auto& [here, id] : fits) {
      const HostRow& host = state_.host(id);
      Group& group = groups[{level == pb::CLUSTER ? "" : host.block, level == pb::RACK ? host.rack : ""}];
      group.workers += here;
      group.hosts.push_back({here, id});
    }
    const Group* best = nullptr;
    for (const auto& [name, group] : groups) {
      if (group.workers >= workers && (best == nullptr || group.workers < best->workers)) best = &group;
    }
    if (best != nullptr) return gang(*best);
  }
  return std::nullopt;
}

}  // namespace muster
