#include "scheduler/decide/testing/fuzz_rules.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/decide/decide.h"

namespace muster {
namespace {

using Use = std::vector<int64_t>;  // as Model::use

void AddUse(const Model& m, const Gang& gang, int32_t pool, int64_t workers, Use* use) {
  for (int32_t n = gang.leaf; n >= 0; n = m.parent[n]) {
    (*use)[n * m.flavours.size() + m.pools[pool].flavour] += workers * gang.worker_milli;
    (*use)[n * m.flavours.size() + m.cpu] += workers * gang.worker_cpus_milli;
  }
}

// The level of the claimant's queue, with `after` and its demand, is no higher than that of the
// victim's, with `before` and what the victim adds to it: how far the two queues below the nearest
// one that they share are over their guarantees, by weight.
bool NoHigher(const Model& m, const Gang& claimant, int64_t demand, const Use& after,
              const Gang& victim, int64_t adds, const Use& before) {
  std::vector<int32_t> mine, theirs;  // from the root down
  for (int32_t n = claimant.leaf; n >= 0; n = m.parent[n]) mine.insert(mine.begin(), n);
  for (int32_t n = victim.leaf; n >= 0; n = m.parent[n]) theirs.insert(theirs.begin(), n);
  size_t i = 0;
  while (i < mine.size() && i < theirs.size() && mine[i] == theirs[i]) ++i;
  if (i == mine.size() || i == theirs.size())
    return true;  // one queue, or a queue that is there no more
  const int32_t flavour = m.pools[claimant.charge].flavour;
  const auto level = [&](int32_t n, int64_t used) -> std::array<int64_t, 3> {  // rank, over, weight
    const FlavourQuota& quota = m.quota[n * m.flavours.size() + flavour];
    const int64_t over = quota.listed ? used - quota.guarantee_milli : 0;
    if (over <= 0) return {0, 0, 1};
    return quota.weight == 0 ? std::array<int64_t, 3>{2, over, 1}
                             : std::array<int64_t, 3>{1, over, quota.weight};
  };
  const auto [my_rank, my_over, my_weight] =
      level(mine[i], after[mine[i] * m.flavours.size() + flavour] + demand);
  const auto [rank, over, weight] =
      level(theirs[i], before[theirs[i] * m.flavours.size() + flavour] + adds);
  return my_rank != rank ? my_rank < rank : my_over * weight <= over * my_weight;
}

// What the others of its group take, but for those in `placed`: it stops as one, so its level is
// the whole group's.
int64_t GroupMilli(const Model& m, const Gang& gang, const std::set<TaskRef>& placed) {
  int64_t milli = 0;
  for (const Gang& other : m.gangs) {
    const bool of_group = gang.leader >= 0 && other.ref.job == gang.ref.job &&
                          other.leader == gang.leader && other.gpus == gang.gpus;
    if (of_group && other.ref != gang.ref && !placed.contains(other.ref))
      milli += other.worker_milli * other.min_workers;
  }
  return milli;
}

// The host's part of both, in one device or in what its workers take of the host, is more than
// there is.
bool Clash(const HostRow& host, const Gang& a, const pb::Placement& of_a, const Gang& b,
           const pb::Placement& of_b) {
  std::map<int32_t, int64_t> taken;
  for (const pb::Placement* placement : {&of_a, &of_b}) {
    for (int d = 0; d < placement->devices_size(); ++d)
      taken[placement->devices(d)] +=
          d < placement->device_milli_size() ? placement->device_milli(d) : 1000;
  }
  if (std::any_of(taken.begin(), taken.end(),
                  [](const auto& device) { return device.second > 1000; }))
    return true;
  const Demand x = WorkerDemand(*a.spec, host.inventory), y = WorkerDemand(*b.spec, host.inventory);
  const int64_t n = of_a.workers(), k = of_b.workers();
  return n * x.cpus_milli + k * y.cpus_milli > host.inventory.cpus_milli() ||
         n * x.memory_bytes + k * y.memory_bytes > host.inventory.memory_bytes() ||
         n * x.disk_bytes + k * y.disk_bytes > host.inventory.disk_bytes();
}

}  // namespace

const Gang* GangOf(const Model& model, const State& state, const pb::AttemptKey& key) {
  const JobRow* job = state.FindJobByUid(key.job_uid());
  const auto it = model.gang_of.find({job->number, TaskIndex(*job->spec, key.task())});
  return it == model.gang_of.end() ? nullptr : &model.gangs[it->second];
}

std::string CheckReserved(const State& state, int64_t now_ns, const SchedulingOptions& options,
                          const Model& m, const Plan& plan, int64_t* lent) {
  // State knows an older word of what is reserved (decision 016). That is taken back first, which
  // may not change what is done.
  State asked = state;
  bool any = std::any_of(plan.events.begin(), plan.events.end(), [](const pb::Event& e) {
    return e.has_reservation() && !e.reservation().held();
  });
  for (const TaskRef& ref : state.reserved_tasks()) {
    const JobRow& job = *state.FindJob(ref.job);
    const Reservation& told = *job.tasks[ref.task].reservation;
    const auto silent = [&](const HostSlice& part) {
      return state.host(part.host).state == pb::HOST_SILENT;
    };
    if (told.held || std::any_of(told.parts.begin(), told.parts.end(), silent))
      continue;  // the latter stands until its hosts are back or unreachable
    any = true;
    pb::Event event;
    *event.mutable_reservation()->mutable_key() =
        KeyOf(job, ref.task, job.tasks[ref.task].next_attempt);
    Apply(&asked, event);
  }
  if (!any) return "";
  const Plan anew = Decide(asked, now_ns, options);
  const auto acts = [](const Plan& of) {
    std::string text;
    for (const pb::Event& event : of.events)
      absl::StrAppend(&text, event.has_reservation() ? "" : event.SerializeAsString());
    return text;
  };
  if (acts(plan) != acts(anew)) return "what was told of reservations changes what is done";

  std::vector<std::pair<const Gang*, const pb::ReservationChanged*>> reserved;
  std::map<int32_t, int> in_pool;
  for (const pb::Event& event : anew.events) {
    if (!event.has_reservation() || event.reservation().placements().empty() ||
        event.reservation().held())
      continue;
    const pb::ReservationChanged& e = event.reservation();
    const Gang* gang = GangOf(m, state, e.key());
    if (gang == nullptr || !gang->entitled || !gang->wants_place())
      return "reserves for what is no waiting unit of S";
    const std::string what = absl::StrCat("the reservation of job ", gang->ref.job);
    const Pool& pool = m.pools[gang->charge];
    const bool there = e.cluster() == state.clusters()[pool.cluster].name &&
                       (e.flavour().empty() || e.flavour() == m.flavours[pool.flavour]);
    if (!there) return what + " is outside its charged pool";
    if (e.start_ns() != 0 && e.start_ns() < now_ns) return what + " begins in the past";
    const bool starves = gang->row->waiting_since_ns + options.starve_after_ns <= now_ns;
    if (!e.draining() && (e.start_ns() == 0 || (starves && gang->guaranteed)))
      return what + " doesn't drain";
    if (++in_pool[gang->charge] > 4) return "more than four reservations in a pool";
    reserved.emplace_back(gang, &e);
  }

  Use use = m.use;  // with what starts, in the plan's order
  std::set<TaskRef> placed;
  std::set<std::string> claimants;
  for (const pb::Event& event : plan.events)
    claimants.insert(event.attempt_stopping().claimant().ShortDebugString());
  for (const pb::Event& event : plan.events) {
    if (event.has_attempt_stopping() && event.attempt_stopping().cause() == pb::RESIZE) {
      const Gang& gang = *GangOf(m, state, event.attempt_stopping().key());
      if (claimants.contains(
              KeyOf(*gang.job, gang.ref.task, gang.row->next_attempt).ShortDebugString()))
        continue;  // with others' devices
      AddUse(m, gang, gang.bound_pool, event.attempt_stopping().next_workers() - gang.workers,
             &use);
    }
    if (!event.has_attempt_placed()) continue;
    const pb::AttemptPlaced& e = event.attempt_placed();
    const Gang& gang = *GangOf(m, state, e.key());
    if (gang.hosted) continue;
    const int32_t pool = m.PoolOf(state.FindCluster(e.cluster()),
                                  e.flavour().empty() ? m.cpu : m.FlavourIndex(e.flavour()));
    int64_t left_ns = gang.limit_left_ns;
    if (gang.history_left_ns > 0 && gang.history_left_ns < left_ns)
      left_ns = gang.history_left_ns;  // what ran longer than its history isn't expected to end
    const int64_t end_ns = left_ns == kUnbounded ? 0 : now_ns + std::max<int64_t>(0, left_ns);
    // What has left S since devices were freed for it starts on these, whoever has reserved them
    // meanwhile (decision 016).
    const bool own =
        !gang.entitled && gang.row->reservation != nullptr && gang.row->reservation->held;
    for (const auto& [claimant, reservation] : reserved) {
      const bool beside = claimant->gpus && !gang.gpus && m.CpusBeside(claimant->charge) == pool;
      if ((claimant->charge != pool && !beside) || claimant == &gang || own) continue;
      bool together = false, clash = false;
      for (const pb::Placement& kept : reservation->placements()) {
        for (const pb::Placement& placed : e.placements()) {
          if (kept.host() != placed.host()) continue;
          together = true;
          clash = clash || Clash(state.host(state.FindHost(e.cluster(), kept.host())), *claimant,
                                 kept, gang, placed);
        }
      }
      if (!together || (!clash && (gang.entitled || !reservation->draining()))) continue;
      const int64_t start_ns = reservation->start_ns();
      ++*lent;
      if (start_ns != 0 && end_ns != 0 && end_ns <= start_ns) continue;
      const std::string what =
          absl::StrCat("job ", gang.ref.job, " starts on what is reserved for job ",
                       claimant->ref.job, " from ", (start_ns - now_ns) / kSecond, " s on");
      if (gang.entitled) return what + ", both of S";
      if (reservation->draining()) return what + ", which drains";
      const int64_t own_ns = state.queues().nodes[gang.leaf].min_runtime_ns;
      const bool ahead = gang.leaf == claimant->leaf && gang.priority == claimant->priority &&
                         claimant->job->band < gang.job->band;
      const int64_t min_runtime_ns = own_ns != 0 ? own_ns : options.min_runtime_ns;
      // Once it has worked for a checkpoint interval it is left alone by guaranteed claims, too.
      const bool saves = gang.row->ran_ns + min_runtime_ns >= gang.spec->checkpoint().interval_ns();
      const int64_t protected_ns = claimant->guaranteed && !ahead && !saves ? 0 : min_runtime_ns;
      const int64_t adds = gang.worker_milli * e.workers() + GroupMilli(m, gang, placed),
                    demand = claimant->worker_milli * claimant->min_workers;
      if (gang.leaf == claimant->leaf && !ahead &&
          gang.priority >= claimant->priority + (beside && gang.ref.job != claimant->ref.job))
        return what + ", an equal of its own queue";
      if (now_ns + protected_ns + gang.spec->grace_ns() > start_ns)
        return what + ", and can't be stopped by then";
      if (adds > 4 * (beside ? claimant->host_cpus_milli * claimant->min_workers : demand))
        return what + ", and is more than four times as large";
      // Where the plan left out again what it had counted, it looks again at once.
      const bool counted = plan.next_wake_ns > now_ns;
      if (!claimant->guaranteed && !beside && counted &&
          !NoHigher(m, *claimant, demand, use, gang, adds, use))
        return what + ", whose level is higher";
    }
    AddUse(m, gang, pool, e.workers(), &use);
    placed.insert(gang.ref);
  }
  return "";
}

std::string CheckClaims(const State& state, int64_t now_ns, const SchedulingOptions& options,
                        const Model& m, const Plan& plan, int64_t* judged) {
  struct Claim {
    const Gang* claimant = nullptr;
    int64_t evicted = 0, moved = 0;                // of what has devices if it has
    int64_t evicted_beside = 0, moved_beside = 0;  // of what hasn't, for one that has
    std::vector<const Gang*> victims;
  };
  std::map<TaskRef, Claim> claims;
  std::map<TaskRef, int32_t> grow;  // to so many workers
  std::set<TaskRef> held;           // beside claimants and victims
  bool alone = true;  // nothing else is placed or held: what is used is known without the order of
                      // the decision
  Use before = m.use;
  for (const Gang& gang : m.gangs) {
    if (!gang.stopping || gang.bound_pool < 0 || gang.may_be_lost) continue;
    const int64_t since_ns = std::max(gang.current->stop_ns, state.listens_since_ns());
    if (since_ns + gang.current->grace_ns + 2 * kMinute > now_ns)
      AddUse(m, gang, gang.bound_pool, -gang.workers, &before);
  }
  for (const TaskRef& ref : state.reserved_tasks())
    alone = alone && !state.FindJob(ref.job)->tasks[ref.task].reservation->held;
  Use after = before;
  for (const pb::Event& event : plan.events) {
    if (event.has_reservation() && event.reservation().held())
      held.insert(GangOf(m, state, event.reservation().key())->ref);
    alone = alone && !event.has_attempt_placed() && !event.has_attempt_lost();
    if (!event.has_attempt_stopping()) continue;
    const pb::AttemptStopping& e = event.attempt_stopping();
    const Gang* gang = GangOf(m, state, e.key());
    if (gang == nullptr) continue;
    if (e.cause() == pb::RESIZE) {
      grow[gang->ref] = e.next_workers();
    } else if (e.cause() == pb::PREEMPTION) {
      const Gang* claimant = GangOf(m, state, e.claimant());
      if (claimant == nullptr) continue;
      Claim& claim = claims[claimant->ref];
      claim.claimant = claimant;
      claim.victims.push_back(gang);
      if (e.next_workers() == gang->workers) {
        (gang->gpus == claimant->gpus ? claim.moved : claim.moved_beside) +=
            gang->worker_milli * gang->workers;
      } else {
        (gang->gpus == claimant->gpus ? claim.evicted : claim.evicted_beside) +=
            gang->worker_milli * (gang->workers - e.next_workers());
        // What only moves goes on counting where its queues stand.
        const bool moves = gang->entitled && gang->charge != gang->bound_pool &&
                           m.pools[gang->charge].flavour == m.pools[gang->bound_pool].flavour;
        if (!moves) AddUse(m, *gang, gang->bound_pool, e.next_workers() - gang->workers, &after);
      }
    } else if (!gang->may_be_lost && gang->bound_pool >= 0) {
      AddUse(m, *gang, gang->bound_pool, -gang->workers, &before);
      AddUse(m, *gang, gang->bound_pool, -gang->workers, &after);
    }
  }
  for (const auto& [ref, workers] : grow) alone = alone && claims.contains(ref);
  for (const auto& [ref, claim] : claims) {
    held.erase(ref);
    for (const Gang* victim : claim.victims) held.erase(victim->ref);
  }
  alone = alone && claims.size() == 1 && held.empty();
  for (const auto& [ref, claim] : claims) {
    const Gang& claimant = *claim.claimant;
    const bool grows = grow.contains(ref);
    const int64_t asks = grows ? grow[ref] - claimant.workers : claimant.min_workers;
    const int64_t demand = claimant.worker_milli * asks,
                  demand_beside = claimant.host_cpus_milli * asks;
    int64_t asked = 0, asked_beside = 0;  // by all that waits for the same
    for (const Gang& gang : m.gangs) {
      const bool same = gang.charge == claimant.charge && gang.leaf == claimant.leaf &&
                        gang.guaranteed == claimant.guaranteed;
      if (!gang.entitled || grows) continue;
      const bool of_group = gang.ref.job == claimant.ref.job && gang.leader == claimant.leader;
      // One that may be lost starts again with its group.
      if (!gang.wants_place() && !(of_group && gang.may_be_lost)) continue;
      if (of_group && gang.leader >= 0 && gang.gpus != claimant.gpus)
        asked_beside += gang.worker_milli * gang.min_workers;
      if (!same) continue;
      asked += gang.worker_milli * gang.min_workers;
      asked_beside += gang.host_cpus_milli * gang.min_workers;
    }
    // Decision 024.
    const bool overdue = claimant.guaranteed && claimant.wants_place() &&
                         claimant.row->waiting_since_ns + options.min_runtime_ns <= now_ns;
    if (!overdue && claim.evicted > 4 * std::max(demand, asked)) {
      return absl::StrCat("stops ", claim.evicted, " for job ", ref.job, ", which asks for ",
                          demand, " and its like for ", asked);
    }
    if (claim.moved > 4 * demand)
      return absl::StrCat("moves ", claim.moved, " for job ", ref.job, ", which asks for ", demand);
    if (claim.moved_beside > 4 * demand_beside ||
        (!overdue && claim.evicted_beside > 4 * std::max(demand_beside, asked_beside))) {
      return absl::StrCat("moves ", claim.moved_beside, " and stops ", claim.evicted_beside,
                          " of CPUs for job ", ref.job, ", which asks for ", demand_beside);
    }
    if (!alone || (claimant.guaranteed && !grows)) continue;
    for (const Gang* victim : claim.victims) {
      if (victim->gpus != claimant.gpus) continue;
      ++*judged;
      if (NoHigher(m, claimant, demand, after, *victim, 0, before)) continue;
      return absl::StrCat("job ", victim->ref.job, " is stopped for job ", ref.job,
                          ", whose level will be higher");
    }
  }
  return "";
}

}  // namespace muster
