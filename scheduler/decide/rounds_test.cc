// Reservations, backfill, reclaim within a round: what SCHEDULING.md §2 and §4 promise, case by
// case.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/decide/decide.h"
#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::ReportAll;
using testing::ReservationOf;
using testing::StartAll;
using testing::StopsIn;
using testing::SystemBuilder;
using testing::TaskOf;

SchedulingOptions Quick() {
  SchedulingOptions options;
  options.grow_interval_ns = 5 * kSecond;
  options.min_runtime_ns = 10 * kSecond;
  options.starve_after_ns = 1000 * kSecond;
  options.restart_cost_ns = kSecond;
  return options;
}

Plan Go(SystemBuilder* system, const SchedulingOptions& options = Quick()) {
  return testing::DecideAndApply(system, options);
}

bool Runs(const SystemBuilder& system, uint64_t job) {
  return TaskOf(system.state, job).current() != nullptr;
}
int64_t LedgerMilli(const SystemBuilder& system, LedgerClass ledger_class) {
  int64_t milli = 0;
  for (const HostId id : system.state.hosts()) {
    for (const LedgerShare& share : system.state.host(id).shares)
      milli += share.ledger_class == static_cast<int>(ledger_class) ? share.milli : 0;
  }
  return milli;
}

void SetHeld(SystemBuilder* system, const std::string& queue, bool held) {
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
    Go(&system);
    StartAll(&system, running);
    StartAll(&system, longer);
    head = JobBuilder("q").GpusMilli(900).Priority(1).SubmitTo(&system);
    Go(&system);
  }
};

TEST(Reserve, TheFirstUnitThatDoesntFitGetsTheTimeWhenExpectedEndsLetItIn) {
  HeadOfLine at;
  const Reservation* reservation = ReservationOf(at.system, at.head);
  ASSERT_NE(reservation, nullptr);
  EXPECT_FALSE(reservation->held);
  EXPECT_FALSE(reservation->draining);
  EXPECT_EQ(reservation->start_ns, SystemBuilder::kStart + 100 * kSecond);
  EXPECT_EQ(reservation->workers, 1);
  const Plan plan = Go(&at.system);
  EXPECT_EQ(plan.verdicts.Find({at.head, 0})->expected_start_ns, reservation->start_ns);
  EXPECT_TRUE(plan.events.empty()) << "nothing changed, nothing is said again";
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kReserved), 600) << "what is free of its device";
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kProductive), 1100);
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kIdle), 300);
}

TEST(Reserve, WhatItLacksAndIsIdleInAnotherShapeIsBookedAsFragmented) {
  HeadOfLine at;
  const auto booked = [&](LedgerClass ledger_class) {
    const auto row = at.system.state.ledger().find(
        {ledger_class == LedgerClass::kIdle ? "" : "q", static_cast<int>(ledger_class)});
    return row == at.system.state.ledger().end() ? 0 : row->second;
  };
  const int64_t before_us = booked(LedgerClass::kIdle);
  at.system.Step(10);
  EXPECT_EQ(booked(LedgerClass::kFragmented), 300 * 10'000)
      << "0.3 on the second device, for ten seconds: the head lacks as much of the first";
  EXPECT_EQ(booked(LedgerClass::kReserved), 600 * 10'000);
  EXPECT_EQ(booked(LedgerClass::kIdle), before_us);
  at.system.Cancel(at.head);
  at.system.Step(20);
  EXPECT_EQ(booked(LedgerClass::kFragmented), 300 * 10'000);
  EXPECT_EQ(booked(LedgerClass::kIdle) - before_us, 900 * 10'000);
}

TEST(Reserve, ItDiesWhenItsGangLeavesS) {
  HeadOfLine at;
  at.system.Cancel(at.head);
  EXPECT_EQ(ReservationOf(at.system, at.head), nullptr);
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kReserved), 0);
}

TEST(Reserve, ItStartsWhenItsDevicesAreFree) {
  HeadOfLine at;
  at.system.Step(20);
  ReportAll(&at.system, at.running, pb::GONE, 0);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, at.head));
  EXPECT_EQ(ReservationOf(at.system, at.head), nullptr);
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kReserved), 0);
}

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
    SchedulingOptions options = Quick();
    options.starve_after_ns = c.starve_s * kSecond;
    options.draining = c.draining;
    at.system.Step(1);
    JobBuilder builder(c.queue);
    builder.GpusMilli(450).Priority(c.priority);
    if (c.limit_s > 0) builder.TimeLimit(c.limit_s);
    const uint64_t small = builder.SubmitTo(&at.system);
    Go(&at.system, options);
    EXPECT_EQ(Runs(at.system, small), c.starts) << c.name;
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
      Go(&at.system);
      EXPECT_TRUE(Runs(at.system, job)) << limit_s;
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
    Go(&at.system);
    ReportAll(&at.system, longer, pb::GONE, 1, true);
    at.system.Step(35);
    ASSERT_EQ(TaskOf(at.system.state, longer).expected_run_ns, 10 * kSecond);
    ASSERT_EQ(TaskOf(at.system.state, longer).ran_ns, 20 * kSecond);
    Go(&at.system);
    EXPECT_EQ(Runs(at.system, longer), starts) << limit_s;
  }
}

