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

// Without what is said of reservations.
inline int ActsOf(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.events.begin(), plan.events.end(),
                                        [](const pb::Event& e) { return !e.has_reservation(); }));
}

// Times of seconds.
inline SchedulingOptions QuickOptions() {
  SchedulingOptions options;
  options.grow_interval_ns = 5 * kSecond;
  options.min_runtime_ns = 10 * kSecond;
  options.starve_after_ns = 1000 * kSecond;
  options.restart_cost_ns = kSecond;
  return options;
}

inline Plan DecideQuickly(SystemBuilder* system,
                          const SchedulingOptions& options = QuickOptions()) {
  return DecideAndApply(system, options);
}

inline bool IsRunning(const SystemBuilder& system, uint64_t job) {
  return TaskOf(system.state, job).current() != nullptr;
}

inline void SetHeld(SystemBuilder* system, const std::string& queue, bool held) {
  pb::Event event;
  pb::QueueTree* tree = event.mutable_queues_applied()->mutable_tree();
  *tree = system->state.queue_tree();
  for (pb::QueueSpec& spec : *tree->mutable_queues()) {
    if (spec.name() == queue) spec.set_held(held);
  }
  system->Do(event);
}

// Two devices, shared: 0.4 of the first until 100 s, 0.7 of the second for longer. The head wants
// 0.9 of one: entitled, as all together are the 2 devices, but there is no such place before 100 s.
struct HeadOfLine {
  SystemBuilder system;
  uint64_t running = 0, longer = 0, head = 0;
  explicit HeadOfLine(int64_t guarantee = 2, int64_t limit_s = 100) {
    system.Cluster("c").Hosts("c", 1, 2).Queue("q", guarantee).Queue("other");
    running = JobBuilder("q").GpusMilli(400).Priority(1).TimeLimit(limit_s).SubmitTo(&system);
    longer = JobBuilder("q").GpusMilli(700).Priority(1).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, running);
    StartAll(&system, longer);
    head = JobBuilder("q").GpusMilli(900).Priority(1).SubmitTo(&system);
    DecideQuickly(&system);
  }
};

// Two hosts of 4 devices; a task of one device stays on each: 6 are free, and no host is.
struct Scattered {
  SystemBuilder system;
  std::vector<uint64_t> stay;
  explicit Scattered(int64_t guarantee) {
    system.Cluster("c").Hosts("c", 2, 4).Queue("q", guarantee).Queue("other", 8 - guarantee);
    std::vector<uint64_t> jobs;
    for (int i = 0; i < 8; ++i) jobs.push_back(JobBuilder("q").Gpus(1).SubmitTo(&system));
    DecideQuickly(&system);
    std::vector<HostId> hosts;
    for (const uint64_t job : jobs) {
      StartAll(&system, job);
      const HostId host = TaskOf(system.state, job).current()->parts[0].host;
      if (std::find(hosts.begin(), hosts.end(), host) != hosts.end()) continue;
      hosts.push_back(host);
      stay.push_back(job);
    }
    system.Step(20);
    for (const uint64_t job : jobs) {
      if (std::find(stay.begin(), stay.end(), job) == stay.end())
        ReportAll(&system, job, pb::GONE, 0);
    }
  }
};

inline int64_t LedgerMilli(const SystemBuilder& system, LedgerClass ledger_class) {
  int64_t milli = 0;
  for (const HostId id : system.state.hosts()) {
    for (const LedgerShare& share : system.state.host(id).shares)
      milli += share.ledger_class == static_cast<int>(ledger_class) ? share.milli : 0;
  }
  return milli;
}

// At 20 s a gang of `a` is to have both hosts, each of which has a job of `b`.
struct StopsTwo {
  StopsTwo() {
    system.Cluster("c").Hosts("c", 2, 8).Queue("a", 16).Queue("b");
    for (int i = 0; i < 2; ++i) victims.push_back(JobBuilder("b").Gpus(8).SubmitTo(&system));
    DecideQuickly(&system);
    for (const uint64_t job : victims) StartAll(&system, job);
    system.Step(20);
    claimant = JobBuilder("a").Workers(2).Gpus(8).SubmitTo(&system);
    stops = StopsIn(DecideQuickly(&system));
  }
  SystemBuilder system;
  std::vector<uint64_t> victims;
  uint64_t claimant = 0;
  int64_t stops = 0;
};

}  // namespace muster::testing
