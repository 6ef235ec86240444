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

// The other members stay where they are: what their hosts have cached is of use, and nobody else
// can take their devices meanwhile. Where the task has to be together and no spare is near, the
// gang's whole place is looked for anew, its own devices among what is free.
std::optional<HostSlices> PlaceWithSpares(const Inputs& in, const Gang& gang, int32_t workers,
                                          Draft* draft) {
  Capacity& later = *draft->later();
  Try trial(draft, &later);
  trial.LeaveReserved(gang.charge, gang, in.EndIfStarted(gang));
  trial.Release(gang);
  HostSlices stays;
  int32_t missing = 0;
  size_t first_missing = 0;
  for (const PartRow& part : gang.current->parts) {
    HostSlice slice{part.host, part.workers, part.devices, part.device_milli};
    if (later.Fits(gang, {slice})) {
      trial.Take(gang, {slice});
      stays.push_back(std::move(slice));
    } else {
      if (missing == 0) first_missing = stays.size();
      missing += part.workers;
    }
  }
  if (stays.empty()) return std::nullopt;
  const std::vector<HostId> avoid = HostsToAvoid(*gang.job);
  const bool anywhere =
      !Binds(gang.spec->topology().required()) && RankUnitsOf(*gang.spec, 0) == RankUnits();
  if (missing > 0 && anywhere && workers == gang.workers) {
    const std::optional<HostSlices> spares =
        later.Place(gang, gang.charge, missing, Union(avoid, stays));
    if (spares.has_value()) {
      if (auto slices = Insert(stays, first_missing, *spares)) return slices;
    }
  }
  trial.GiveBack(gang, stays);
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