// Nothing else would ever let in who borrows and doesn't know when it can start.
TEST(Reserve, WhoStarvesAndHasNoKnownStartDrainsItsHostsGuaranteedOrNot) {
  for (const int64_t guarantee : {0, 2}) {
    HeadOfLine at(guarantee, /*limit_s=*/0);
    EXPECT_EQ(ReservationOf(at.system, at.head), nullptr);
    SchedulingOptions options = Quick();
    options.starve_after_ns = kSecond;
    at.system.Step(1);
    Go(&at.system, options);
    ASSERT_NE(ReservationOf(at.system, at.head), nullptr) << guarantee;
    EXPECT_TRUE(ReservationOf(at.system, at.head)->draining) << guarantee;
  }
}

TEST(Backfill, StartsOutsideSAndLeavesWhenSWantsThePlace) {
  HeadOfLine at;
  at.system.Step(1);
  const uint64_t outside = JobBuilder("other").GpusMilli(550).SubmitTo(&at.system);
  Go(&at.system);
  ASSERT_TRUE(Runs(at.system, outside));
  StartAll(&at.system, outside);
  at.system.Step(40);
  ReportAll(&at.system, at.running, pb::GONE, 0);
  const Plan plan = Go(&at.system);
  ASSERT_EQ(StopsIn(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().key().job_uid(),
            at.system.state.FindJob(outside)->uid);
  ASSERT_NE(ReservationOf(at.system, at.head), nullptr);
  EXPECT_TRUE(ReservationOf(at.system, at.head)->held);
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kReserved), 450)
      << "what is free of its device already";
  EXPECT_EQ(StopsIn(Go(&at.system)), 0) << "its claim stands";
  ReportAll(&at.system, outside, pb::GONE, 0, true);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, at.head));
  EXPECT_FALSE(Runs(at.system, outside)) << "0.1 and 0.3 are free";
}

TEST(Backfill, OfAQueueItStartsFirstWhatHasRunTheLeast) {
  for (const int priority : {0, 1}) {
    HeadOfLine at;  // 0.6 and 0.3 are free: a place for one of the two
    JobBuilder builder("other");
    builder.GpusMilli(500).Priority(priority).task()->set_max_restarts(1);
    const uint64_t older = builder.SubmitTo(&at.system);
    Go(&at.system);
    ASSERT_TRUE(Runs(at.system, older));
    StartAll(&at.system, older);
    at.system.Step(20);
    ReportAll(&at.system, older, pb::GONE, 1);
    const uint64_t fresh = JobBuilder("other").GpusMilli(500).SubmitTo(&at.system);
    at.system.Step(40);
    Go(&at.system);
    EXPECT_EQ(Runs(at.system, fresh), priority == 0) << "priority " << priority;
    EXPECT_EQ(Runs(at.system, older), priority == 1) << "priority " << priority;
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
    Go(&system);
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
  Go(&system);
  ASSERT_TRUE(Runs(system, other) && Runs(system, longer) && !Runs(system, evicted));
  int day = 0;
  while (!Runs(system, evicted) && day < 30) {
    StartAll(&system, other);
    system.Step(++day * 24 * 3600);
    ReportAll(&system, other, pb::GONE, 0);
    other = starts("lent", 0);
    ASSERT_NE(Runs(system, other), Runs(system, evicted)) << "day " << day;
  }
  EXPECT_EQ(day, 15) << "the first time after fourteen of its days";
}

TEST(Backfill, FreedDevicesBelongToTheClaimantWhoeverComesMeanwhile) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4).Queue("b");
  const uint64_t x = JobBuilder("b").Gpus(2).SubmitTo(&system);
  const uint64_t y = JobBuilder("b").Gpus(2).SubmitTo(&system);
  Go(&system);
  StartAll(&system, x);
  StartAll(&system, y);
  system.Step(20);
  const uint64_t claimant = JobBuilder("a").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 2);
  ReportAll(&system, x, pb::GONE, 0, true);
  const uint64_t small = JobBuilder("b").Gpus(1).TimeLimit(1).SubmitTo(&system);
  Go(&system);
  EXPECT_FALSE(Runs(system, small));
  EXPECT_FALSE(Runs(system, x)) << "evicted in this round";
  ReportAll(&system, y, pb::GONE, 0, true);
  Go(&system);
  EXPECT_TRUE(Runs(system, claimant));
}

