#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/spec/blocks.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/state/topology.h"

namespace muster {
namespace {

// The slices with `spares` put in at `at`; nullopt: a spare is on a host that they have already.
std::optional<HostSlices> Insert(HostSlices slices, size_t at, const HostSlices& spares) {
  for (const HostSlice& spare : spares) {
    if (std::any_of(slices.begin(), slices.end(),
                    [&](const HostSlice& part) { return part.host == spare.host; }))
      return std::nullopt;
  }
  slices.insert(slices.begin() + static_cast<ptrdiff_t>(at), spares.begin(), spares.end());
  return slices;
}

std::vector<HostId> Union(std::vector<HostId> hosts, const HostSlices& slices) {
  for (const HostSlice& part : slices) hosts.push_back(part.host);
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

// What a gang can stay on, in whole blocks of the ranks that it requires to be together.
struct Rest {
  HostSlices slices;
  size_t gap = 0;       // of the slices those before the first that is missing
  int32_t missing = 0;  // workers
};

// nullopt: none of its parts is left.
std::optional<Rest> RestOf(const Gang& gang, const Capacity& later) {
  const auto unit = static_cast<int32_t>(RankUnitsOf(*gang.spec, /*wishes=*/0).block);
  std::vector<bool> torn(static_cast<size_t>((gang.workers + unit - 1) / unit));  // by block
  HostSlices whole;
  bool any = false;
  int32_t rank = 0;
  for (const PartRow& part : gang.current->parts) {
    whole.push_back({part.host, part.workers, part.devices, part.device_milli});
    const int32_t first = rank;
    rank += part.workers;
    if (later.Fits(gang, {whole.back()})) {
      any = true;
    } else {
      for (int32_t block = first / unit; block * unit < rank; ++block)
        torn[static_cast<size_t>(block)] = true;
    }
  }
  if (!any) return std::nullopt;
  Rest rest;
  for (size_t block = 0; block < torn.size();) {
    size_t end = block + 1;
    while (end < torn.size() && torn[end] == torn[block]) ++end;
    const int32_t from = static_cast<int32_t>(block) * unit;
    const int32_t to = std::min(gang.workers, static_cast<int32_t>(end) * unit);
    if (torn[block]) {
      if (rest.missing == 0) rest.gap = rest.slices.size();
      rest.missing += to - from;
    } else {
      for (HostSlice& slice : RanksOf(*gang.spec, whole, from, to))
        rest.slices.push_back(std::move(slice));
    }
    block = end;
  }
  return rest;
}

// The other members stay where they are: what their hosts have cached is of use, and nobody else
// can take their devices meanwhile. Blocks of ranks stay as a whole or are replaced as one. Where
// the task has to be together and no spare is near, the gang's whole place is looked for anew, its
// own devices among what is free.
std::optional<HostSlices> PlaceWithSpares(const Inputs& in, const Gang& gang, int32_t workers,
                                          Draft* draft) {
  Capacity& later = *draft->later();
  Try trial(draft, &later);
  trial.LeaveReserved(gang.charge, gang, in.EndIfStarted(gang));
  trial.Release(gang);
  const std::optional<Rest> rest = RestOf(gang, later);
  if (!rest.has_value()) return std::nullopt;
  const std::vector<HostId> avoid = HostsToAvoid(*gang.job);
  if (rest->missing > 0 && rest->missing < gang.workers && workers == gang.workers &&
      !Binds(gang.spec->topology().required())) {
    trial.Take(gang, rest->slices);
    const std::optional<HostSlices> spares =
        later.Place(gang, gang.charge, rest->missing, Union(avoid, rest->slices));
    if (spares.has_value()) {
      // Racks or islands may have changed since it was placed, and have torn what it has left.
      auto slices = Insert(rest->slices, rest->gap, *spares);
      if (slices.has_value() && AreTogether(in.state, *gang.spec, *slices)) return slices;
    }
    trial.GiveBack(gang, rest->slices);
  }
  return later.Place(gang, gang.charge, workers, avoid);
}

}  // namespace

bool HasHosted(const Inputs& in, const Gang& gang) {
  const auto hosted = in.state.hosted().find(gang.job->number);
  if (hosted == in.state.hosted().end()) return false;
  return std::any_of(hosted->second.begin(), hosted->second.end(), [&](uint64_t number) {
    const AttemptRow* current = in.state.FindJob(number)->tasks[0].current();
    return current != nullptr && !current->released() &&
           current->holder_attempt == gang.current->number;
  });
}

bool ReplaceLost(const Inputs& in, const Gang& gang, Draft* draft) {
  if (HasHosted(in, gang)) return false;
  const int32_t workers = std::min(gang.workers, gang.entitled_workers());
  if (gang.current->parts.size() < 2 || gang.charge != gang.bound_pool ||
      workers < gang.min_workers)
    return false;
  if (!draft->later()->WithinLimits(gang, gang.charge, workers)) return false;
  std::optional<HostSlices> slices = PlaceWithSpares(in, gang, workers, draft);
  if (!slices.has_value()) return false;
  // Its reachable members stop only for a place that is there: its own devices apart, nothing is
  // still to be given back (docs/contracts.md, 9).
  bool there = false;
  {
    Try now(draft, draft->now());
    now.Release(gang);
    there =
        draft->now()->Fits(gang, *slices) && draft->now()->WithinLimits(gang, gang.charge, workers);
  }
  const int32_t g = in.IndexOf(gang);
  if (there && (in.AllOver(*gang.current) || gang.running())) {
    draft->StartOnOwn(g, gang.charge, workers, *std::move(slices));
  } else {
    draft->HoldOnOwn(g, gang.charge, workers, *std::move(slices));
  }
  return true;
}

}  // namespace muster
