// Why each waiting task waits, and when it is expected to start. Some tens of thousands may wait:
// what they ask of a pool is worked out once, and their rows aren't read.
#include <algorithm>

#include "common/base/check.h"
#include "scheduler/decide/round.h"

namespace muster {

int64_t Round::FreeMilli(const Gang& gang, int32_t pool, std::vector<PoolView>* pools) {
  int64_t& known = (*pools)[pool].free_milli[gang.gpus];
  if (known < 0) known = std::max<int64_t>(0, now_.FreeMilli(m_.pools[pool], gang.gpus));
  return known;
}

bool Round::Drained(int32_t pool, std::vector<PoolView>* pools) {
  int& known = (*pools)[pool].drained;
  if (known < 0) {
    const std::vector<HostId>& hosts = m_.pools[pool].hosts;
    known = s_.clusters()[m_.pools[pool].cluster].drained ||
            std::any_of(hosts.begin(), hosts.end(), [&](HostId id) { return s_.host(id).drained; });
  }
  return known != 0;
}

Verdict Round::VerdictOf(int32_t b, std::vector<PoolView>* pools) {
  const Gang& gang = m_.gangs[b];
  Verdict verdict;
  verdict.task = gang.ref;
  if (gang.blocked) {
    verdict.code = pb::V_AFTER;
    return verdict;
  }
  if (gang.backoff_until_ns > now_ns_) {
    WakeAt(gang.backoff_until_ns);
    verdict.code = pb::V_BACKOFF;
    verdict.expected_start_ns = gang.backoff_until_ns;
    return verdict;
  }
  if (gang.held) {
    verdict.code = pb::V_HELD;
    return verdict;
  }
  if (!gang.wants_place()) {
    verdict.code = pb::V_UNREACHABLE;
    verdict.cluster = gang.current->cluster;
    return verdict;
  }
  int32_t pool = gang.charge;
  for (size_t i = 0; i < gang.pools.size() && pool < 0; ++i) {
    if (gang.opened[i] && m_.pools[gang.pools[i]].capacity_milli > 0) pool = gang.pools[i];
  }
  for (size_t i = 0; i < gang.pools.size() && pool < 0; ++i) {
    if (gang.opened[i]) pool = gang.pools[i];
  }
  const int64_t demand = gang.worker_milli * gang.min_workers;
  if (pool < 0 || m_.pools[pool].capacity_milli < demand) {
    const bool drained = std::any_of(gang.pools.begin(), gang.pools.end(),
                                     [&](int32_t c) { return Drained(c, pools); });
    verdict.code = drained ? pb::V_HELD : pb::V_CLUSTER;
    if (pool >= 0) verdict.missing_milli = demand - m_.pools[pool].capacity_milli;
    return verdict;
  }
  verdict.cluster = m_.pools[pool].cluster;
  verdict.flavour = m_.pools[pool].flavour;
  const int64_t free_milli = FreeMilli(gang, pool, pools);
  verdict.missing_milli = std::max<int64_t>(0, demand - free_milli);
  if (gang.entitled && served_[b]) {
    verdict.code = pb::V_RECLAIMING;
    return verdict;
  }
  if (gang.entitled) {
    const bool shape = free_milli >= demand && WithinLimits(gang, pool, gang.min_workers, use_now_);
    bool elsewhere =
        false;  // another of its clusters has room: it keeps to its charged one until spilling pays
    for (size_t i = 0; i < gang.pools.size() && !shape && !elsewhere; ++i) {
      elsewhere = gang.pools[i] != pool && FreeMilli(gang, gang.pools[i], pools) >= demand;
    }
    verdict.code = shape ? pb::V_PLACEMENT : elsewhere ? pb::V_ENTITLED_POOL : pb::V_CAPACITY;
  } else {
    bool within = true;
    const int32_t f = m_.pools[pool].flavour;
    for (int32_t n = gang.leaf; n >= 0 && within; n = m_.parent[n]) {
      within = m_.entitled[n][f] + demand <= QuotaOf(n, f).limit_milli;
    }
    verdict.code = within ? pb::V_SHARE : pb::V_LIMIT;
  }
  const Kept* reservation = nullptr;
  for (const Kept& kept : reserved_[pool]) {
    if (kept.gang == b) reservation = &kept;
  }
  const int64_t start_ns = reservation != nullptr ? reservation->start_ns : EarliestStart(b, pool);
  if (start_ns > now_ns_) verdict.expected_start_ns = start_ns;
  return verdict;
}

void Round::GiveVerdicts() {
  std::vector<std::pair<int32_t, int32_t>> placed;  // gang and pool
  for (const Placed& one : placed_) placed.emplace_back(one.gang, one.pool);
  std::sort(placed.begin(), placed.end());
  std::vector<PoolView> pools(m_.pools.size());
  std::vector<Verdict> verdicts;
  verdicts.reserve(m_.needs_verdict.size());
  auto next = placed.begin();
  EachOf(m_.gangs, m_.needs_verdict, [&](int32_t b) {
    if (next != placed.end() && next->first == b) {
      Verdict& verdict = verdicts.emplace_back();
      verdict.task = m_.gangs[b].ref;
      verdict.code = pb::V_STARTING_NOW;
      verdict.cluster = m_.pools[next->second].cluster;
      verdict.flavour = m_.pools[next->second].flavour;
      verdict.expected_start_ns = now_ns_;
      ++next;
    } else {
      verdicts.push_back(VerdictOf(b, &pools));
    }
  });
  MUSTER_CHECK(next == placed.end());  // what is placed waits, or its host can't be reached
  plan_.verdicts = Verdicts(std::move(verdicts), m_.flavours);
}

}  // namespace muster
