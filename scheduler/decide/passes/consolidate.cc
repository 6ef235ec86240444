// Room that a guaranteed claim has by number, but not in its shape (docs/decisions/024).
//
// All that runs in its pool may be in S and yet leave no host whole. Then tasks on few hosts stop
// to start again on other devices of the same pool, which are held for them from then on; the
// claimant gets theirs. What stands on its hosts without devices may be in the way as well, and
// moves within its own pool. What is moved keeps its pool, its size and its place in S, so neither
// S nor its charges change, and a claim lowers the number of waiting units of S as any other does.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/model/precedence.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/state/abilities.h"
#include "scheduler/state/topology.h"

namespace muster {
namespace {

constexpr size_t kTries = 8;       // sets of hosts that a claim looks at
constexpr int64_t kMostMoved = 4;  // so many times the claimant's demand, at most

// Time since the last checkpoint, in thousandths of devices and of CPUs: of work with devices, and
// of work without, which costs less.
using Loss = std::pair<__int128, __int128>;

// A gang that may go from its host.
struct Guest {
  int32_t gang = 0;
  bool moves = false;  // to other devices; else the claimant may stop it
  HostSlices slices;   // where it stands; once moved, where it will
  Loss lost;
};
bool LosesMore(const Guest& a, const Guest& b) { return a.lost > b.lost; }

struct HostWithGuests {
  Loss lost;  // of its guests
  std::vector<Guest> guests;
};

class Consolidation {
 public:
  Consolidation(const Inputs& in, const Gang& claimant, int32_t pool, Draft* draft)
      : in_(in),
        draft_(draft),
        claimant_(claimant),
        pool_(pool),
        avoids_hosts_(!HostsToAvoid(*claimant.job).empty()),
        takes_any_room_(!avoids_hosts_ && claimant.min_workers == 1 &&
                        !Binds(claimant.spec->topology().required()) &&
                        claimant.spec->topology().blocks().empty()) {}

  bool Run();

 private:
  enum class Outcome { kFound, kOtherHosts, kHopeless };

  int64_t HeldMilli(const Guest& guest) const {
    return in_.gang(guest.gang).worker_milli * in_.gang(guest.gang).workers;
  }
  std::optional<Guest> GuestOf(int32_t gang) const;
  void ListHosts();
  bool IsAsLarge(const Gang& gang) const;
  Outcome Find(size_t first);
  bool Empty(size_t first, Try* trial);
  bool Holds();
  std::vector<Guest> Stoppable() const;
  bool MoveAll(Try* trial);
  bool Move(Guest* guest, std::vector<Guest>* stoppable, Try* trial);
  bool MovesTooMuch() const;
  void CarryOut();

