// Why each waiting task waits, and when it is expected to start. Some tens of thousands may wait:
// what they ask of a pool is worked out once, and their rows aren't read.
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/outside.h"
#include "scheduler/decide/passes/passes.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

class VerdictGiver {
 public:
  VerdictGiver(const Inputs& in, Draft* draft)
      : in_(in),
        draft_(draft),
        free_(in, draft->now()),
        drained_(in.model.pools.size()),
        estimates_left_(in.options.estimates) {}

  Verdict Starting(const PlannedPlace& start) const;
  Verdict Waiting(const Gang& gang);

 private:
  bool WhyNotYet(const Gang& gang, Verdict* verdict);
  bool WhyNotTogether(const Gang& gang, Verdict* verdict);
  int64_t DemandOf(const Gang& gang) const;
  int32_t PoolFor(const Gang& gang) const;
  bool Drained(int32_t pool);
  pb::VerdictCode InSCode(const Gang& gang, int32_t pool, int64_t free_milli);
  pb::VerdictCode OutsideCode(const Gang& gang, int32_t pool) const;
  int64_t ExpectedStart(const Gang& gang, int32_t pool);

  const Inputs& in_;
  Draft* const draft_;
  FreeByPool free_;
  std::vector<std::optional<bool>> drained_;  // by pool: it or a host of it
  // Expected starts by pool, shape, leaf, priority, band, whether the gang takes from others, and
  // whether a guarantee covers it; 0: unknown.
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, bool, bool>, int64_t> starts_;
  int32_t estimates_left_;
};

Verdict VerdictGiver::Starting(const PlannedPlace& start) const {
  Verdict verdict;
  verdict.task = in_.gang(start.gang).ref;
  verdict.code = pb::V_STARTING_NOW;
  verdict.cluster = in_.model.pools[start.pool].cluster;
  verdict.flavour = in_.model.pools[start.pool].flavour;
  verdict.expected_start_ns = in_.now_ns;
  return verdict;
}

// What keeps it from wanting a place at all.
bool VerdictGiver::WhyNotYet(const Gang& gang, Verdict* verdict) {
  if (gang.blocked) {
    const JobRow& job = *in_.state.FindJob(gang.ref.job);  // of what is no unit the gang has none
    verdict->code = BlockedCode(job, gang.ref.task);
    if (verdict->code == pb::V_TIME) verdict->expected_start_ns = job.not_before_ns;
  } else if (gang.backoff_until_ns > in_.now_ns) {
    draft_->WakeAt(gang.backoff_until_ns);
    verdict->code = pb::V_BACKOFF;
    verdict->expected_start_ns = gang.backoff_until_ns;
  } else if (gang.held) {
    verdict->code = gang.astray ? pb::V_RESTORING : pb::V_HELD;
  } else if (!gang.wants_place()) {
    verdict->code = pb::V_UNREACHABLE;
    verdict->cluster = gang.current->cluster;
  }
  return verdict->code != pb::VERDICT_UNSPECIFIED;
}

// What it has to wait for of those that it starts with.
bool VerdictGiver::WhyNotTogether(const Gang& gang, Verdict* verdict) {
  if (!StartsWithOthers(in_, *draft_, gang)) {
    // Where the others run it may not start again: S has the group elsewhere.
    if (gang.entitled && !IsBesideOthers(in_, gang, gang.charge)) verdict->code = pb::V_TOGETHER;
  } else if (!AllReady(in_, gang)) {
    verdict->code = pb::V_TOGETHER;
  } else if (const int64_t until_ns = BackoffOfGroup(in_, gang); until_ns > in_.now_ns) {
    verdict->code = pb::V_TOGETHER;
    verdict->expected_start_ns = until_ns;
  }
  return verdict->code != pb::VERDICT_UNSPECIFIED;
}

// Of what starts now: its own, or its group's.
int64_t VerdictGiver::DemandOf(const Gang& gang) const {
  return StartsWithOthers(in_, *draft_, gang) ? gang.unit_milli()
                                              : gang.worker_milli * gang.min_workers;
}

// The one that the verdict is about: where it is charged, else the first open one that has devices,
// else the first open one; -1: none is open.
int32_t VerdictGiver::PoolFor(const Gang& gang) const {
  if (gang.charge >= 0) return gang.charge;
  int32_t first_open = -1;
  for (size_t i = 0; i < gang.pools.size(); ++i) {
    if (!gang.opened[i]) continue;
    if (in_.model.pools[gang.pools[i]].capacity_milli > 0) return gang.pools[i];
    if (first_open < 0) first_open = gang.pools[i];
  }
  return first_open;
}

bool VerdictGiver::Drained(int32_t pool) {
  std::optional<bool>& known = drained_[pool];
  if (!known.has_value()) {
    const std::vector<HostId>& hosts = in_.model.pools[pool].hosts;
    known = in_.state.clusters()[in_.model.pools[pool].cluster].drained ||
            std::any_of(hosts.begin(), hosts.end(),
                        [&](HostId id) { return in_.state.host(id).drained; });
  }
  return *known;
}

