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
bool Round::SiblingsReach(const Base& base, int32_t cell) const {
  if (!base.job->cluster.empty() || base.job->tasks.size() == 1) return true;
  const ClusterRow& cluster = s_.clusters()[m_.cells[cell].cluster];
  for (size_t t = 0; t < base.job->tasks.size(); ++t) {
    const auto sibling = m_.base_of.find({base.ref.job, static_cast<int32_t>(t)});
    if (sibling == m_.base_of.end() || !m_.bases[sibling->second].entitled) continue;
    const int32_t theirs = m_.cells[m_.bases[sibling->second].charge].cluster;
    if (theirs != m_.cells[cell].cluster &&
        !Reaches(s_.cluster_file(), cluster.spec.job_storage(), s_.clusters()[theirs].name))
      return false;
  }
  return true;
}

bool Round::HindersClaims(const Base& base, int32_t cell, int64_t end_ns) const {
  return HindersClaims(base, m_.cells[cell].flavour, base.worker_milli * base.min_workers,
                       end_ns) ||
         (base.worker_cpus_milli > 0 &&
          HindersClaims(base, m_.cpu, base.worker_cpus_milli * base.min_workers, end_ns));
}

bool Round::HindersClaims(const Base& base, int32_t f, int64_t takes, int64_t end_ns) const {
  const int64_t demand = base.worker_milli * base.min_workers;
  for (int32_t n = base.leaf; n >= 0; n = m_.parent[n]) {
    if (UseAt(use_claims_, n, f) + takes <= QuotaOf(n, f).limit_milli) continue;
    for (const int32_t b : unserved_) {
      const Base& claimant = m_.bases[b];
      if (m_.cells[claimant.charge].flavour != f &&
          (f != m_.cpu || claimant.worker_cpus_milli == 0))
        continue;
      int32_t up = claimant.leaf;
      while (up > n) up = m_.parent[up];
      if (up != n) continue;
      const Kept* reservation = nullptr;
      for (const Kept& kept : reserved_[claimant.charge]) {
        if (kept.base == b) reservation = &kept;
      }
      const bool gone_before = reservation != nullptr && reservation->start_ns != 0 &&
                               end_ns != 0 && end_ns <= reservation->start_ns;
      if (!gone_before &&
          !(MayTake(claimant, base) &&
            LevelAllows(claimant, claimant.charge, claimant.worker_milli * claimant.min_workers,
                        base, use_now_, demand))) {
        return true;
      }
    }
  }
  return false;
}

bool Round::BackfillOne(int32_t b) {
  const Base& base = m_.bases[b];
  const int64_t end_ns = EndIfStarted(base);
  const int64_t demand = base.worker_milli * base.min_workers;
  for (size_t i = 0; i < base.cells.size(); ++i) {
    const int32_t cell = base.cells[i];
    if (!base.opened[i] || now_.FreeMilli(m_.cells[cell], base.gpus) < demand) continue;
    if (!WithinLimits(base, cell, base.min_workers, use_now_)) continue;
    const std::array<int64_t, 4> key{kNow, cell, base.shape, LentBits(base, cell, end_ns)};
    if (failed_.contains(key)) continue;
    if (HindersClaims(base, cell, end_ns) || !SiblingsReach(base, cell)) continue;
    std::optional<PlannedGang> gang = PlaceNow(b, cell, base.min_workers, end_ns);
    if (!gang.has_value()) {
      failed_.insert(key);
      continue;
    }
    AddUse(&use_claims_, base, cell, base.min_workers);
    Start(b, cell, base.min_workers, *std::move(gang));
    return true;
  }
  return false;
}

// What is used, and what S waits for.
void Round::CountClaims() {
  use_claims_ = use_now_;
  const auto has = [](const Base& base, int32_t in) {  // and counts there already
    return base.current != nullptr && !base.may_be_lost && base.bound_cell == in
               ? base.current->workers
               : 0;
  };
  for (const int32_t b : unserved_) {
    const Base& base = m_.bases[b];
    AddUse(&use_claims_, base, base.charge, std::max(0, base.min_workers - has(base, base.charge)));
  }
  for (const Kept& kept : kept_) {
    const Base& base = m_.bases[kept.base];
    AddUse(&use_claims_, base, kept.cell, kept.workers - has(base, kept.cell));
  }
}

