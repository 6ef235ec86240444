// The place of a gang: one host by the policy, else the tightest domain of the topology that holds
// it.
#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "common/base/check.h"
#include "scheduler/decide/place/free_map.h"

namespace muster {
namespace {

constexpr int64_t kMostWorkers = 1 << 20;

// Of so many workers those in whole units.
int64_t Whole(int64_t workers, int64_t unit) { return workers - workers % unit; }
// As many, and so many more that the last unit is whole.
int64_t Filled(int64_t workers, int64_t unit) { return Whole(workers + unit - 1, unit); }

bool Avoided(const std::vector<HostId>& avoid, HostId id) {
  return !avoid.empty() && std::binary_search(avoid.begin(), avoid.end(), id);
}

// Gives each of the domains its share of the workers: as few of them as hold all, of these the
// fullest ones that do, and evenly between them, in multiples of `grain` (what the emptiest host
// holds, so that evenness breaks no host that needn't be broken) and of the domains' unit, of which
// `workers` and what each domain holds are multiples. Domain is {index, workers, share}; in:
// workers by index; out: those with a share, by index.
template <typename Domain>
void Share(std::vector<Domain>* domains, int64_t workers, int64_t grain) {
  std::vector<Domain>& d = *domains;
  std::sort(d.begin(), d.end(), [](const Domain& a, const Domain& b) {
    return a.workers != b.workers ? a.workers > b.workers : a.index < b.index;
  });
  size_t count = 0;
  int64_t spare = -workers;
  while (spare < 0) spare += d[count++].workers;
  // The largest ones make way for smaller ones as long as these still hold all.
  for (size_t i = 0; i < count; ++i) {
    size_t with = d.size() - 1;
    while (with >= count && d[with].workers < d[i].workers - spare) --with;
    if (with < count || d[with].workers >= d[i].workers) continue;
    spare -= d[i].workers - d[with].workers;
    d[i] = d[with];
    d.erase(d.begin() + static_cast<int64_t>(with));
  }
  d.resize(count);
  std::sort(d.begin(), d.end(), [](const Domain& a, const Domain& b) {
    return a.workers != b.workers ? a.workers < b.workers : a.index < b.index;
  });
  int64_t rest = workers;
  for (size_t i = 0; i < count; ++i) {
    const int64_t even =
        (rest + static_cast<int64_t>(count - i) - 1) / static_cast<int64_t>(count - i);
    d[i].share = std::min({d[i].workers, rest, (even + grain - 1) / grain * grain});
    rest -= d[i].share;
  }
  MUSTER_CHECK(rest == 0);
  std::erase_if(d, [](const Domain& domain) { return domain.share == 0; });
  std::sort(d.begin(), d.end(), [](const Domain& a, const Domain& b) { return a.index < b.index; });
}

}  // namespace

const Demand& FreeMap::DemandAt(Wanted* wanted, const Host& host) const {
  if (wanted->kind != host.kind) {
    const HostKind& kind = kinds_[host.kind];
    wanted->kind = host.kind;
    wanted->demand =
        ShareOfHost(wanted->wish.worker, kind.devices(), kind.cpus_milli, kind.memory_bytes);
    wanted->accepts = (wanted->wish.labels & kind.label) != 0;
  }
  return wanted->demand;
}

// Whole devices that the host has free, in runs of so many of one island.
int64_t FreeMap::WholeInRuns(const Host& host, int64_t run) const {
  const int16_t* devices = device_milli_.data() + host.first_device;
  if (run <= 1) return std::count(devices, devices + host.devices, 1000);
  const int8_t* island = device_island_.data() + host.first_device;
  absl::InlinedVector<int64_t, 8> by_island(kinds_[host.kind].islands.size());
  for (int32_t d = 0; d < host.devices; ++d) {
    if (devices[d] == 1000) ++by_island[static_cast<size_t>(island[d])];
  }
  int64_t whole = 0;
  for (const int64_t free : by_island) whole += Whole(free, run);
  return whole;
}

// Workers that the host holds.
int64_t FreeMap::Capacity(Wanted* wanted, HostId id) const {
  const Host& host = hosts_[id];
  if (!host.usable) return 0;
  const Demand& demand = DemandAt(wanted, host);
  if (!wanted->accepts) return 0;
  int64_t workers = kMostWorkers;
  const int16_t* devices = device_milli_.data() + host.first_device;
  if (wanted->devices > 0) {
    workers = WholeInRuns(host, wanted->units.island_gpus);
    if (wanted->devices > 1) workers /= wanted->devices;
  } else if (demand.gpus_milli > 0) {
    workers = std::any_of(devices, devices + host.devices,
                          [&](int16_t milli) { return milli >= demand.gpus_milli; });
  }
  if (workers == 0) return 0;
  if (demand.cpus_milli > 0) workers = std::min(workers, host.cpus_milli / demand.cpus_milli);
  if (demand.memory_bytes > 0) workers = std::min(workers, host.memory_bytes / demand.memory_bytes);
  if (demand.disk_bytes > 0) workers = std::min(workers, host.disk_bytes / demand.disk_bytes);
  return std::max<int64_t>(0, workers);
}

FreeMap::Wanted FreeMap::WantedOf(const Demand& wants, Abilities needs) {
  Wanted wanted;
  wanted.wish.worker = wants;
  wanted.wish.labels = LabelsWith(needs);
  wanted.devices = wants.gpus_milli / 1000;
  if (wants.gpus_milli == 0) wanted.demand = ShareOfHost(wants, 0, 0, 0);
  return wanted;
}

// No more workers than this, by the sums of a index or rack alone.
int64_t FreeMap::AtMost(const std::vector<int32_t>& whole, int64_t cpus_milli,
                        const Wanted& wanted) const {
  if (wanted.wish.worker.gpus_milli == 0) return cpus_milli / wanted.demand.cpus_milli;
  if (wanted.devices == 0) return kMostWorkers;  // shares aren't counted
  int64_t workers = 0;
  for (size_t free = static_cast<size_t>(wanted.devices); free < whole.size(); ++free) {
    workers += whole[free] * (static_cast<int64_t>(free) / wanted.devices);
  }
  return workers;
}

int64_t FreeMap::AtMost(const Demand& wants, const Pool& pool) {
  PoolIndex* index = IndexOf(pool, wants.gpus_milli > 0);
  if (index == nullptr) return 0;
  SettleSums(index);
  return AtMost(index->whole, index->milli, WantedOf(wants));
}

int64_t FreeMap::FitsIn(const PoolIndex& index, int32_t rack, Wanted* wanted,
                        const std::vector<HostId>& avoid, std::vector<Fit>* fits) const {
  int64_t workers = 0;
  for (const HostId id : index.racks[rack].hosts) {
    if (Avoided(avoid, id)) continue;
    const int64_t here = Whole(Capacity(wanted, id), wanted->units.host);
    if (here == 0) continue;
    fits->push_back({id, here});
    workers += here;
  }
  return workers;
}

// The devices of a part: all in one island where that holds them, else in runs as blocks of ranks
// want them, or worker by worker, each in one island where that is possible. The island with the
// fewest free ones first; a share goes to the lowest device with `share_of` free (0: the fullest
// one).
HostSlice FreeMap::PartOn(HostId id, int32_t workers, const Wanted& wanted,
                          int16_t share_of) const {
  const Host& host = hosts_[id];
  HostSlice part;
  part.host = id;
  part.workers = workers;
  const int64_t gpus_milli = wanted.wish.worker.gpus_milli;
  if (gpus_milli == 0) return part;
  std::vector<int16_t> free(device_milli_.begin() + host.first_device,
                            device_milli_.begin() + host.first_device + host.devices);
  if (wanted.devices == 0) {
    if (share_of == 0) {  // the fullest one that holds it
      for (const int16_t milli : free) {
        if (milli >= gpus_milli && (share_of == 0 || milli < share_of)) share_of = milli;
      }
    }
    const auto device = std::find(free.begin(), free.end(), share_of);
    MUSTER_CHECK(share_of > 0 && device != free.end());
    part.devices.push_back(static_cast<int32_t>(device - free.begin()));
    part.device_milli.push_back(gpus_milli);
    return part;
  }
  const int8_t* island = device_island_.data() + host.first_device;
  const auto take = [&](int64_t count, bool one_island) {
    const size_t islands = kinds_[host.kind].islands.size();
    int32_t best = -1;
    int64_t fewest = 0;
    for (size_t i = 0; i < islands; ++i) {
      int64_t here = 0;
      for (int32_t d = 0; d < host.devices; ++d)
        here += free[d] == 1000 && island[d] == static_cast<int8_t>(i) ? 1 : 0;
      if (here >= count && (best < 0 || here < fewest)) {
        best = static_cast<int32_t>(i);
        fewest = here;
      }
    }
    if (best < 0 && one_island) return false;
    for (int32_t d = 0; d < host.devices && count > 0; ++d) {
      if (free[d] != 1000 || (best >= 0 && island[d] != best)) continue;
      free[d] = 0;
      part.devices.push_back(d);
      --count;
    }
    MUSTER_CHECK(count == 0);
    return true;
  };
  if (take(wanted.devices * workers, true)) return part;
  if (const int64_t run = wanted.units.island_gpus; run > 1) {
    for (int64_t taken = 0; taken < wanted.devices * workers; taken += run) {
      const bool whole = take(run, true);
      MUSTER_CHECK(whole);
    }
    return part;
  }
  for (int32_t w = 0; w < workers; ++w) take(wanted.devices, false);
  return part;
}

// Work without GPUs goes where no devices are, to the host with the fewest CPUs left that holds it.
std::optional<HostId> FreeMap::HostWithoutDevices(PoolIndex* index, const Demand& demand,
                                                  uint64_t labels,
                                                  const std::vector<HostId>& avoid) {
  SettleHosts(index);
  for (auto it = index->by_cpus.lower_bound({demand.cpus_milli, 0, 0}); it != index->by_cpus.end();
       ++it) {
    const HostId id = host_at_[std::get<2>(*it)];
    if ((demand.memory_bytes > 0 && std::get<1>(*it) < demand.memory_bytes) ||
        (demand.disk_bytes > 0 && hosts_[id].disk_bytes < demand.disk_bytes) ||
        (labels & kinds_[hosts_[id].kind].label) == 0 || Avoided(avoid, id)) {
      continue;
    }
    return id;
  }
  return std::nullopt;
}

std::optional<HostSlice> FreeMap::PlaceOnOne(PoolIndex* index, Wanted* wanted, int32_t workers,
                                             bool one_island, const std::vector<HostId>& avoid) {
  const bool gpus = wanted->wish.worker.gpus_milli > 0;
  if (gpus && wanted->devices * workers > index->most_devices) return std::nullopt;
  if (gpus && wanted->devices == 0 && workers > 1)
    return std::nullopt;  // shares of one host's devices are for one worker
  SliceWish wish = wanted->wish;
  wish.workers = workers;
  wish.one_island = one_island;
  wish.island_gpus = static_cast<int32_t>(wanted->units.island_gpus);
  if (!gpus) {
    HostKind accepted;
    accepted.label = wish.labels & (~wish.labels + 1);  // one of those that do what it needs
    const Demand demand = *DemandOn(wish, accepted);
    if (const std::optional<HostId> id = HostWithoutDevices(index, demand, wish.labels, avoid))
      return PartOn(*id, workers, *wanted, 0);
  }
  std::vector<int32_t> slots;
  for (const HostId id : avoid) slots.push_back(hosts_[id].slot);
  std::sort(slots.begin(), slots.end());
  std::optional<SliceIndex::Choice> best;
  const auto pick = [&](PoolIndex* from) {
    SettleHosts(from);
    const std::optional<SliceIndex::Choice> choice = from->slices->Pick(wish, slots);
    const auto key = [](const SliceIndex::Choice& c) { return std::make_tuple(c.price, c.slot); };
    if (choice.has_value() && (!best.has_value() || key(*choice) < key(*best))) best = choice;
  };
  if (gpus) {
    pick(index);
  } else {
    for (const int32_t p : gpu_indexes_[index->cluster]) pick(&indexes_[p]);
  }
  if (!best.has_value()) return std::nullopt;
  return PartOn(host_at_[best->slot], workers, *wanted, best->share_of);
}

// The fullest hosts first; the last one is the tightest that holds the rest.
void FreeMap::Fill(std::vector<Fit> fits, int64_t workers, const Wanted& wanted,
                   HostSlices* slices) const {
  std::stable_sort(fits.begin(), fits.end(),
                   [](const Fit& a, const Fit& b) { return a.workers > b.workers; });
  const size_t first = slices->size();
  for (size_t h = 0; workers > 0; ++h) {
    size_t use = h;
    if (fits[h].workers >= workers) {
      const auto less = std::partition_point(
          fits.begin() + h, fits.end(), [&](const Fit& fit) { return fit.workers >= workers; });
      const int64_t tightest = (less - 1)->workers;
      use = std::partition_point(fits.begin() + h, fits.end(),
                                 [&](const Fit& fit) { return fit.workers > tightest; }) -
            fits.begin();
    }
    const int64_t here = std::min(workers, fits[use].workers);
    slices->push_back(PartOn(fits[use].host, static_cast<int32_t>(here), wanted, 0));
    workers -= here;
  }
  std::sort(slices->begin() + first, slices->end(), [&](const HostSlice& a, const HostSlice& b) {
    return hosts_[a.host].slot < hosts_[b.host].slot;
  });
}

std::optional<HostSlices> FreeMap::PlaceInRack(const PoolIndex& index, Wanted* wanted,
                                               int32_t workers, const std::vector<HostId>& avoid) {
  std::vector<std::pair<int64_t, int32_t>> order;
  for (int32_t r = 0; r < static_cast<int32_t>(index.racks.size()); ++r) {
    if (const int64_t most = AtMostIn(index, r, *wanted); most >= workers)
      order.emplace_back(most, r);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [most, rack] : order) {
    std::vector<Fit> fits;
    if (FitsIn(index, rack, wanted, avoid, &fits) < workers) continue;
    HostSlices slices;
    Fill(std::move(fits), workers, *wanted, &slices);
    return slices;
  }
  return std::nullopt;
}

std::optional<HostSlices> FreeMap::Spread(const PoolIndex& index,
                                          const std::vector<int32_t>& blocks, Wanted* wanted,
                                          int32_t workers, const std::vector<HostId>& avoid) {
  std::vector<std::vector<std::vector<Fit>>> fits(blocks.size());  // by block, by rack
  std::vector<Domain> of_blocks;
  std::vector<std::vector<Domain>> of_racks(blocks.size());
  int64_t total = 0, grain = 1;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const std::vector<int32_t>& racks = index.blocks[blocks[b]];
    fits[b].resize(racks.size());
    int64_t in_block = 0;
    for (size_t r = 0; r < racks.size(); ++r) {
      const int64_t in_rack =
          Whole(FitsIn(index, racks[r], wanted, avoid, &fits[b][r]), wanted->units.rack);
      if (in_rack > 0) of_racks[b].push_back({static_cast<int32_t>(r), in_rack});
      for (const Fit& fit : fits[b][r]) grain = std::max(grain, fit.workers);
      in_block += in_rack;
    }
    in_block = Whole(in_block, wanted->units.block);
    if (in_block > 0) of_blocks.push_back({static_cast<int32_t>(b), in_block});
    total += in_block;
  }
  if (total < workers) return std::nullopt;
  HostSlices slices;
  Share(&of_blocks, workers, Filled(grain, wanted->units.block));
  for (const Domain& block : of_blocks) {
    std::vector<Domain>& racks = of_racks[block.index];
    Share(&racks, block.share, Filled(grain, wanted->units.rack));
    for (const Domain& rack : racks)
      Fill(std::move(fits[block.index][rack.index]), rack.share, *wanted, &slices);
  }
  return slices;
}