TEST(Reclaim, MinRuntimeYieldsOnlyToGuaranteedClaims) {
  for (const bool guaranteed : {true, false}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 4).Queue("a", guaranteed ? 4 : 0).Queue("b");
    const uint64_t x = JobBuilder("b").Gpus(2).SubmitTo(&system);
    const uint64_t y = JobBuilder("b").Gpus(2).SubmitTo(&system);
    Go(&system);
    StartAll(&system, x);
    StartAll(&system, y);
    system.Step(3);
    const uint64_t claimant = JobBuilder("a").Gpus(2).SubmitTo(&system);
    EXPECT_EQ(StopsIn(Go(&system)), guaranteed ? 1 : 0);
    system.Step(11);
    EXPECT_EQ(StopsIn(Go(&system)), guaranteed ? 0 : 1);
    const Reservation* held = ReservationOf(system, claimant);
    ASSERT_NE(held, nullptr);
    EXPECT_TRUE(held->held);
  }
}

TEST(Reclaim, ManyTimesTheRequestIsNotStoppedButDrained) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("a", 4).Queue("b");
  const uint64_t big = JobBuilder("b").Gpus(8).TimeLimit(500).SubmitTo(&system);
  Go(&system);
  StartAll(&system, big);
  system.Step(20);
  const uint64_t one = JobBuilder("a").Gpus(1).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
  const Reservation* reservation = ReservationOf(system, one);
  ASSERT_NE(reservation, nullptr);
  EXPECT_TRUE(reservation->draining);
  EXPECT_EQ(reservation->start_ns, SystemBuilder::kStart + 500 * kSecond);
  const uint64_t two = JobBuilder("a").Gpus(2).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 1) << "8 for 2 is four times";
  EXPECT_TRUE(ReservationOf(system, two)->held);
}

TEST(Reclaim, AGuaranteedClaimThatHasWaitedForMinRuntimeStopsHoweverManyItTakes) {
  for (const bool guaranteed : {true, false}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 8).Queue("a", guaranteed ? 4 : 0).Queue("b");
    const uint64_t big = JobBuilder("b").Gpus(8).SubmitTo(&system);
    Go(&system);
    StartAll(&system, big);
    system.Step(20);
    const uint64_t one = JobBuilder("a").Gpus(1).SubmitTo(&system);
    EXPECT_EQ(StopsIn(Go(&system)), 0);
    system.Step(29);
    const Plan before = Go(&system);
    EXPECT_EQ(StopsIn(before), 0);
    if (guaranteed) {
      EXPECT_LE(before.next_wake_ns, SystemBuilder::kStart + 30 * kSecond);
    }
    system.Step(30);
    EXPECT_EQ(StopsIn(Go(&system)), guaranteed ? 1 : 0);
    if (!guaranteed) continue;
    ReportAll(&system, big, pb::GONE, 0, true);
    Go(&system);
    EXPECT_TRUE(Runs(system, one));
  }
}