pb::VerdictCode VerdictGiver::InSCode(const Gang& gang, int32_t pool, int64_t free_milli) {
  const int64_t demand = DemandOf(gang);
  if (free_milli >= demand && draft_->WithinLimits(gang, pool, gang.min_workers))
    return pb::V_PLACEMENT;
  // Another of its clusters has room: it keeps to its charged one until spilling pays.
  const bool elsewhere = std::any_of(gang.pools.begin(), gang.pools.end(), [&](int32_t other) {
    return other != pool && free_.Milli(other, gang.gpus) >= demand;
  });
  return elsewhere ? pb::V_ENTITLED_POOL : pb::V_CAPACITY;
}

pb::VerdictCode VerdictGiver::OutsideCode(const Gang& gang, int32_t pool) const {
  const int64_t demand = DemandOf(gang);
  const int32_t flavour = in_.model.pools[pool].flavour;
  for (int32_t n = gang.leaf; n >= 0; n = in_.model.parent[n]) {
    if (in_.model.entitled[n][flavour] + demand > in_.model.QuotaOf(n, flavour).limit_milli)
      return pb::V_LIMIT;
  }
  return pb::V_SHARE;
}

// By its reservation, else by the expected ends of what runs in the pool; 0: unknown, or this
// decision has answered often enough.
int64_t VerdictGiver::ExpectedStart(const Gang& gang, int32_t pool) {
  if (const auto* reservation = draft_->reservations().Of(in_.IndexOf(gang), pool))
    return reservation->start_ns;
  const bool takes = gang.entitled && gang.charge == pool;
  const auto key = std::make_tuple(pool, gang.shape, gang.leaf, gang.priority, gang.band, takes,
                                   gang.guaranteed);
  if (const auto known = starts_.find(key); known != starts_.end()) return known->second;
  if (estimates_left_ == 0) return 0;
  --estimates_left_;
  const std::optional<LaterStart> start =
      FindLaterStart(in_, gang,
                     {.pool = pool,
                      .workers = gang.min_workers,
                      .not_before_ns = in_.now_ns,
                      .takes = takes,
                      .together = StartsWithOthers(in_, *draft_, gang)},
                     draft_);
  const int64_t start_ns = start.has_value() && start->start_ns != kUnbounded ? start->start_ns : 0;
  starts_.emplace(key, start_ns);
  return start_ns;
}

Verdict VerdictGiver::Waiting(const Gang& gang) {
  Verdict verdict;
  verdict.task = gang.ref;
  if (WhyNotYet(gang, &verdict)) return verdict;
  if (gang.hosted) {
    verdict.code = draft_->Serves(in_.IndexOf(gang)) ? pb::V_STARTING_NOW : pb::V_HOLDER;
    return verdict;
  }
  if (gang.leader >= 0 && WhyNotTogether(gang, &verdict)) return verdict;
  const bool together = StartsWithOthers(in_, *draft_, gang);
  if (together && gang.follows()) {
    verdict = Waiting(in_.gang(in_.model.LeaderOf(in_.IndexOf(gang))));
    verdict.task = gang.ref;
    return verdict;
  }
  const int32_t pool = PoolFor(gang);
  const int64_t demand = DemandOf(gang);
  if (pool < 0 || in_.model.pools[pool].capacity_milli < demand) {
    const bool drained = std::any_of(gang.pools.begin(), gang.pools.end(),
                                     [&](int32_t other) { return Drained(other); });
    verdict.code = drained ? pb::V_HELD : pb::V_CLUSTER;
    if (pool >= 0) verdict.missing_milli = demand - in_.model.pools[pool].capacity_milli;
    return verdict;
  }
  verdict.cluster = in_.model.pools[pool].cluster;
  verdict.flavour = in_.model.pools[pool].flavour;
  const int64_t free_milli = free_.Milli(pool, gang.gpus);
  verdict.missing_milli = std::max<int64_t>(0, demand - free_milli);
  if (gang.entitled && draft_->Serves(in_.IndexOf(gang))) {
    verdict.code = pb::V_RECLAIMING;
    return verdict;
  }
  verdict.code = gang.entitled ? InSCode(gang, pool, free_milli) : OutsideCode(gang, pool);
  const int64_t start_ns = ExpectedStart(gang, pool);
  if (start_ns > in_.now_ns) verdict.expected_start_ns = start_ns;
  return verdict;
}

}  // namespace

Verdicts GiveVerdicts(const Inputs& in, Draft* draft) {
  std::vector<const PlannedPlace*> starts;  // by gang
  for (const PlannedPlace& start : draft->starts()) starts.push_back(&start);
  std::sort(starts.begin(), starts.end(),
            [](const PlannedPlace* a, const PlannedPlace* b) { return a->gang < b->gang; });
  VerdictGiver giver(in, draft);
  std::vector<Verdict> verdicts;
  verdicts.reserve(in.model.needs_verdict.size());
  auto next = starts.begin();
  EachOf(in.model.gangs, in.model.needs_verdict, [&](int32_t g) {
    const bool starts_now = next != starts.end() && (*next)->gang == g;
    verdicts.push_back(starts_now ? giver.Starting(**next++) : giver.Waiting(in.gang(g)));
  });
  MUSTER_CHECK(next == starts.end());  // what starts waits, or its host can't be reached
  return Verdicts(std::move(verdicts), in.model.flavours);
}

}  // namespace muster
