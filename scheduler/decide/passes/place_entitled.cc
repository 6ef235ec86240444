#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/passes.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

constexpr int32_t kSearchesForReservations = 256;  // in a decision, found or not

class EntitledPlacer {
 public:
  EntitledPlacer(const Inputs& in, Draft* draft) : in_(in), draft_(draft) {}

  // Unserved units of S, in order of acceptance.
  void Run(const std::vector<int32_t>& gangs) {
    for (const int32_t g : gangs) AddWanted(in_.gang(g), 1);
    for (const int32_t g : gangs) {
      const Gang& gang = in_.gang(g);
      if (gang.leader >= 0 && !PlaceOfGroup(gang)) {
        AddWanted(gang, -1);
        continue;
      }
      if (gang.may_be_lost && !gang.wants_place()) {
        if (in_.HeldBack(gang)) continue;  // nothing of a held queue starts, not even elsewhere
        if (draft_->Stops(g)) {            // for another cause: it moves once that stands
          draft_->WakeAt(in_.now_ns);
          continue;
        }
      }
      Place(gang, /*together=*/false);
      AddWanted(gang, -1);
      if (!draft_->Serves(g)) draft_->LeaveUnserved(g);
    }
  }

 private:
  bool PlaceOfGroup(const Gang& gang);
  // `together`: for its whole group, which it leads.
  void Place(const Gang& gang, bool together);
  bool StartNow(const Gang& gang, bool together);
  bool HoldLater(const Gang& gang, int32_t workers, bool together);
  std::optional<Places> PlacesFor(const Gang& gang, int32_t workers, int64_t end_ns, bool together,
                                  Capacity* capacity);
  Reclaimed ReclaimFor(const Gang& gang, bool takes_all, bool together);

  Wanted& WantedWith(const Gang& gang) {
    return wanted_[{gang.charge, gang.leaf, gang.guaranteed}];
  }
  void AddWanted(const Gang& gang, int sign) {
    if (!gang.wants_place()) return;
    WantedWith(gang).milli += sign * gang.worker_milli * gang.min_workers;
    WantedWith(gang).host_cpus_milli += sign * gang.host_cpus_milli * gang.min_workers;
  }

  const Inputs& in_;
  Draft* const draft_;
  // By pool, leaf and guarantee: what still has to be placed.
  std::map<std::tuple<int32_t, int32_t, bool>, Wanted> wanted_;
  std::set<int32_t> tried_;  // groups, by leader
  int32_t searches_left_ = kSearchesForReservations;
};

// Whether this is the gang's turn: of a group that starts together the leader's, once all of it is
// ready; of what starts again beside the others its own, where they are.
bool EntitledPlacer::PlaceOfGroup(const Gang& gang) {
  if (!StartsWithOthers(in_, *draft_, gang)) return IsBesideOthers(in_, gang, gang.charge);
  const int32_t leader = in_.model.LeaderOf(in_.IndexOf(gang));
  if (!AllReady(in_, gang) || in_.HeldBack(gang)) return false;
  if (tried_.insert(leader).second && !draft_->Serves(leader))
    Place(in_.gang(leader), /*together=*/true);
  if (!draft_->Serves(in_.IndexOf(gang))) draft_->LeaveUnserved(in_.IndexOf(gang));
  return false;
}

void EntitledPlacer::Place(const Gang& gang, bool together) {
  if (!together) {
    if (gang.ComesBack() && !gang.may_be_lost) {  // smaller or larger, once it has stopped
      if (in_.Unanswered(gang)) return;
      HoldLater(gang,
                std::clamp(gang.current->next_workers, gang.min_workers, gang.entitled_workers()),
                false);
      return;
    }
    if (gang.may_be_lost && !gang.wants_place() && ReplaceLost(in_, gang, draft_)) return;
  }
  const int64_t backoff_ns = together ? BackoffOfGroup(in_, gang) : gang.backoff_until_ns;
  if (backoff_ns > in_.now_ns) {
    draft_->WakeAt(backoff_ns);
    Reserve(in_, gang, backoff_ns, /*stops_nobody=*/false, together, &searches_left_, draft_);
    return;
  }
  if (StartNow(gang, together) || HoldLater(gang, gang.min_workers, together)) return;
  const Reclaimed reclaimed = ReclaimFor(gang, /*takes_all=*/false, together);
  // What may be lost keeps running there, or waits.
  if (reclaimed == Reclaimed::kStopsOthers || (gang.may_be_lost && !together)) return;
  if (Overdue(in_, gang)) {
    if (!together && Consolidate(in_, gang, gang.charge, draft_)) return;
    if (reclaimed == Reclaimed::kTooMany &&
        ReclaimFor(gang, /*takes_all=*/true, together) == Reclaimed::kStopsOthers)
      return;
  } else if (gang.guaranteed) {
    draft_->WakeAt(gang.row->waiting_since_ns + in_.options.min_runtime_ns);
  }
  Reserve(in_, gang, in_.now_ns, /*stops_nobody=*/reclaimed == Reclaimed::kTooMany, together,
          &searches_left_, draft_);
}