// Two hosts of 4 devices; a task of one device stays on each: 6 are free, and no host is.
struct Scattered {
  SystemBuilder system;
  std::vector<uint64_t> stay;
  explicit Scattered(int64_t guarantee) {
    system.Cluster("c").Hosts("c", 2, 4).Queue("q", guarantee).Queue("other", 8 - guarantee);
    std::vector<uint64_t> jobs;
    for (int i = 0; i < 8; ++i) jobs.push_back(JobBuilder("q").Gpus(1).SubmitTo(&system));
    Go(&system);
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

TEST(Consolidate, AnOverdueGuaranteedClaimGetsAWholeHostAndWhatStoodThereGoesOnBeside) {
  Scattered at(8);
  ASSERT_EQ(at.stay.size(), 2u);
  const uint64_t whole = JobBuilder("q").Gpus(4).SubmitTo(&at.system);
  EXPECT_EQ(StopsIn(Go(&at.system)), 0);
  EXPECT_FALSE(Runs(at.system, whole));
  at.system.Step(30);
  const Plan plan = Go(&at.system);
  ASSERT_EQ(StopsIn(plan), 1);
  const pb::AttemptStopping& stop = plan.events[0].attempt_stopping();
  EXPECT_EQ(stop.cause(), pb::PREEMPTION);
  EXPECT_EQ(stop.next_workers(), 1) << "it comes back";
  const uint64_t moved = at.system.state.FindJobByUid(stop.key().job_uid())->number;
  const uint64_t stays = moved == at.stay[0] ? at.stay[1] : at.stay[0];
  ASSERT_NE(ReservationOf(at.system, moved), nullptr);
  EXPECT_TRUE(ReservationOf(at.system, moved)->held);
  ASSERT_NE(ReservationOf(at.system, whole), nullptr);
  EXPECT_TRUE(ReservationOf(at.system, whole)->held);
  EXPECT_EQ(StopsIn(Go(&at.system)), 0) << "its claim stands";
  ReportAll(&at.system, moved, pb::GONE, 0, true);
  Go(&at.system);
  ASSERT_TRUE(Runs(at.system, whole));
  ASSERT_TRUE(Runs(at.system, moved));
  EXPECT_EQ(TaskOf(at.system.state, moved).current()->parts[0].host,
            TaskOf(at.system.state, stays).current()->parts[0].host);
}

TEST(Consolidate, WhatMovesTakesThePlaceOfWhatTheClaimantMayStop) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4).Queue("a", 8).Queue("b");
  std::vector<uint64_t> jobs;
  for (const char* queue : {"a", "b", "a", "b"}) {  // a host has 2 of each
    jobs.push_back(JobBuilder(queue).Gpus(2).SubmitTo(&system));
    Go(&system);
    StartAll(&system, jobs.back());
  }
  system.Step(60);
  const uint64_t claimant = JobBuilder("a").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
  system.Step(70);
  EXPECT_EQ(StopsIn(Go(&system)), 3);
  for (const uint64_t job : jobs) {
    if (TaskOf(system.state, job).current()->state == pb::TASK_STOPPING)
      ReportAll(&system, job, pb::GONE, 0, true);
  }
  Go(&system);
  EXPECT_TRUE(Runs(system, claimant));
  EXPECT_TRUE(Runs(system, jobs[0]) && Runs(system, jobs[2]));
}

TEST(Consolidate, NobodyMovesForABorrowerOrWhereTheMovedWouldFindNoPlace) {
  Scattered borrows(0);
  JobBuilder("q").Gpus(4).SubmitTo(&borrows.system);
  Go(&borrows.system);
  borrows.system.Step(60);
  EXPECT_EQ(StopsIn(Go(&borrows.system)), 0);

  // Each takes more than half of its host's CPUs: there is no room beside the other.
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4, "gpu", "", 8).Queue("q", 8);
  const uint64_t x = JobBuilder("q").Gpus(1).Cpus(5).SubmitTo(&system);
  const uint64_t y = JobBuilder("q").Gpus(1).Cpus(5).SubmitTo(&system);
  Go(&system);
  StartAll(&system, x);
  StartAll(&system, y);
  ASSERT_NE(TaskOf(system.state, x).current()->parts[0].host,
            TaskOf(system.state, y).current()->parts[0].host);
  JobBuilder("q").Gpus(4).SubmitTo(&system);
  Go(&system);
  system.Step(60);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
}

TEST(Reclaim, BorrowsOnlyFromQueuesThatAreAtLeastAsFarOver) {
  // a and b have no guarantee: what a would hold after, 6, is more than b's 4 before.
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4).Queue("a").Queue("b");
  const uint64_t b1 = JobBuilder("b").Gpus(4).Priority(1).SubmitTo(&system);
  const uint64_t a1 = JobBuilder("a").Gpus(4).SubmitTo(&system);
  Go(&system);
  StartAll(&system, a1);
  StartAll(&system, b1);
  system.Step(60);
  JobBuilder("a").Gpus(2).Priority(1).SubmitTo(&system);
  const Plan plan = Go(&system);
  for (const pb::Event& event : plan.events) {
    if (!event.has_attempt_stopping()) continue;
    EXPECT_EQ(event.attempt_stopping().key().job_uid(), system.state.FindJob(a1)->uid);
  }
  EXPECT_TRUE(Runs(system, b1));
}

