// Decide, for who decides step after step: it keeps what it read of State, and reads again what was written since.
//
// A Decider's plan is that of a fresh one, bit for bit, whatever State it is given: the next step's, a copy that went another
// way, or another system's. Only the time it takes depends on what it saw before. One thread; not to be copied.
#pragma once

#include <cstdint>

#include "scheduler/decide/model_upkeep.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

class Decider {
 public:
  Decider() = default;
  Decider(const Decider&) = delete;
  Decider& operator=(const Decider&) = delete;

  // As Decide (decide.h).
  Plan Decide(const State& state, int64_t now_ns, const SchedulingOptions& options);

 private:
  ModelUpkeep model_;
};

}  // namespace muster
