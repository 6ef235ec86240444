// Reclaim (SCHEDULING.md §2): starts an entitled unit by stopping units that are not entitled,
// victims and placement together; one with devices may stop what stands on their hosts without, too
// (docs/decisions/046-cpus-beside-devices.md).
#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/round.h"

namespace muster {

HostSlices SliceOf(const pb::TaskSpec& spec, const AttemptRow& attempt, int32_t from, int32_t to) {
  const int64_t gpus_milli = spec.resources().gpus_milli();
  const size_t a_worker = gpus_milli >= 1000 ? static_cast<size_t>(gpus_milli / 1000)
                          : gpus_milli > 0   ? 1
                                             : 0;
  HostSlices slice;
  int32_t rank = 0;
  for (const PartRow& part : attempt.parts) {
    const int32_t first = std::max(from, rank) - rank,
                  last = std::min(to, rank + part.workers) - rank;
    rank += part.workers;
    if (first >= last || part.lost) continue;
    HostSlice& here = slice.emplace_back();
    here.host = part.host;
    here.workers = last - first;
    for (size_t d = first * a_worker; d < last * a_worker && d < part.devices.size(); ++d) {
      here.devices.push_back(part.devices[d]);
      if (d < part.device_milli.size()) here.device_milli.push_back(part.device_milli[d]);
    }
  }
  return slice;
}

HostSlices Shortened(const pb::TaskSpec& spec, const HostSlices& slices, int32_t workers) {
  AttemptRow whole;
  for (const HostSlice& slice : slices) {
    PartRow& part = whole.parts.emplace_back();
    part.host = slice.host;
    part.workers = slice.workers;
    part.devices = slice.devices;
    part.device_milli = slice.device_milli;
  }
  return SliceOf(spec, whole, 0, workers);
}

int Round::Compare(const Level& a, const Level& b) {
  if (a.rank != b.rank) return a.rank < b.rank ? -1 : 1;
  const __int128 left = static_cast<__int128>(a.over) * b.weight,
                 right = static_cast<__int128>(b.over) * a.weight;
  return left < right ? -1 : left > right ? 1 : 0;
}

Round::Level Round::LevelOf(int32_t node, int32_t flavour, int64_t used) const {
  const FlavourQuota& quota = QuotaOf(node, flavour);
  const int64_t over = quota.listed ? std::max<int64_t>(0, used - quota.guarantee_milli) : 0;
  if (over == 0) return {};
  return quota.weight == 0 ? Level{2, over, 1} : Level{1, over, quota.weight};
}

bool Round::LevelAllows(const Gang& claimant, int32_t pool, int64_t demand, const Gang& victim,
                        const Use& use, int64_t more) const {
  return claimant.guaranteed || !LevelsCount(claimant, victim) ||
         CompareLevels(claimant, pool, demand, use, victim, more, use) < 0;
}

bool Round::LevelsCount(const Gang& claimant, const Gang& victim) const {
  return options_.levels && claimant.leaf != victim.leaf && victim.leaf >= 0 &&
         claimant.gpus == victim.gpus;
}

bool Round::SharesQueue(const Gang& a, const Gang& b) const {
  if (a.leaf < 0 || b.leaf < 0) return false;
  const auto below_root = [&](int32_t n) {
    while (m_.depth[n] > 1) n = m_.parent[n];
    return n;
  };
  return below_root(a.leaf) == below_root(b.leaf);
}

int Round::CompareLevels(const Gang& claimant, int32_t pool, int64_t demand, const Use& after,
                         const Gang& victim, int64_t more, const Use& before) const {
  // The two queues below the nearest one that they share.
  int32_t mine = claimant.leaf, theirs = victim.leaf;
  while (m_.parent[mine] != m_.parent[theirs]) {
    const int32_t difference = m_.depth[mine] - m_.depth[theirs];
    if (difference >= 0) mine = m_.parent[mine];
    if (difference <= 0) theirs = m_.parent[theirs];
  }
  const int32_t f = m_.pools[pool].flavour;
  return Compare(LevelOf(mine, f, UseAt(after, mine, f) + demand),
                 LevelOf(theirs, f, UseAt(before, theirs, f) + more));
}

int64_t Round::ProtectedUntil(const Gang& victim) const {
  const int64_t own_ns = victim.leaf < 0 ? 0 : s_.queues().nodes[victim.leaf].min_runtime_ns;
  return victim.since_ns() + (own_ns != 0 ? own_ns : options_.min_runtime_ns);
}

bool Round::MayTake(const Gang& claimant, const Gang& victim, bool grows) const {
  if (victim.gpus && !claimant.gpus) return false;
  const bool runs = victim.current != nullptr;
  if (runs && (!victim.running() || victim.place_round == s_.round()))
    return false;                              // started in this round
  if (runs && !victim.hosts_up) return false;  // a gang's devices are free when all of it is gone
  const bool mover = runs && victim.entitled && victim.charge != victim.bound_pool;
  if (mover) return true;
  const bool grown = runs && victim.entitled && victim.workers > victim.entitled_workers();
  if (victim.entitled && !grown) return false;
  // Growth stands behind every gang in its leaf's order; and what borrows CPUs behind other jobs'
  // gangs with devices that are as urgent.
  const bool beside = claimant.gpus != victim.gpus && claimant.ref.job != victim.ref.job && !grows;
  return victim.leaf != claimant.leaf || grown ||
         victim.priority < claimant.priority + (beside ? 1 : 0);
}

std::string Round::EntitledTo(const Gang& claimant, const Gang& victim) {
  if (claimant.gpus != victim.gpus)
    return absl::StrCat("job ", claimant.ref.job,
                        " is entitled to devices of its hosts and CPUs beside them");
  return absl::StrCat("job ", claimant.ref.job, " is entitled to its devices");
}

bool Round::OnlyMoves(const Gang& victim) const {
  return victim.entitled && victim.charge != victim.bound_pool &&
         m_.pools[victim.charge].flavour == m_.pools[victim.bound_pool].flavour;
}

std::vector<Round::Victim> Round::VictimsFor(int32_t b, int32_t pool, int32_t workers,
                                             bool guaranteed, bool grows) {
  const Gang& claimant = m_.gangs[b];
  const int64_t demand = claimant.worker_milli * workers;
  std::vector<int32_t> candidates = m_.takeable[pool];
  // And what stands on its hosts without devices: first where those are free by number, and it is
  // CPUs that it wants for.
  if (const int32_t cpus = m_.CpusBeside(pool); cpus >= 0)
    candidates.insert(candidates.end(), m_.takeable[cpus].begin(), m_.takeable[cpus].end());
  const bool cpus_first = future_.FreeMilli(m_.pools[pool], claimant.gpus) >= demand;
  // Where a limit is in the way, what counts against it in other clusters, too.
  const auto add_below = [&](int32_t flavour, int64_t asked) {
    for (int32_t n = claimant.leaf; n >= 0; n = m_.parent[n]) {
      if (UseAt(use_future_, n, flavour) + asked <= QuotaOf(n, flavour).limit_milli) continue;
      for (size_t c = 0; c < m_.pools.size(); ++c) {
        if (m_.pools[c].flavour != flavour && flavour != m_.cpu) continue;
        for (const int32_t v : m_.takeable[c]) {
          int32_t up = m_.gangs[v].leaf;
          while (up > n) up = m_.parent[up];
          if (up == n && (m_.pools[c].flavour == flavour || m_.gangs[v].worker_cpus_milli > 0))
            candidates.push_back(v);
        }
      }
      return;  // a limit further up: what is below this one is below that, too, or doesn't help
               // alone
    }
  };
  const size_t there = candidates.size();
  add_below(m_.pools[pool].flavour, demand);
  if (claimant.worker_cpus_milli > 0) add_below(m_.cpu, claimant.worker_cpus_milli * workers);
  if (candidates.size() > there) {
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  }
  std::vector<Victim> all;
  EachOf(m_.gangs, candidates, [&](int32_t v) {
    const Gang& gang = m_.gangs[v];
    if (v == b || stopped_[v] || !MayTake(claimant, gang, grows)) return;
    const int64_t protected_ns = ProtectedUntil(gang);
    if (!guaranteed && protected_ns > now_ns_) {
      WakeAt(protected_ns);
      return;
    }
    const int64_t start_ns = gang.since_ns();
    const int64_t since_ns = std::max(start_ns, gang.last_checkpoint_ns);
    const int64_t held = gang.worker_milli * gang.workers;
    const int64_t lost = static_cast<int64_t>(std::min<__int128>(
        static_cast<__int128>(held) * std::max<int64_t>(0, now_ns_ - since_ns), kUnbounded));
    const bool mover = gang.entitled && gang.charge != gang.bound_pool;
    const int32_t keeps = mover ? 0 : std::max(gang.entitled_workers(), gang.min_workers);
    if (keeps > 0 && gang.workers > keeps) all.push_back({v, keeps, lost, start_ns});
    if (mover || !gang.entitled) all.push_back({v, 0, lost, start_ns});
  });
  std::sort(all.begin(), all.end(), [&](const Victim& x, const Victim& y) {
    const auto place = [&](const Victim& v) {
      const bool beside = m_.gangs[v.gang].gpus != claimant.gpus;
      return std::make_tuple(beside != cpus_first, v.keeps == 0, v.lost_milli_ns, -v.start_ns,
                             v.gang);
    };
    return place(x) < place(y);
  });
  if (guaranteed || all.empty()) return all;

  Use use = use_future_;
  std::map<int32_t, int32_t> left;  // workers, by gang
  std::vector<Victim> allowed;
  for (const Victim& v : all) {
    const Gang& gang = m_.gangs[v.gang];
    if (LevelsCount(claimant, gang) &&
        CompareLevels(claimant, pool, demand, use, gang, 0, use) >= 0)
      continue;
    const int32_t has = left.try_emplace(v.gang, gang.workers).first->second;
    if (!OnlyMoves(gang)) AddUse(&use, gang, gang.bound_pool, v.keeps - has);
    left[v.gang] = v.keeps;
    allowed.push_back(v);
  }
  return allowed;
}

// It wouldn't be free when what grows has stopped: that would start as small as it was, and grow
// again.
void Round::TakeBackUnanswered(Use* use) {
  const auto take_back = [&](const Gang& gang) {
    if (gang.hosts_up || gang.bound_pool < 0 || gang.may_be_lost || Unanswered(gang)) return;
    AddUse(use, gang, gang.bound_pool, gang.workers);
    future_.LimitTo(now_, SliceOf(*gang.spec, *gang.current, 0,
                                  gang.workers));  // it may be held for others in part
  };
  for (const int32_t v : m_.stopping) take_back(m_.gangs[v]);
  for (const int32_t v : stops_now_) take_back(m_.gangs[v]);
}

Round::Claim Round::Reclaim(int32_t b, int32_t pool, int32_t workers, bool grows, bool takes_all) {
  const Gang& claimant = m_.gangs[b];
  const bool guaranteed = claimant.guaranteed && !grows;
  const int32_t has = grows ? claimant.workers : 0;
  const int64_t demand = claimant.worker_milli * (workers - has);
  const int64_t end_ns = EndIfStarted(claimant);
  const std::array<int64_t, 4> key{
      (guaranteed ? kGuaranteedClaim : kOtherClaim) + kKinds * int64_t{claimant.priority}, pool,
      grows ? -1 - b : int64_t{claimant.leaf} << 32 | claimant.shape,
      LentBits(claimant, pool, end_ns)};
  if (failed_.contains(key)) return Claim::kNobody;
  const std::vector<Victim> victims = VictimsFor(b, pool, workers - has, guaranteed, grows);
  if (victims.empty()) {
    failed_.insert(key);
    return Claim::kNobody;
  }
  // On the maps of the future: what each victim gives back, in that order, and what it still has.
  std::map<int32_t, int32_t> left;  // workers, by gang
  for (const Victim& v : victims) left[v.gang] = m_.gangs[v.gang].workers;
  Use use = use_future_;
  Use levels =
      guaranteed ? Use() : use;  // what only moves, left as it is; nobody within a guarantee asks
  const auto add = [&](const Gang& gang, int32_t in, int64_t by) {
    AddUse(&use, gang, in, by);
    if (!guaranteed && !OnlyMoves(gang)) AddUse(&levels, gang, in, by);
  };
  const size_t start_mark = future_.Mark();
  if (grows) {
    TakeBackUnanswered(&use);
    future_.Release(claimant.wants, *claimant.current);
    add(claimant, pool, -has);
  }
  const auto set_left = [&](int32_t v, int32_t to) {
    const Gang& gang = m_.gangs[v];
    int32_t& from = left[v];
    if (to < from) future_.GiveBack(*gang.spec, SliceOf(*gang.spec, *gang.current, to, from));
    if (to > from) future_.Take(*gang.spec, SliceOf(*gang.spec, *gang.current, from, to));
    add(gang, gang.bound_pool, to - from);
    from = to;
  };
  std::optional<HostSlices> slices;
  bool stops = true;  // somebody, so that a draining reservation lets it have what that frees
  const auto holds = [&] {
    if (!WithinLimits(claimant, pool, workers, use)) return false;
    const size_t mark = future_.Mark();
    BlockUnlent(&future_, pool, claimant, end_ns, /*claims=*/stops);
    std::optional<HostSlices> found = future_.Place(*claimant.spec, workers, m_.pools[pool]);
    future_.UndoTo(mark);
    if (found.has_value()) slices = std::move(found);
    return found.has_value();
  };
  // The shortest sufficient run of victims, by doubling and halving.
  std::vector<int32_t> before;  // workers left before each applied victim
  const auto set_victims = [&](size_t count) {
    for (; before.size() > count; before.pop_back())
      set_left(victims[before.size() - 1].gang, before.back());
    while (before.size() < count) {
      const Victim& next = victims[before.size()];
      before.push_back(left[next.gang]);
      set_left(next.gang, next.keeps);
    }
    return holds();
  };
  size_t low = 0, high = 0;
  bool found = false;
  for (size_t count = 1; !found && low < victims.size(); count *= 2) {
    high = std::min(count, victims.size());
    found = set_victims(high);
    if (!found) low = high;
  }
  if (!found) {
    future_.UndoTo(start_mark);
    failed_.insert(key);
    return Claim::kNobody;
  }
  while (high > low + 1) {
    const size_t middle = low + (high - low) / 2;
    (set_victims(middle) ? high : low) = middle;
  }
  set_victims(high);
  // Where it is devices after all that it wants for, nobody beside them has to go.
  size_t beside = 0;
  while (beside < high && m_.gangs[victims[beside].gang].gpus != claimant.gpus) ++beside;
  if (beside > 0 && beside < high) {
    for (size_t i = 0; i < beside; ++i)
      set_left(victims[i].gang, m_.gangs[victims[i].gang].workers);
    const bool spared = holds();
    for (size_t i = 0; i < beside && !spared; ++i) set_left(victims[i].gang, victims[i].keeps);
  }
  // Each was allowed beside those before it. Without one that counts against a queue of the
  // claimant's own, its level may be above that of a victim, as that was.
  const auto above = [&](const Gang& spared) {
    if (guaranteed || !options_.levels || !SharesQueue(claimant, spared)) return false;
    return std::any_of(left.begin(), left.end(), [&](const auto& l) {
      const Gang& gang = m_.gangs[l.first];
      return l.second < gang.workers && LevelsCount(claimant, gang) &&
             CompareLevels(claimant, pool, claimant.worker_milli * workers, levels, gang, 0,
                           use_future_) > 0;
    });
  };
  // Drops, in reverse, each that is not needed; of growth no more goes than is needed.
  for (size_t i = high; i-- > 0;) {
    const Victim& v = victims[i];
    const Gang& gang = m_.gangs[v.gang];
    if (left[v.gang] != v.keeps) continue;  // the rest of it is taken as well
    set_left(v.gang, before[i]);
    if (!above(gang) && holds()) continue;
    set_left(v.gang, v.keeps);
    if (v.keeps == 0) continue;
    int32_t enough = v.keeps, too_many = before[i];
    while (too_many > enough + 1) {
      const int32_t middle = enough + (too_many - enough) / 2;
      set_left(v.gang, middle);
      (!above(gang) && holds() ? enough : too_many) = middle;
    }
    set_left(v.gang, enough);
  }
  int64_t evicted = 0, evicted_beside = 0;  // the latter of work without devices, by one with
  for (const auto& [v, workers_left] : left) {
    const Gang& gang = m_.gangs[v];
    (gang.gpus == claimant.gpus ? evicted : evicted_beside) +=
        gang.worker_milli * (gang.workers - workers_left);
  }
  // Who stops nobody doesn't get by a draining reservation: it would hold what it could as well
  // have started on.
  stops = evicted + evicted_beside > 0;
  const bool has_place = holds();
  future_.UndoTo(start_mark);
  if (!has_place) {
    failed_.insert(key);
    return Claim::kNobody;
  }
  // Too many for what asks for them: with it, all that waits for the same and comes after it takes
  // of what one large gang gives back.
  const auto found_asked = asked_.find({pool, claimant.leaf, guaranteed});
  const Asked asked = grows || found_asked == asked_.end() ? Asked() : found_asked->second;
  if (!takes_all && evicted > 4 * std::max(demand, asked.milli)) return Claim::kTooMany;
  if (!takes_all &&
      evicted_beside > 4 * std::max(claimant.host_cpus_milli * (workers - has), asked.cpus_milli))
    return Claim::kTooMany;

  const pb::AttemptKey claim = KeyOf(*claimant.job, claimant.ref.task, claimant.row->next_attempt);
  if (grows)
    Stop(claimant, pb::RESIZE, absl::StrCat("grows from ", has, " to ", workers, " workers"),
         Grace(*claimant.spec), workers);
  std::vector<std::pair<int32_t, int32_t>> shrunk;
  for (const auto& [v, workers_left] : left) {
    const Gang& gang = m_.gangs[v];
    if (workers_left == gang.workers) continue;
    Stop(gang, pb::PREEMPTION,
         workers_left == 0 ? EntitledTo(claimant, gang)
         : gang.gpus != claimant.gpus
             ? absl::StrCat(EntitledTo(claimant, gang), ": ", gang.workers - workers_left,
                            " of its ", gang.workers, " workers stop")
             : absl::StrCat("job ", claimant.ref.job, " is entitled to ",
                            gang.workers - workers_left, " of its ", gang.workers,
                            " workers' devices"),
         Grace(*gang.spec), workers_left, &claim);
    if (workers_left > 0) shrunk.emplace_back(v, workers_left);
  }
  Hold(b, pool, workers, *std::move(slices));
  for (const auto& [v, keeps] : shrunk) {
    const Gang& gang = m_.gangs[v];
    Hold(v, gang.bound_pool, keeps, SliceOf(*gang.spec, *gang.current, 0, keeps));
  }
  return Claim::kStopsOthers;
}

}  // namespace muster