std::optional<HostSlices> FreeMap::PlaceInBlock(const PoolIndex& index, Wanted* wanted,
                                                int32_t workers, const std::vector<HostId>& avoid) {
  std::vector<std::pair<int64_t, int32_t>> order;
  for (int32_t b = 0; b < static_cast<int32_t>(index.blocks.size()); ++b) {
    int64_t most = 0;
    for (const int32_t rack : index.blocks[b]) most += AtMostIn(index, rack, *wanted);
    if (most >= workers) order.emplace_back(most, b);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [most, block] : order) {
    if (auto slices = Spread(index, {block}, wanted, workers, avoid)) return slices;
  }
  return std::nullopt;
}

std::optional<HostSlices> FreeMap::PlaceIn(PoolIndex* index, const pb::TaskSpec& spec,
                                           int32_t workers, const std::vector<HostId>& avoid,
                                           Abilities needs) {
  Wanted wanted = WantedOf(WantsOf(spec), needs);
  SettleSums(index);
  if (AtMost(index->whole, index->milli, wanted) < workers) return std::nullopt;
  const pb::Topology& topology = spec.topology();
  if (topology.blocks().empty()) return PlaceInUnits(index, topology, workers, avoid, &wanted);
  for (const RankUnits& units : RankUnitsInTurn(spec, index->islands)) {
    if (workers % units.block != 0) continue;
    wanted.units = units;
    if (auto slices = PlaceInUnits(index, topology, workers, avoid, &wanted)) return slices;
  }
  return std::nullopt;
}

