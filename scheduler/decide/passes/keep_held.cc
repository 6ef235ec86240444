// What was held for a unit of S stays its own, by attempt, until it starts or leaves S, or one of
// its hosts can't be reached (one that is silent is back soon, or unreachable), or doesn't answer a
// stop in time: then the unit claims anew. Each attempt that is stopped is late only once, so
// claims still come to an end.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/passes.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

constexpr int kStartsElsewhere = 32;  // tries in a decision

// The part of what is held for the gang that it may keep; nullopt: none.
std::optional<PlannedPlace> HeldFor(const Inputs& in, const Gang& gang, const Draft& draft) {
  const Reservation& held = *gang.row->reservation;
  const Pool& pool = in.model.pools[gang.charge];
  if (held.attempt != gang.row->next_attempt || held.cluster != pool.cluster) return std::nullopt;
  if (!held.flavour.empty() && held.flavour != in.model.flavours[pool.flavour]) return std::nullopt;
  if (draft.Stops(in.IndexOf(gang))) return std::nullopt;
  if (!gang.wants_place()) {
    if (!gang.may_be_lost && !gang.ComesBack()) return std::nullopt;
    if (gang.may_be_lost && in.HeldBack(gang)) return std::nullopt;
  }
  // It would keep others from its next place for nothing.
  if (in.Unanswered(gang)) return std::nullopt;
  const int32_t workers = std::min(held.workers, gang.entitled_workers());
  if (workers < gang.min_workers || !AreTogether(in.state, *gang.spec, held.parts))
    return std::nullopt;
  return PlannedPlace{
      in.IndexOf(gang), gang.charge, workers,
      workers == held.workers ? held.parts : RanksOf(*gang.spec, held.parts, 0, workers)};
}

enum class Fit { kNot, kLater, kNow };

// `on_own`: a gang with lost members gives up what it still has, for its next attempt only.
Fit FitOf(const Inputs& in, const Gang& gang, const PlannedPlace& place, bool on_own,
          Draft* draft) {
  Try later(draft, draft->later()), now(draft, draft->now());
  if (on_own) {
    later.Release(gang);
    now.Release(gang);
  }
  const auto fits = [&](const Capacity& capacity, bool silent_too) {
    return capacity.Fits(gang, place.slices, silent_too) &&
           capacity.WithinLimits(gang, place.pool, place.workers);
  };
  if (!fits(*draft->later(), /*silent_too=*/true)) return Fit::kNot;
  if (on_own && HasHosted(in, gang)) return Fit::kLater;
  const bool may_start = gang.wants_place() ? gang.backoff_until_ns <= in.now_ns : gang.may_be_lost;
  return may_start && fits(*draft->now(), false) ? Fit::kNow : Fit::kLater;
}

// Of a group that starts together what is held for each; nullopt: it claims anew, as one has none
// or they don't fit any more.
std::optional<Places> HeldForGroup(const Inputs& in, const Gang& leader, const Draft& draft) {
  Places places;
  for (const int32_t g : GroupOf(in.model, in.IndexOf(leader))) {
    const Gang& gang = in.gang(g);
    if (!gang.wants_place() || !gang.reserved || !gang.row->reservation->held) return std::nullopt;
    std::optional<PlannedPlace> held = HeldFor(in, gang, draft);
    if (!held.has_value()) return std::nullopt;
    places.push_back(*std::move(held));
  }
  return places;
}

// All of them together.
Fit FitOf(const Inputs& in, const Places& places, Draft* draft) {
  const auto fit = [&](Capacity* capacity, bool silent_too) {
    Try trial(draft, capacity);
    return std::all_of(places.begin(), places.end(), [&](const PlannedPlace& place) {
      const Gang& gang = in.gang(place.gang);
      if (!capacity->Fits(gang, place.slices, silent_too) ||
          !capacity->WithinLimits(gang, place.pool, place.workers))
        return false;
      trial.Take(gang, place.slices);
      trial.AddUse(gang, place.pool, place.workers);
      return true;
    });
  };
  if (!fit(draft->later(), /*silent_too=*/true)) return Fit::kNot;
  const bool waits = std::any_of(places.begin(), places.end(), [&](const PlannedPlace& place) {
    return in.gang(place.gang).backoff_until_ns > in.now_ns;
  });
  return !waits && fit(draft->now(), false) ? Fit::kNow : Fit::kLater;
}

