// For tests of decisions.
#pragma once

#include <gtest/gtest.h>

#include "scheduler/decide/decide.h"
#include "scheduler/state/builders.h"
#include "scheduler/state/validate.h"

namespace muster::testing {

// One decision: checks the plan, its verdicts and the derived data, and applies the events.
inline Plan DecideAndApply(SystemBuilder* system, const SchedulingOptions& options) {
  Plan plan = Decide(system->state, system->now_ns, options);
  const absl::Status valid = Validate(system->state, plan);
  EXPECT_TRUE(valid.ok()) << valid.message();
  for (const pb::Event& event : plan.events) system->Do(event);
  EXPECT_EQ(State::Difference(system->state, system->state.Rebuilt()), "");
  return plan;
}

}  // namespace muster::testing