bool EntitledPlacer::StartNow(const Gang& gang, bool together) {
  const int64_t end_ns = together ? EndOfGroup(in_, gang) : in_.EndIfStarted(gang);
  if (together ? !GroupWithinLimits(in_, gang, gang.charge, draft_->now(), draft_) ||
                     !GroupWithinLimits(in_, gang, gang.charge, draft_->later(), draft_)
               : !draft_->WithinLimits(gang, gang.charge, gang.min_workers))
    return false;
  const Search search{.kind = Search::kNow,
                      .overdue = !together && Overdue(in_, gang),
                      .pool = gang.charge,
                      .shape = gang.shape,
                      .lent = draft_->WhichLend(gang, gang.charge, end_ns)};
  if (draft_->Failed(search)) return false;
  std::optional<Places> places = PlacesFor(gang, gang.min_workers, end_ns, together, draft_->now());
  if (!places.has_value()) {
    draft_->Remember(search);
    return false;
  }
  for (PlannedPlace& place : *places)
    draft_->Start(place.gang, place.pool, place.workers, std::move(place.slices));
  return true;
}

// From what others are giving back already.
bool EntitledPlacer::HoldLater(const Gang& gang, int32_t workers, bool together) {
  const int64_t end_ns = together ? EndOfGroup(in_, gang) : in_.EndIfStarted(gang);
  if (together ? !GroupWithinLimits(in_, gang, gang.charge, draft_->later(), draft_)
               : !draft_->later()->WithinLimits(gang, gang.charge, workers))
    return false;
  const Search search{.kind = Search::kLater,
                      .overdue = !together && Overdue(in_, gang),
                      .pool = gang.charge,
                      .shape = gang.shape,
                      .workers = workers,
                      .lent = draft_->WhichLend(gang, gang.charge, end_ns)};
  if (draft_->Failed(search)) return false;
  std::optional<Places> places = PlacesFor(gang, workers, end_ns, together, draft_->later());
  if (!places.has_value()) {
    draft_->Remember(search);
    return false;
  }
  for (PlannedPlace& place : *places)
    draft_->Hold(place.gang, place.pool, place.workers, std::move(place.slices));
  return true;
}

std::optional<Places> EntitledPlacer::PlacesFor(const Gang& gang, int32_t workers, int64_t end_ns,
                                                bool together, Capacity* capacity) {
  if (together) return FindPlaces(in_, gang, gang.charge, capacity, /*stops_others=*/false, draft_);
  std::optional<HostSlices> slices = draft_->FindPlace(capacity, gang, gang.charge, workers, end_ns,
                                                       /*beside_draining=*/Overdue(in_, gang));
  if (!slices.has_value()) return std::nullopt;
  return Places{{in_.IndexOf(gang), gang.charge, workers, *std::move(slices)}};
}

Reclaimed EntitledPlacer::ReclaimFor(const Gang& gang, bool takes_all, bool together) {
  return Reclaim(in_,
                 {.gang = in_.IndexOf(gang),
                  .pool = gang.charge,
                  .workers = gang.min_workers,
                  .takes_all = takes_all,
                  .together = together,
                  .wanted = WantedWith(gang)},
                 draft_);
}

}  // namespace

void PlaceEntitled(const Inputs& in, Draft* draft) {
  std::vector<int32_t> gangs;
  for (const int32_t g : in.entitled) {
    if (!draft->Serves(g) && !draft->Ends(in.gang(g))) gangs.push_back(g);
  }
  std::sort(gangs.begin(), gangs.end(), [&](int32_t a, int32_t b) {
    return std::tie(in.model.order[a], a) < std::tie(in.model.order[b], b);
  });
  EntitledPlacer(in, draft).Run(gangs);
}

}  // namespace muster