void KeepGroup(const Inputs& in, const Gang& leader, Places* aside, Draft* draft) {
  std::optional<Places> held = HeldForGroup(in, leader, *draft);
  if (!held.has_value()) return;
  const Fit fit = FitOf(in, *held, draft);
  for (PlannedPlace& place : *held) {
    if (fit == Fit::kNow) {
      draft->Start(place.gang, place.pool, place.workers, std::move(place.slices));
    } else if (fit == Fit::kLater) {
      draft->SetAside(place, /*on_own=*/false);
      aside->push_back(std::move(place));
    }
  }
}

// What waits for devices of its own starts on others as soon as there are any that are nobody's;
// else it goes on waiting.
void StartElsewhereOrHold(const Inputs& in, std::vector<PlannedPlace> aside, Draft* draft) {
  std::vector<bool> elsewhere(aside.size(), false);
  int tries = kStartsElsewhere;
  for (size_t i = 0; i < aside.size(); ++i) {
    const Gang& gang = in.gang(aside[i].gang);
    const int32_t pool = gang.charge;
    if (!gang.wants_place() || gang.leader >= 0 || gang.backoff_until_ns > in.now_ns ||
        !draft->now()->WithinLimits(gang, pool, gang.min_workers))
      continue;
    if (tries-- == 0) break;
    std::optional<HostSlices> found;
    {
      Try now(draft, draft->now());
      for (size_t other = 0; other < aside.size(); ++other) {
        if (other != i && !elsewhere[other]) now.LimitTo(*draft->later(), aside[other].slices);
      }
      found = draft->now()->Place(gang, pool, gang.min_workers, HostsToAvoid(*gang.job));
    }
    if (!found.has_value()) continue;
    elsewhere[i] = true;
    draft->Drop(aside[i]);
    draft->Start(aside[i].gang, pool, gang.min_workers, *std::move(found));
  }
  for (size_t i = 0; i < aside.size(); ++i) {
    if (!elsewhere[i]) draft->HoldAside(std::move(aside[i]));
  }
}

}  // namespace

void KeepHeld(const Inputs& in, Draft* draft) {
  std::vector<std::pair<int32_t, int32_t>> order;  // of acceptance
  for (const int32_t g : in.entitled) {
    const Gang& gang = in.gang(g);
    if (!gang.reserved || !gang.row->reservation->held || draft->Ends(gang)) continue;
    order.emplace_back(in.model.order[g], g);
  }
  std::sort(order.begin(), order.end());
  Places aside;              // devices that aren't all free yet
  std::set<int32_t> groups;  // by leader
  for (const auto& [accepted, g] : order) {
    const Gang& gang = in.gang(g);
    if (StartsWithOthers(in, *draft, gang)) {
      if (groups.insert(in.model.LeaderOf(g)).second)
        KeepGroup(in, in.gang(in.model.LeaderOf(g)), &aside, draft);
      continue;
    }
    if (gang.leader >= 0 && !IsBesideOthers(in, gang, gang.charge)) continue;
    std::optional<PlannedPlace> held = HeldFor(in, gang, *draft);
    if (!held.has_value()) continue;
    const bool on_own = !gang.wants_place() && gang.may_be_lost;
    const Fit fit = FitOf(in, gang, *held, on_own, draft);
    if (fit == Fit::kNow && on_own) {
      draft->StartOnOwn(g, held->pool, held->workers, std::move(held->slices));
    } else if (fit == Fit::kNow) {
      draft->Start(g, held->pool, held->workers, std::move(held->slices));
    } else if (fit == Fit::kLater) {
      draft->SetAside(*held, on_own);
      aside.push_back(*std::move(held));
    }
  }
  StartElsewhereOrHold(in, std::move(aside), draft);
}

}  // namespace muster
