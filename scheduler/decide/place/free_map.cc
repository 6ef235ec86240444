#include "scheduler/decide/place/free_map.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr int64_t kFewTasks = 16;  // fewer say nothing about what comes

static_assert(kAbilityBits <= 6, "a label is one bit of 64");

}  // namespace

std::vector<HostId> HostsToAvoid(const JobRow& job) {
  std::set<HostId> hosts;
  for (const TaskRow& task : job.tasks) {
    for (const AttemptRow& attempt : task.attempts) {
      if (!attempt.ended()) continue;
      if (attempt.failed_host != kNoHost) hosts.insert(attempt.failed_host);
      for (const PartRow& part : attempt.parts) {
        const bool alone = attempt.cause == pb::HOST_LOST && attempt.parts.size() == 1;
        if (part.lost || part.cause == pb::HOST_LOST || part.cause == pb::LAUNCH_FAILED ||
            part.lags || alone)
          hosts.insert(part.host);
      }
    }
  }
  return {hosts.begin(), hosts.end()};
}

FreeMap::FreeMap(const State& state, PlacementPolicy policy, const TaskMix* mix)
    : policy_(policy),
      own_mix_(mix == nullptr ? std::make_unique<TaskMix>() : nullptr),
      mix_(mix == nullptr ? own_mix_.get() : mix) {
  Rebuild(state);
}

void FreeMap::Rebuild(const State& state) {
  MUSTER_CHECK(log_.empty());
  ++built_;
  if (own_mix_ != nullptr) own_mix_->Rebuild(state);
  kinds_.clear();
  kind_of_.clear();
  last_kind_ = 0;
  hosts_.clear();
  device_milli_.clear();
  device_island_.clear();
  indexes_.clear();
  host_at_ = state.hosts();
  gpu_indexes_.assign(state.clusters().size(), {});
  HostId bound = 0;
  for (const HostId id : state.hosts()) bound = std::max(bound, id + 1);
  hosts_.resize(static_cast<size_t>(bound));
  std::map<std::pair<int32_t, std::string>, int32_t> index_of;
  for (size_t slot = 0; slot < host_at_.size(); ++slot) {
    hosts_[host_at_[slot]].slot = static_cast<int32_t>(slot);
    JoinIndexes(state, host_at_[slot], &index_of);
    Read(state, host_at_[slot]);
  }
}

void FreeMap::JoinIndexes(const State& state, HostId id,
                          std::map<std::pair<int32_t, std::string>, int32_t>* index_of) {
  const HostRow& row = state.host(id);
  Host& host = hosts_[id];
  host.cluster = row.cluster;
  const auto join = [&](const std::string& flavour, bool gpus, int32_t* rack_index) {
    const auto [it, added] = index_of->emplace(std::make_pair(row.cluster, flavour),
                                               static_cast<int32_t>(indexes_.size()));
    if (added) {
      indexes_.emplace_back();
      indexes_.back().cluster = row.cluster;
      if (gpus)
        indexes_.back().mix_pool = mix_->PoolOf(state.clusters()[row.cluster].name, flavour);
      indexes_.back().flavour = flavour;
      indexes_.back().gpus = gpus;
      if (gpus) gpu_indexes_[row.cluster].push_back(it->second);
    }
    PoolIndex& index = indexes_[it->second];
    // Hosts of a rack follow each other, if anything tells where they are.
    int32_t at = static_cast<int32_t>(index.racks.size()) - 1;
    while (at >= 0 && (index.racks[at].name != row.rack || index.racks[at].block != row.block))
      --at;
    if (at < 0) {
      at = static_cast<int32_t>(index.racks.size());
      index.racks.emplace_back();
      index.racks.back().block = row.block;
      index.racks.back().name = row.rack;
      auto block = std::find_if(index.blocks.begin(), index.blocks.end(), [&](const auto& racks) {
        return index.racks[racks[0]].block == row.block;
      });
      if (block == index.blocks.end()) block = index.blocks.insert(block, std::vector<int32_t>());
      block->push_back(at);
    }
    index.racks[at].hosts.push_back(id);
    *rack_index = at;
    return it->second;
  };
  host.site = join("", false, &host.site_rack);
  host.index =
      row.inventory.flavour().empty() ? -1 : join(row.inventory.flavour(), true, &host.index_rack);
}

