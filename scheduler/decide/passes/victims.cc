// Whom a claim may stop, and in which order.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/claims.h"

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
                                   int32_t workers, const QueueUse& use) {
  std::vector<int32_t> candidates = in.model.takeable[pool];
  if (const int32_t cpus = in.model.CpusBeside(pool); cpus >= 0) {
    const std::vector<int32_t>& there = in.model.takeable[cpus];
    candidates.insert(candidates.end(), there.begin(), there.end());
  }
  const size_t there = candidates.size();
  AddBelowLimit(in, claimant, in.model.pools[pool].flavour, claimant.worker_milli * workers, use,
                &candidates);
  if (claimant.worker_cpus_milli > 0) {
    AddBelowLimit(in, claimant, in.model.cpu, claimant.worker_cpus_milli * workers, use,
                  &candidates);
  }
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
                                    QueueUse use) {
  std::map<int32_t, int32_t> left;  // workers, by gang
  std::vector<Victim> allowed;
  for (const Victim& victim : victims) {
    const Gang& gang = in.gang(victim.gang);
    if (LevelsCount(in, claimant, gang) &&
        CompareLevels(in, claimant, pool, demand, use, gang, 0, use) >= 0)
      continue;
    const int32_t has = left.try_emplace(victim.gang, gang.workers).first->second;
    if (!OnlyMoves(in.model, gang)) use.Add(gang, gang.bound_pool, victim.keeps - has);
    left[victim.gang] = victim.keeps;
    allowed.push_back(victim);
  }
  return allowed;
}

}  // namespace

std::vector<Victim> VictimsFor(const Inputs& in, const Gang& claimant, int32_t pool,
                               int32_t workers, bool grows, Draft* draft) {
  const bool guaranteed = claimant.guaranteed && !grows;
  const int64_t demand = claimant.worker_milli * workers;
  const QueueUse& use = draft->later()->use();
  std::vector<Victim> victims;
  EachOf(in.model.gangs, CandidatesFor(in, claimant, pool, workers, use), [&](int32_t v) {
    const Gang& gang = in.gang(v);
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
  return AllowedByLevels(in, claimant, pool, demand, victims, use);
}

}  // namespace muster
