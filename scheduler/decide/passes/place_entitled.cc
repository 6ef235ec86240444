#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/passes.h"

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
      if (gang.may_be_lost && !gang.wants_place()) {
        if (in_.InHeldQueue(gang)) continue;  // nothing of a held queue starts, not even elsewhere
        if (draft_->Stops(g)) {               // for another cause: it moves once that stands
          draft_->WakeAt(in_.now_ns);
          continue;
        }
      }
      Place(gang);
      AddWanted(gang, -1);
      if (!draft_->Serves(g)) draft_->LeaveUnserved(g);
    }
  }

 private:
  void Place(const Gang& gang);
  bool StartNow(const Gang& gang);
  bool HoldLater(const Gang& gang, int32_t workers);
  Reclaimed ReclaimFor(const Gang& gang, bool takes_all);

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
  int32_t searches_left_ = kSearchesForReservations;
};

void EntitledPlacer::Place(const Gang& gang) {
  if (gang.ComesBack() && !gang.may_be_lost) {  // smaller or larger, once it has stopped
    if (in_.Unanswered(gang)) return;
    HoldLater(gang,
              std::clamp(gang.current->next_workers, gang.min_workers, gang.entitled_workers()));
    return;
  }
  if (gang.may_be_lost && !gang.wants_place() && ReplaceLost(in_, gang, draft_)) return;
  if (gang.backoff_until_ns > in_.now_ns) {
    draft_->WakeAt(gang.backoff_until_ns);
    Reserve(in_, gang, gang.backoff_until_ns, /*stops_nobody=*/false, &searches_left_, draft_);
    return;
  }
  if (StartNow(gang) || HoldLater(gang, gang.min_workers)) return;
  const Reclaimed reclaimed = ReclaimFor(gang, /*takes_all=*/false);
  // What may be lost keeps running there, or waits.
  if (reclaimed == Reclaimed::kStopsOthers || gang.may_be_lost) return;
  if (Overdue(in_, gang)) {
    if (Consolidate(in_, gang, gang.charge, draft_)) return;
    if (reclaimed == Reclaimed::kTooMany &&
        ReclaimFor(gang, /*takes_all=*/true) == Reclaimed::kStopsOthers)
      return;
  } else if (gang.guaranteed) {
    draft_->WakeAt(gang.row->waiting_since_ns + in_.options.min_runtime_ns);
  }
  Reserve(in_, gang, in_.now_ns, /*stops_nobody=*/reclaimed == Reclaimed::kTooMany, &searches_left_,
          draft_);
}

bool EntitledPlacer::StartNow(const Gang& gang) {
  if (!draft_->WithinLimits(gang, gang.charge, gang.min_workers)) return false;
  const int64_t end_ns = in_.EndIfStarted(gang);
  const Search search{.kind = Search::kNow,
                      .pool = gang.charge,
                      .shape = gang.shape,
                      .lent = draft_->WhichLend(gang, gang.charge, end_ns)};
  if (draft_->Failed(search)) return false;
  std::optional<HostSlices> slices =
      draft_->FindPlace(draft_->now(), gang, gang.charge, gang.min_workers, end_ns);
  if (!slices.has_value()) {
    draft_->Remember(search);
    return false;
  }
  draft_->Start(in_.IndexOf(gang), gang.charge, gang.min_workers, *std::move(slices));
  return true;
}

// From what others are giving back already.
bool EntitledPlacer::HoldLater(const Gang& gang, int32_t workers) {
  if (!draft_->later()->WithinLimits(gang, gang.charge, workers)) return false;
  const int64_t end_ns = in_.EndIfStarted(gang);
  const Search search{.kind = Search::kLater,
                      .pool = gang.charge,
                      .shape = gang.shape,
                      .workers = workers,
                      .lent = draft_->WhichLend(gang, gang.charge, end_ns)};
  if (draft_->Failed(search)) return false;
  std::optional<HostSlices> slices =
      draft_->FindPlace(draft_->later(), gang, gang.charge, workers, end_ns);
  if (!slices.has_value()) {
    draft_->Remember(search);
    return false;
  }
  draft_->Hold(in_.IndexOf(gang), gang.charge, workers, *std::move(slices));
  return true;
}

Reclaimed EntitledPlacer::ReclaimFor(const Gang& gang, bool takes_all) {
  return Reclaim(in_,
                 {.gang = in_.IndexOf(gang),
                  .pool = gang.charge,
                  .workers = gang.min_workers,
                  .takes_all = takes_all,
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
