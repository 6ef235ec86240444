#include "scheduler/decide/draft/draft.h"

#include <algorithm>

#include "common/base/check.h"
#include "scheduler/state/hosted.h"

namespace muster {

Draft::Draft(const Inputs& in, FreeMap* now, FreeMap* later)
    : in_(in),
      now_(in.model, now),
      later_(in.model, later),
      reservations_(in),
      stops_(in.model.gangs.size(), false),
      serves_(in.model.gangs.size(), false) {
  for (const int32_t g : in_.model.stopping) {
    const Gang& gang = in_.gang(g);
    if ((gang.bound_pool < 0 && !gang.hosted) || gang.may_be_lost || in_.Unanswered(gang)) continue;
    WakeAt(in_.AnswerDueNs(gang));
    if (HasOwnDevices(gang)) later_.Release(gang);
    if (gang.bound_pool >= 0) later_.AddUse(gang, gang.bound_pool, -gang.workers);
  }
}

bool Draft::HasOwnDevices(const Gang& gang) const {
  if (!gang.hosted) return true;
  return std::none_of(
      gang.current->parts.begin(), gang.current->parts.end(), [&](const PartRow& part) {
        return IsOnHolder(in_.state, in_.state.host(part.host), *gang.job, *gang.current);
      });
}

// ---- Searches.

std::optional<HostSlices> Draft::FindPlace(Capacity* capacity, const Gang& gang, int32_t pool,
                                           int32_t workers, int64_t end_ns, bool beside_draining) {
  Try trial(this, capacity);
  trial.LeaveReserved(pool, gang, end_ns, beside_draining);
  return capacity->Place(gang, pool, workers, HostsToAvoid(*gang.job));
}

void Try::Leave(const PlannedReservation& reservation, bool whole_hosts) {
  for (const auto& [host, rest] : reservation.rest) {
    if (whole_hosts) {
      capacity_->free_->Close(host);
    } else {
      capacity_->free_->LimitHost(host, rest);
    }
  }
}

void Try::LeaveReserved(int32_t pool, const Gang& gang, int64_t end_ns, bool beside_draining) {
  draft_->reservations_.EachMet(pool, [&](const PlannedReservation& reservation) {
    if (draft_->reservations_.Lends(reservation, gang, end_ns, draft_->now_.use())) return;
    Leave(reservation, reservation.draining && !beside_draining);
  });
}

// ---- Verbs.

void Draft::Start(int32_t g, int32_t pool, int32_t workers, HostSlices slices) {
  MUSTER_CHECK(tries_ == 0);
  const Gang& gang = in_.gang(g);
  if (gang.may_be_lost && !gang.wants_place() && !in_.AllOver(*gang.current)) {
    if (gang.running()) {
      Stop(gang, {pb::HOST_LOST, "a host of the gang can't be reached; it starts elsewhere", 0});
    }
    return Hold(g, pool, workers, std::move(slices));
  }
  now_.Take(gang, slices);
  later_.Take(gang, slices);
  reservations_.ChangeRests(gang, pool, slices, in_.EndIfStarted(gang), 1, now_.use());
  now_.AddUse(gang, pool, workers);
  later_.AddUse(gang, pool, workers);
  serves_[g] = true;
  starts_.push_back({g, pool, workers, std::move(slices)});
}

void Draft::StartOnOwn(int32_t g, int32_t pool, int32_t workers, HostSlices slices) {
  MUSTER_CHECK(tries_ == 0);
  const Gang& gang = in_.gang(g);
  const bool over = in_.AllOver(*gang.current);
  if (over) now_.Release(gang);
  if (over || !gang.running()) later_.Release(gang);  // else Start stops it, which does that
  Start(g, pool, workers, std::move(slices));
}

void Draft::Hold(int32_t g, int32_t pool, int32_t workers, HostSlices slices) {
  MUSTER_CHECK(tries_ == 0);
  const Gang& gang = in_.gang(g);
  later_.Take(gang, slices);
  now_.free_->LimitTo(*later_.free_, slices);
  reservations_.ChangeRests(gang, pool, slices, 0, 1, now_.use());
  later_.AddUse(gang, pool, workers);
  serves_[g] = true;
  holds_.push_back({g, pool, workers, std::move(slices)});
}

void Draft::HoldOnOwn(int32_t g, int32_t pool, int32_t workers, HostSlices slices) {
  const Gang& gang = in_.gang(g);
  later_.Release(gang);
  const HostSlices held = slices;
  Hold(g, pool, workers, std::move(slices));
  CloseOwnHosts(gang, held);
}

// What the gang still has and won't need is free only once it has left: nothing of those hosts is
// anybody's until then.
void Draft::CloseOwnHosts(const Gang& gang, const HostSlices& but) {
  for (const PartRow& part : gang.current->parts) {
    const HostSlice own{part.host, part.workers, part.devices, part.device_milli};
    if (std::find(but.begin(), but.end(), own) == but.end()) later_.free_->Close(part.host);
  }
}

void Draft::SetAside(const PlannedPlace& place, bool on_own) {
  MUSTER_CHECK(tries_ == 0 && reservations_.size() == 0);
  const Gang& gang = in_.gang(place.gang);
  if (on_own) later_.Release(gang);
  later_.Take(gang, place.slices);
  if (on_own) CloseOwnHosts(gang, place.slices);
  later_.AddUse(gang, place.pool, place.workers);
}

void Draft::HoldAside(PlannedPlace place) {
  MUSTER_CHECK(tries_ == 0 && reservations_.size() == 0);
  now_.free_->LimitTo(*later_.free_, place.slices);
  serves_[place.gang] = true;
  holds_.push_back(std::move(place));
}

void Draft::Drop(const PlannedPlace& place) {
  MUSTER_CHECK(tries_ == 0);
  const Gang& gang = in_.gang(place.gang);
  later_.GiveBack(gang, place.slices);
  later_.AddUse(gang, place.pool, -place.workers);
}

void Draft::Withdraw(size_t start) {
  MUSTER_CHECK(tries_ == 0);
  const PlannedPlace& place = starts_[start];
  const Gang& gang = in_.gang(place.gang);
  now_.GiveBack(gang, place.slices);
  later_.GiveBack(gang, place.slices);
  reservations_.ChangeRests(gang, place.pool, place.slices, in_.EndIfStarted(gang), -1, now_.use());
}

void Draft::Restart(size_t start, int32_t workers, HostSlices slices) {
  MUSTER_CHECK(tries_ == 0);
  PlannedPlace& place = starts_[start];
  const Gang& gang = in_.gang(place.gang);
  if (workers != place.workers) {
    now_.AddUse(gang, place.pool, workers - place.workers);
    later_.AddUse(gang, place.pool, workers - place.workers);
    memo_.Clear();  // it may have left where it was to be
  }
  place.workers = workers;
  place.slices = std::move(slices);
  now_.Take(gang, place.slices);
  later_.Take(gang, place.slices);
  reservations_.ChangeRests(gang, place.pool, place.slices, in_.EndIfStarted(gang), 1, now_.use());
}

void Draft::Stop(const Gang& gang, const StopOrder& order) {
  MUSTER_CHECK(tries_ == 0);
  pb::AttemptStopping* stopping = stop_events_.emplace_back().mutable_attempt_stopping();
  *stopping->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.current->number);
  stopping->set_cause(order.cause);
  stopping->set_detail(order.detail);
  stopping->set_grace_ns(order.grace_ns);
  stopping->set_next_workers(order.next_workers);
  if (const Gang* claimant = order.claimant; claimant != nullptr) {
    *stopping->mutable_claimant() =
        KeyOf(*claimant->job, claimant->ref.task, claimant->row->next_attempt);
  }
  const int32_t g = in_.IndexOf(gang);
  stops_[g] = true;
  stopped_gangs_.push_back(g);
  // Where nobody will answer, what follows is the next decision's.
  if (in_.AllOver(*gang.current)) WakeAt(in_.now_ns);
  if (HasOwnDevices(gang)) later_.Release(gang);
  if (gang.bound_pool >= 0 && !gang.may_be_lost)
    later_.AddUse(gang, gang.bound_pool, -gang.current->workers);
  memo_.Clear();
}

void Draft::Reserve(PlannedReservation reservation) {
  MUSTER_CHECK(tries_ == 0);
  reservations_.Add(std::move(reservation));
}

void Draft::Open(pb::ClusterOpened opened) {
  WakeAt(in_.now_ns);  // the entitled set is another one then
  *opened_events_.emplace_back().mutable_cluster_opened() = std::move(opened);
}

void Draft::WakeAt(int64_t at_ns) {
  next_wake_ns_ = std::min(next_wake_ns_, std::max(at_ns, in_.now_ns));
}

}  // namespace muster