// Found by sched-fuzz, seed 32010: what a draining reservation doesn't need was held for a claim
// that needn't stop anybody for it. It could have started there as well, did so when it was decided
// again, and the reservation moved about.
TEST(Reclaim, WhoStopsNobodyDoesNotGetByADrainingReservation) {
  SchedulingOptions options = Quick();
  options.starve_after_ns = 100 * kSecond;
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("a", 8).Queue("b");
  const uint64_t stays = JobBuilder("a").Gpus(2).Cpus(60).Priority(1).SubmitTo(&system);
  const uint64_t borrows = JobBuilder("b").Gpus(1).SubmitTo(&system);
  Go(&system, options);
  StartAll(&system, stays);
  StartAll(&system, borrows);
  system.Step(1);
  const uint64_t slices = JobBuilder("a").Workers(4).Cpus(2).Priority(1).SubmitTo(
      &system);  // there are CPUs for it once `stays` ends
  Go(&system, options);
  system.Step(200);
  Go(&system, options);
  ASSERT_NE(ReservationOf(system, slices), nullptr);
  ASSERT_TRUE(ReservationOf(system, slices)->draining);
  const uint64_t small = JobBuilder("a").Gpus(2).SubmitTo(
      &system);  // the third of the 8 that it's promised: b's is outside S now
  Go(&system, options);
  EXPECT_FALSE(Runs(system, small)) << "nobody knows when the gang starts, so it would end later";
  EXPECT_EQ(ReservationOf(system, small), nullptr);
  EXPECT_TRUE(Runs(system, borrows));
  EXPECT_TRUE(Go(&system, options).events.empty()) << "nothing changed, nothing is said again";
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
    Go(&system);
    StartAll(&system, gone);
    system.HostState("c", "h00", pb::HOST_SILENT);
    system.HostState("c", "h00", pb::HOST_UNREACHABLE);
    const uint64_t small = JobBuilder("q").Gpus(2).SubmitTo(&system);
    Go(&system);
    EXPECT_EQ(Runs(system, small), limit == 6) << limit;
  }
}

TEST(Grow, TakesWhatIsOutsideSAndItsOwnShare) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4).Queue("b");
  const uint64_t outside = JobBuilder("b").Gpus(2).SubmitTo(&system);
  Go(&system);
  StartAll(&system, outside);
  system.Step(1);
  const uint64_t elastic = JobBuilder("a").Workers(2, 4).SubmitTo(&system);
  Go(&system);
  StartAll(&system, elastic);
  EXPECT_EQ(TaskOf(system.state, elastic).current()->workers, 2);
  system.Step(30);
  const Plan plan = Go(&system);
  EXPECT_EQ(StopsIn(plan), 2) << "the borrower goes, the gang comes back larger";
  ReportAll(&system, outside, pb::GONE, 0, true);
  ReportAll(&system, elastic, pb::GONE, 0, true);
  Go(&system);
  EXPECT_EQ(TaskOf(system.state, elastic).current()->workers, 4);
}

// A cancelled gang keeps its devices on one host while another of its hosts doesn't answer: growing
// onto them would end where it began.
TEST(Grow, DoesNotCountOnWhatNobodyGivesBack) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 4).Queue("a", 12).Queue("b");
  JobBuilder spread("b");
  spread.Workers(2).Gpus(4).task()->set_when_unreachable(pb::WAIT);
  const uint64_t slices = spread.SubmitTo(&system);
  Go(&system);
  StartAll(&system, slices);
  const uint64_t outside = JobBuilder("b").Workers(5).SubmitTo(&system);
  Go(&system);
  const uint64_t elastic = JobBuilder("a").Workers(3, 12).SubmitTo(&system);
  Go(&system);
  StartAll(&system, outside);
  StartAll(&system, elastic);
  ASSERT_EQ(TaskOf(system.state, elastic).current()->workers, 3);
  const std::string gone =
      system.state.host(TaskOf(system.state, slices).current()->parts[0].host).name;
  system.HostState("c", gone, pb::HOST_UNREACHABLE);
  system.Cancel(slices);
  Go(&system);
  system.Step(60);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
  system.HostState("c", gone, pb::HOST_UP);
  ReportAll(&system, slices, pb::GONE, 0, true);
  EXPECT_EQ(StopsIn(Go(&system)), 1) << "it grows";
}

TEST(HeldQueue, WhatRunsThereDoesNotGrow) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4).Queue("b");
  const uint64_t other = JobBuilder("b").Gpus(2).SubmitTo(&system);
  Go(&system);
  StartAll(&system, other);
  const uint64_t elastic = JobBuilder("a").Workers(2, 4).SubmitTo(&system);
  Go(&system);
  StartAll(&system, elastic);
  ASSERT_EQ(TaskOf(system.state, elastic).current()->workers, 2);
  SetHeld(&system, "a", true);
  system.Step(30);
  EXPECT_EQ(StopsIn(Go(&system)), 0) << "nor stops others for that";
  ReportAll(&system, other, pb::GONE, 0);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
  SetHeld(&system, "a", false);
  EXPECT_EQ(StopsIn(Go(&system)), 1);
}

TEST(HeldQueue, WhatRunsThereDoesNotMove) {
  Scattered at(4);
  JobBuilder("other").Gpus(4).SubmitTo(&at.system);
  SetHeld(&at.system, "q", true);
  at.system.Step(30);
  EXPECT_EQ(StopsIn(Go(&at.system)), 0);
  SetHeld(&at.system, "q", false);
  at.system.Step(60);
  EXPECT_EQ(StopsIn(Go(&at.system)), 1);
}