int32_t FreeMap::KindOf(HostKind kind) {
  if (last_kind_ < static_cast<int32_t>(kinds_.size()) && kinds_[last_kind_] == kind)
    return last_kind_;  // hosts alike come in rows
  const auto [it, added] = kind_of_.emplace(kind, static_cast<int32_t>(kinds_.size()));
  if (added) kinds_.push_back(std::move(kind));
  return last_kind_ = it->second;
}

void FreeMap::Read(const State& state, HostId id) {
  const HostRow& row = state.host(id);
  Host& host = hosts_[id];
  const bool open = !row.taken_out() && !state.clusters()[row.cluster].drained;
  host.usable = open && row.state == pb::HOST_UP;
  host.silent = open && row.state == pb::HOST_SILENT;
  const int32_t devices = row.inventory.devices_size();
  if (host.devices != devices) {  // the first time: another number later builds the map anew
    host.first_device = static_cast<int32_t>(device_milli_.size());
    host.devices = devices;
    device_milli_.resize(device_milli_.size() + devices);
    device_island_.resize(device_milli_.size());
  }
  absl::InlinedVector<int32_t, 8> islands;  // ascending
  for (const pb::Device& device : row.inventory.devices()) {
    const auto at = std::lower_bound(islands.begin(), islands.end(), device.island());
    if (at == islands.end() || *at != device.island()) islands.insert(at, device.island());
  }
  HostKind kind;
  kind.islands.resize(islands.size());
  kind.cpus_milli = row.inventory.cpus_milli();
  kind.memory_bytes = row.inventory.memory_bytes();
  kind.label = LabelOf(AbilitiesOf(row.inventory));
  for (int32_t d = 0; d < devices; ++d) {
    const pb::Device& device = row.inventory.devices(d);
    const auto island =
        std::lower_bound(islands.begin(), islands.end(), device.island()) - islands.begin();
    ++kind.islands[island];
    device_island_[host.first_device + d] =
        device.healthy() ? static_cast<int8_t>(island) : int8_t{-1};
    device_milli_[host.first_device + d] =
        device.healthy() ? static_cast<int16_t>(1000 - row.device_used_milli[d]) : int16_t{0};
  }
  SetKind(&host, KindOf(std::move(kind)));
  host.cpus_milli = row.inventory.cpus_milli() - row.cpus_used_milli;
  host.memory_bytes = row.inventory.memory_bytes() - row.memory_used_bytes;
  host.disk_bytes = row.inventory.disk_bytes() - row.disk_used_bytes;

  if (host.index >= 0) {
    PoolIndex& index = indexes_[host.index];
    index.most_devices = std::max(index.most_devices, devices);
    index.islands = index.islands || kinds_[host.kind].islands.size() > 1;
  }
  MarkDirty(id);
}

void FreeMap::SetKind(Host* host, int32_t kind) {
  if (host->index >= 0 && host->kind != kind) {
    PoolIndex& index = indexes_[host->index];
    if (host->kind >= 0) --index.kind_hosts[index.kind_at[host->kind]];
    if (kind >= static_cast<int32_t>(index.kind_at.size())) index.kind_at.resize(kind + 1, -1);
    if (index.kind_at[kind] < 0) {
      index.kind_at[kind] = static_cast<int32_t>(index.kinds.size());
      index.kinds.push_back(kind);
      index.kind_hosts.push_back(0);
    }
    ++index.kind_hosts[index.kind_at[kind]];
    index.kinds_changed = true;
  }
  host->kind = kind;
}

