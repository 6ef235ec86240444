#include "scheduler/decide/model/precedence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/job_defaults.h"

namespace muster {

int Compare(const QueueLevel& a, const QueueLevel& b) {
  if (a.rank != b.rank) return a.rank < b.rank ? -1 : 1;
  const __int128 left = static_cast<__int128>(a.over) * b.weight;
  const __int128 right = static_cast<__int128>(b.over) * a.weight;
  return left < right ? -1 : left > right ? 1 : 0;
}

QueueLevel LevelOf(const Model& model, int32_t node, int32_t flavour, int64_t used) {
  const FlavourQuota& quota = model.QuotaOf(node, flavour);
  const int64_t over = quota.listed ? std::max<int64_t>(0, used - quota.guarantee_milli) : 0;
  if (over == 0) return {};
  return quota.weight == 0 ? QueueLevel{2, over, 1} : QueueLevel{1, over, quota.weight};
}

bool IsMover(const Gang& gang) { return gang.entitled && gang.charge != gang.bound_pool; }

bool MayTake(const Inputs& in, const Gang& claimant, const Gang& victim, bool grows) {
  if (victim.gpus && !claimant.gpus) return false;
  const bool runs = victim.current != nullptr;
  if (runs) {
    if (!victim.running() || victim.place_round == in.state.round()) return false;
    if (!victim.hosts_up) return false;  // a gang's devices are free when all of it is gone
    if (IsMover(victim)) return true;
  }
  const bool grown = runs && victim.entitled && victim.workers > victim.entitled_workers();
  if (victim.entitled && !grown) return false;
  // Growth stands behind every gang in its leaf's order; and what borrows CPUs behind other jobs'
  // gangs with devices that are as urgent.
  const bool for_cpus =
      claimant.gpus != victim.gpus && claimant.ref.job != victim.ref.job && !grows;
  return victim.leaf != claimant.leaf || grown ||
         victim.priority < claimant.priority + (for_cpus ? 1 : 0) || IsAhead(claimant, victim);
}

bool IsAhead(const Gang& a, const Gang& b) {
  return a.leaf == b.leaf && a.priority == b.priority && a.band < b.band;
}

bool LevelsCount(const Inputs& in, const Gang& claimant, const Gang& victim) {
  return in.options.levels && claimant.leaf != victim.leaf && victim.leaf >= 0 &&
         claimant.gpus == victim.gpus;
}

int CompareLevels(const Inputs& in, const Gang& claimant, int32_t pool, int64_t demand,
                  const QueueUse& after, const Gang& victim, int64_t more, const QueueUse& before) {
  const Model& model = in.model;
  int32_t mine = claimant.leaf, theirs = victim.leaf;
  while (model.parent[mine] != model.parent[theirs]) {
    const int32_t difference = model.depth[mine] - model.depth[theirs];
    if (difference >= 0) mine = model.parent[mine];
    if (difference <= 0) theirs = model.parent[theirs];
  }
  const int32_t flavour = model.pools[pool].flavour;
  return Compare(LevelOf(model, mine, flavour, after.At(mine, flavour) + demand),
                 LevelOf(model, theirs, flavour, before.At(theirs, flavour) + more));
}

bool LevelAllows(const Inputs& in, const Gang& claimant, int32_t pool, int64_t demand,
                 const Gang& victim, const QueueUse& use, int64_t more) {
  return claimant.guaranteed || !LevelsCount(in, claimant, victim) ||
         CompareLevels(in, claimant, pool, demand, use, victim, more, use) < 0;
}

bool SharesQueue(const Model& model, const Gang& a, const Gang& b) {
  if (a.leaf < 0 || b.leaf < 0) return false;
  const auto below_root = [&](int32_t n) {
    while (model.depth[n] > 1) n = model.parent[n];
    return n;
  };
  return below_root(a.leaf) == below_root(b.leaf);
}

bool OnlyMoves(const Model& model, const Gang& victim) {
  return IsMover(victim) &&
         model.pools[victim.charge].flavour == model.pools[victim.bound_pool].flavour;
}

int64_t MinRuntimeNs(const Inputs& in, int32_t leaf) {
  const int64_t own_ns = leaf < 0 ? 0 : in.state.queues().nodes[leaf].min_runtime_ns;
  return own_ns != 0 ? own_ns : in.options.min_runtime_ns;
}

bool HasIntervalsWork(const Gang& gang, int64_t run_ns) {
  const int64_t told_ns = gang.spec->checkpoint().interval_ns();
  const int64_t interval_ns = told_ns > 0 ? told_ns : kDefaultCheckpointIntervalNs;
  return gang.ran_ns + std::max<int64_t>(0, run_ns) >= interval_ns;
}

namespace {

// Such a claim waits for nobody's min_runtime, but as ProtectedUntil says.
bool StopsAtOnce(const Gang& claimant, const Gang& victim, bool grows) {
  return claimant.guaranteed && !grows && !IsAhead(claimant, victim);
}

}  // namespace

int64_t ProtectedUntil(const Inputs& in, const Gang& claimant, const Gang& victim, bool grows) {
  if (StopsAtOnce(claimant, victim, grows)) {
    const int64_t run_ns = victim.start_ns != 0 ? in.now_ns - victim.start_ns : 0;
    if (victim.entitled || Overdue(in, claimant) || !HasIntervalsWork(victim, run_ns)) return 0;
  }
  return victim.since_ns() + MinRuntimeNs(in, victim.leaf);
}

int64_t GrowthProtectedUntil(const Inputs& in, const Gang& claimant, const Gang& victim,
                             bool grows) {
  if (StopsAtOnce(claimant, victim, grows)) return 0;
  return victim.since_ns() + MinRuntimeNs(in, victim.leaf);
}

int64_t ProtectedFor(const Inputs& in, const Gang& claimant, const Gang& gang) {
  const int64_t min_runtime_ns = MinRuntimeNs(in, gang.leaf);
  const bool at_once = StopsAtOnce(claimant, gang, /*grows=*/false);
  return at_once && !HasIntervalsWork(gang, min_runtime_ns) ? 0 : min_runtime_ns;
}

bool Overdue(const Inputs& in, const Gang& claimant) {
  return claimant.guaranteed && claimant.wants_place() &&
         claimant.row->waiting_since_ns + in.options.min_runtime_ns <= in.now_ns;
}

std::string EntitledTo(const Gang& claimant, const Gang& victim) {
  if (claimant.gpus != victim.gpus) {
    return absl::StrCat("job ", claimant.ref.job,
                        " is entitled to devices of its hosts and CPUs beside them");
  }
  return absl::StrCat("job ", claimant.ref.job, " is entitled to its devices");
}

}  // namespace muster
