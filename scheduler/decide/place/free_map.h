// What hosts have free, to try placements on, and the place of a gang in it (docs/scheduling.md
// §3).
//
// Built once from a State, then kept: Refresh re-reads a host that an event touched, and what a
// decision tries or takes is undone to a mark. Each index (the hosts of one flavour in one cluster;
// for work without GPUs the hosts of a cluster) keeps sums by rack and the hosts ordered for
// one-host slices. These follow lazily: a change only marks its host, the index settles the marked
// ones when it is asked next. So a change costs the devices it touches, and a place costs the racks
// and what it is made of.
//
// Inside of scheduler/decide. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "common/spec/blocks.h"
#include "scheduler/decide/model/model.h"
#include "scheduler/decide/place/slices.h"
#include "scheduler/decide/place/task_mix.h"
#include "scheduler/state/abilities.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

// What one host has free.
struct HostFree {
  bool usable = false;  // may get work
  std::vector<int64_t> device_milli;
  int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
};

class FreeMap {
 public:
  // What is free now on hosts that may get work: up, heard from, not drained. `mix` outlives the
  // map, and who owns it keeps it up to date; nullptr: the mix of the State that the map is built
  // from.
  explicit FreeMap(const State& state, PlacementPolicy policy = PlacementPolicy::kV,
                   const TaskMix* mix = nullptr);
  FreeMap(FreeMap&&) = default;

  // Reads the host anew, after an event that touched its row or its cluster's drain. A host that is
  // new, or has another cluster, flavour, rack or number of devices, makes the map build itself
  // anew. Nothing may be left to undo. After ClustersConfigured, which may move all of them,
  // Rebuild instead.
  void Refresh(const State& state, HostId id);
  // As Refresh, from another map that has just done so: it has read, and was made of, what this one
  // has. Nothing may be left to undo there either.
  void RefreshAs(const FreeMap& twin, const State& state, HostId id);
  void Rebuild(const State& state);

  // Gives back what the attempt holds, its workers as they want it, on usable hosts; or takes it
  // again.
  void Release(const Demand& wants, const AttemptRow& attempt);
  void Take(const pb::TaskSpec& spec, const HostSlices& slices);
  void GiveBack(const pb::TaskSpec& spec, const HostSlices& slices);
  // Nothing that the other map doesn't have either.
  void LimitTo(const FreeMap& other, const HostSlices& slices);

  // Nothing on the host that `free` doesn't have either; nothing at all, should it speak again or
  // not.
  void LimitHost(HostId id, const HostFree& free);
  void Close(HostId id);

  HostFree Peek(HostId id) const;
  // The gang's place is free, on hosts whose agents do what it needs; with `silent_too` also where
  // a host doesn't speak just now, which keeps what is kept there.
  bool Fits(const pb::TaskSpec& spec, const HostSlices& slices, bool silent_too = false,
            Abilities needs = 0) const;

  // UndoTo(mark) takes back every change since Mark() gave it. Marks nest.
  size_t Mark() const { return log_.size(); }
  void UndoTo(size_t mark);
  // Undoes what was changed in its scope.
  class Trial {
   public:
    explicit Trial(FreeMap* map) : map_(map), mark_(map->Mark()) {}
    ~Trial() { map_->UndoTo(mark_); }
    Trial(const Trial&) = delete;
    Trial& operator=(const Trial&) = delete;

   private:
    FreeMap* map_;
    size_t mark_;
  };

  // A place for `workers` of the task on the pool's hosts; none: there is none, by devices, CPUs,
  // memory, disk, what it needs of the hosts' agents and the required level. On one host by the
  // policy; else the tightest level from the preferred one (tightest: island, then host) to the
  // required one that holds them, there in the domain with the least free, spread evenly over as
  // few of its racks (blocks) as hold them, on few hosts in each. Blocks of ranks stay together as
  // topology.blocks requires, and wishes if there is such a place at any level: else with hosts in
  // place of the islands that are wished, then without the largest block's wish, and so on. Hosts
  // in `avoid` (ascending) are used only if there is no place without them. Equal places in State's
  // order of hosts. Parts follow that order, which is by block, then by rack: blocks of ranks lie
  // in it one after the other.
  std::optional<HostSlices> Place(const pb::TaskSpec& spec, int32_t workers, const Pool& pool,
                                  const std::vector<HostId>& avoid = {}, Abilities needs = 0);

