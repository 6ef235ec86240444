// The plan in the making.
//
// It alone owns what the passes change: the capacity (now and later), what queues use of it, the
// memo of searches that failed, and the events of the plan. A pass changes them by a verb (Start,
// Hold, Stop, Reserve, Open, ...), or within a Try, which undoes itself. So capacity, memo and
// events always tell the same story. Inside of scheduler/decide. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/decide/draft/capacity.h"
#include "scheduler/decide/draft/memo.h"
#include "scheduler/decide/draft/reservations.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/state/plan.h"

namespace muster {

// Why and how a gang stops.
struct StopOrder {
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;
  std::string detail;
  int64_t grace_ns = 0;
  int32_t next_workers = 0;        // it starts again with so many; 0: not by itself
  const Gang* claimant = nullptr;  // that it makes way for
};

class Draft {
 public:
  // `now` and `later` have what State says is free, and have that again when the Draft ends. What
  // State says is being stopped counts as free later, unless its hosts don't answer.
  Draft(const Inputs& in, FreeMap* now, FreeMap* later);
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  // ---- What the plan says so far.

  Capacity* now() { return &now_; }
  Capacity* later() { return &later_; }
  const QueueUse& use_now() const { return now_.use(); }
  const Reservations& reservations() const { return reservations_; }
  const std::vector<PlannedPlace>& starts() const { return starts_; }
  const std::vector<PlannedPlace>& holds() const { return holds_; }
  const std::vector<int32_t>& stops() const { return stopped_gangs_; }  // gangs, in order
  // Waiting gangs of S that found nothing, in order of acceptance.
  const std::vector<int32_t>& unserved() const { return unserved_; }
  bool Stops(int32_t gang) const { return stops_[gang]; }
  // So many more of the gang's workers may start in the pool: no limit is broken now, nor once what
  // devices are held for has started.
  bool WithinLimits(const Gang& gang, int32_t pool, int32_t workers) const {
    return now_.WithinLimits(gang, pool, workers) && later_.WithinLimits(gang, pool, workers);
  }
  // It starts, or devices are held for it.
  bool Serves(int32_t gang) const { return serves_[gang]; }
  // The gang's job comes to its end by what this plan declares lost: it is placed nowhere, and
  // nothing is stopped or kept for it.
  bool Ends(const Gang& gang) const { return ending_.contains(gang.job); }

  // ---- Searches.

  // A place for `workers` of the gang that leaves alone what is reserved and not lent to a gang
  // that ends at end_ns (0: never). A reservation that drains keeps others off its hosts
  // altogether; with `beside_draining` off its devices only: who stops others, as what is stopped
  // lets the reservation's gang start, too, and who is overdue.
  std::optional<HostSlices> FindPlace(Capacity* capacity, const Gang& gang, int32_t pool,
                                      int32_t workers, int64_t end_ns,
                                      bool beside_draining = false);
  uint64_t WhichLend(const Gang& gang, int32_t pool, int64_t end_ns) const {
    return reservations_.WhichLend(gang, pool, end_ns, now_.use());
  }
  // A search failed, and nothing that could help it was given back since.
  bool Failed(const Search& search) const { return memo_.Failed(search); }
  void Remember(const Search& search) { memo_.Remember(search); }

  // ---- Verbs. None of them while a Try lasts.

  // The gang starts there now. One with lost members stops its reachable ones first, now that the
  // next attempt has a place; while they stop the place is held for it.
  void Start(int32_t gang, int32_t pool, int32_t workers, HostSlices slices);
  // The same for a gang with lost members whose place counts on what it still has.
  void StartOnOwn(int32_t gang, int32_t pool, int32_t workers, HostSlices slices);
  // The gang starts on a slice of its holder's devices (hosted.h); what is free stays so.
  void StartOnHolder(int32_t gang, const AttemptRow& holder, const HostSlice& slice);
  // Keeps devices that are free, or will be given back, for the gang alone.
  void Hold(int32_t gang, int32_t pool, int32_t workers, HostSlices slices);
  // The same for a gang with lost members whose place counts on what it still has.
  void HoldOnOwn(int32_t gang, int32_t pool, int32_t workers, HostSlices slices);
  // Hold in two steps: nobody else gets the devices later (SetAside); nobody gets what is free of
  // them now either (HoldAside), or they are given back (Drop). `on_own`: see HoldOnOwn.
  void SetAside(const PlannedPlace& place, bool on_own);
  void HoldAside(PlannedPlace place);
  void Drop(const PlannedPlace& place);
  // Of the starts one, by its index, gives its devices back and takes these (or its own again).
  void Withdraw(size_t start);
  void Restart(size_t start, int32_t workers, HostSlices slices);
  // What the gang holds is free later.
  void Stop(const Gang& gang, const StopOrder& order);
  // Workers that a gang grows by count against limits from now on.
  void CountGrowth(const Gang& gang, int32_t workers) { now_.AddUse(gang, gang.charge, workers); }
  void Reserve(PlannedReservation reservation);
  // The gang's job may use more of its clusters from the next decision on.
  void Open(pb::ClusterOpened opened);
  // Unreachable members of the gang are declared lost; `outcome` says what follows.
  void Lose(const Gang& gang, const std::string& outcome);
  // The gang's job comes to its end. False: that was said.
  bool End(const Gang& gang) { return ending_.insert(gang.job).second; }
  void LeaveUnserved(int32_t gang) { unserved_.push_back(gang); }
  // Time alone may change the plan at `at_ns`: decide again then.
  void WakeAt(int64_t at_ns);

