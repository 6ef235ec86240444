// Starts an entitled unit by stopping units that are not entitled, victims and placement together;
// one with devices may stop what stands on their hosts without, too
// (docs/decisions/046-cpus-beside-devices.md).
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

class Claim {
 public:
  Claim(const Inputs& in, const ReclaimRequest& request, Draft* draft)
      : in_(in),
        draft_(draft),
        request_(request),
        claimant_(in.gang(request.gang)),
        guaranteed_(claimant_.guaranteed && !request.grows),
        has_(request.grows ? claimant_.workers : 0),
        demand_milli_(request.together ? claimant_.unit_milli()
                                       : claimant_.worker_milli * request.workers),
        end_ns_(request.together ? EndOfGroup(in, claimant_) : in.EndIfStarted(claimant_)) {}

  Reclaimed Run();

 private:
  // Finds whom to stop, in left_, and the place then; on later capacity, in a Try. `anywhere`: also
  // on hosts that the claimant avoids.
  bool Find(bool anywhere);
  bool FindShortestRun();
  void SpareTheOtherKind();
  void SpareTheNeedless();
  bool TooMany() const;
  void Stop();

  void Begin(bool anywhere);
  void TakeBackUnanswered();
  void AddUse(const Gang& gang, int32_t pool, int64_t workers);
  // Of the victim's workers [from, to), those on broken devices last: they go first.
  HostSlices SlicesOfVictim(int32_t victim, int32_t from, int32_t to) const;
  void SetLeft(int32_t victim, int32_t workers);
  void SetLeftOf(int32_t victim, int32_t workers);
  void SetVictims(size_t count);
  // The claimant has a place, in places_, if what is left of the victims stays.
  bool Holds();
  bool RaisesLevel(const Gang& spared) const;
  int64_t StoppedMilli(bool same_kind) const;

  const Inputs& in_;
  Draft* const draft_;
  const ReclaimRequest& request_;
  const Gang& claimant_;
  std::vector<HostId> avoid_;  // hosts that a launch of it failed on, or that were lost
  const bool guaranteed_;
  const int32_t has_;           // workers that it has already
  const int64_t demand_milli_;  // of all workers
  const int64_t end_ns_;

  std::vector<Victim> victims_;
  std::map<int32_t, AttemptRow> sound_first_;  // of victims that have broken devices, by gang
  std::map<int32_t, int32_t> left_;            // workers, by victim's gang
  std::vector<int32_t> left_before_;           // of the first victims, those applied: before each
  std::optional<Try> trial_;                   // on later capacity: what victims give back
  // Of claims beyond a guarantee: what queues use without the trial, and with it, but for what only
  // moves.
  std::optional<QueueUse> before_, levels_;
  bool stops_others_ = true;
  std::optional<Places> places_;
};

void Claim::AddUse(const Gang& gang, int32_t pool, int64_t workers) {
  trial_->AddUse(gang, pool, workers);
  if (levels_.has_value() && !OnlyMoves(in_.model, gang)) levels_->Add(gang, pool, workers);
}

// What is being stopped where a host doesn't answer isn't given back soon: it wouldn't be free when
// what grows has stopped, which would start as small as it was, and grow again.
void Claim::TakeBackUnanswered() {
  const auto take_back = [&](const Gang& gang) {
    if (gang.hosts_up || gang.bound_pool < 0 || gang.may_be_lost || in_.Unanswered(gang)) return;
    trial_->AddUse(gang, gang.bound_pool, gang.workers);
    // It may be held for others in part.
    trial_->LimitTo(*draft_->now(), SlicesOf(*gang.spec, *gang.current, 0, gang.workers));
  };
  for (const int32_t v : in_.model.stopping) take_back(in_.gang(v));
  for (const int32_t v : draft_->stops()) take_back(in_.gang(v));
}

void Claim::Begin(bool anywhere) {
  left_.clear();
  left_before_.clear();
  stops_others_ = true;
  for (const Victim& victim : victims_) {
    for (const int32_t g : RunningOf(in_, *draft_, victim.gang)) left_[g] = in_.gang(g).workers;
  }
  if (!guaranteed_) {
    before_ = draft_->later()->use();
    levels_ = before_;
  }
  trial_.emplace(draft_, draft_->later());
  for (const HostId host : avoid_) {
    if (!anywhere) trial_->Close(host);
  }
  if (!request_.grows) return;
  TakeBackUnanswered();
  trial_->Release(claimant_);
  AddUse(claimant_, request_.pool, -has_);
}

HostSlices Claim::SlicesOfVictim(int32_t victim, int32_t from, int32_t to) const {
  const Gang& gang = in_.gang(victim);
  const auto sorted = sound_first_.find(victim);
  if (sorted == sound_first_.end()) return SlicesOf(*gang.spec, *gang.current, from, to);
  HostSlices merged;  // of a host one
  for (HostSlice& slice : SlicesOf(*gang.spec, sorted->second, from, to)) {
    if (merged.empty() || merged.back().host != slice.host) {
      merged.push_back(std::move(slice));
      continue;
    }
    HostSlice& last = merged.back();
    last.workers += slice.workers;
    last.devices.insert(last.devices.end(), slice.devices.begin(), slice.devices.end());
    last.device_milli.insert(last.device_milli.end(), slice.device_milli.begin(),
                             slice.device_milli.end());
  }
  return merged;
}