void FreeMap::Refresh(const State& state, HostId id) {
  MUSTER_CHECK(log_.empty());
  if (state.hosts().size() != host_at_.size() || id >= static_cast<HostId>(hosts_.size()))
    return Rebuild(state);
  const HostRow& row = state.host(id);
  const Host& host = hosts_[id];
  const auto& rack = indexes_[host.site].racks[host.site_rack];
  const bool same_pool = host.index < 0 ? row.inventory.flavour().empty()
                                        : indexes_[host.index].flavour == row.inventory.flavour();
  if (row.cluster != host.cluster || row.inventory.devices_size() != host.devices ||
      rack.name != row.rack || rack.block != row.block || !same_pool)
    return Rebuild(state);
  Read(state, id);
}

void FreeMap::RefreshAs(const FreeMap& twin, const State& state, HostId id) {
  MUSTER_CHECK(log_.empty() && twin.log_.empty());
  if (twin.built_ != built_) return Refresh(state, id);
  const Host& read = twin.hosts_[id];
  Host& host = hosts_[id];
  for (size_t k = kinds_.size(); k < twin.kinds_.size(); ++k) {
    kind_of_.emplace(twin.kinds_[k], static_cast<int32_t>(k));
    kinds_.push_back(twin.kinds_[k]);
  }
  host.usable = read.usable;
  host.silent = read.silent;
  SetKind(&host, read.kind);
  host.cpus_milli = read.cpus_milli;
  host.memory_bytes = read.memory_bytes;
  host.disk_bytes = read.disk_bytes;
  std::copy_n(twin.device_milli_.begin() + read.first_device, read.devices,
              device_milli_.begin() + host.first_device);
  std::copy_n(twin.device_island_.begin() + read.first_device, read.devices,
              device_island_.begin() + host.first_device);
  if (host.index >= 0) {
    indexes_[host.index].islands = twin.indexes_[read.index].islands;
  }
  MarkDirty(id);
}

int64_t FreeMap::Value(const Host& host, int32_t field) const {
  switch (field) {
    case kCpus:
      return host.cpus_milli;
    case kMemory:
      return host.memory_bytes;
    case kDisk:
      return host.disk_bytes;
    case kUsable:
      return host.usable ? 1 : 0;
    case kSilent:
      return host.silent ? 1 : 0;
    default:
      return device_milli_[host.first_device + field];
  }
}

void FreeMap::MarkDirty(HostId id) {
  Host& host = hosts_[id];
  if (host.index >= 0 && (host.dirty & kIndexSums) == 0)
    indexes_[host.index].dirty_sums.push_back(id);
  if (host.index >= 0 && (host.dirty & kIndexSlices) == 0)
    indexes_[host.index].dirty_hosts.push_back(id);
  if ((host.dirty & kSiteSums) == 0) indexes_[host.site].dirty_sums.push_back(id);
  if ((host.dirty & kSiteCpus) == 0) indexes_[host.site].dirty_hosts.push_back(id);
  host.dirty = kIndexSums | kIndexSlices | kSiteSums | kSiteCpus;
}

void FreeMap::Store(HostId id, int32_t field, int64_t value) {
  Host& host = hosts_[id];
  switch (field) {
    case kCpus:
      host.cpus_milli = value;
      break;
    case kMemory:
      host.memory_bytes = value;
      break;
    case kDisk:
      host.disk_bytes = value;
      break;
    case kUsable:
      host.usable = value != 0;
      break;
    case kSilent:
      host.silent = value != 0;
      break;
    default:
      device_milli_[host.first_device + field] = static_cast<int16_t>(value);
  }
  MarkDirty(id);
}

void FreeMap::SetValue(HostId id, int32_t field, int64_t value) {
  const int64_t before = Value(hosts_[id], field);
  if (before == value) return;
  log_.push_back({id, field, before});
  Store(id, field, value);
}

void FreeMap::UndoTo(size_t mark) {
  MUSTER_CHECK(mark <= log_.size());
  for (; log_.size() > mark; log_.pop_back())
    Store(log_.back().host, log_.back().field, log_.back().before);
}

