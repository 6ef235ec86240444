// One decision in the making: the free devices, what was planned so far, and the steps that add to
// it.
//
// Inside of scheduler/decide. Order of the steps: stops that nobody's claim causes; what is over
// with its job; devices held for claims; placing, reclaim and reservations for waiting units of S;
// growth; backfill of what is outside S; spill; verdicts.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "scheduler/decide/free_map.h"
#include "scheduler/decide/model.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

class Round {
 public:
  // `model` is the state's, with its entitled set; `now` and `future` have what is free by it, and
  // have that again when the Round ends.
  Round(const State& state, int64_t now_ns, const SchedulingOptions& options, const Model& model,
        FreeMap* now, FreeMap* future);
  Plan Run();

 private:
  struct Placed {
    int32_t gang = 0;
    int32_t pool = 0;
    int32_t workers = 0;
    HostSlices slices;
  };
  // Devices kept for a gang. Held: its own as they become free. Otherwise it is a reservation: from
  // start_ns on, and lent until then.
  struct Kept {
    int32_t gang = 0;
    int32_t pool = 0;
    int32_t workers = 0;
    HostSlices slices;
    bool held = false;
    int64_t start_ns = 0;  // 0: unknown
    bool draining = false;
    std::vector<std::pair<HostId, HostFree>>
        rest;  // of a reservation: what its hosts have beside it from start_ns on
  };
  // When and where a gang could start by the expected ends of what runs.
  struct Slot {
    int64_t start_ns = 0;  // kUnbounded: only after ends that nobody knows
    HostSlices slices;
    std::vector<std::pair<HostId, HostFree>> rest;
  };
  // When what runs in a pool is expected to end.
  struct End {
    int64_t end_ns = 0;  // kUnbounded: unknown
    int64_t place_ns = 0;
    int32_t gang = 0;
    bool gpus = false;
    int64_t milli = 0;  // that it gives back then
    bool operator<(const End& other) const {
      return std::tie(end_ns, place_ns, gang) < std::tie(other.end_ns, other.place_ns, other.gang);
    }
  };
  // Devices' use by queue node and flavour: [node * flavours + flavour].
  using Use = std::vector<int64_t>;
  // How far a queue is over its guarantee, as a fraction of its weight: compared by rank, then
  // over/weight.
  struct Level {
    int32_t rank =
        0;  // 0: within the guarantee or without quota, 1: borrows, 2: borrows with weight 0
    int64_t over = 0, weight = 1;
  };
  static int Compare(const Level& a, const Level& b);

  // stops.cc
  void StopWhatMust();
  // A cancelled or failed task's unreachable members are declared lost, where its rule allows that,
  // so that it can end. What else its job waits for is over with it: this plan places it nowhere,
  // and stops and keeps nothing for it.
  void EndWhatIsOver();
  void Stop(const Gang& gang, pb::Cause cause, const std::string& detail, int64_t grace_ns,
            int32_t next_workers = 0, const pb::AttemptKey* claimant = nullptr);
  void WakeAt(int64_t at_ns);
  // It was to have stopped by now, killed if need be: when its hosts answer nobody knows, and what
  // it holds is counted upon no more.
  bool Unanswered(const Gang& gang) const {
    return gang.stopping && !gang.may_be_lost && AnswerDueNs(gang) <= now_ns_;
  }
  int64_t AnswerDueNs(const Gang& gang) const;
  int64_t Grace(const pb::TaskSpec& spec) const;