void Claim::SetLeft(int32_t victim, int32_t workers) {
  if (in_.gang(victim).leader < 0) return SetLeftOf(victim, workers);
  for (const int32_t g : RunningOf(in_, *draft_, victim))
    SetLeftOf(g, workers == 0 ? 0 : in_.gang(g).workers);
}

void Claim::SetLeftOf(int32_t victim, int32_t workers) {
  const Gang& gang = in_.gang(victim);
  int32_t& from = left_[victim];
  if (workers < from) trial_->GiveBack(gang, SlicesOfVictim(victim, workers, from));
  if (workers > from) trial_->Take(gang, SlicesOfVictim(victim, from, workers));
  AddUse(gang, gang.bound_pool, workers - from);
  from = workers;
}

void Claim::SetVictims(size_t count) {
  for (; left_before_.size() > count; left_before_.pop_back())
    SetLeft(victims_[left_before_.size() - 1].gang, left_before_.back());
  while (left_before_.size() < count) {
    const Victim& next = victims_[left_before_.size()];
    left_before_.push_back(left_[next.gang]);
    SetLeft(next.gang, next.keeps);
  }
}

bool Claim::Holds() {
  Capacity* later = draft_->later();
  if (request_.together) {
    if (!GroupWithinLimits(in_, claimant_, request_.pool, later, draft_)) return false;
    std::optional<Places> found =
        FindPlaces(in_, claimant_, request_.pool, later, stops_others_, draft_);
    if (!found.has_value()) return false;
    places_ = std::move(found);
    return true;
  }
  if (!later->WithinLimits(claimant_, request_.pool, request_.workers)) return false;
  Try trial(draft_, later);
  trial.LeaveReserved(request_.pool, claimant_, end_ns_, stops_others_);
  std::optional<HostSlices> found =
      later->Place(claimant_, request_.pool, request_.workers, avoid_);
  if (!found.has_value()) return false;
  places_ = Places{{request_.gang, request_.pool, request_.workers, *std::move(found)}};
  return true;
}

// The shortest run of victims that suffices, by doubling and halving.
bool Claim::FindShortestRun() {
  size_t low = 0, high = 0;  // it doesn't hold with `low` victims, it does with `high`
  bool found = false;
  for (size_t count = 1; !found && low < victims_.size(); count *= 2) {
    high = std::min(count, victims_.size());
    SetVictims(high);
    found = Holds();
    if (!found) low = high;
  }
  if (!found) return false;
  while (high > low + 1) {
    const size_t middle = low + (high - low) / 2;
    SetVictims(middle);
    (Holds() ? high : low) = middle;
  }
  SetVictims(high);
  return true;
}

// Where it is devices after all that it wants for, nobody without devices has to go.
void Claim::SpareTheOtherKind() {
  const size_t count = left_before_.size();
  size_t others = 0;
  while (others < count && in_.gang(victims_[others].gang).gpus != claimant_.gpus) ++others;
  if (others == 0 || others == count) return;
  for (size_t i = 0; i < others; ++i) SetLeft(victims_[i].gang, in_.gang(victims_[i].gang).workers);
  if (Holds()) return;
  for (size_t i = 0; i < others; ++i) SetLeft(victims_[i].gang, victims_[i].keeps);
}

// Each victim was allowed beside those before it. Without one that counts against a queue of the
// claimant's own, its level may be above that of another victim, as that was.
bool Claim::RaisesLevel(const Gang& spared) const {
  if (guaranteed_ || !in_.options.levels || !SharesQueue(in_.model, claimant_, spared))
    return false;
  return std::any_of(left_.begin(), left_.end(), [&](const auto& one) {
    const Gang& gang = in_.gang(one.first);
    return one.second < gang.workers && LevelsCount(in_, claimant_, gang) &&
           CompareLevels(in_, claimant_, request_.pool, demand_milli_, *levels_, gang, 0,
                         *before_) > 0;
  });
}

// Spares, from the last, each that isn't needed; of growth no more goes than is needed.
void Claim::SpareTheNeedless() {
  for (size_t i = left_before_.size(); i-- > 0;) {
    const Victim& victim = victims_[i];
    const Gang& gang = in_.gang(victim.gang);
    const auto may_stay = [&](int32_t workers) {
      SetLeft(victim.gang, workers);
      return !RaisesLevel(gang) && Holds();
    };
    if (left_[victim.gang] != victim.keeps) continue;  // the rest of it is taken as well
    if (may_stay(left_before_[i])) continue;
    SetLeft(victim.gang, victim.keeps);
    if (victim.keeps == 0) continue;
    int32_t fewest = victim.keeps, too_many = left_before_[i];
    while (too_many > fewest + gang.step_workers) {
      const int32_t middle = fewest + gang.InSteps((too_many - fewest) / 2);
      (may_stay(middle) ? fewest : too_many) = middle;
    }
    SetLeft(victim.gang, fewest);
  }
}