  // No more workers than this find a place on the pool's hosts: by counting whole devices, or CPUs.
  int64_t AtMost(const Demand& wants, const Pool& pool);

  // Devices (CPUs for work without GPUs) free on the pool's hosts, in thousandths.
  int64_t FreeMilli(const Pool& pool, bool gpus);

  // "" if what the map keeps equals one built from `state`, else the first difference. For tests.
  std::string Difference(const State& state);

 private:
  enum Field : int32_t {
    kCpus = -1,
    kMemory = -2,
    kDisk = -3,
    kUsable = -4,
    kSilent = -5
  };  // 0 and above: a device
  enum Dirty : uint8_t { kIndexSums = 1, kIndexSlices = 2, kSiteSums = 4, kSiteCpus = 8 };

  using CpusKey = std::tuple<int64_t, int64_t, int32_t>;  // CPUs, memory, slot

  struct Host {
    bool usable = false;
    bool silent = false;  // it would be if it spoke
    uint8_t dirty = 0;
    int32_t cluster = -1;
    int32_t slot = 0;               // in State's order
    int32_t kind = -1;              // index in kinds_
    int32_t index = -1, site = -1;  // index in index; index -1: no devices
    int32_t index_rack = 0, site_rack = 0;
    int32_t first_device = 0, devices = 0;
    int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
    // What the sums of its index and its site hold of it.
    int32_t counted_whole = 0;
    int64_t counted_milli = 0, counted_cpus_milli = 0;
    CpusKey cpus_key{-1, 0, 0};  // in its site's by_cpus; -1: not there
  };
  struct Rack {
    std::string block, name;
    std::vector<HostId> hosts;
    std::vector<int32_t> whole;  // hosts by number of whole devices free
    int64_t cpus_milli = 0;
  };
  struct PoolIndex {
    int32_t cluster = 0;
    std::string flavour;
    bool gpus = false;  // else a site: all hosts of a cluster, for work without GPUs
    std::vector<Rack> racks;
    std::vector<std::vector<int32_t>> blocks;  // racks of each
    int32_t most_devices = 0;                  // of one host
    bool islands = false;                      // some host has more than one
    int64_t milli = 0;                         // free: of devices, for a site of CPUs
    std::vector<int32_t> whole;                // hosts by number of whole devices free
    std::vector<HostId> dirty_sums, dirty_hosts;
    // One-host slices: on GPU hosts by class; in a site the hosts without devices by what they have
    // free.
    std::vector<int32_t> kinds;       // indexes in kinds_ by the scorer's number
    std::vector<int32_t> kind_at;     // the reverse; -1: none of its hosts
    std::vector<int64_t> kind_hosts;  // hosts of each of `kinds`
    bool kinds_changed = true;
    std::unique_ptr<HostScorer> scorer;
    std::unique_ptr<SliceIndex> slices;
    absl::btree_set<CpusKey> by_cpus;
    int32_t mix_pool = -1;              // its number in the mix, of GPU hosts
    uint64_t mix_version = 0;           // that `typical` was read at
    std::vector<TypicalSlice> typical;  // that the scorer knows
  };
  struct Change {
    HostId host;
    int32_t field;
    int64_t before;
  };
  // What each worker of one Place wants.
  struct Wanted {
    SliceWish wish;
    int64_t devices = 0;  // whole ones; 0: none, or a share
    RankUnits units;      // what is together in an island, on a host, in a rack, in a block
    int32_t kind = -1;    // that `demand` and `accepts` are for
    Demand demand;
    bool accepts = true;
  };
  struct Fit {
    HostId host = kNoHost;
    int64_t workers = 0;
  };
  struct Domain {  // a rack or a block
    int32_t index = 0;
    int64_t workers = 0;  // that fit there
    int64_t share = 0;    // that it gets
  };

