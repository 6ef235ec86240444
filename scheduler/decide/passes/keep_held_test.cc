#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::DecideQuickly;
using testing::IsRunning;
using testing::JobBuilder;
using testing::Report;
using testing::ReportAll;
using testing::ReservationOf;
using testing::SetHeld;
using testing::StartAll;
using testing::StopsIn;
using testing::StopsTwo;
using testing::SystemBuilder;
using testing::TaskOf;

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
    EXPECT_TRUE(DecideQuickly(&system).events.empty());
    system.HostState("c", hosts[0], pb::HOST_UP);
    ReportAll(&system, victims[0], pb::GONE, 0, true);
    const uint64_t other = JobBuilder("b").Gpus(8).SubmitTo(&system);
    DecideQuickly(&system);
    EXPECT_FALSE(IsRunning(system, other));
    EXPECT_FALSE(IsRunning(system, slices)) << "nothing starts on a silent host";
    ASSERT_NE(ReservationOf(system, slices), nullptr);
    EXPECT_TRUE(ReservationOf(system, slices)->held);
    if (comes_back) {
      system.HostState("c", hosts[1], pb::HOST_UP);
      ReportAll(&system, victims[1], pb::GONE, 0, true);
      DecideQuickly(&system);
      EXPECT_TRUE(IsRunning(system, slices));
    } else {
      system.HostState("c", hosts[1], pb::HOST_UNREACHABLE);
      DecideQuickly(&system);
      EXPECT_EQ(ReservationOf(system, slices), nullptr);
      EXPECT_TRUE(IsRunning(system, other));
    }
  }
}

TEST(Silent, WhatComesBackKeepsItsDevicesInSAndOutside) {
  for (const int64_t guarantee : {2, 0}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4 - guarantee).Queue("b", guarantee);
    const uint64_t shrunk = JobBuilder("b").Workers(guarantee == 0 ? 1 : 2, 4).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, shrunk);
    system.Step(1);
    const uint64_t claimant = JobBuilder("a").Workers(2).SubmitTo(&system);
    ASSERT_EQ(StopsIn(DecideQuickly(&system)), 1);
    if (guarantee == 0)
      JobBuilder("a").Workers(2).SubmitTo(&system);  // with it nothing is left for `shrunk`
    const HostId host = TaskOf(system.state, shrunk).current()->parts[0].host;
    system.HostState("c", system.state.host(host).name, pb::HOST_SILENT);
    DecideQuickly(&system);
    ASSERT_NE(ReservationOf(system, claimant), nullptr);
    EXPECT_TRUE(ReservationOf(system, claimant)->held);
    ASSERT_NE(ReservationOf(system, shrunk), nullptr) << guarantee;
    EXPECT_TRUE(ReservationOf(system, shrunk)->held);
  }
}

TEST(Backfill, FreedDevicesBelongToTheClaimantWhoeverComesMeanwhile) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4).Queue("b");
  const uint64_t x = JobBuilder("b").Gpus(2).SubmitTo(&system);
  const uint64_t y = JobBuilder("b").Gpus(2).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, x);
  StartAll(&system, y);
  system.Step(20);
  const uint64_t claimant = JobBuilder("a").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 2);
  ReportAll(&system, x, pb::GONE, 0, true);
  const uint64_t small = JobBuilder("b").Gpus(1).TimeLimit(1).SubmitTo(&system);
  DecideQuickly(&system);
  EXPECT_FALSE(IsRunning(system, small));
  EXPECT_FALSE(IsRunning(system, x)) << "evicted in this round";
  ReportAll(&system, y, pb::GONE, 0, true);
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, claimant));
}

TEST(HeldQueue, WhatIsStoppedOnlyToComeBackStartsInSpiteOfTheHold) {
  for (const bool held_before : {true, false}) {
    for (const int64_t guarantee : {2, 0}) {  // of what is shrunk: in S, and outside
      SystemBuilder system;
      system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4 - guarantee).Queue("b", guarantee);
      const uint64_t shrunk = JobBuilder("b").Workers(guarantee == 0 ? 1 : 2, 4).SubmitTo(&system);
      DecideQuickly(&system);
      StartAll(&system, shrunk);
      ASSERT_EQ(TaskOf(system.state, shrunk).current()->workers, 4);
      system.Step(1);
      if (held_before) SetHeld(&system, "b", true);
      const uint64_t claimant = JobBuilder("a").Workers(2).SubmitTo(&system);
      const Plan plan = DecideQuickly(&system);
      ASSERT_EQ(StopsIn(plan), 1);
      EXPECT_EQ(plan.events[0].attempt_stopping().next_workers(), 2);
      SetHeld(&system, "b", true);
      DecideQuickly(&system);
      ReportAll(&system, shrunk, pb::GONE, 0, true);
      DecideQuickly(&system);
      EXPECT_TRUE(IsRunning(system, claimant));
      ASSERT_TRUE(IsRunning(system, shrunk)) << held_before << guarantee;
      EXPECT_EQ(TaskOf(system.state, shrunk).current()->workers, 2);
      StartAll(&system, shrunk);
      system.Do(testing::Report(system.state, shrunk, 0, 2, 0, pb::EXITED, 1));
      DecideQuickly(&system);
      ReportAll(&system, shrunk, pb::GONE, 1, true);
      system.Step(100);
      DecideQuickly(&system);
      EXPECT_FALSE(IsRunning(system, shrunk)) << "that is a start as any other";
    }
  }
}

TEST(KeepHeld, WhatStartsElsewhereLeavesWhatWasHeldForItToOthersAtOnce) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 2).Queue("a", 4).Queue("b");
  std::vector<uint64_t> victims;
  for (int i = 0; i < 2; ++i) victims.push_back(JobBuilder("b").Gpus(2).SubmitTo(&system));
  DecideQuickly(&system);
  for (const uint64_t job : victims) StartAll(&system, job);
  system.Step(20);
  const uint64_t first = JobBuilder("a").Gpus(2).SubmitTo(&system);
  ASSERT_EQ(StopsIn(DecideQuickly(&system)), 1);
  for (const uint64_t job : victims) {
    if (TaskOf(system.state, job).state == pb::TASK_RUNNING) ReportAll(&system, job, pb::GONE, 0);
  }
  const uint64_t second = JobBuilder("a").Gpus(2).SubmitTo(&system);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  EXPECT_TRUE(IsRunning(system, first));
  ASSERT_NE(ReservationOf(system, second), nullptr);
  EXPECT_TRUE(ReservationOf(system, second)->held);
}

}  // namespace
}  // namespace muster
