// Keeps a Model, with its entitled set, between decisions and brings it up to what State says now.
//
// It holds a copy of the State that it saw last, so that State::Since tells which jobs and hosts
// were written meanwhile; only those are read again. A State that is no continuation of it differs
// everywhere and is read from scratch: the model is that of a fresh ModelUpkeep in every case, and
// the test holds that. Rare changes (clusters or queues configured, a new flavour, a cluster's
// first host of a flavour) read everything again.
//
// What time alone changes is looked at in every call: while most of a cluster is silent, nothing
// there may be lost (contract 11). Inside of scheduler/decide. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/decide/entitle/entitle.h"
#include "scheduler/decide/model/model.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

class ModelUpkeep {
 public:
  // The model of this State and time, entitled set included. Valid until the next call, and while
  // the State's rows are alive: they are, at least until then.
  const Model& Update(const State& state, int64_t now_ns, const SchedulingOptions& options);

 private:
  // What a host adds to its pools, and what decides that.
  struct HostShare {
    bool known = false;  // it was heard from
    pb::HostState state = pb::HOST_NEVER_SEEN;
    int32_t cluster = 0;
    int32_t flavour = -1;  // of its devices
    int32_t cpu_pool = -1, gpu_pool = -1;
    int64_t cpus_known_milli = 0, gpus_known_milli = 0;
    int64_t cpus_milli = 0, gpus_milli = 0;  // capacity
    bool drained = false, usable = false;
    std::string state_id;
    Abilities abilities = 0;
    int64_t silent_since_ns = 0, spoke_ns = 0, state_since_ns = 0;
  };

  void Rebuild(const State& state, int64_t now_ns, const SchedulingOptions& options);
  // False: only Rebuild can.
  bool Follow(const State& state, const Touched& touched, int64_t now_ns,
              const SchedulingOptions& options);
  void ReadRanks(const State& state);
  void ReadHistory(const State& state);
  HostShare ReadHost(const State& state, HostId id) const;
  bool FollowHost(const State& state, HostId id);
  // While at least three hosts and more than half of a cluster are silent, nothing of them may
  // become Lost.
  bool MassLoss(int32_t cluster, int64_t now_ns, const SchedulingOptions& options) const;
  // The unreachable hosts of clusters where that begins or ends.
  std::vector<HostId> FollowMassLoss(const State& state, int64_t now_ns,
                                     const SchedulingOptions& options);
  bool MayBeLost(const State& state, const JobRow& job, const pb::TaskSpec& spec,
                 const AttemptRow& attempt) const;
  // Reads of which jobs the host has strays (strays.h); `jobs` gets them, and those of before.
  void FollowStrays(const State& state, HostId id, std::set<uint64_t>* jobs);
  // One of its may run on some host.
  bool IsAstray(const State& state, const JobRow& job) const;
  // It was cancelled, or has failed.
  static bool Ends(const JobRow& job);
  Gang ReadGang(const State& state, const JobRow& job, int32_t task,
                const std::vector<int32_t>& clusters, int32_t leaf);
  void ReadPools(const State& state, const std::vector<int32_t>& clusters, Gang* gang) const;
  void ReadJob(const State& state, uint64_t number, size_t first);
  void ReadTogether(const State& state, const JobRow& job, size_t first,
                    const std::vector<int32_t>& clusters, int32_t leaf);
  int32_t ShapeOfTogether(const TaskRef& ref);
  bool FollowJob(const State& state, uint64_t number);
  void Replace(size_t b, Gang fresh);
  // Puts the gang into the model's lists and sums, or takes it out of them.
  void List(int32_t b, bool there);
  void ListTakeable(int32_t b);
  void FollowLeaders();
  void OrderClaims();
  void Compact();

  // What a worker that names no CPUs gets beside its devices is told by one host of each pool: of
  // those with the most devices the one with the most CPUs. One that comes back with fewer devices
  // and all its CPUs tells nothing of the others.
  struct CpuShare {
    HostId host = -1;  // -1: none has devices
    int64_t cpus_milli = 0;
    int32_t devices = 0;
    bool operator<(const CpuShare& other) const {
      return std::tie(devices, cpus_milli) < std::tie(other.devices, other.cpus_milli);
    }
  };
  static CpuShare ShareOf(const State& state, HostId host);
  void ReadShares(const State& state);
  // The host, which was in that pool of devices, leaves the shares as they are.
  bool SharesStand(const State& state, HostId host, int32_t was_in) const;

  Model model_;
  Entitlement entitlement_;
  std::vector<bool> counts_cpus_;  // by queue node: it or one above it lists cpu
  std::vector<CpuShare> shares_;   // by pool
  bool stale_ = true;              // the entitled set has to be computed again
  bool built_ = false;             // changes of gangs have to be told to entitlement_
  std::optional<State> seen_;
  std::vector<HostShare> hosts_;        // by HostId
  std::vector<int32_t> rank_;           // by HostId: its place in State's order
  std::vector<int32_t> flavour_hosts_;  // by flavour: hosts that have it
  std::set<HostId> unreachable_;
  std::map<HostId, std::set<std::string>> strays_;  // uids of jobs; hosts without are left out
  std::map<int32_t, bool> mass_loss_;               // of the clusters with unreachable hosts
  // Workers, a worker's GPUs, CPUs, memory and disk, what it needs of agents, topology preferred
  // and required, its blocks of ranks (GPUs, preferred, required); of what starts together -1, job
  // and task.
  std::map<std::tuple<int32_t, int64_t, int64_t, int64_t, int64_t, Abilities, int, int,
                      std::vector<int32_t>>,
           int32_t>
      shapes_;
  std::set<uint64_t> over_;  // finished jobs whose gangs are still in the model
  size_t over_gangs_ = 0;
};

}  // namespace muster
