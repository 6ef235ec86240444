// For tests of decisions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"
#include "scheduler/state/validate.h"

namespace muster::testing {

// One decision, and the next where it opens a cluster: checks each plan, its verdicts and the
// derived data, and applies the events. The last plan, with the events of all.
inline Plan DecideAndApply(SystemBuilder* system, const SchedulingOptions& options) {
  std::vector<pb::Event> events;
  for (bool opened = true;;) {
    Plan plan = Decide(system->state, system->now_ns, options);
    const absl::Status valid = Validate(system->state, plan);
    EXPECT_TRUE(valid.ok()) << valid.message();
    opened = false;
    for (const pb::Event& event : plan.events) {
      system->Do(event);
      opened = opened || event.has_cluster_opened();
      events.push_back(event);
    }
    EXPECT_EQ(State::Difference(system->state, system->state.Rebuilt()), "");
    if (opened) continue;
    plan.events = std::move(events);
    return plan;
  }
}

inline const Reservation* ReservationOf(const SystemBuilder& system, uint64_t job) {
  return TaskOf(system.state, job).reservation.get();
}

inline int StopsIn(const Plan& plan) {
  return static_cast<int>(
      std::count_if(plan.events.begin(), plan.events.end(),
                    [](const pb::Event& e) { return e.has_attempt_stopping(); }));
}

}  // namespace muster::testing
