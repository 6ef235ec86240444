// When and where a gang could start: ends of running work are taken in turn until it fits.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

class LaterStartSearch {
 public:
  LaterStartSearch(const Inputs& in, const Gang& gang, const LaterStartRequest& request,
                   Draft* draft)
      : in_(in),
        draft_(draft),
        gang_(gang),
        request_(request),
        demand_milli_(request.together ? gang.unit_milli() : gang.worker_milli * request.workers),
        host_cpus_milli_(request.together ? gang.unit_host_cpus_milli()
                                          : gang.host_cpus_milli * request.workers) {}

  std::optional<LaterStart> Run();

 private:
  std::vector<std::pair<int32_t, int64_t>> Stoppable(int32_t pool) const;
  void AddEnds(int32_t pool);
  std::optional<size_t> LeastByNumber() const;
  void SetEnds(size_t count);
  bool MayFit(size_t count);
  bool Fits(size_t count);
  bool WithinLimits() const;
  bool MayHold() const;
  std::optional<Places> Place();

  const Inputs& in_;
  Draft* const draft_;
  const Gang& gang_;
  const LaterStartRequest& request_;
  const int64_t demand_milli_, host_cpus_milli_;
  std::vector<RunEnd> ends_;
  std::optional<Try> trial_;         // on later capacity, with the first ends
  std::vector<Try::Mark> marks_;     // before each of these
  std::optional<LaterStart> found_;  // by the last call of Fits that said yes
};

// Gangs in the pool that the claim may stop, ascending, and when they will have gone.
std::vector<std::pair<int32_t, int64_t>> LaterStartSearch::Stoppable(int32_t pool) const {
  std::vector<std::pair<int32_t, int64_t>> gangs;
  const int64_t wanted = pool == request_.pool ? demand_milli_ : host_cpus_milli_;
  EachOf(in_.model.gangs, in_.model.takeable[pool], [&](int32_t v) {
    const Gang& other = in_.gang(v);
    if (draft_->Stops(v) || other.worker_milli * other.workers > kMostStopped * wanted) return;
    if (!MayTake(in_, gang_, other)) return;
    if (!LevelAllows(in_, gang_, request_.pool, demand_milli_, other, draft_->later()->use()))
      return;
    const int64_t protected_ns = other.since_ns() + MinRuntimeNs(in_, other.leaf);
    gangs.emplace_back(v, std::max(protected_ns, in_.now_ns) + GraceOf(*other.spec));
  });
  return gangs;
}

// What ends in a pool. What stands on its hosts without devices gives none back, but may be in the
// way.
void LaterStartSearch::AddEnds(int32_t pool) {
  std::vector<std::pair<int32_t, int64_t>> stoppable;
  if (request_.takes) stoppable = Stoppable(pool);
  const auto before = static_cast<std::ptrdiff_t>(ends_.size());
  ends_.reserve(ends_.size() + in_.EndsIn(pool).size());
  for (const RunEnd& known : in_.EndsIn(pool)) {
    if (draft_->Stops(known.gang) || &in_.gang(known.gang) == &gang_) continue;
    RunEnd& end = ends_.emplace_back(known);
    if (pool != request_.pool) end.milli = 0;
    const auto at = std::lower_bound(stoppable.begin(), stoppable.end(),
                                     std::make_pair(known.gang, int64_t{0}));
    if (at != stoppable.end() && at->first == known.gang)
      end.end_ns = std::min(known.end_ns, at->second);
  }
  if (!stoppable.empty()) std::sort(ends_.begin() + before, ends_.end());
  std::inplace_merge(ends_.begin(), ends_.begin() + before, ends_.end());
}

// By number it doesn't fit before so many of the ends; nullopt: never.
std::optional<size_t> LaterStartSearch::LeastByNumber() const {
  if (!gang_.gpus || request_.told != nullptr) return 0;
  int64_t free_milli = draft_->later()->FreeMilli(request_.pool, true);
  size_t least = 0;
  for (; free_milli < demand_milli_; ++least) {
    if (least == ends_.size()) return std::nullopt;
    free_milli += ends_[least].milli;
  }
  return least;
}

void LaterStartSearch::SetEnds(size_t count) {
  if (marks_.size() > count) {
    trial_->BackTo(marks_[count]);
    marks_.resize(count);
  }
  while (marks_.size() < count) {
    const Gang& other = in_.gang(ends_[marks_.size()].gang);
    marks_.push_back(trial_->Here());
    trial_->Release(other);
    trial_->AddUse(other, other.bound_pool, -other.workers);
  }
}

