// What is outside S starts on capacity that nobody in S can use now (docs/scheduling.md, backfill).
// It is a victim for S, so only what S waits for is kept from it: reserved devices that it would
// still hold, and limits that it would use up.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/outside.h"
#include "scheduler/decide/passes/passes.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

// What was shrunk for a claim, or restarts in another size, and is outside S keeps its devices as
// long as S leaves them.
void KeepOwn(const Inputs& in, const Gang& gang, Draft* draft) {
  const Reservation* held = gang.reserved ? gang.row->reservation.get() : nullptr;
  if (held == nullptr || !held->held || held->attempt != gang.row->next_attempt || gang.leaf < 0)
    return;
  if (!gang.wants_place() && (!gang.ComesBack() || in.Unanswered(gang))) return;
  if (!AreTogether(in.state, *gang.spec, held->parts) ||
      !draft->later()->Fits(gang, held->parts, /*silent_too=*/true))
    return;
  const auto is_there = [&](int32_t p) {
    const Pool& pool = in.model.pools[p];
    return pool.cluster == held->cluster &&
           (held->flavour.empty() || held->flavour == in.model.flavours[pool.flavour]);
  };
  const auto pool = std::find_if(gang.pools.begin(), gang.pools.end(), is_there);
  if (pool == gang.pools.end() || !draft->later()->WithinLimits(gang, *pool, held->workers)) return;
  const int32_t g = in.IndexOf(gang);
  if (gang.wants_place() && draft->now()->Fits(gang, held->parts) &&
      draft->now()->WithinLimits(gang, *pool, held->workers)) {
    draft->Start(g, *pool, held->workers, held->parts);
  } else {
    draft->Hold(g, *pool, held->workers, held->parts);
  }
}

// Starts the gang in the first of its open pools that has a place for it.
bool StartAnywhere(const Inputs& in, const Gang& gang, WaitingClaims* claims, Draft* draft) {
  const int64_t end_ns = in.EndIfStarted(gang);
  Capacity* now = draft->now();
  for (size_t i = 0; i < gang.pools.size(); ++i) {
    const int32_t pool = gang.pools[i];
    if (gang.leader >= 0 && !IsBesideOthers(in, gang, pool)) continue;
    if (!gang.opened[i] || now->FreeMilli(pool, gang.gpus) < gang.worker_milli * gang.min_workers)
      continue;
    if (!draft->WithinLimits(gang, pool, gang.min_workers)) continue;
    const Search search{.kind = Search::kNow,
                        .pool = pool,
                        .shape = gang.shape,
                        .lent = draft->WhichLend(gang, pool, end_ns)};
    if (draft->Failed(search)) continue;
    if (claims->HinderedBy(gang, pool, end_ns) || !SiblingsReach(in, gang, pool)) continue;
    std::optional<HostSlices> slices = draft->FindPlace(now, gang, pool, gang.min_workers, end_ns);
    if (!slices.has_value()) {
      draft->Remember(search);
      continue;
    }
    claims->AddUse(gang, pool);
    draft->Start(in.IndexOf(gang), pool, gang.min_workers, *std::move(slices));
    return true;
  }
  return false;
}

// The same for a group that starts together, by its leader.
bool StartGroupAnywhere(const Inputs& in, const Gang& leader, WaitingClaims* claims, Draft* draft) {
  const int64_t end_ns = EndOfGroup(in, leader);
  Capacity* now = draft->now();
  for (const int32_t pool : leader.pools) {
    if (now->FreeMilli(pool, leader.gpus) < leader.unit_milli()) continue;
    const Search search{.kind = Search::kNow,
                        .pool = pool,
                        .shape = leader.shape,
                        .lent = draft->WhichLend(leader, pool, end_ns)};
    if (draft->Failed(search) || !SiblingsReach(in, leader, pool)) continue;
    if (!GroupWithinLimits(in, leader, pool, now, draft) ||
        !GroupWithinLimits(in, leader, pool, draft->later(), draft))
      continue;
    std::optional<Places> places = FindPlaces(in, leader, pool, now, false, draft);
    if (!places.has_value()) {
      draft->Remember(search);
      continue;
    }
    WaitingClaims with(*claims);
    const bool hindered =
        std::any_of(places->begin(), places->end(), [&](const PlannedPlace& place) {
          if (with.HinderedBy(in.gang(place.gang), place.pool, end_ns)) return true;
          with.AddUse(in.gang(place.gang), place.pool);
          return false;
        });
    if (hindered) continue;
    for (PlannedPlace& place : *places) {
      claims->AddUse(in.gang(place.gang), place.pool);
      draft->Start(place.gang, place.pool, place.workers, std::move(place.slices));
    }
    return true;
  }
  return false;
}

// The part of the line that waits in one queue.
struct QueueLine {
  std::vector<QueueLevel> levels;  // of the queues from below the root down to it
  size_t next = 0, end = 0;
};

// The queues take turns, the one with the lowest levels along its path first. In each the line
// decides: who isn't entitled to devices yet gets them in turns, and short work is through before
// its turn in S comes (docs/decisions/041).
class LineStarter {
 public:
  LineStarter(const Inputs& in, std::vector<InLine> line, Draft* draft)
      : in_(in), draft_(draft), line_(std::move(line)), claims_(in, *draft) {
    std::sort(line_.begin(), line_.end());
  }