  // The plan, verdicts and entitlements apart; nothing may follow but WakeAt. The first task of a
  // job that starts binds it to the clusters that reach its directory; those that were to start in
  // others are left out.
  void Finish();
  int64_t next_wake_ns() const { return next_wake_ns_; }
  std::vector<pb::Event> TakeEvents() { return std::move(events_); }

 private:
  friend class Try;

  // What it runs on is its own to give back; of a hosted one only once its holder has gone.
  bool HasOwnDevices(const Gang& gang) const;
  void CloseOwnHosts(const Gang& gang, const HostSlices& but);
  void BindJobs();
  void SayStart(const PlannedPlace& start);
  void SayReservations();

  const Inputs& in_;
  Capacity now_;    // less what this plan starts or holds
  Capacity later_;  // the same, with what stopping gangs give back
  Reservations reservations_;
  Memo memo_;
  int tries_ = 0;  // that last

  std::vector<PlannedPlace> starts_, holds_;
  std::vector<bool> stops_, serves_;  // by gang
  std::vector<int32_t> stopped_gangs_, unserved_;
  std::set<const JobRow*> ending_;
  std::vector<pb::Event> stop_events_, lost_events_, opened_events_, hosted_events_, events_;
  int64_t next_wake_ns_ = kUnbounded;
};

// Changes to a capacity, and searches that failed on it, that are forgotten when this ends. They
// nest.
class Try {
 public:
  Try(Draft* draft, Capacity* capacity)
      : draft_(draft),
        capacity_(capacity),
        begin_(capacity->Here()),
        memo_size_(draft->memo_.size()) {
    ++draft_->tries_;
  }
  ~Try() {
    --draft_->tries_;
    capacity_->UndoTo(begin_);
    draft_->memo_.ShrinkTo(memo_size_);
  }
  Try(const Try&) = delete;
  Try& operator=(const Try&) = delete;

  void Take(const Gang& gang, const HostSlices& slices) { capacity_->Take(gang, slices); }
  void GiveBack(const Gang& gang, const HostSlices& slices) { capacity_->GiveBack(gang, slices); }
  // All that the gang runs on.
  void Release(const Gang& gang) { capacity_->Release(gang); }
  // The gang's queues hold so many more of its workers.
  void AddUse(const Gang& gang, int32_t pool, int64_t workers) {
    capacity_->AddUse(gang, pool, workers);
  }
  // No more of these devices than the other one has.
  void LimitTo(const Capacity& other, const HostSlices& slices) {
    capacity_->free_->LimitTo(*other.free_, slices);
  }
  // Nothing of the host is free.
  void Close(HostId host) { capacity_->free_->Close(host); }
  // Leaves alone what is reserved: what it needs of its hosts, or all of them.
  void Leave(const PlannedReservation& reservation, bool whole_hosts);
  // Leaves alone what is reserved and not lent to the gang; see Draft::FindPlace.
  void LeaveReserved(int32_t pool, const Gang& gang, int64_t end_ns, bool beside_draining = false);

  using Mark = Capacity::Mark;
  Mark Here() const { return capacity_->Here(); }
  void BackTo(const Mark& mark) { capacity_->UndoTo(mark); }
  void Undo() { capacity_->UndoTo(begin_); }

 private:
  Draft* draft_;
  Capacity* capacity_;
  Mark begin_;
  size_t memo_size_;
};

}  // namespace muster