TEST(HeldQueue, WhatIsStoppedOnlyToComeBackStartsInSpiteOfTheHold) {
  for (const bool held_before : {true, false}) {
    for (const int64_t guarantee : {2, 0}) {  // of what is shrunk: in S, and outside
      SystemBuilder system;
      system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4 - guarantee).Queue("b", guarantee);
      const uint64_t shrunk = JobBuilder("b").Workers(guarantee == 0 ? 1 : 2, 4).SubmitTo(&system);
      Go(&system);
      StartAll(&system, shrunk);
      ASSERT_EQ(TaskOf(system.state, shrunk).current()->workers, 4);
      system.Step(1);
      if (held_before) SetHeld(&system, "b", true);
      const uint64_t claimant = JobBuilder("a").Workers(2).SubmitTo(&system);
      const Plan plan = Go(&system);
      ASSERT_EQ(StopsIn(plan), 1);
      EXPECT_EQ(plan.events[0].attempt_stopping().next_workers(), 2);
      SetHeld(&system, "b", true);
      Go(&system);
      ReportAll(&system, shrunk, pb::GONE, 0, true);
      Go(&system);
      EXPECT_TRUE(Runs(system, claimant));
      ASSERT_TRUE(Runs(system, shrunk)) << held_before << guarantee;
      EXPECT_EQ(TaskOf(system.state, shrunk).current()->workers, 2);
      StartAll(&system, shrunk);
      system.Do(testing::Report(system.state, shrunk, 0, 2, 0, pb::EXITED, 1));
      Go(&system);
      ReportAll(&system, shrunk, pb::GONE, 1, true);
      system.Step(100);
      Go(&system);
      EXPECT_FALSE(Runs(system, shrunk)) << "that is a start as any other";
    }
  }
}

TEST(Reserve, WhoGetsNoReservationTakesNoneFromOthers) {
  SystemBuilder system;
  system.Cluster("c").Cluster("d").Hosts("c", 24, 16).Hosts("d", 1, 2).Queue("q");
  const auto submit = [&](const char* cluster, int64_t milli, int64_t limit_s = 0, int shape = 0) {
    JobBuilder job("q");
    job.GpusMilli(milli).In({cluster}).task()->mutable_resources()->set_memory_bytes((1 << 20) +
                                                                                     shape);
    if (limit_s > 0) job.TimeLimit(limit_s);
    return job.SubmitTo(&system);
  };
  std::vector<uint64_t> running;
  for (int i = 0; i < 24 * 16; ++i) running.push_back(submit("c", 600));
  running.push_back(submit("d", 400, 100));
  running.push_back(submit("d", 700));
  Go(&system);
  for (const uint64_t job : running) StartAll(&system, job);
  // Entitled by number; nobody knows when half a device will be free.
  std::vector<uint64_t> unknown;
  for (int i = 0; i < 300; ++i) unknown.push_back(submit("c", 500, 0, std::min(i, 100)));
  const uint64_t head = submit("d", 900);
  Go(&system);
  for (const uint64_t job : unknown) EXPECT_EQ(ReservationOf(system, job), nullptr);
  ASSERT_NE(ReservationOf(system, head), nullptr);
  EXPECT_EQ(ReservationOf(system, head)->start_ns, SystemBuilder::kStart + 100 * kSecond);
}

// One device on each of two hosts, 0.4 of the first until 100 s: a gang that wants 0.8 of both
// waits for that.
TEST(Silent, AReservationStandsUntilItsHostCantBeReached) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q", 2);
  const uint64_t running = JobBuilder("q").GpusMilli(400).TimeLimit(100).SubmitTo(&system);
  Go(&system);
  StartAll(&system, running);
  const uint64_t head = JobBuilder("q").Workers(2).GpusMilli(800).SubmitTo(&system);
  Go(&system);
  ASSERT_NE(ReservationOf(system, head), nullptr);
  const Reservation before = *ReservationOf(system, head);
  ASSERT_EQ(before.parts.size(), 2u);
  const uint64_t small = JobBuilder("q").GpusMilli(500).SubmitTo(&system);
  Go(&system);
  EXPECT_FALSE(Runs(system, small));
  const std::string host =
      system.state.host(TaskOf(system.state, running).current()->parts[0].host).name;
  system.HostState("c", host, pb::HOST_SILENT);
  EXPECT_TRUE(Go(&system).events.empty());
  ASSERT_NE(ReservationOf(system, head), nullptr);
  EXPECT_EQ(*ReservationOf(system, head), before);
  EXPECT_FALSE(Runs(system, small)) << "on the host that speaks";
  system.Step(150);  // it was to begin at 100
  EXPECT_EQ(StopsIn(Go(&system)), 1) << "its time limit";
  EXPECT_FALSE(Runs(system, small));
  system.Step(160);
  EXPECT_TRUE(Go(&system).events.empty()) << "it isn't told anew each time";
  system.HostState("c", host, pb::HOST_UNREACHABLE);
  Go(&system);
  EXPECT_EQ(ReservationOf(system, head), nullptr);
  EXPECT_TRUE(Runs(system, small));
}