void FreeMap::ChangePart(const Demand& wants, HostId id, int32_t workers,
                         const std::vector<int32_t>& devices,
                         const std::vector<int64_t>& device_milli, int64_t sign) {
  const Host& host = hosts_[id];
  const HostKind& kind = kinds_[host.kind];
  const Demand demand = ShareOfHost(wants, kind.devices(), kind.cpus_milli, kind.memory_bytes);
  SetValue(id, kCpus, host.cpus_milli + sign * workers * demand.cpus_milli);
  SetValue(id, kMemory, host.memory_bytes + sign * workers * demand.memory_bytes);
  SetValue(id, kDisk, host.disk_bytes + sign * workers * demand.disk_bytes);
  for (size_t d = 0; d < devices.size(); ++d) {
    const int32_t device = devices[d];
    if (device < 0 || device >= host.devices || device_island_[host.first_device + device] < 0)
      continue;
    SetValue(id, device,
             Value(host, device) + sign * (d < device_milli.size() ? device_milli[d] : 1000));
  }
}

void FreeMap::Release(const Demand& wants, const AttemptRow& attempt) {
  for (const PartRow& part : attempt.parts) {
    if (!part.lost) ChangePart(wants, part.host, part.workers, part.devices, part.device_milli, 1);
  }
}

void FreeMap::Take(const pb::TaskSpec& spec, const HostSlices& slices) {
  const Demand wants = WantsOf(spec);
  for (const HostSlice& part : slices)
    ChangePart(wants, part.host, part.workers, part.devices, part.device_milli, -1);
}

void FreeMap::GiveBack(const pb::TaskSpec& spec, const HostSlices& slices) {
  const Demand wants = WantsOf(spec);
  for (const HostSlice& part : slices)
    ChangePart(wants, part.host, part.workers, part.devices, part.device_milli, 1);
}

void FreeMap::LimitTo(const FreeMap& other, const HostSlices& slices) {
  for (const HostSlice& part : slices) LimitHost(part.host, other.Peek(part.host));
}

void FreeMap::LimitHost(HostId id, const HostFree& free) {
  const auto limit = [&](int32_t field, int64_t most) {
    SetValue(id, field, std::min(Value(hosts_[id], field), most));
  };
  for (int32_t d = 0; d < hosts_[id].devices && d < static_cast<int32_t>(free.device_milli.size());
       ++d)
    limit(d, free.device_milli[d]);
  limit(kCpus, free.cpus_milli);
  limit(kMemory, free.memory_bytes);
  limit(kDisk, free.disk_bytes);
}

void FreeMap::Close(HostId id) {
  SetValue(id, kUsable, 0);
  SetValue(id, kSilent, 0);
}

HostFree FreeMap::Peek(HostId id) const {
  const Host& host = hosts_[id];
  HostFree free;
  free.usable = host.usable;
  free.device_milli.assign(device_milli_.begin() + host.first_device,
                           device_milli_.begin() + host.first_device + host.devices);
  free.cpus_milli = host.cpus_milli;
  free.memory_bytes = host.memory_bytes;
  free.disk_bytes = host.disk_bytes;
  return free;
}

bool FreeMap::Fits(const pb::TaskSpec& spec, const HostSlices& slices, bool silent_too,
                   Abilities needs) const {
  const uint64_t labels = LabelsWith(needs);
  for (const HostSlice& part : slices) {
    const Host& host = hosts_[part.host];
    if (!host.usable && !(silent_too && host.silent)) return false;
    const HostKind& kind = kinds_[host.kind];
    if ((labels & kind.label) == 0) return false;
    const Demand demand =
        ShareOfHost(WantsOf(spec), kind.devices(), kind.cpus_milli, kind.memory_bytes);
    if ((demand.cpus_milli > 0 && host.cpus_milli < part.workers * demand.cpus_milli) ||
        (demand.memory_bytes > 0 && host.memory_bytes < part.workers * demand.memory_bytes) ||
        (demand.disk_bytes > 0 && host.disk_bytes < part.workers * demand.disk_bytes)) {
      return false;
    }
    for (size_t d = 0; d < part.devices.size(); ++d) {
      if (part.devices[d] >= host.devices ||
          Value(host, part.devices[d]) <
              (d < part.device_milli.size() ? part.device_milli[d] : 1000))
        return false;
    }
  }
  return true;
}