int64_t Claim::StoppedMilli(bool same_kind) const {
  int64_t milli = 0;
  for (const auto& [v, workers] : left_) {
    const Gang& gang = in_.gang(v);
    if ((gang.gpus == claimant_.gpus) == same_kind)
      milli += gang.worker_milli * (gang.workers - workers);
  }
  return milli;
}

// With the claimant all that waits for the same and comes after it takes of what one large gang
// gives back.
bool Claim::TooMany() const {
  if (request_.takes_all) return false;
  const int64_t workers = request_.workers - has_;
  const int64_t milli =
      request_.together ? claimant_.unit_milli() : claimant_.worker_milli * workers;
  const int64_t host_cpus_milli =
      request_.together ? claimant_.unit_host_cpus_milli() : claimant_.host_cpus_milli * workers;
  return StoppedMilli(true) > kMostStopped * std::max(milli, request_.wanted.milli) ||
         StoppedMilli(false) >
             kMostStopped * std::max(host_cpus_milli, request_.wanted.host_cpus_milli);
}

bool Claim::Find(bool anywhere) {
  Begin(anywhere);
  const bool found = FindShortestRun();
  if (found) {
    SpareTheOtherKind();
    SpareTheNeedless();
    // Who stops nobody doesn't get by a draining reservation: it would hold what it could as well
    // have started on.
    stops_others_ = StoppedMilli(true) + StoppedMilli(false) > 0;
  }
  const bool holds = found && Holds();
  trial_.reset();
  return holds;
}

void Claim::Stop() {
  if (request_.grows) {
    draft_->Stop(
        claimant_,
        {pb::RESIZE, absl::StrCat("grows from ", has_, " to ", request_.workers, " workers"),
         GraceOf(*claimant_.spec), request_.workers});
  }
  for (const auto& [v, workers] : left_) {
    const Gang& gang = in_.gang(v);
    const int32_t stops = gang.workers - workers;
    if (stops == 0) continue;
    const std::string detail =
        workers == 0 ? EntitledTo(claimant_, gang)
        : gang.gpus != claimant_.gpus
            ? absl::StrCat(EntitledTo(claimant_, gang), ": ", stops, " of its ", gang.workers,
                           " workers stop")
            : absl::StrCat("job ", claimant_.ref.job, " is entitled to ", stops, " of its ",
                           gang.workers, " workers' devices");
    draft_->Stop(gang, {pb::PREEMPTION, detail, GraceOf(*gang.spec), workers, &claimant_});
  }
  for (PlannedPlace& place : *places_)
    draft_->Hold(place.gang, place.pool, place.workers, std::move(place.slices));
  for (const auto& [v, workers] : left_) {
    const Gang& gang = in_.gang(v);
    if (workers == 0 || workers == gang.workers) continue;
    HostSlices kept = SlicesOfVictim(v, 0, workers);
    // Where it has too few sound devices left, or they are no whole blocks of ranks, nothing is
    // held for it: it looks for a place anew.
    if (AllSound(in_.state, kept) && AreTogether(in_.state, *gang.spec, kept))
      draft_->Hold(v, gang.bound_pool, workers, std::move(kept));
  }
}

Reclaimed Claim::Run() {
  Search search{.kind = guaranteed_ ? Search::kGuaranteedClaim : Search::kOtherClaim,
                .overdue = guaranteed_ && Overdue(in_, claimant_),
                .pool = request_.pool,
                .priority = claimant_.priority,
                .band = claimant_.band,
                .lent = draft_->WhichLend(claimant_, request_.pool, end_ns_)};
  if (request_.grows) {
    search.grows = request_.gang;
  } else {
    search.leaf = claimant_.leaf;
    search.shape = claimant_.shape;
  }
  if (draft_->Failed(search)) return Reclaimed::kNobody;
  avoid_ = HostsToAvoid(*claimant_.job);
  victims_ = VictimsFor(in_, request_, draft_);
  for (const Victim& victim : victims_) {
    const Gang& gang = in_.gang(victim.gang);
    if (victim.keeps == 0 ||
        AllSound(in_.state, SlicesOf(*gang.spec, *gang.current, 0, gang.workers)))
      continue;
    sound_first_.emplace(victim.gang, SoundFirst(in_.state, *gang.spec, *gang.current));
  }
  // Hosts that it avoids only where nothing else helps: else it would stop the same victims on a
  // host where its launch has just failed, again and again.
  bool found = false;
  for (const bool anywhere : {false, true}) {
    if (victims_.empty() || (!anywhere && avoid_.empty()) || !Find(anywhere)) continue;
    found = true;
    if (TooMany()) continue;
    Stop();
    return Reclaimed::kStopsOthers;
  }
  if (found) return Reclaimed::kTooMany;
  draft_->Remember(search);
  return Reclaimed::kNobody;
}

}  // namespace

Reclaimed Reclaim(const Inputs& in, const ReclaimRequest& request, Draft* draft) {
  return Claim(in, request, draft).Run();
}

}  // namespace muster
