#include <algorithm>
#include <optional>
#include <utility>

#include "scheduler/decide/passes/passes.h"

namespace muster {

void ExtendStarts(const Inputs& in, Draft* draft) {
  for (size_t i = 0; i < draft->starts().size(); ++i) {
    const PlannedPlace place = draft->starts()[i];
    const Gang& gang = in.gang(place.gang);
    int32_t most = gang.entitled_workers();
    if (gang.row->wanted_workers > 0)
      most = std::min(most, std::max(gang.min_workers, gang.row->wanted_workers));
    most = gang.InSteps(most);
    if (most <= place.workers) continue;
    draft->Withdraw(i);
    int32_t workers = most;
    std::optional<HostSlices> slices;
    for (; workers > place.workers; workers -= gang.step_workers) {
      if (!draft->WithinLimits(gang, place.pool, workers - place.workers)) continue;
      slices = draft->FindPlace(draft->now(), gang, place.pool, workers, in.EndIfStarted(gang));
      if (slices.has_value()) break;
    }
    if (!slices.has_value()) slices = place.slices;
    draft->Restart(i, workers, *std::move(slices));
  }
}

}  // namespace muster