FreeMap::PoolIndex* FreeMap::IndexOf(const Pool& pool, bool gpus) {
  if (pool.hosts.empty()) return nullptr;
  const Host& host = hosts_[pool.hosts.front()];
  const int32_t index = gpus ? host.index : host.site;
  return index < 0 ? nullptr : &indexes_[index];
}

int64_t FreeMap::FreeMilli(const Pool& pool, bool gpus) {
  PoolIndex* index = IndexOf(pool, gpus);
  if (index == nullptr) return 0;
  SettleSums(index);
  return index->milli;
}

// Adds what the host has now to the sums (sign 1), or takes out what was added (-1).
void FreeMap::Count(PoolIndex* index, Host* host, int sign) {
  Rack& rack = index->racks[index->gpus ? host->index_rack : host->site_rack];
  if (!index->gpus) {
    if (sign > 0)
      host->counted_cpus_milli = host->usable ? std::max<int64_t>(0, host->cpus_milli) : 0;
    rack.cpus_milli += sign * host->counted_cpus_milli;
    index->milli += sign * host->counted_cpus_milli;
    return;
  }
  if (sign > 0) {
    host->counted_whole = 0;
    host->counted_milli = 0;
    for (int32_t d = 0; host->usable && d < host->devices; ++d) {
      const int16_t milli = device_milli_[host->first_device + d];
      host->counted_milli += milli;
      host->counted_whole += milli == 1000 ? 1 : 0;
    }
  }
  index->milli += sign * host->counted_milli;
  if (host->counted_whole == 0) return;
  for (std::vector<int32_t>* whole : {&index->whole, &rack.whole}) {
    if (static_cast<int32_t>(whole->size()) <= host->counted_whole)
      whole->resize(host->counted_whole + 1);
    (*whole)[host->counted_whole] += sign;
  }
}

void FreeMap::SettleSums(PoolIndex* index) {
  for (const HostId id : index->dirty_sums) {
    Host& host = hosts_[id];
    host.dirty &= static_cast<uint8_t>(~(index->gpus ? kIndexSums : kSiteSums));
    Count(index, &host, -1);
    Count(index, &host, 1);
  }
  index->dirty_sums.clear();
}

HostRoom FreeMap::FreeOf(const PoolIndex& index, const Host& host) const {
  HostRoom free;
  free.kind = index.kind_at[host.kind];
  free.cpus_milli = host.cpus_milli;
  free.memory_bytes = host.memory_bytes;
  free.disk_bytes = host.disk_bytes;
  const HostKind& kind = kinds_[host.kind];
  free.device_milli.resize(host.devices);
  size_t from = 0;
  for (size_t i = 0; i < kind.islands.size(); ++i) {
    size_t to = from;
    for (int32_t d = 0; d < host.devices; ++d) {
      if (device_island_[host.first_device + d] == static_cast<int8_t>(i))
        free.device_milli[to++] = device_milli_[host.first_device + d];
    }
    std::sort(free.device_milli.begin() + from, free.device_milli.begin() + to,
              std::greater<int16_t>());
    from += kind.islands[i];
  }
  return free;
}

// What is typical follows the jobs that wait, run and ran, by powers of two: so it, and what the
// scorer remembers, seldom changes.
void FreeMap::LearnTypical(PoolIndex* index) {
  const uint64_t version =
      policy_ == PlacementPolicy::kBestFit ? 0 : mix_->Version(index->mix_pool);
  if (index->slices != nullptr && !index->kinds_changed && index->mix_version == version) return;
  index->mix_version = version;
  std::vector<TypicalSlice> typical;
  if (policy_ != PlacementPolicy::kBestFit) {
    typical = mix_->Typical(index->mix_pool);
    int64_t tasks = 0;
    for (const TypicalSlice& task : typical) tasks += task.count;
    if (tasks < kFewTasks) {
      typical.clear();
      typical.push_back({SliceWish{Demand{500, 0, 0, 0}}, 1});
      for (int32_t devices = 1; devices <= index->most_devices; devices *= 2)
        typical.push_back({SliceWish{Demand{devices * 1000, 0, 0, 0}}, 1});
    }
    if (index->slices != nullptr && !index->kinds_changed && typical == index->typical) return;
  }
  index->kinds_changed = false;
  index->typical = typical;
  std::vector<KindCount> kinds;
  for (size_t k = 0; k < index->kinds.size(); ++k)
    kinds.push_back({kinds_[index->kinds[k]], index->kind_hosts[k]});
  auto scorer = std::make_unique<HostScorer>(policy_, std::move(typical), kinds);
  if (index->slices == nullptr) {
    index->slices = std::make_unique<SliceIndex>(scorer.get());
  } else {
    index->slices->SetScorer(scorer.get());
  }
  index->scorer = std::move(scorer);
}