  void Run() {
    for (size_t i = 0; i < line_.size();) {
      size_t end = i;
      while (end < line_.size() && line_[end].leaf == line_[i].leaf) ++end;
      queues_.push_back({LevelsOf(line_[i].gang), i, end});
      i = end;
    }
    const auto later = [this](const QueueLine& a, const QueueLine& b) { return Later(a, b); };
    std::make_heap(queues_.begin(), queues_.end(), later);
    const auto push = [&](QueueLine queue) {
      queues_.push_back(std::move(queue));
      std::push_heap(queues_.begin(), queues_.end(), later);
    };
    while (!queues_.empty()) {
      std::pop_heap(queues_.begin(), queues_.end(), later);
      QueueLine queue = std::move(queues_.back());
      queues_.pop_back();
      // Levels only rise: one that is still the lowest with its levels of now is the lowest.
      queue.levels = LevelsOf(line_[queue.next].gang);
      if (!queues_.empty() && Later(queue, queues_.front())) {
        push(std::move(queue));
        continue;
      }
      StartFirst(&queue);
      if (queue.next == queue.end) continue;
      queue.levels = LevelsOf(line_[queue.next].gang);
      push(std::move(queue));
    }
  }

 private:
  // The first of the queue's line that finds a place.
  void StartFirst(QueueLine* queue) {
    while (queue->next < queue->end) {
      const Gang& gang = in_.gang(line_[queue->next++].gang);
      const bool starts = StartsWithOthers(in_, *draft_, gang)
                              ? StartGroupAnywhere(in_, gang, &claims_, draft_)
                              : StartAnywhere(in_, gang, &claims_, draft_);
      if (starts) return;
    }
  }

  std::vector<QueueLevel> LevelsOf(int32_t g) const {
    const Gang& gang = in_.gang(g);
    int32_t pool = -1;
    for (size_t i = 0; i < gang.pools.size() && pool < 0; ++i) {
      if (gang.opened[i]) pool = gang.pools[i];
    }
    std::vector<QueueLevel> levels;
    if (pool < 0) return levels;
    const int32_t flavour = in_.model.pools[pool].flavour;
    for (int32_t n = gang.leaf; n > 0; n = in_.model.parent[n])
      levels.push_back(LevelOf(in_.model, n, flavour, draft_->now()->use().At(n, flavour)));
    std::reverse(levels.begin(), levels.end());
    return levels;
  }

  bool Later(const QueueLine& a, const QueueLine& b) const {
    // A leaf nearer to the root has the lowest level below itself.
    for (size_t i = 0; i < std::max(a.levels.size(), b.levels.size()); ++i) {
      const QueueLevel mine = i < a.levels.size() ? a.levels[i] : QueueLevel();
      const QueueLevel other = i < b.levels.size() ? b.levels[i] : QueueLevel();
      if (const int order = Compare(mine, other); order != 0) return order > 0;
    }
    const Gang& x = in_.gang(line_[a.next].gang);
    const Gang& y = in_.gang(line_[b.next].gang);
    return std::tie(x.submit_ns, x.ref) > std::tie(y.submit_ns, y.ref);
  }

  const Inputs& in_;
  Draft* const draft_;
  std::vector<InLine> line_;
  WaitingClaims claims_;
  std::vector<QueueLine> queues_;  // a heap, the next one first
};

}  // namespace

void Backfill(const Inputs& in, Draft* draft) {
  std::vector<InLine> line;
  FreeByPool free(in, draft->now());
  const auto has_room = [&](const Gang& gang) {
    for (size_t i = 0; i < gang.pools.size(); ++i) {
      if (gang.opened[i] &&
          free.Milli(gang.pools[i], gang.gpus) >= gang.worker_milli * gang.min_workers)
        return true;
    }
    return false;
  };
  // Of a group that starts together the leader, once all of it may.
  const auto its_turn = [&](int32_t g) {
    const Gang& gang = in.gang(g);
    if (!StartsWithOthers(in, *draft, gang)) return gang.evicted_round != in.state.round();
    if (in.model.LeaderOf(g) != g || !AllWait(in, gang) || EvictedInRound(in, gang)) return false;
    const int64_t backoff_ns = BackoffOfGroup(in, gang);
    if (backoff_ns > in.now_ns) draft->WakeAt(backoff_ns);
    return backoff_ns <= in.now_ns;
  };
  EachOf(in.model.gangs, in.others, [&](int32_t g) {
    const Gang& gang = in.gang(g);
    if (draft->Stops(g) || gang.ends || draft->Ends(gang)) return;
    if (gang.leader < 0) KeepOwn(in, gang, draft);
    if (draft->Serves(g) || !gang.wants_place() || gang.leaf < 0) return;
    if (!its_turn(g)) return;
    if (gang.backoff_until_ns > in.now_ns) {
      draft->WakeAt(gang.backoff_until_ns);
      return;
    }
    if (has_room(gang)) line.push_back(PlaceInLine(in, gang));
  });
  if (!line.empty()) LineStarter(in, std::move(line), draft).Run();
}

}  // namespace muster
