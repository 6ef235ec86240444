// Decide, for who decides step after step: it keeps what it read of State, and reads again what was
// written since.
//
// A Decider's plan is that of a fresh one, bit for bit, whatever State it is given: the next
// step's, a copy that went another way, or another system's. Only the time it takes depends on what
// it saw before. One thread; not to be copied.
#pragma once

#include <cstdint>

#include <optional>
#include <string>

#include "scheduler/decide/model/model_upkeep.h"
#include "scheduler/decide/place/free_map.h"
#include "scheduler/decide/place/task_mix.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// How a task stands to the claims of others.
struct Standing {
  bool guaranteed = false;  // it has its place within its queue's guarantee
  // So long after its start claims within a guarantee leave it alone, too; 0: they stop it at once.
  int64_t left_alone_ns = 0;
};

class Decider {
 public:
  Decider() = default;
  Decider(const Decider&) = delete;
  Decider& operator=(const Decider&) = delete;

  // As Decide (decide.h).
  Plan Decide(const State& state, int64_t now_ns, const SchedulingOptions& options);

  // Of a task that wants or has a place; nullopt: it doesn't.
  std::optional<Standing> StandingOf(const State& state, int64_t now_ns,
                                     const SchedulingOptions& options, const TaskRef& task);

  // "" if the maps that it keeps are those of a fresh one for this State, else the first
  // difference. For tests.
  std::string Difference(const State& state);

 private:
  void Follow(const State& state, const SchedulingOptions& options);

  ModelUpkeep model_;
  TaskMix mix_;
  // What hosts have free by `seen_`, twice: the passes add what stopping attempts give back to the
  // second, and take it out again.
  std::optional<FreeMap> now_, later_;
  PlacementPolicy policy_ = PlacementPolicy::kV;
  std::optional<State> seen_;
};

}  // namespace muster
