#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/passes.h"

namespace muster {
namespace {

// S grants it more workers where it runs, and it could restart.
bool MayGrow(const Inputs& in, const Gang& gang, const Draft& draft) {
  return gang.bound_pool >= 0 && gang.charge == gang.bound_pool &&
         gang.workers < gang.entitled_workers() && gang.may_resize && !gang.may_be_lost &&
         !in.HeldBack(gang) && !draft.Stops(in.IndexOf(gang)) && !draft.Ends(gang);
}

// What it gains exceeds what the restart costs. The gain is linear in workers.
bool Pays(const Inputs& in, const Gang& gang, int32_t workers) {
  const int64_t end_ns = ExpectedEnd(gang, in.now_ns);
  if (!gang.knows_steps || end_ns == 0) return true;
  return static_cast<__int128>(end_ns - in.now_ns) * (workers - gang.workers) / workers >
         in.options.restart_cost_ns;
}

// A place for so many workers, its own devices and what is free now; nullopt: none.
std::optional<HostSlices> PlaceFor(const Inputs& in, const Gang& gang, int32_t workers,
                                   Draft* draft) {
  Capacity& now = *draft->now();
  const int32_t more = workers - gang.workers;
  if (!draft->WithinLimits(gang, gang.charge, more)) return std::nullopt;
  if (now.FreeMilli(gang.charge, gang.gpus) < gang.worker_milli * more) return std::nullopt;
  Try trial(draft, &now);
  trial.LeaveReserved(gang.charge, gang, ExpectedEnd(gang, in.now_ns));
  trial.Release(gang);
  return now.Place(gang, gang.charge, workers, HostsToAvoid(*gang.job));
}

bool GrowOnFree(const Inputs& in, const Gang& gang, Draft* draft) {
  for (int32_t workers = gang.entitled_workers(); workers > gang.workers && Pays(in, gang, workers);
       workers -= gang.step_workers) {
    std::optional<HostSlices> slices = PlaceFor(in, gang, workers, draft);
    if (!slices.has_value()) continue;
    draft->Stop(gang,
                {pb::RESIZE, absl::StrCat("grows from ", gang.workers, " to ", workers, " workers"),
                 GraceOf(*gang.spec), workers});
    draft->Hold(in.IndexOf(gang), gang.charge, workers, *std::move(slices));
    draft->CountGrowth(gang, workers - gang.workers);
    return true;
  }
  return false;
}

}  // namespace

void Grow(const Inputs& in, Draft* draft) {
  for (const int32_t g : in.model.growing) {
    const Gang& gang = in.gang(g);
    if (!MayGrow(in, gang, *draft) || !Pays(in, gang, gang.entitled_workers())) continue;
    const int64_t due_ns = gang.resize_ns + in.options.grow_interval_ns;
    if (due_ns > in.now_ns) {
      draft->WakeAt(due_ns);
      continue;
    }
    if (GrowOnFree(in, gang, draft)) continue;
    Reclaim(in, {.gang = g, .pool = gang.charge, .workers = gang.entitled_workers(), .grows = true},
            draft);
  }
}

}  // namespace muster
