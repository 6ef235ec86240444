#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::DecideQuickly;
using testing::HeadOfLine;
using testing::IsRunning;
using testing::JobBuilder;
using testing::LedgerMilli;
using testing::QuickOptions;
using testing::Report;
using testing::ReportAll;
using testing::ReservationOf;
using testing::StartAll;
using testing::StopsIn;
using testing::SystemBuilder;
using testing::TaskOf;

struct LendCase {
  const char* name;
  const char* queue;
  int priority;
  int64_t limit_s;   // 0: none
  int64_t starve_s;  // starve_after; the head waits for 1 s
  bool starts;
  bool draining = true;
  int64_t guarantee = 2;
};

TEST(Backfill, UsesReservedDevicesOnlyIfItEndsBeforeOrCanBeStopped) {
  const LendCase cases[] = {
      {"ends before", "q", 1, 60, 1000, true},
      {"ends later, an equal of the same queue", "q", 1, 200, 1000, false},
      {"ends later, but can be stopped by then for its priority", "q", 0, 200, 1000, true},
      {"unknown end, another queue: can be stopped", "other", 1, 0, 1000, true},
      {"draining: ends before", "other", 1, 60, 1, true},
      {"draining: could be stopped, but would end later", "other", 1, 0, 1, false},
      {"draining left out: can be stopped", "other", 1, 0, 1, true, false},
      {"draining: could be stopped for its priority", "q", 0, 200, 1, false},
      {"for a borrower that starves: can be stopped for its priority", "q", 0, 200, 1, true, true,
       0},
      {"for a borrower that starves: can't be stopped, and would end later", "q", 1, 200, 1, false,
       true, 0},
  };
  for (const LendCase& c : cases) {
    HeadOfLine at(c.guarantee);
    SchedulingOptions options = QuickOptions();
    options.starve_after_ns = c.starve_s * kSecond;
    options.draining = c.draining;
    at.system.Step(1);
    JobBuilder builder(c.queue);
    builder.GpusMilli(450).Priority(c.priority);
    if (c.limit_s > 0) builder.TimeLimit(c.limit_s);
    const uint64_t small = builder.SubmitTo(&at.system);
    DecideQuickly(&at.system, options);
    EXPECT_EQ(IsRunning(at.system, small), c.starts) << c.name;
    ASSERT_NE(ReservationOf(at.system, at.head), nullptr) << c.name;
    EXPECT_EQ(ReservationOf(at.system, at.head)->draining,
              c.draining && c.starve_s == 1 && c.guarantee > 0)
        << c.name;
  }
}

// It has run for 20 s where its like take 10: how much longer only its time limit says.
TEST(Backfill, WhatRanLongerThanItsHistoryIsLentToByItsTimeLimit) {
  struct Case {
    int64_t limit_s;
    bool starts;
  };
  for (const auto& [limit_s, starts] : {Case{0, false}, Case{60, true}, Case{200, false}}) {
    HeadOfLine at;
    const auto submit = [&](int64_t limit) {
      JobBuilder small("q");
      small.GpusMilli(450).Priority(1).spec.set_name("small");
      if (limit > 0) small.TimeLimit(limit);
      const uint64_t job = small.SubmitTo(&at.system);
      DecideQuickly(&at.system);
      EXPECT_TRUE(IsRunning(at.system, job)) << limit_s;
      StartAll(&at.system, job);
      return job;
    };
    at.system.Step(1);
    const uint64_t first = submit(20);
    at.system.Step(11);
    ReportAll(&at.system, first, pb::GONE, 0);
    const uint64_t longer = submit(limit_s);
    at.system.Step(31);
    at.system.Do(testing::Report(at.system.state, longer, 0, 1, 0, pb::EXITED, 1));
    DecideQuickly(&at.system);
    ReportAll(&at.system, longer, pb::GONE, 1, true);
    at.system.Step(35);
    ASSERT_EQ(TaskOf(at.system.state, longer).expected_run_ns, 10 * kSecond);
    ASSERT_EQ(TaskOf(at.system.state, longer).ran_ns, 20 * kSecond);
    DecideQuickly(&at.system);
    EXPECT_EQ(IsRunning(at.system, longer), starts) << limit_s;
  }
}

TEST(Backfill, StartsOutsideSAndLeavesWhenSWantsThePlace) {
  HeadOfLine at;
  at.system.Step(1);
  const uint64_t outside = JobBuilder("other").GpusMilli(550).SubmitTo(&at.system);
  DecideQuickly(&at.system);
  ASSERT_TRUE(IsRunning(at.system, outside));
  StartAll(&at.system, outside);
  at.system.Step(40);
  ReportAll(&at.system, at.running, pb::GONE, 0);
  const Plan plan = DecideQuickly(&at.system);
  ASSERT_EQ(StopsIn(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().key().job_uid(),
            at.system.state.FindJob(outside)->uid);
  ASSERT_NE(ReservationOf(at.system, at.head), nullptr);
  EXPECT_TRUE(ReservationOf(at.system, at.head)->held);
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kReserved), 450)
      << "what is free of its device already";
  EXPECT_EQ(StopsIn(DecideQuickly(&at.system)), 0) << "its claim stands";
  ReportAll(&at.system, outside, pb::GONE, 0, true);
  DecideQuickly(&at.system);
  EXPECT_TRUE(IsRunning(at.system, at.head));
  EXPECT_FALSE(IsRunning(at.system, outside)) << "0.1 and 0.3 are free";
}