// At 20 s a gang of `a` is to have both hosts, each of which has a job of `b`.
struct StopsTwo {
  StopsTwo() {
    system.Cluster("c").Hosts("c", 2, 8).Queue("a", 16).Queue("b");
    for (int i = 0; i < 2; ++i) victims.push_back(JobBuilder("b").Gpus(8).SubmitTo(&system));
    Go(&system);
    for (const uint64_t job : victims) StartAll(&system, job);
    system.Step(20);
    claimant = JobBuilder("a").Workers(2).Gpus(8).SubmitTo(&system);
    stops = StopsIn(Go(&system));
  }
  SystemBuilder system;
  std::vector<uint64_t> victims;
  uint64_t claimant = 0;
  int64_t stops = 0;
};

TEST(Silent, WhatIsHeldStandsUntilItsHostCantBeReached) {
  for (const bool comes_back : {true, false}) {
    StopsTwo at;
    SystemBuilder& system = at.system;
    const std::vector<uint64_t>& victims = at.victims;
    const uint64_t slices = at.claimant;
    ASSERT_EQ(at.stops, 2);
    std::vector<std::string> hosts;
    for (const uint64_t job : victims)
      hosts.push_back(system.state.host(TaskOf(system.state, job).current()->parts[0].host).name);
    for (const std::string& host : hosts)
      system.HostState("c", host, pb::HOST_SILENT);  // as at the scheduler's start
    EXPECT_TRUE(Go(&system).events.empty());
    system.HostState("c", hosts[0], pb::HOST_UP);
    ReportAll(&system, victims[0], pb::GONE, 0, true);
    const uint64_t other = JobBuilder("b").Gpus(8).SubmitTo(&system);
    Go(&system);
    EXPECT_FALSE(Runs(system, other));
    EXPECT_FALSE(Runs(system, slices)) << "nothing starts on a silent host";
    ASSERT_NE(ReservationOf(system, slices), nullptr);
    EXPECT_TRUE(ReservationOf(system, slices)->held);
    if (comes_back) {
      system.HostState("c", hosts[1], pb::HOST_UP);
      ReportAll(&system, victims[1], pb::GONE, 0, true);
      Go(&system);
      EXPECT_TRUE(Runs(system, slices));
    } else {
      system.HostState("c", hosts[1], pb::HOST_UNREACHABLE);
      Go(&system);
      EXPECT_EQ(ReservationOf(system, slices), nullptr);
      EXPECT_TRUE(Runs(system, other));
    }
  }
}

TEST(Silent, WhatComesBackKeepsItsDevicesInSAndOutside) {
  for (const int64_t guarantee : {2, 0}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4 - guarantee).Queue("b", guarantee);
    const uint64_t shrunk = JobBuilder("b").Workers(guarantee == 0 ? 1 : 2, 4).SubmitTo(&system);
    Go(&system);
    StartAll(&system, shrunk);
    system.Step(1);
    const uint64_t claimant = JobBuilder("a").Workers(2).SubmitTo(&system);
    ASSERT_EQ(StopsIn(Go(&system)), 1);
    if (guarantee == 0)
      JobBuilder("a").Workers(2).SubmitTo(&system);  // with it nothing is left for `shrunk`
    const HostId host = TaskOf(system.state, shrunk).current()->parts[0].host;
    system.HostState("c", system.state.host(host).name, pb::HOST_SILENT);
    Go(&system);
    ASSERT_NE(ReservationOf(system, claimant), nullptr);
    EXPECT_TRUE(ReservationOf(system, claimant)->held);
    ASSERT_NE(ReservationOf(system, shrunk), nullptr) << guarantee;
    EXPECT_TRUE(ReservationOf(system, shrunk)->held);
  }
}

