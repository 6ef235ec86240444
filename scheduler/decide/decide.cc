#include "scheduler/decide/decide.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "scheduler/decide/decider.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/passes/passes.h"
#include "scheduler/state/queue_order.h"

namespace muster {
namespace {

// What the entitled set grants each queue.
std::map<std::pair<std::string, std::string>, int64_t> EntitledMilli(const Inputs& in) {
  std::map<std::pair<std::string, std::string>, int64_t> milli;
  for (size_t n = 1; n < in.model.entitled.size(); ++n) {
    for (size_t f = 0; f < in.model.flavours.size(); ++f) {
      if (in.model.entitled[n][f] > 0)
        milli[{in.state.queues().nodes[n].path, in.model.flavours[f]}] = in.model.entitled[n][f];
    }
  }
  return milli;
}

// Of a queue that takes the shortest first, who waits may have another band from the next tick on.
bool WaitsByBand(const Inputs& in) {
  const auto by_band = [&](int32_t b) {
    const int32_t leaf = in.gang(b).leaf;  // -1: it was removed
    return leaf >= 0 && in.state.queues().nodes[leaf].shortest_first;
  };
  return std::any_of(in.entitled.begin(), in.entitled.end(), by_band) ||
         std::any_of(in.others.begin(), in.others.end(), by_band);
}

}  // namespace

Plan Decide(const State& state, int64_t now_ns, const SchedulingOptions& options) {
  return Decider().Decide(state, now_ns, options);
}

Plan RunPasses(const Inputs& in, FreeMap* now, FreeMap* later) {
  // The draft is the plan in the making: what it starts, holds and stops is gone from, or comes
  // back to, the capacity that later passes see. So their order is their precedence.
  Draft draft(in, now, later);

  // What must stop, whoever wants its devices: it was cancelled, failed, took too long, or its host
  // is drained. What it gives back counts for everything below.
  StopDue(in, &draft);
  // Jobs that end although their hosts can't be reached. Nothing is done for them from here on.
  EndLost(in, &draft);

  // The entitled set, in its order of acceptance. First devices that earlier decisions freed for a
  // unit: they are that unit's until it starts.
  KeepHeld(in, &draft);
  // Then each unit that has no place yet: on free devices, on devices that are being given back, by
  // stopping what isn't entitled, by moving others together. The first that get none have a
  // reservation.
  PlaceEntitled(in, &draft);

  // Only once every gang has its place do elastic ones get more than their least: those that start
  // now, and then, as a restart costs them, those that run.
  ExtendStarts(in, &draft);
  Grow(in, &draft);

  // What is outside the set starts on what none of the above can use now. It may be stopped at any
  // time for what is entitled.
  Backfill(in, &draft);

  // What still waits and would start sooner in a cluster further down its list is opened that one.
  // This changes the entitled set, so it counts from the next decision on.
  Spill(in, &draft);

  // On devices that other jobs hold, nobody is in anybody's way.
  StartHosted(in, &draft);

  if (WaitsByBand(in)) draft.WakeAt((in.now_ns / kOrderTickNs + 1) * kOrderTickNs);
  if (!in.state.due().empty()) draft.WakeAt(in.state.due().begin()->first);
  Plan plan;
  draft.Finish();
  plan.verdicts = GiveVerdicts(in, &draft);
  plan.events = draft.TakeEvents();
  plan.next_wake_ns = draft.next_wake_ns();
  plan.entitled_milli = EntitledMilli(in);
  return plan;
}

}  // namespace muster