bool LaterStartSearch::WithinLimits() const {
  if (request_.together)
    return GroupWithinLimits(in_, gang_, request_.pool, draft_->later(), draft_);
  return draft_->later()->WithinLimits(gang_, request_.pool, request_.workers);
}

// By what is whole it may have a place.
bool LaterStartSearch::MayHold() const {
  if (!request_.together) return draft_->later()->AtMost(gang_, request_.pool) >= request_.workers;
  const std::vector<int32_t> group = GroupOf(in_.model, in_.IndexOf(gang_));
  return std::all_of(group.begin(), group.end(), [&](int32_t g) {
    const int32_t pool = PoolBeside(in_.model, in_.gang(g), request_.pool);
    return pool >= 0 && draft_->later()->AtMost(in_.gang(g), pool) >= in_.gang(g).min_workers;
  });
}

bool LaterStartSearch::MayFit(size_t count) {
  SetEnds(count);
  return WithinLimits() && (request_.told != nullptr || MayHold());
}

// As things stand on later capacity.
std::optional<Places> LaterStartSearch::Place() {
  Capacity& later = *draft_->later();
  if (request_.together) return PlaceGroup(in_, gang_, request_.pool, &later, draft_);
  std::optional<HostSlices> slices;
  if (request_.told == nullptr) {
    slices = later.Place(gang_, request_.pool, request_.workers, HostsToAvoid(*gang_.job));
  } else if (later.Fits(gang_, *request_.told, /*silent_too=*/true)) {
    slices = *request_.told;
  }
  if (!slices.has_value()) return std::nullopt;
  return Places{{in_.IndexOf(gang_), request_.pool, request_.workers, *std::move(slices)}};
}

bool LaterStartSearch::Fits(size_t count) {
  SetEnds(count);
  Capacity& later = *draft_->later();
  if (!WithinLimits()) return false;
  const int64_t at_ns = std::max(
      {in_.now_ns, request_.not_before_ns, count == 0 ? int64_t{0} : ends_[count - 1].end_ns});
  Try trial(draft_, &later);
  draft_->reservations().EachMet(request_.pool, [&](const PlannedReservation& earlier) {
    // Of one in another pool nothing is known but its rest: what ends there isn't in ends_.
    if (earlier.place.pool == request_.pool && earlier.start_ns != 0 && earlier.start_ns <= at_ns) {
      trial.Take(in_.gang(earlier.place.gang), earlier.place.slices);
    } else {
      trial.Leave(earlier, earlier.draining);
    }
  });
  std::optional<Places> places = Place();
  if (!places.has_value()) return false;
  for (const PlannedPlace& place : *places) trial.Take(in_.gang(place.gang), place.slices);
  LaterStart& found = found_.emplace();
  found.start_ns = at_ns;
  for (const PlannedPlace& place : *places) {
    for (const HostSlice& part : place.slices)
      found.rest.emplace_back(part.host, later.Peek(part.host));
  }
  found.places = *std::move(places);
  return true;
}

std::optional<LaterStart> LaterStartSearch::Run() {
  AddEnds(request_.pool);
  if (const int32_t cpus = in_.model.CpusBeside(request_.pool); cpus >= 0) AddEnds(cpus);
  const std::optional<size_t> by_number = LeastByNumber();
  if (!by_number.has_value()) return std::nullopt;
  trial_.emplace(draft_, draft_->later());
  // One end after the other while limits or what is whole say no; then by doubling and halving. The
  // newest found_ is that of the fewest ends tried that let it fit.
  size_t least = *by_number;
  while (least < ends_.size() && !MayFit(least)) ++least;
  size_t low = least, high = least;  // it doesn't fit after `low` ends, it does after `high`
  bool fits = Fits(least);
  for (size_t more = 1; !fits && low < ends_.size(); more *= 2) {
    high = std::min(least + more, ends_.size());
    fits = Fits(high);
    if (!fits) low = high;
  }
  while (fits && high > low + 1) {
    const size_t middle = low + (high - low) / 2;
    (Fits(middle) ? high : low) = middle;
  }
  trial_.reset();
  return std::move(found_);
}

}  // namespace

std::optional<LaterStart> FindLaterStart(const Inputs& in, const Gang& gang,
                                         const LaterStartRequest& request, Draft* draft) {
  return LaterStartSearch(in, gang, request, draft).Run();
}

}  // namespace muster