Round::InLine Round::PlaceInLine(int32_t b) const {
  const Base& base = m_.bases[b];
  const bool long_enough = base.waiting_since_ns <= now_ns_ - kPassedOverNs;
  return {base.leaf, -base.priority, long_enough ? 0 : base.ran_ns, base.submit_ns, b};
}

void Round::Backfill() {
  // What was shrunk for a claim and is outside S keeps its devices as long as S leaves them.
  std::vector<InLine> waiting;
  std::vector<CellView> cells(m_.cells.size());  // what is free when this begins
  const auto has_room = [&](const Base& base) {
    for (size_t i = 0; i < base.cells.size(); ++i) {
      if (base.opened[i] &&
          FreeMilli(base, base.cells[i], &cells) >= base.worker_milli * base.min_workers)
        return true;
    }
    return false;
  };
  EachOf(m_.bases, outside_, [&](int32_t b) {
    const Base& base = m_.bases[b];
    if (stopped_[b] || base.ends) return;
    const Reservation* held = base.reserved ? base.row->reservation.get() : nullptr;
    if (held != nullptr && held->held && held->attempt == base.row->next_attempt &&
        (base.wants_place() || (base.ComesBack() && !Unanswered(base))) && base.leaf >= 0 &&
        future_.Fits(*base.spec, held->parts, /*silent_too=*/true)) {
      for (const int32_t cell : base.cells) {
        if (m_.cells[cell].cluster != held->cluster ||
            (!held->flavour.empty() && held->flavour != m_.flavours[m_.cells[cell].flavour]))
          continue;
        if (!WithinLimits(base, cell, held->workers, use_future_)) break;
        if (base.wants_place() && now_.Fits(*base.spec, held->parts) &&
            WithinLimits(base, cell, held->workers, use_now_)) {
          Start(b, cell, held->workers, held->parts);
        } else {
          Hold(b, cell, held->workers, held->parts);
        }
        break;
      }
    }
    if (served_[b] || !base.wants_place() || base.leaf < 0) return;
    if (base.evicted_round == s_.round()) return;
    if (base.backoff_until_ns > now_ns_) {
      LookAt(base.backoff_until_ns);
      return;
    }
    if (has_room(base)) waiting.push_back(PlaceInLine(b));
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
    const Base& base = m_.bases[b];
    int32_t cell = -1;
    for (size_t i = 0; i < base.cells.size() && cell < 0; ++i) {
      if (base.opened[i]) cell = base.cells[i];
    }
    std::vector<Level> levels;
    for (int32_t n = base.leaf; cell >= 0 && n > 0; n = m_.parent[n]) {
      const int32_t f = m_.cells[cell].flavour;
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
    const Base &x = m_.bases[waiting[a.next].base], &y = m_.bases[waiting[b.next].base];
    return std::make_tuple(x.submit_ns, x.ref) > std::make_tuple(y.submit_ns, y.ref);
  };
  std::vector<Turn> heap;
  for (size_t i = 0; i < waiting.size();) {
    size_t end = i;
    while (end < waiting.size() && waiting[end].leaf == waiting[i].leaf) ++end;
    heap.push_back({levels_of(waiting[i].base), i, end});
    i = end;
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    Turn turn = std::move(heap.back());
    heap.pop_back();
    // Levels only rise: a turn that is still the lowest with its levels of now is the lowest.
    turn.levels = levels_of(waiting[turn.next].base);
    if (!heap.empty() && later(turn, heap.front())) {
      heap.push_back(std::move(turn));
      std::push_heap(heap.begin(), heap.end(), later);
      continue;
    }
    while (turn.next < turn.end && !BackfillOne(waiting[turn.next++].base)) {
    }
    if (turn.next == turn.end) continue;
    turn.levels = levels_of(waiting[turn.next].base);
    heap.push_back(std::move(turn));
    std::push_heap(heap.begin(), heap.end(), later);
  }
}

}  // namespace muster
