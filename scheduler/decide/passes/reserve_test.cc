#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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

TEST(Reserve, TheFirstUnitThatDoesntFitGetsTheTimeWhenExpectedEndsLetItIn) {
  HeadOfLine at;
  const Reservation* reservation = ReservationOf(at.system, at.head);
  ASSERT_NE(reservation, nullptr);
  EXPECT_FALSE(reservation->held);
  EXPECT_FALSE(reservation->draining);
  EXPECT_EQ(reservation->start_ns, SystemBuilder::kStart + 100 * kSecond);
  EXPECT_EQ(reservation->workers, 1);
  const Plan plan = DecideQuickly(&at.system);
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
  DecideQuickly(&at.system);
  EXPECT_TRUE(IsRunning(at.system, at.head));
  EXPECT_EQ(ReservationOf(at.system, at.head), nullptr);
  EXPECT_EQ(LedgerMilli(at.system, LedgerClass::kReserved), 0);
}

// Nothing else would ever let in who borrows and doesn't know when it can start.
TEST(Reserve, WhoStarvesAndHasNoKnownStartDrainsItsHostsGuaranteedOrNot) {
  for (const int64_t guarantee : {0, 2}) {
    HeadOfLine at(guarantee, /*limit_s=*/0);
    EXPECT_EQ(ReservationOf(at.system, at.head), nullptr);
    SchedulingOptions options = QuickOptions();
    options.starve_after_ns = kSecond;
    at.system.Step(1);
    DecideQuickly(&at.system, options);
    ASSERT_NE(ReservationOf(at.system, at.head), nullptr) << guarantee;
    EXPECT_TRUE(ReservationOf(at.system, at.head)->draining) << guarantee;
  }
}

// Two devices: 0.3 of the first, 0.7 of the second, and the head drains for 0.9 of one. What a
// guarantee covers takes what is beside that once it is overdue; it is late otherwise for nothing.
TEST(Reserve, WhoIsOverdueTakesWhatIsBesideADrainingOne) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 2).Queue("q", 2);
  const auto submit = [&](int64_t milli) {
    const uint64_t number = JobBuilder("q").GpusMilli(milli).SubmitTo(&system);
    return number;
  };
  SchedulingOptions options = QuickOptions();
  options.starve_after_ns = kSecond;
  for (const int64_t milli : {300, 701}) {
    const uint64_t job = submit(milli);
    DecideQuickly(&system, options);
    StartAll(&system, job);
  }
  const uint64_t head = submit(899);
  system.Step(2);
  DecideQuickly(&system, options);
  ASSERT_NE(ReservationOf(system, head), nullptr);
  ASSERT_TRUE(ReservationOf(system, head)->draining);
  const uint64_t small = submit(100);
  DecideQuickly(&system, options);
  EXPECT_FALSE(IsRunning(system, small)) << "the host is closed";
  system.Step(20);
  DecideQuickly(&system, options);
  EXPECT_TRUE(IsRunning(system, small));
  ASSERT_NE(ReservationOf(system, head), nullptr);
  EXPECT_TRUE(ReservationOf(system, head)->draining);
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
  DecideQuickly(&system);
  for (const uint64_t job : running) StartAll(&system, job);
  // Entitled by number; nobody knows when half a device will be free.
  std::vector<uint64_t> unknown;
  for (int i = 0; i < 300; ++i) unknown.push_back(submit("c", 500, 0, std::min(i, 100)));
  const uint64_t head = submit("d", 900);
  DecideQuickly(&system);
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
  DecideQuickly(&system);
  StartAll(&system, running);
  const uint64_t head = JobBuilder("q").Workers(2).GpusMilli(800).SubmitTo(&system);
  DecideQuickly(&system);
  ASSERT_NE(ReservationOf(system, head), nullptr);
  const Reservation before = *ReservationOf(system, head);
  ASSERT_EQ(before.parts.size(), 2u);
  const uint64_t small = JobBuilder("q").GpusMilli(500).SubmitTo(&system);
  DecideQuickly(&system);
  EXPECT_FALSE(IsRunning(system, small));
  const std::string host =
      system.state.host(TaskOf(system.state, running).current()->parts[0].host).name;
  system.HostState("c", host, pb::HOST_SILENT);
  EXPECT_TRUE(DecideQuickly(&system).events.empty());
  ASSERT_NE(ReservationOf(system, head), nullptr);
  EXPECT_EQ(*ReservationOf(system, head), before);
  EXPECT_FALSE(IsRunning(system, small)) << "on the host that speaks";
  system.Step(150);  // it was to begin at 100
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1) << "its time limit";
  EXPECT_FALSE(IsRunning(system, small));
  system.Step(160);
  EXPECT_TRUE(DecideQuickly(&system).events.empty()) << "it isn't told anew each time";
  system.HostState("c", host, pb::HOST_UNREACHABLE);
  DecideQuickly(&system);
  EXPECT_EQ(ReservationOf(system, head), nullptr);
  EXPECT_TRUE(IsRunning(system, small));
}

TEST(History, TheNewestEqualJobTellsWhenOneEnds) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("q");
  const uint64_t first = JobBuilder("q").Gpus(4).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, first);
  system.Step(50);
  ReportAll(&system, first, pb::GONE, 0);
  const uint64_t second = JobBuilder("q").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(TaskOf(system.state, second).expected_run_ns, 50 * kSecond);
  DecideQuickly(&system);
  StartAll(&system, second);
  const uint64_t next = JobBuilder("q").Gpus(4).SubmitTo(&system);
  const Plan plan = DecideQuickly(&system);
  EXPECT_EQ(plan.verdicts.Find({next, 0})->expected_start_ns,
            SystemBuilder::kStart + 100 * kSecond);
}

TEST(Backoff, ItsPlaceIsLentUntilItStartsAgain) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 2).Queue("q", 2).Queue("other");
  const uint64_t fails = JobBuilder("q").Gpus(2).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, fails);
  system.Do(testing::Report(system.state, fails, 0, 1, 0, pb::EXITED, 1));
  DecideQuickly(&system);
  ReportAll(&system, fails, pb::GONE, 1, true);
  ASSERT_GT(TaskOf(system.state, fails).backoff_until_ns, system.now_ns);
  const uint64_t other = JobBuilder("other").Gpus(1).SubmitTo(&system);
  DecideQuickly(&system);
  EXPECT_FALSE(IsRunning(system, other)) << "it would still run then";
  system.Step(2);
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, fails));
}

// Of four devices two are let to others until 100 s, and two for longer; no other fits beside them.
TEST(Reserve, TwoThatDrainOneHostStartAtTheSameTime) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("q", 4);
  for (const int64_t limit_s : {100, 100, 0, 0}) {
    JobBuilder running("q");
    running.GpusMilli(limit_s > 0 ? 550 : 700).Priority(1);
    if (limit_s > 0) running.TimeLimit(limit_s);
    const uint64_t job = running.SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, job);
  }
  std::vector<uint64_t> heads;
  for (int i = 0; i < 2; ++i)
    heads.push_back(JobBuilder("q").GpusMilli(750).Priority(1).SubmitTo(&system));
  SchedulingOptions options = QuickOptions();
  options.starve_after_ns = kSecond;
  system.Step(1);
  DecideQuickly(&system, options);
  for (const uint64_t head : heads) {
    const Reservation* reservation = ReservationOf(system, head);
    ASSERT_NE(reservation, nullptr) << head;
    EXPECT_TRUE(reservation->draining) << head;
    EXPECT_EQ(reservation->start_ns, SystemBuilder::kStart + 100 * kSecond) << head;
  }
}

}  // namespace
}  // namespace muster
