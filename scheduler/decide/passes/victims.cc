// Whom a claim may stop, and in which order.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

// Of the queues above the claimant the lowest whose limit it would break: what counts against that
// limit in other clusters, too. A limit further up: what is below this one is below that, too, or
// doesn't help alone.
void AddBelowLimit(const Inputs& in, const Gang& claimant, int32_t flavour, int64_t wanted_milli,
                   const QueueUse& use, std::vector<int32_t>* candidates) {
  const Model& model = in.model;
  int32_t node = claimant.leaf;
  while (node >= 0 &&
         use.At(node, flavour) + wanted_milli <= model.QuotaOf(node, flavour).limit_milli)
    node = model.parent[node];
  if (node < 0) return;
  const auto is_below = [&](int32_t leaf) {
    while (leaf > node) leaf = model.parent[leaf];
    return leaf == node;
  };
  for (size_t p = 0; p < model.pools.size(); ++p) {
    const bool same = model.pools[p].flavour == flavour;
    if (!same && flavour != model.cpu) continue;
    for (const int32_t v : model.takeable[p]) {
      if ((same || in.gang(v).worker_cpus_milli > 0) && is_below(in.gang(v).leaf))
        candidates->push_back(v);
    }
  }
}

// What runs in the pool, and what stands on its hosts without devices.
std::vector<int32_t> CandidatesFor(const Inputs& in, const Gang& claimant, int32_t pool,
                                   int64_t demand, int64_t cpus, const QueueUse& use) {
  std::vector<int32_t> candidates = in.model.takeable[pool];
  if (const int32_t cpus = in.model.CpusBeside(pool); cpus >= 0) {
    const std::vector<int32_t>& there = in.model.takeable[cpus];
    candidates.insert(candidates.end(), there.begin(), there.end());
  }
  const size_t there = candidates.size();
  AddBelowLimit(in, claimant, in.model.pools[pool].flavour, demand, use, &candidates);
  if (cpus > 0) AddBelowLimit(in, claimant, in.model.cpu, cpus, use, &candidates);
  if (candidates.size() > there) {
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  }
  return candidates;
}

int64_t LostMilliNs(const Inputs& in, const Gang& gang) {
  const int64_t since_ns = std::max(gang.since_ns(), gang.last_checkpoint_ns);
  const __int128 lost = static_cast<__int128>(gang.worker_milli * gang.workers) *
                        std::max<int64_t>(0, in.now_ns - since_ns);
  return static_cast<int64_t>(std::min<__int128>(lost, kUnbounded));
}

// Those whose queue's level allows it, each once those before it have stopped.
std::vector<Victim> AllowedByLevels(const Inputs& in, const Gang& claimant, int32_t pool,
                                    int64_t demand, const std::vector<Victim>& victims,
                                    const Draft& draft, QueueUse use) {
  std::map<int32_t, int32_t> left;  // workers, by gang
  std::vector<Victim> allowed;
  for (const Victim& victim : victims) {
    const Gang& gang = in.gang(victim.gang);
    if (LevelsCount(in, claimant, gang) &&
        CompareLevels(in, claimant, pool, demand, use, gang, 0, use) >= 0)
      continue;
    for (const int32_t g : RunningOf(in, draft, victim.gang)) {
      const Gang& stops = in.gang(g);
      const int32_t has = left.try_emplace(g, stops.workers).first->second;
      if (!OnlyMoves(in.model, stops)) use.Add(stops, stops.bound_pool, victim.keeps - has);
      left[g] = victim.keeps;
    }
    allowed.push_back(victim);
  }
  return allowed;
}