std::optional<HostSlices> FreeMap::PlaceInUnits(PoolIndex* index, const pb::Topology& topology,
                                                int32_t workers, const std::vector<HostId>& avoid,
                                                Wanted* wanted) {
  const pb::TopologyLevel required =
      topology.required() == pb::TOPOLOGY_LEVEL_UNSPECIFIED ? pb::CLUSTER : topology.required();
  pb::TopologyLevel preferred =
      topology.preferred() == pb::TOPOLOGY_LEVEL_UNSPECIFIED ? pb::ISLAND : topology.preferred();
  if (workers == 1 && preferred > pb::HOST)
    preferred = pb::HOST;  // one worker is on one host anyhow
  preferred = std::min(preferred, required);
  if (preferred <= pb::HOST) {
    const bool islands = wanted->devices * workers > 1;
    if (required == pb::ISLAND || (preferred == pb::ISLAND && islands && index->islands)) {
      if (auto part = PlaceOnOne(index, wanted, workers, islands, avoid))
        return HostSlices{std::move(*part)};
    }
    if (required == pb::ISLAND) return std::nullopt;
    if (auto part = PlaceOnOne(index, wanted, workers, false, avoid))
      return HostSlices{std::move(*part)};
  }
  if (required <= pb::HOST || workers == 1) return std::nullopt;

  // Domains of a level by what is free in them, the least first: the larger ones stay whole.
  if (preferred <= pb::RACK) {
    if (auto slices = PlaceInRack(*index, wanted, workers, avoid)) return slices;
  }
  if (preferred <= pb::BLOCK && required >= pb::BLOCK) {
    if (auto slices = PlaceInBlock(*index, wanted, workers, avoid)) return slices;
  }
  if (required < pb::CLUSTER) return std::nullopt;
  std::vector<int32_t> all(index->blocks.size());
  for (size_t b = 0; b < all.size(); ++b) all[b] = static_cast<int32_t>(b);
  return Spread(*index, all, wanted, workers, avoid);
}

std::optional<HostSlices> FreeMap::Place(const pb::TaskSpec& spec, int32_t workers,
                                         const Pool& pool, const std::vector<HostId>& avoid,
                                         Abilities needs) {
  PoolIndex* index = IndexOf(pool, spec.resources().gpus_milli() > 0);
  if (index == nullptr || workers <= 0) return std::nullopt;
  if (!avoid.empty()) {
    if (std::optional<HostSlices> slices = PlaceIn(index, spec, workers, avoid, needs))
      return slices;
  }
  return PlaceIn(index, spec, workers, {}, needs);
}

}  // namespace muster