// Of two victims one stays in its device's driver and can't be killed.
TEST(Reclaim, AStopThatIsNotAnsweredInTimeKeepsNothingFromOthers) {
  for (const bool restarts : {false, true}) {
    StopsTwo at;
    SystemBuilder& system = at.system;
    const std::vector<uint64_t>& victims = at.victims;
    const uint64_t claimant = at.claimant;
    ASSERT_EQ(at.stops, 2);
    ReportAll(&system, victims[0], pb::GONE, 0, true);
    const uint64_t other = JobBuilder("b").Gpus(8).SubmitTo(&system);
    int64_t due_s = 20 + 10 + 120;  // its grace, and two minutes
    if (restarts) {
      system.Step(500);
      pb::Event step;
      step.mutable_step()->set_now_ns(system.now_ns);
      step.mutable_step()->set_listens_again(true);
      system.Do(step);
      due_s = 500 + 10 + 120;
    }
    Go(&system);
    system.Step(due_s - 1);
    const Plan plan = Go(&system);
    EXPECT_LE(plan.next_wake_ns, SystemBuilder::kStart + due_s * kSecond);
    EXPECT_FALSE(Runs(system, other)) << restarts;
    ASSERT_NE(ReservationOf(system, claimant), nullptr);
    system.Step(due_s);
    Go(&system);
    EXPECT_EQ(ReservationOf(system, claimant), nullptr);
    ASSERT_TRUE(Runs(system, other)) << restarts;
    StartAll(&system, other);
    ReportAll(&system, victims[1], pb::GONE, 0, true);
    JobBuilder("b").SubmitTo(&system);  // a new round
    EXPECT_EQ(StopsIn(Go(&system)), 1) << "it claims anew";
    ReportAll(&system, other, pb::GONE, 0, true);
    Go(&system);
    EXPECT_TRUE(Runs(system, claimant));
  }
}

// One task on each of two hosts. The first that is to move doesn't stop: then the other makes room.
TEST(Reclaim, WhoWaitsForAStopThatIsNotAnsweredClaimsAnew) {
  Scattered at(4);
  const uint64_t whole = JobBuilder("other").Gpus(4).SubmitTo(&at.system);
  at.system.Step(30);
  Plan plan = Go(&at.system);
  ASSERT_EQ(StopsIn(plan), 1);
  const uint64_t stays =
      at.system.state.FindJobByUid(plan.events[0].attempt_stopping().key().job_uid())->number;
  const uint64_t moves = stays == at.stay[0] ? at.stay[1] : at.stay[0];
  ASSERT_NE(ReservationOf(at.system, stays), nullptr);
  at.system.Step(30 + 10 + 119);
  EXPECT_EQ(StopsIn(Go(&at.system)), 0);
  at.system.Step(30 + 10 + 120);
  ASSERT_EQ(StopsIn(Go(&at.system)), 1);
  EXPECT_EQ(ReservationOf(at.system, stays), nullptr) << "it would keep others from its next place";
  ASSERT_EQ(TaskOf(at.system.state, moves).state, pb::TASK_STOPPING);
  EXPECT_EQ(StopsIn(Go(&at.system)), 0);
  ReportAll(&at.system, moves, pb::GONE, 0, true);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, whole));
  EXPECT_TRUE(Runs(at.system, moves));
  ReportAll(&at.system, stays, pb::GONE, 0, true);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, stays));
}

TEST(History, TheNewestEqualJobTellsWhenOneEnds) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("q");
  const uint64_t first = JobBuilder("q").Gpus(4).SubmitTo(&system);
  Go(&system);
  StartAll(&system, first);
  system.Step(50);
  ReportAll(&system, first, pb::GONE, 0);
  const uint64_t second = JobBuilder("q").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(TaskOf(system.state, second).expected_run_ns, 50 * kSecond);
  Go(&system);
  StartAll(&system, second);
  const uint64_t next = JobBuilder("q").Gpus(4).SubmitTo(&system);
  const Plan plan = Go(&system);
  EXPECT_EQ(plan.verdicts.Find({next, 0})->expected_start_ns,
            SystemBuilder::kStart + 100 * kSecond);
}

TEST(Backoff, ItsPlaceIsLentUntilItStartsAgain) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 2).Queue("q", 2).Queue("other");
  const uint64_t fails = JobBuilder("q").Gpus(2).SubmitTo(&system);
  Go(&system);
  StartAll(&system, fails);
  system.Do(testing::Report(system.state, fails, 0, 1, 0, pb::EXITED, 1));
  Go(&system);
  ReportAll(&system, fails, pb::GONE, 1, true);
  ASSERT_GT(TaskOf(system.state, fails).backoff_until_ns, system.now_ns);
  const uint64_t other = JobBuilder("other").Gpus(1).SubmitTo(&system);
  Go(&system);
  EXPECT_FALSE(Runs(system, other)) << "it would still run then";
  system.Step(2);
  Go(&system);
  EXPECT_TRUE(Runs(system, fails));
}

}  // namespace
}  // namespace muster