// A group stops as one: each task of it that runs may be taken, and none is protected any more.
void AddGroup(const Inputs& in, const Gang& claimant, int32_t v, bool grows, Draft* draft,
              std::vector<Victim>* victims) {
  if (in.model.LeaderOf(v) == in.model.LeaderOf(in.IndexOf(claimant))) return;
  Victim victim{-1, 0, 0, in.gang(v).since_ns()};
  for (const int32_t g : RunningOf(in, *draft, v)) {
    const Gang& gang = in.gang(g);
    if (!MayTake(in, claimant, gang, grows) || (gang.entitled && !IsMover(gang))) return;
    if (const int64_t until_ns = ProtectedUntil(in, claimant, gang, grows); until_ns > in.now_ns) {
      draft->WakeAt(until_ns);
      return;
    }
    if (victim.gang < 0 || (gang.gpus && !in.gang(victim.gang).gpus)) victim.gang = g;
    const int64_t lost = LostMilliNs(in, gang);
    victim.lost_milli_ns =
        lost > kUnbounded - victim.lost_milli_ns ? kUnbounded : victim.lost_milli_ns + lost;
  }
  if (victim.gang >= 0) victims->push_back(victim);
}

}  // namespace

std::vector<Victim> VictimsFor(const Inputs& in, const ReclaimRequest& request, Draft* draft) {
  const Gang& claimant = in.gang(request.gang);
  const int32_t pool = request.pool;
  const bool grows = request.grows, guaranteed = claimant.guaranteed && !grows;
  const int32_t workers = request.workers - (grows ? claimant.workers : 0);
  const int64_t demand = request.together ? claimant.unit_milli() : claimant.worker_milli * workers;
  const int64_t cpus =
      request.together ? claimant.unit_cpus_milli() : claimant.worker_cpus_milli * workers;
  const QueueUse& use = draft->later()->use();
  std::vector<Victim> victims;
  std::set<int32_t> groups;
  EachOf(in.model.gangs, CandidatesFor(in, claimant, pool, demand, cpus, use), [&](int32_t v) {
    const Gang& gang = in.gang(v);
    if (gang.leader >= 0) {
      if (groups.insert(in.model.LeaderOf(v)).second)
        AddGroup(in, claimant, v, grows, draft, &victims);
      return;
    }
    if (&gang == &claimant || draft->Stops(v) || !MayTake(in, claimant, gang, grows)) return;
    const auto yields = [&](int64_t protected_ns) {
      if (protected_ns > in.now_ns) draft->WakeAt(protected_ns);
      return protected_ns <= in.now_ns;
    };
    const int64_t lost = LostMilliNs(in, gang);
    const int32_t keeps = std::max(gang.entitled_workers(), gang.min_workers);
    // Outside S it may have more than an edit of its queue's limits allows: it wouldn't start
    // again.
    const bool comes_back = gang.entitled || gang.leaf < 0 ||
                            use.WithinLimits(gang, gang.bound_pool, keeps - gang.workers);
    if (!IsMover(gang) && gang.workers > keeps && comes_back &&
        yields(GrowthProtectedUntil(in, claimant, gang, grows)))
      victims.push_back({v, keeps, lost, gang.since_ns()});
    if ((IsMover(gang) || !gang.entitled) && yields(ProtectedUntil(in, claimant, gang, grows)))
      victims.push_back({v, 0, lost, gang.since_ns()});
  });
  // Where devices are free by number it is CPUs that the claimant wants for: then first what stands
  // on its hosts without devices.
  const bool cpus_first = draft->later()->FreeMilli(pool, claimant.gpus) >= demand;
  const auto place = [&](const Victim& victim) {
    const bool for_cpus = in.gang(victim.gang).gpus != claimant.gpus;
    return std::make_tuple(for_cpus != cpus_first, victim.keeps == 0, victim.lost_milli_ns,
                           -victim.start_ns, victim.gang);
  };
  std::sort(victims.begin(), victims.end(),
            [&](const Victim& a, const Victim& b) { return place(a) < place(b); });
  if (guaranteed || victims.empty()) return victims;
  return AllowedByLevels(in, claimant, pool, demand, victims, *draft, use);
}

}  // namespace muster