  // decide.cc
  void KeepHeld();
  void StartElsewhere(std::vector<std::pair<int32_t, HostSlices>>* held);
  void PlaceEntitled();
  void PlaceOne(int32_t b);
  // Of a gang whose members may be lost, some of them: a place for it from what is free, is being
  // given back, and its own. True: it starts there or holds it.
  bool StartWithSpares(int32_t b);
  std::optional<HostSlices> PlaceWithSpares(const Gang& gang, int32_t workers);
  void CloseBeside(const Gang& gang, const HostSlices& slices);
  // Its reachable members have left: what it held is free once the others are declared lost.
  bool AllOver(const AttemptRow& attempt) const;
  void Start(int32_t b, int32_t pool, int32_t workers, HostSlices slices);
  void Hold(int32_t b, int32_t pool, int32_t workers, HostSlices slices);
  void ExtendPlaced();
  void Grow();
  void Emit(const Placed& placed);
  void EmitReservations();
  void Lose(const Gang& gang, const std::string& outcome);
  // Its queue is held: what runs goes on and, where others need its devices, comes back smaller;
  // nothing of it grows, moves or starts anew.
  bool InHeldQueue(const Gang& gang) const {
    return gang.leaf >= 0 && s_.queues().nodes[gang.leaf].held;
  }
  int32_t IndexOf(const Gang& gang) const { return static_cast<int32_t>(&gang - m_.gangs.data()); }
  bool WithinLimits(const Gang& gang, int32_t pool, int32_t workers, const Use& use) const;
  void AddUse(Use* use, const Gang& gang, int32_t pool, int64_t workers) const;
  int64_t& UseAt(Use* use, int32_t node, int32_t flavour) const {
    return (*use)[node * m_.flavours.size() + flavour];
  }
  const FlavourQuota& QuotaOf(int32_t node, int32_t flavour) const {
    return m_.quota[node * m_.flavours.size() + flavour];
  }
  int64_t UseAt(const Use& use, int32_t node, int32_t flavour) const {
    return use[node * m_.flavours.size() + flavour];
  }
  std::string PoolName(int32_t pool) const;
  // A place that is free now and may be used until end_ns (0: for ever), reservations respected.
  std::optional<HostSlices> PlaceNow(int32_t b, int32_t pool, int32_t workers, int64_t end_ns);
  // Calls f(kept) for each reservation that what starts in the pool may meet: of the pool and, for
  // work without devices, of its cluster's devices.
  template <typename F>
  void EachReservation(int32_t pool, F f) {
    for (Kept& kept : reserved_[pool]) f(kept);
    if (m_.pools[pool].flavour != m_.cpu) return;
    const auto beside = [&](int32_t c) {
      return c >= 0 && c < static_cast<int32_t>(m_.pools.size()) &&
             m_.pools[c].cluster == m_.pools[pool].cluster;
    };
    for (const int32_t step : {-1, 1}) {  // pools of a cluster lie together
      for (int32_t c = pool + step; beside(c); c += step) {
        for (Kept& kept : reserved_[c]) f(kept);
      }
    }
  }
  // Which of those lend to it, as a key.
  int64_t LentBits(const Gang& gang, int32_t pool, int64_t end_ns);

  // reclaim.cc
  enum class Claim { kStopsOthers, kTooMany, kNobody };
  // Plans stops so that `workers` of the gang start in the pool; with `grows` it runs there already
  // with fewer. `takes_all`: however many that takes.
  Claim Reclaim(int32_t b, int32_t pool, int32_t workers, bool grows, bool takes_all = false);
  // What is being stopped where a host doesn't answer isn't given back soon: on its hosts future_
  // has only what is free now, and `use` counts it.
  void TakeBackUnanswered(Use* use);
  // Stops the workers of a gang beyond `keeps`; 0: all of it.
  struct Victim {
    int32_t gang = 0;
    int32_t keeps = 0;
    int64_t lost_milli_ns = 0;  // devices' time since its last checkpoint, in thousandths
    int64_t start_ns = 0;
  };
  // Whom a claim for so many workers in the pool may stop, in that order, each beside those before
  // it: growth first, then what loses the least.
  std::vector<Victim> VictimsFor(int32_t b, int32_t pool, int32_t workers, bool guaranteed,
                                 bool grows);
  // Why the victim stops, for whoever submitted it.
  static std::string EntitledTo(const Gang& claimant, const Gang& victim);
  // It starts again in another pool and counts against the levels of its queues as before.
  bool OnlyMoves(const Gang& victim) const;
  // The claimant may stop the victim, min_runtime and levels apart. `grows`: for workers that it
  // has not.
  bool MayTake(const Gang& claimant, const Gang& victim, bool grows = false) const;
  // The claimant's level after it has started is lower than the victim's before, which will hold
  // `more` than in `use`.
  bool LevelAllows(const Gang& claimant, int32_t pool, int64_t demand, const Gang& victim,
                   const Use& use, int64_t more = 0) const;
  // Levels have a say between these two, unless the claimant is within its guarantee: they are of
  // different queues.
  bool LevelsCount(const Gang& claimant, const Gang& victim) const;
  // They count against a queue below the root that is the same.
  bool SharesQueue(const Gang& a, const Gang& b) const;
  // The claimant's level with `demand` more than in `after` against the victim's with `more` than
  // in `before`: below 0 if it is lower.
  int CompareLevels(const Gang& claimant, int32_t pool, int64_t demand, const Use& after,
                    const Gang& victim, int64_t more, const Use& before) const;
  Level LevelOf(int32_t node, int32_t flavour, int64_t used) const;
  int64_t ProtectedUntil(const Gang& victim) const;

