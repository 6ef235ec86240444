#include "scheduler/decide/passes/together.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace muster {
namespace {

// It runs, or will again once its lost members have been replaced.
bool GoesOn(const Inputs& in, const Draft& draft, int32_t g) {
  const Gang& gang = in.gang(g);
  return gang.running() && !draft.Stops(g) && !(gang.may_be_lost && in.AllOver(*gang.current));
}

bool Ready(const Inputs& in, const Gang& gang) {
  return gang.wants_place() ||
         (gang.current != nullptr && gang.may_be_lost && in.AllOver(*gang.current));
}

template <typename Holds>
bool AnyOf(const Inputs& in, const Gang& gang, Holds holds) {
  const std::vector<int32_t> group = GroupOf(in.model, in.IndexOf(gang));
  return std::any_of(group.begin(), group.end(), holds);
}

// Devices before CPUs, large workers before small ones: what is left over fits those.
std::vector<int32_t> LargestFirst(const Inputs& in, const Gang& leader) {
  std::vector<int32_t> group = GroupOf(in.model, in.IndexOf(leader));
  std::sort(group.begin(), group.end(), [&](int32_t a, int32_t b) {
    const auto size = [&](int32_t g) {
      const Gang& gang = in.gang(g);
      return std::make_tuple(!gang.gpus, -gang.worker_milli, -gang.worker_milli * gang.min_workers,
                             g);
    };
    return size(a) < size(b);
  });
  return group;
}

}  // namespace

bool StartsWithOthers(const Inputs& in, const Draft& draft, const Gang& gang) {
  return gang.leader >= 0 && !AnyOf(in, gang, [&](int32_t g) { return GoesOn(in, draft, g); });
}

std::vector<int32_t> RunningOf(const Inputs& in, const Draft& draft, int32_t gang) {
  std::vector<int32_t> group = GroupOf(in.model, gang);
  if (group.size() > 1)
    std::erase_if(group, [&](int32_t g) { return !in.gang(g).running() || draft.Stops(g); });
  return group;
}

bool IsBesideOthers(const Inputs& in, const Gang& gang, int32_t pool) {
  const int32_t bound = gang.together.bound_pool;
  return bound >= 0 && (pool == bound || pool == in.model.CpusBeside(bound));
}

bool AllReady(const Inputs& in, const Gang& gang) {
  return !AnyOf(in, gang, [&](int32_t g) { return !Ready(in, in.gang(g)); });
}

bool AllWait(const Inputs& in, const Gang& gang) {
  return !AnyOf(in, gang, [&](int32_t g) { return !in.gang(g).wants_place(); });
}

int64_t BackoffOfGroup(const Inputs& in, const Gang& gang) {
  int64_t until_ns = 0;
  for (const int32_t g : GroupOf(in.model, in.IndexOf(gang)))
    until_ns = std::max(until_ns, in.gang(g).backoff_until_ns);
  return until_ns;
}

int64_t WaitingSince(const Inputs& in, const Gang& gang) {
  int64_t since_ns = kUnbounded;
  for (const int32_t g : GroupOf(in.model, in.IndexOf(gang))) {
    if (in.gang(g).wants_place()) since_ns = std::min(since_ns, in.gang(g).row->waiting_since_ns);
  }
  return since_ns;
}

int64_t EndOfGroup(const Inputs& in, const Gang& gang) {
  int64_t end_ns = 0;
  for (const int32_t g : GroupOf(in.model, in.IndexOf(gang))) {
    const int64_t its_end_ns = in.EndIfStarted(in.gang(g));
    if (its_end_ns == 0) return 0;
    end_ns = std::max(end_ns, its_end_ns);
  }
  return end_ns;
}

bool EvictedInRound(const Inputs& in, const Gang& gang) {
  return AnyOf(in, gang, [&](int32_t g) { return in.gang(g).evicted_round == in.state.round(); });
}

bool GroupWithinLimits(const Inputs& in, const Gang& leader, int32_t pool, Capacity* capacity,
                       Draft* draft) {
  Try trial(draft, capacity);
  for (const int32_t g : GroupOf(in.model, in.IndexOf(leader))) {
    const Gang& gang = in.gang(g);
    const int32_t its_pool = PoolBeside(in.model, gang, pool);
    if (its_pool < 0 || !capacity->WithinLimits(gang, its_pool, gang.min_workers)) return false;
    trial.AddUse(gang, its_pool, gang.min_workers);
  }
  return true;
}

std::optional<Places> PlaceGroup(const Inputs& in, const Gang& leader, int32_t pool,
                                 Capacity* capacity, Draft* draft) {
  Try trial(draft, capacity);
  const std::vector<HostId> avoid = HostsToAvoid(*leader.job);
  Places places;
  for (const int32_t g : LargestFirst(in, leader)) {
    const Gang& gang = in.gang(g);
    const int32_t its_pool = PoolBeside(in.model, gang, pool);
    if (its_pool < 0) return std::nullopt;
    std::optional<HostSlices> slices = capacity->Place(gang, its_pool, gang.min_workers, avoid);
    if (!slices.has_value()) return std::nullopt;
    trial.Take(gang, *slices);
    places.push_back({g, its_pool, gang.min_workers, *std::move(slices)});
  }
  return places;
}

std::optional<Places> FindPlaces(const Inputs& in, const Gang& leader, int32_t pool,
                                 Capacity* capacity, bool stops_others, Draft* draft) {
  Try trial(draft, capacity);
  const int64_t end_ns = EndOfGroup(in, leader);
  for (const int32_t g : GroupOf(in.model, in.IndexOf(leader))) {
    if (const int32_t its_pool = PoolBeside(in.model, in.gang(g), pool); its_pool >= 0)
      trial.LeaveReserved(its_pool, in.gang(g), end_ns, stops_others);
  }
  return PlaceGroup(in, leader, pool, capacity, draft);
}

}  // namespace muster