  const Inputs& in_;
  Draft* const draft_;
  const Gang& claimant_;
  const int32_t pool_;
  const bool avoids_hosts_;
  const bool takes_any_room_;          // one worker, on whatever host holds it
  std::vector<HostWithGuests> hosts_;  // the least loss first
  std::vector<Guest> gone_;            // guests that go
  std::optional<HostSlices> place_;    // for the claimant
};

// A worker of it takes as much of any host as the claimant: where it found room the claimant would.
// Not known of a claimant of several workers, which may fit into two gaps better than into one.
bool Consolidation::IsAsLarge(const Gang& gang) const {
  if (!takes_any_room_ || !Can(gang.needs, claimant_.needs)) return false;
  // 0: a share of the host that goes with the GPUs.
  const auto as_much = [](int64_t has, int64_t wants) {
    return wants == 0 ? has == 0 : has >= wants;
  };
  const Demand &has = gang.wants, &wants = claimant_.wants;
  return has.gpus_milli >= wants.gpus_milli && as_much(has.cpus_milli, wants.cpus_milli) &&
         as_much(has.memory_bytes, wants.memory_bytes) && has.disk_bytes >= wants.disk_bytes;
}

std::optional<Guest> Consolidation::GuestOf(int32_t g) const {
  const Gang& gang = in_.gang(g);
  if (&gang == &claimant_ || !gang.running() || draft_->Stops(g) || gang.may_be_lost ||
      gang.leader >= 0)
    return std::nullopt;
  const bool in_place = gang.entitled && gang.charge == gang.bound_pool;
  const bool stops = !in_place && MayTake(in_, claimant_, gang) &&
                     ProtectedUntil(in_, claimant_, gang) <= in_.now_ns;
  const bool moves = in_place && gang.current->parts.size() == 1 && gang.hosts_up &&
                     !gang.binds_others && !IsAsLarge(gang) &&
                     gang.workers == gang.entitled_workers() &&
                     gang.place_round != in_.state.round() && !in_.HeldBack(gang);
  if (!stops && !moves) return std::nullopt;
  Guest guest{g, !stops, SlicesOf(*gang.spec, *gang.current, 0, gang.workers), {}};
  const int64_t since_ns = std::max(gang.since_ns(), gang.last_checkpoint_ns);
  const __int128 lost =
      static_cast<__int128>(HeldMilli(guest)) * std::max<int64_t>(0, in_.now_ns - since_ns);
  guest.lost = gang.gpus ? Loss(lost, 0) : Loss(0, lost);
  return guest;
}

void Consolidation::ListHosts() {
  std::vector<int32_t> there = in_.model.holding[pool_];
  if (const int32_t cpus = in_.model.CpusBeside(pool_); cpus >= 0) {
    const std::vector<int32_t>& holding = in_.model.holding[cpus];
    there.insert(there.end(), holding.begin(), holding.end());
  }
  std::map<HostId, HostWithGuests> by_host;
  for (const int32_t g : there) {
    std::optional<Guest> guest = GuestOf(g);
    if (!guest.has_value()) continue;
    HostWithGuests& host = by_host[in_.gang(g).current->parts[0].host];
    host.lost.first += guest->lost.first;
    host.lost.second += guest->lost.second;
    host.guests.push_back(*std::move(guest));
  }
  for (auto& [id, host] : by_host) hosts_.push_back(std::move(host));
  std::stable_sort(
      hosts_.begin(), hosts_.end(),
      [](const HostWithGuests& a, const HostWithGuests& b) { return a.lost < b.lost; });
}

// The claimant has a place, as things stand in the Try.
bool Consolidation::Holds() {
  std::optional<HostSlices> found =
      draft_->FindPlace(draft_->later(), claimant_, pool_, claimant_.min_workers,
                        in_.EndIfStarted(claimant_), /*beside_draining=*/true);
  if (!found.has_value()) return false;
  place_ = std::move(found);
  return true;
}

// Empties as many hosts as it takes, from the first on; of their guests those that the claimant
// doesn't need to go stay, the largest if it can be: it finds another place less easily.
bool Consolidation::Empty(size_t first, Try* trial) {
  gone_.clear();
  bool found = false;
  for (size_t host = first; !found && host < hosts_.size(); ++host) {
    for (const Guest& guest : hosts_[host].guests) {
      trial->GiveBack(in_.gang(guest.gang), guest.slices);
      gone_.push_back(guest);
    }
    found = Holds();
  }
  std::stable_sort(gone_.begin(), gone_.end(),
                   [&](const Guest& a, const Guest& b) { return HeldMilli(a) < HeldMilli(b); });
  for (size_t i = gone_.size(); found && i-- > 0;) {
    trial->Take(in_.gang(gone_[i].gang), gone_[i].slices);
    if (Holds()) {
      gone_.erase(gone_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      trial->GiveBack(in_.gang(gone_[i].gang), gone_[i].slices);
    }
  }
  return found && Holds();
}

// Guests that don't go yet and may be stopped, those that lose the least last.
std::vector<Guest> Consolidation::Stoppable() const {
  std::vector<Guest> guests;
  for (const HostWithGuests& host : hosts_) {
    for (const Guest& guest : host.guests) {
      const auto same = [&](const Guest& other) { return other.gang == guest.gang; };
      if (!guest.moves && std::none_of(gone_.begin(), gone_.end(), same)) guests.push_back(guest);
    }
  }
  std::stable_sort(guests.begin(), guests.end(), LosesMore);
  return guests;
}

// What moves starts again in its pool, the largest first; for it, too, the claimant may stop what
// it may stop.
bool Consolidation::MoveAll(Try* trial) {
  std::stable_sort(gone_.begin(), gone_.end(), [&](const Guest& a, const Guest& b) {
    return std::pair(in_.gang(a.gang).gpus, HeldMilli(a)) >
           std::pair(in_.gang(b.gang).gpus, HeldMilli(b));
  });
  std::vector<Guest> stoppable = Stoppable();
  // NOLINTNEXTLINE(modernize-loop-convert): Move adds to it
  for (size_t i = 0; i < gone_.size(); ++i) {
    Guest guest = gone_[i];
    if (!guest.moves) continue;
    if (!Move(&guest, &stoppable, trial)) return false;
    gone_[i] = std::move(guest);
  }
  return true;
}

bool Consolidation::Move(Guest* guest, std::vector<Guest>* stoppable, Try* trial) {
  const Gang& gang = in_.gang(guest->gang);
  std::vector<Guest> stopped;
  std::optional<HostSlices> to;
  while (true) {
    to = draft_->FindPlace(draft_->later(), gang, gang.bound_pool, gang.workers,
                           ExpectedEnd(gang, in_.now_ns), /*beside_draining=*/true);
    if (to.has_value() || stoppable->empty()) break;
    trial->GiveBack(in_.gang(stoppable->back().gang), stoppable->back().slices);
    stopped.push_back(std::move(stoppable->back()));
    stoppable->pop_back();
  }
  if (!to.has_value()) return false;
  trial->Take(gang, *to);
  guest->slices = *std::move(to);
  // Those whose devices it didn't take stay.
  for (Guest& other : stopped) {
    const Gang& stays = in_.gang(other.gang);
    if (draft_->later()->Fits(stays, other.slices)) {
      trial->Take(stays, other.slices);
      stoppable->push_back(std::move(other));
    } else {
      gone_.push_back(std::move(other));
    }
  }
  std::stable_sort(stoppable->begin(), stoppable->end(), LosesMore);
  return true;
}

bool Consolidation::MovesTooMuch() const {
  int64_t moved = 0, moved_other_kind = 0;  // the latter: without devices, for one with
  for (const Guest& guest : gone_) {
    if (!guest.moves) continue;
    const bool same = in_.gang(guest.gang).gpus == claimant_.gpus;
    (same ? moved : moved_other_kind) += HeldMilli(guest);
  }
  return moved > kMostMoved * claimant_.worker_milli * claimant_.min_workers ||
         moved_other_kind > kMostMoved * claimant_.host_cpus_milli * claimant_.min_workers;
}

Consolidation::Outcome Consolidation::Find(size_t first) {
  Try trial(draft_, draft_->later());
  // All of it together doesn't make the room; or nobody has to go, and a draining reservation is in
  // the way (reclaim.cc).
  if (!Empty(first, &trial) || gone_.empty()) return Outcome::kHopeless;
  trial.Take(claimant_, *place_);
  return MoveAll(&trial) && !MovesTooMuch() ? Outcome::kFound : Outcome::kOtherHosts;
}

void Consolidation::CarryOut() {
  for (const Guest& guest : gone_) {
    const Gang& gang = in_.gang(guest.gang);
    const std::string detail =
        !guest.moves
            ? EntitledTo(claimant_, gang)
            : absl::StrCat("moves within ", in_.ClusterOf(pool_), ": job ", claimant_.ref.job,
                           gang.gpus == claimant_.gpus ? " needs its devices together with others"
                                                       : " needs its CPUs beside devices");
    draft_->Stop(gang, {pb::PREEMPTION, detail, GraceOf(*gang.spec), guest.moves ? gang.workers : 0,
                        &claimant_});
  }
  draft_->Hold(in_.IndexOf(claimant_), pool_, claimant_.min_workers, *std::move(place_));
  for (Guest& guest : gone_) {
    if (!guest.moves) continue;
    const Gang& gang = in_.gang(guest.gang);
    draft_->Hold(guest.gang, gang.bound_pool, gang.workers, std::move(guest.slices));
  }
}

bool Consolidation::Run() {
  const Search search{.kind = Search::kMoves,
                      .pool = pool_,
                      .shape = claimant_.shape,
                      .leaf = claimant_.leaf,
                      .priority = claimant_.priority,
                      .band = claimant_.band,
                      .lent = draft_->WhichLend(claimant_, pool_, in_.EndIfStarted(claimant_))};
  if (!avoids_hosts_ && draft_->Failed(search)) return false;
  ListHosts();
  for (size_t first = 0; first < std::min(kTries, hosts_.size()); ++first) {
    const Outcome outcome = Find(first);
    if (outcome == Outcome::kFound) {
      CarryOut();
      return true;
    }
    if (outcome == Outcome::kHopeless) break;
  }
  if (!avoids_hosts_) draft_->Remember(search);
  return false;
}

}  // namespace

bool Consolidate(const Inputs& in, const Gang& claimant, int32_t pool, Draft* draft) {
  if (!Overdue(in, claimant) || !draft->later()->WithinLimits(claimant, pool, claimant.min_workers))
    return false;
  return Consolidation(in, claimant, pool, draft).Run();
}

}  // namespace muster