TEST(Backfill, OfAQueueItStartsFirstWhatHasRunTheLeast) {
  for (const int priority : {0, 1}) {
    HeadOfLine at;  // 0.6 and 0.3 are free: a place for one of the two
    JobBuilder builder("other");
    builder.GpusMilli(500).Priority(priority).task()->set_max_restarts(1);
    const uint64_t older = builder.SubmitTo(&at.system);
    DecideQuickly(&at.system);
    ASSERT_TRUE(IsRunning(at.system, older));
    StartAll(&at.system, older);
    at.system.Step(20);
    ReportAll(&at.system, older, pb::GONE, 1);
    const uint64_t fresh = JobBuilder("other").GpusMilli(500).SubmitTo(&at.system);
    at.system.Step(40);
    DecideQuickly(&at.system);
    EXPECT_EQ(IsRunning(at.system, fresh), priority == 0) << "priority " << priority;
    EXPECT_EQ(IsRunning(at.system, older), priority == 1) << "priority " << priority;
  }
}

// Its queue is promised nothing, and of S all is another's, which has no such place. Each day one
// of its own that never ran comes.
TEST(Backfill, WhatWasEvictedIsPassedOverForTwoWeeksAtMost) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("own", 2).Queue("lent", 0, -1, 0);
  JobBuilder("own").Gpus(2).SubmitTo(&system);
  const auto starts = [&](const char* queue, int priority) {
    const uint64_t job = JobBuilder(queue).Priority(priority).SubmitTo(&system);
    DecideQuickly(&system);
    return job;
  };
  const uint64_t longer = starts("lent", 0);
  StartAll(&system, longer);
  system.Step(50);
  const uint64_t evicted = starts("lent", 0);
  StartAll(&system, evicted);
  system.Step(100);
  uint64_t other = starts("own", 1);
  ReportAll(&system, evicted, pb::GONE, 0, true);
  DecideQuickly(&system);
  ASSERT_TRUE(IsRunning(system, other) && IsRunning(system, longer) && !IsRunning(system, evicted));
  int day = 0;
  while (!IsRunning(system, evicted) && day < 30) {
    StartAll(&system, other);
    system.Step(++day * 24 * 3600);
    ReportAll(&system, other, pb::GONE, 0);
    other = starts("lent", 0);
    ASSERT_NE(IsRunning(system, other), IsRunning(system, evicted)) << "day " << day;
  }
  EXPECT_EQ(day, 15) << "the first time after fourteen of its days";
}

// Found by sched-fuzz, seed 39980, whose check took it for room that nobody waits for: what may be
// lost is a claimant like what waits, and its queue's limit holds for where it starts next.
TEST(Backfill, LeavesWhatMayBeLostTheRestOfItsLimit) {
  for (const int64_t limit : {5, 6}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 4).Hosts("c", 1, 4, "gpu", "", 2).Queue("q", 0, limit);
    JobBuilder lost("q");
    lost.Gpus(4).Cpus(4);  // the other host has devices for it, and too few CPUs
    lost.task()->set_when_unreachable(pb::REPLACE);
    const uint64_t gone = lost.SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, gone);
    system.HostState("c", "h00", pb::HOST_SILENT);
    system.HostState("c", "h00", pb::HOST_UNREACHABLE);
    const uint64_t small = JobBuilder("q").Gpus(2).SubmitTo(&system);
    DecideQuickly(&system);
    EXPECT_EQ(IsRunning(system, small), limit == 6) << limit;
  }
}

// Found by sched-fuzz, seed 3264: the claim's devices are held for it, and its queue's limit would
// be used up when they are free.
TEST(Backfill, LeavesWhatDevicesAreHeldForTheRestOfItsLimit) {
  for (const int64_t limit : {4, 6}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 4).Hosts("c", 1, 2).Queue("q", 4, limit).Queue("other");
    const uint64_t other = JobBuilder("other").Gpus(4).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, other);
    system.Step(20);
    const uint64_t claimant = JobBuilder("q").Gpus(4).SubmitTo(&system);
    EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1) << limit;
    const uint64_t small = JobBuilder("q").Gpus(2).SubmitTo(&system);
    DecideQuickly(&system);
    EXPECT_EQ(IsRunning(system, small), limit == 6) << limit;
    ReportAll(&system, other, pb::GONE, 0, true);
    DecideQuickly(&system);
    EXPECT_TRUE(IsRunning(system, claimant)) << limit;
  }
}

// What has worked for a checkpoint interval is protected for the min_runtime of its own queue.
TEST(Backfill, IsLentToByTheMinRuntimeOfTheQueueThatBorrows) {
  for (const int64_t min_runtime_s : {20, 200}) {
    HeadOfLine at;
    pb::Event event;
    pb::QueueTree* tree = event.mutable_queues_applied()->mutable_tree();
    *tree = at.system.state.queue_tree();
    for (pb::QueueSpec& queue : *tree->mutable_queues())
      queue.set_min_runtime_ns((queue.name() == "other" ? min_runtime_s : 20) * kSecond);
    at.system.Do(event);
    at.system.Step(1);
    JobBuilder builder("other");
    builder.GpusMilli(450).task()->mutable_checkpoint()->set_interval_ns(10 * kSecond);
    const uint64_t small = builder.SubmitTo(&at.system);
    DecideQuickly(&at.system);
    ASSERT_NE(ReservationOf(at.system, at.head), nullptr);
    EXPECT_EQ(IsRunning(at.system, small), min_runtime_s == 20)
        << "its head starts at 100 s, and may not stop it before " << min_runtime_s;
  }
}

}  // namespace
}  // namespace muster