  // consolidate.cc
  // It has waited within its guarantee for so long that what others do for it may cost more.
  bool Overdue(const Gang& claimant) const;
  // Moves tasks within the pool so that the overdue claimant starts on whole hosts there. True:
  // they stop, and it holds its place.
  bool Consolidate(int32_t b, int32_t pool);

  // reserve.cc
  // Of what runs in the pool: by end, of those whose end nobody knows the longest running first.
  const std::vector<End>& EndsIn(int32_t pool);
  // `told`: there and nowhere else.
  std::optional<Slot> FindSlot(const Gang& gang, int32_t pool, int32_t workers,
                               int64_t not_before_ns, bool takes, const HostSlices* told = nullptr);
  // Its reservation as State knows it, if a host of that is silent, so that no slot would be found
  // there; else nullptr.
  const Reservation* ToldOnSilentHosts(const Gang& gang) const;
  bool ReserveFrom(int32_t b, int64_t not_before_ns, bool drain);
  // When a gang that starts now is expected to end; 0 = unknown.
  int64_t EndIfStarted(const Gang& gang) const;
  bool Lends(const Kept& to, const Gang& gang, int64_t end_ns) const;
  // Leaves on its hosts only what it doesn't need, of draining ones nothing.
  void Block(FreeMap* map, const Kept& reservation) const;
  // For claims a draining reservation keeps its own devices only: what is stopped for them lets it
  // start, too.
  void BlockUnlent(FreeMap* map, int32_t pool, const Gang& gang, int64_t end_ns,
                   bool claims = false);
  // A gang was placed beside the pool's reservations.
  void ChangeRests(const Gang& gang, int32_t pool, const HostSlices& slices, int64_t end_ns,
                   int64_t sign);
  int64_t EarliestStart(int32_t b, int32_t pool);

  // backfill.cc
  void Backfill();
  void CountClaims();
  bool BackfillOne(int32_t b);
  // What waits outside S, queue by queue: in each by priority, then the least run so far, then
  // submission; what has waited for very long counts as never having run, so that it isn't passed
  // over for ever (decision 041).
  struct InLine {
    int32_t leaf = 0, behind = 0;  // the priority's negative
    int64_t ran_ns = 0, submit_ns = 0;
    int32_t gang = 0;
    // Beside the order, of Spill: it looks for other clusters now; one of them has devices free for
    // it by number.
    bool looks = false, may_start = false;
    bool operator<(const InLine& other) const {
      return std::tie(leaf, behind, ran_ns, submit_ns, gang) <
             std::tie(other.leaf, other.behind, other.ran_ns, other.submit_ns, other.gang);
    }
  };
  InLine PlaceInLine(int32_t b) const;
  // With it, a limit would keep out a unit of S that waits below the same queue, and that couldn't
  // stop it.
  bool HindersClaims(const Gang& gang, int32_t pool, int64_t end_ns) const;
  // By what it takes of one flavour.
  bool HindersClaims(const Gang& gang, int32_t flavour, int64_t takes, int64_t end_ns) const;
  bool SiblingsReach(const Gang& gang, int32_t pool) const;

