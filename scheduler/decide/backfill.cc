// Backfill (SCHEDULING.md §4): what is outside S starts on capacity that nobody in S can use now.
// It is a victim for S, so only what S waits for is kept from it: reserved devices that it would
// still hold, and limits that it would use up.
#include <algorithm>
#include <tuple>

#include "common/base/units.h"
#include "scheduler/decide/round.h"

namespace muster {
namespace {

constexpr int64_t kPassedOverNs =
    14 * kDay;  // who waits for so long is passed over no more by what has run less

}  // namespace

// Tasks of a job share a directory: starting this one may not put a sibling's charged cluster out
// of reach.
bool Round::SiblingsReach(const Gang& gang, int32_t pool) const {
  if (!gang.job->cluster.empty() || gang.job->tasks.size() == 1) return true;
  const ClusterRow& cluster = s_.clusters()[m_.pools[pool].cluster];
  for (size_t t = 0; t < gang.job->tasks.size(); ++t) {
    const auto sibling = m_.gang_of.find({gang.ref.job, static_cast<int32_t>(t)});
    if (sibling == m_.gang_of.end() || !m_.gangs[sibling->second].entitled) continue;
    const int32_t theirs = m_.pools[m_.gangs[sibling->second].charge].cluster;
    if (theirs != m_.pools[pool].cluster &&
        !Reaches(s_.cluster_file(), cluster.spec.job_storage(), s_.clusters()[theirs].name))
      return false;
  }
  return true;
}

bool Round::HindersClaims(const Gang& gang, int32_t pool, int64_t end_ns) const {
  return HindersClaims(gang, m_.pools[pool].flavour, gang.worker_milli * gang.min_workers,
                       end_ns) ||
         (gang.worker_cpus_milli > 0 &&
          HindersClaims(gang, m_.cpu, gang.worker_cpus_milli * gang.min_workers, end_ns));
}

bool Round::HindersClaims(const Gang& gang, int32_t f, int64_t takes, int64_t end_ns) const {
  const int64_t demand = gang.worker_milli * gang.min_workers;
  for (int32_t n = gang.leaf; n >= 0; n = m_.parent[n]) {
    if (UseAt(use_claims_, n, f) + takes <= QuotaOf(n, f).limit_milli) continue;
    for (const int32_t b : unserved_) {
      const Gang& claimant = m_.gangs[b];
      if (m_.pools[claimant.charge].flavour != f &&
          (f != m_.cpu || claimant.worker_cpus_milli == 0))
        continue;
      int32_t up = claimant.leaf;
      while (up > n) up = m_.parent[up];
      if (up != n) continue;
      const Kept* reservation = nullptr;
      for (const Kept& kept : reserved_[claimant.charge]) {
        if (kept.gang == b) reservation = &kept;
      }
      const bool gone_before = reservation != nullptr && reservation->start_ns != 0 &&
                               end_ns != 0 && end_ns <= reservation->start_ns;
      if (!gone_before &&
          !(MayTake(claimant, gang) &&
            LevelAllows(claimant, claimant.charge, claimant.worker_milli * claimant.min_workers,
                        gang, use_now_, demand))) {
        return true;
      }
    }
  }
  return false;
}

bool Round::BackfillOne(int32_t b) {
  const Gang& gang = m_.gangs[b];
  const int64_t end_ns = EndIfStarted(gang);
  const int64_t demand = gang.worker_milli * gang.min_workers;
  for (size_t i = 0; i < gang.pools.size(); ++i) {
    const int32_t pool = gang.pools[i];
    if (!gang.opened[i] || now_.FreeMilli(m_.pools[pool], gang.gpus) < demand) continue;
    if (!WithinLimits(gang, pool, gang.min_workers, use_now_)) continue;
    const std::array<int64_t, 4> key{kNow, pool, gang.shape, LentBits(gang, pool, end_ns)};
    if (failed_.contains(key)) continue;
    if (HindersClaims(gang, pool, end_ns) || !SiblingsReach(gang, pool)) continue;
    std::optional<HostSlices> slices = PlaceNow(b, pool, gang.min_workers, end_ns);
    if (!slices.has_value()) {
      failed_.insert(key);
      continue;
    }
    AddUse(&use_claims_, gang, pool, gang.min_workers);
    Start(b, pool, gang.min_workers, *std::move(slices));
    return true;
  }
  return false;
}

// What is used, and what S waits for.
void Round::CountClaims() {
  use_claims_ = use_now_;
  const auto has = [](const Gang& gang, int32_t in) {  // and counts there already
    return gang.current != nullptr && !gang.may_be_lost && gang.bound_pool == in
               ? gang.current->workers
               : 0;
  };
  for (const int32_t b : unserved_) {
    const Gang& gang = m_.gangs[b];
    AddUse(&use_claims_, gang, gang.charge, std::max(0, gang.min_workers - has(gang, gang.charge)));
  }
  for (const Kept& kept : kept_) {
    const Gang& gang = m_.gangs[kept.gang];
    AddUse(&use_claims_, gang, kept.pool, kept.workers - has(gang, kept.pool));
  }
}

Round::InLine Round::PlaceInLine(int32_t b) const {
  const Gang& gang = m_.gangs[b];
  const bool long_enough = gang.waiting_since_ns <= now_ns_ - kPassedOverNs;
  return {gang.leaf, -gang.priority, long_enough ? 0 : gang.ran_ns, gang.submit_ns, b};
}

void Round::Backfill() {
  // What was shrunk for a claim and is outside S keeps its devices as long as S leaves them.
  std::vector<InLine> waiting;
  std::vector<PoolView> pools(m_.pools.size());  // what is free when this begins
  const auto has_room = [&](const Gang& gang) {
    for (size_t i = 0; i < gang.pools.size(); ++i) {
      if (gang.opened[i] &&
          FreeMilli(gang, gang.pools[i], &pools) >= gang.worker_milli * gang.min_workers)
        return true;
    }
    return false;
  };
  EachOf(m_.gangs, outside_, [&](int32_t b) {
    const Gang& gang = m_.gangs[b];
    if (stopped_[b] || gang.ends) return;
    const Reservation* held = gang.reserved ? gang.row->reservation.get() : nullptr;
    if (held != nullptr && held->held && held->attempt == gang.row->next_attempt &&
        (gang.wants_place() || (gang.ComesBack() && !Unanswered(gang))) && gang.leaf >= 0 &&
        future_.Fits(*gang.spec, held->parts, /*silent_too=*/true)) {
      for (const int32_t pool : gang.pools) {
        if (m_.pools[pool].cluster != held->cluster ||
            (!held->flavour.empty() && held->flavour != m_.flavours[m_.pools[pool].flavour]))
          continue;
        if (!WithinLimits(gang, pool, held->workers, use_future_)) break;
        if (gang.wants_place() && now_.Fits(*gang.spec, held->parts) &&
            WithinLimits(gang, pool, held->workers, use_now_)) {
          Start(b, pool, held->workers, held->parts);
        } else {
          Hold(b, pool, held->workers, held->parts);
        }
        break;
      }
    }
    if (served_[b] || !gang.wants_place() || gang.leaf < 0) return;
    if (gang.evicted_round == s_.round()) return;
    if (gang.backoff_until_ns > now_ns_) {
      WakeAt(gang.backoff_until_ns);
      return;
    }
    if (has_room(gang)) waiting.push_back(PlaceInLine(b));
  });
  if (waiting.empty()) return;
  CountClaims();

  // The queues in turns, the one with the lowest levels along its path first. In each by priority,
  // then what has run the least so far: who isn't entitled to devices yet gets them in turns, and
  // short work is through before its turn in S comes (decision 041).
  std::sort(waiting.begin(), waiting.end());
  struct Turn {
    std::vector<Level> levels;  // from below the root down to the leaf
    size_t next = 0, end = 0;   // in `waiting`
  };
  const auto levels_of = [&](int32_t b) {
    const Gang& gang = m_.gangs[b];
    int32_t pool = -1;
    for (size_t i = 0; i < gang.pools.size() && pool < 0; ++i) {
      if (gang.opened[i]) pool = gang.pools[i];
    }
    std::vector<Level> levels;
    for (int32_t n = gang.leaf; pool >= 0 && n > 0; n = m_.parent[n]) {
      const int32_t f = m_.pools[pool].flavour;
      levels.insert(levels.begin(), LevelOf(n, f, UseAt(use_now_, n, f)));
    }
    return levels;
  };
  const auto later = [&](const Turn& a, const Turn& b) {
    for (size_t i = 0; i < std::max(a.levels.size(), b.levels.size());
         ++i) {  // a leaf nearer to the root has the lowest level below itself
      const Level mine = i < a.levels.size() ? a.levels[i] : Level(),
                  other = i < b.levels.size() ? b.levels[i] : Level();
      if (const int order = Compare(mine, other); order != 0) return order > 0;
    }
    const Gang &x = m_.gangs[waiting[a.next].gang], &y = m_.gangs[waiting[b.next].gang];
    return std::make_tuple(x.submit_ns, x.ref) > std::make_tuple(y.submit_ns, y.ref);
  };
  std::vector<Turn> heap;
  for (size_t i = 0; i < waiting.size();) {
    size_t end = i;
    while (end < waiting.size() && waiting[end].leaf == waiting[i].leaf) ++end;
    heap.push_back({levels_of(waiting[i].gang), i, end});
    i = end;
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    Turn turn = std::move(heap.back());
    heap.pop_back();
    // Levels only rise: a turn that is still the lowest with its levels of now is the lowest.
    turn.levels = levels_of(waiting[turn.next].gang);
    if (!heap.empty() && later(turn, heap.front())) {
      heap.push_back(std::move(turn));
      std::push_heap(heap.begin(), heap.end(), later);
      continue;
    }
    while (turn.next < turn.end && !BackfillOne(waiting[turn.next++].gang)) {
    }
    if (turn.next == turn.end) continue;
    turn.levels = levels_of(waiting[turn.next].gang);
    heap.push_back(std::move(turn));
    std::push_heap(heap.begin(), heap.end(), later);
  }
}

}  // namespace muster