// Brings the order for one-host slices up to date.
void FreeMap::SettleHosts(PoolIndex* index) {
  if (index->gpus) LearnTypical(index);
  for (const HostId id : index->dirty_hosts) {
    Host& host = hosts_[id];
    host.dirty &= static_cast<uint8_t>(~(index->gpus ? kIndexSlices : kSiteCpus));
    if (index->gpus) {
      if (!host.usable) {
        index->slices->Remove(host.slot);
        continue;
      }
      index->slices->Set(host.slot, FreeOf(*index, host));
    } else {
      const CpusKey key = host.usable && host.devices == 0
                              ? CpusKey{host.cpus_milli, host.memory_bytes, host.slot}
                              : CpusKey{-1, 0, 0};
      if (key == host.cpus_key) continue;
      if (std::get<0>(host.cpus_key) >= 0) index->by_cpus.erase(host.cpus_key);
      host.cpus_key = key;
      if (std::get<0>(key) >= 0) index->by_cpus.insert(key);
    }
  }
  index->dirty_hosts.clear();
}

std::string FreeMap::Difference(const State& state) {
  FreeMap fresh(state, policy_);
  if (hosts_.size() != fresh.hosts_.size() || indexes_.size() != fresh.indexes_.size())
    return "hosts or pools";
  for (const HostId id : state.hosts()) {
    const Host& mine = hosts_[id];
    const Host& other = fresh.hosts_[id];
    std::string name = state.HostName(id);
    if (mine.usable != other.usable || mine.silent != other.silent ||
        mine.devices != other.devices || kinds_[mine.kind] != fresh.kinds_[other.kind])
      return name;
    for (int32_t field = kDisk; field < mine.devices; ++field) {
      if (Value(mine, field) != fresh.Value(other, field))
        return absl::StrCat(name, " field ", field, ": ", Value(mine, field),
                            " != ", fresh.Value(other, field));
    }
  }
  for (size_t p = 0; p < indexes_.size(); ++p) {
    PoolIndex& mine = indexes_[p];
    PoolIndex& other = fresh.indexes_[p];
    const std::string name = absl::StrCat("pool ", p, ": ");
    SettleSums(&mine);
    fresh.SettleSums(&other);
    if (mine.milli != other.milli) return absl::StrCat(name, mine.milli, " != ", other.milli);
    for (size_t r = 0; r < mine.racks.size(); ++r) {
      std::vector<int32_t> a = mine.racks[r].whole, b = other.racks[r].whole;
      a.resize(std::max(a.size(), b.size()));
      b.resize(a.size());
      if (a != b || mine.racks[r].cpus_milli != other.racks[r].cpus_milli)
        return absl::StrCat(name, "rack ", r);
    }
    SettleHosts(&mine);
    fresh.SettleHosts(&other);
    if (mine.by_cpus != other.by_cpus) return name + "by CPUs";
    if (mine.gpus && mine.typical != other.typical) return name + "typical tasks";
    for (const HostId id : state.hosts()) {
      if (!mine.gpus || hosts_[id].index != static_cast<int32_t>(p) || !hosts_[id].usable) continue;
      HostRoom a = mine.slices->at(hosts_[id].slot), b = other.slices->at(hosts_[id].slot);
      a.kind = b.kind = 0;  // kinds are numbered in the order they came
      if (!(a == b)) return absl::StrCat(name, "slices of ", state.HostName(id));
    }
  }
  return "";
}

}  // namespace muster