  using Failed = absl::btree_set<std::array<int64_t, 4>>;
  // spill.cc
  // What a pool's devices will be free by number, by the expected ends of what runs there, and what
  // waits for them.
  struct Outlook {
    std::vector<std::pair<int64_t, int64_t>>
        freed;  // from when on how many thousandths; the first entry is now
    int64_t ahead_milli = 0;
  };
  struct Move {
    int64_t cost_ns = 0;
    bool reaches = true;  // the cluster reaches what the task reads
    std::string text;     // of what is moved; empty: nothing
  };
  void Spill();
  Outlook* OutlookOf(int32_t pool, bool gpus);  // nullptr: that is beyond what a decision works out
  int64_t CountedStart(const Gang& gang, int32_t pool);
  std::optional<HostSlices> FreeNow(int32_t b, int32_t pool, Failed* failed);
  Move MoveTo(const Gang& gang, int32_t pool) const;
  void Open(const Gang& gang, int32_t here, int64_t here_ns, int32_t there, int64_t there_ns,
            const Move& move, bool to_front);

  // verdicts.cc
  // What verdicts ask of a pool, once a round.
  struct PoolView {
    int64_t free_milli[2] = {-1, -1};  // of CPUs, of devices; -1: not asked for yet
    int drained = -1;                  // it or a host of it
  };
  void GiveVerdicts();
  Verdict VerdictOf(int32_t b, std::vector<PoolView>* pools);
  int64_t FreeMilli(const Gang& gang, int32_t pool, std::vector<PoolView>* pools);
  bool Drained(int32_t pool, std::vector<PoolView>* pools);

  const State& s_;
  const int64_t now_ns_;
  const SchedulingOptions& options_;
  const Model& m_;
  FreeMap& now_;     // free now, less what is placed or held in this round
  FreeMap& future_;  // with what stopping attempts will give back
  const FreeMap::Trial now_trial_, future_trial_;
  Use use_now_, use_future_;
  Use use_claims_;                 // use_now_ and what waits in S; for backfill
  std::vector<int32_t> entitled_;  // gangs of S that want a place, or come back, or may have to
                                   // start elsewhere; ascending
  std::vector<int32_t> outside_;   // gangs outside S that want a place or come back; ascending
  std::set<const JobRow*>
      ending_;  // jobs that fail or are cancelled for good by what this plan loses
  std::vector<pb::Event> stops_, lost_, opened_;
  std::vector<Placed> placed_;
  std::vector<Kept> kept_;                   // held
  std::vector<std::vector<Kept>> reserved_;  // reservations by pool, in order of acceptance
  std::vector<bool> stopped_;                // gangs that this plan stops
  std::vector<int32_t> stops_now_;           // the same, in order
  std::vector<bool> served_;                 // gangs that are placed or have devices held for them
  std::vector<int32_t> unserved_;            // waiting gangs of S that aren't
  std::vector<std::optional<std::vector<End>>> ends_;  // by pool
  // What found no place in this round; forgotten when something is stopped. Kind (and workers),
  // pool, shape, and what else matters.
  enum FailedKind {
    kNow = 0,
    kFuture = 1,
    kSlot = 2,
    kGuaranteedClaim = 3,
    kOtherClaim = 4,
    kMoves = 5,
    kUnknownSlot = 6,
    kKinds = 7
  };
  Failed failed_;
  absl::btree_map<std::tuple<int32_t, int32_t, int32_t>, int64_t>
      starts_;  // estimated, by pool, shape and leaf
  struct Asked {
    int64_t milli = 0, cpus_milli = 0;  // the latter beside devices
  };
  std::map<std::tuple<int32_t, int32_t, bool>, Asked>
      asked_;  // by pool, leaf and guarantee: of S what still has to be placed
  std::vector<Outlook> outlooks_;
  std::vector<int32_t>
      outlook_at_[2];  // by pool, of CPUs and of GPUs: its place in outlooks_; -1: none yet
  int32_t estimates_left_;
  int32_t reservations_left_, slots_left_;  // slots: looked for, found or not
  Plan plan_;
};

// The devices of the attempt's workers [from, to).
HostSlices SliceOf(const pb::TaskSpec& spec, const AttemptRow& attempt, int32_t from, int32_t to);
// The gang's first `workers`.
HostSlices Shortened(const pb::TaskSpec& spec, const HostSlices& slices, int32_t workers);

}  // namespace muster