  void Read(const State& state, HostId id);
  void SetKind(Host* host, int32_t kind);
  void JoinIndexes(const State& state, HostId id,
                   std::map<std::pair<int32_t, std::string>, int32_t>* index_of);
  int32_t KindOf(HostKind kind);
  int64_t Value(const Host& host, int32_t field) const;
  void Store(HostId id, int32_t field, int64_t value);
  void SetValue(HostId id, int32_t field, int64_t value);  // and remembers what was there
  void MarkDirty(HostId id);
  void ChangePart(const Demand& wants, HostId id, int32_t workers,
                  const std::vector<int32_t>& devices, const std::vector<int64_t>& device_milli,
                  int64_t sign);
  PoolIndex* IndexOf(const Pool& pool, bool gpus);
  void SettleSums(PoolIndex* index);
  void SettleHosts(PoolIndex* index);
  void Count(PoolIndex* index, Host* host, int sign);
  HostRoom FreeOf(const PoolIndex& index, const Host& host) const;
  void LearnTypical(PoolIndex* index);

  // place.cc
  std::optional<HostSlices> PlaceIn(PoolIndex* index, const pb::TaskSpec& spec, int32_t workers,
                                    const std::vector<HostId>& avoid, Abilities needs);
  // The same with the blocks of ranks that `wanted` has.
  std::optional<HostSlices> PlaceInUnits(PoolIndex* index, const pb::Topology& topology,
                                         int32_t workers, const std::vector<HostId>& avoid,
                                         Wanted* wanted);
  // In the rack, or block, with the least room that holds it; and over several racks of these
  // blocks.
  std::optional<HostSlices> PlaceInRack(const PoolIndex& index, Wanted* wanted, int32_t workers,
                                        const std::vector<HostId>& avoid);
  std::optional<HostSlices> PlaceInBlock(const PoolIndex& index, Wanted* wanted, int32_t workers,
                                         const std::vector<HostId>& avoid);
  std::optional<HostSlices> Spread(const PoolIndex& index, const std::vector<int32_t>& blocks,
                                   Wanted* wanted, int32_t workers,
                                   const std::vector<HostId>& avoid);
  int64_t AtMostIn(const PoolIndex& index, int32_t rack, const Wanted& wanted) const {
    return AtMost(index.racks[rack].whole, index.racks[rack].cpus_milli, wanted);
  }
  std::optional<HostSlice> PlaceOnOne(PoolIndex* index, Wanted* wanted, int32_t workers,
                                      bool one_island, const std::vector<HostId>& avoid);
  std::optional<HostId> HostWithoutDevices(PoolIndex* index, const Demand& demand, uint64_t labels,
                                           const std::vector<HostId>& avoid);
  static Wanted WantedOf(const Demand& wants, Abilities needs = 0);
  const Demand& DemandAt(Wanted* wanted, const Host& host) const;
  int64_t WholeInRuns(const Host& host, int64_t run) const;
  int64_t Capacity(Wanted* wanted, HostId id) const;
  int64_t AtMost(const std::vector<int32_t>& whole, int64_t cpus_milli, const Wanted& wanted) const;
  int64_t FitsIn(const PoolIndex& index, int32_t rack, Wanted* wanted,
                 const std::vector<HostId>& avoid, std::vector<Fit>* fits) const;
  void Fill(std::vector<Fit> fits, int64_t workers, const Wanted& wanted, HostSlices* slices) const;
  HostSlice PartOn(HostId id, int32_t workers, const Wanted& wanted, int16_t share_of) const;

  PlacementPolicy policy_;
  std::unique_ptr<TaskMix> own_mix_;
  const TaskMix* mix_;
  uint64_t built_ = 0;  // how often
  std::vector<HostKind> kinds_;
  std::map<HostKind, int32_t> kind_of_;
  int32_t last_kind_ = 0;
  std::vector<Host> hosts_;            // by HostId
  std::vector<HostId> host_at_;        // by slot
  std::vector<int16_t> device_milli_;  // of all hosts, one after the other
  std::vector<int8_t> device_island_;  // position in HostKind::islands; -1: the device is down
  std::vector<PoolIndex> indexes_;
  std::vector<std::vector<int32_t>> gpu_indexes_;  // by cluster
  std::vector<Change> log_;
};

// Hosts, ascending, that an attempt of the job was lost on or couldn't be launched on.
std::vector<HostId> HostsToAvoid(const JobRow& job);

}  // namespace muster
