#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::DecideQuickly;
using testing::JobBuilder;
using testing::ReportAll;
using testing::SetHeld;
using testing::StartAll;
using testing::StopsIn;
using testing::SystemBuilder;
using testing::TaskOf;

TEST(Grow, TakesWhatIsOutsideSAndItsOwnShare) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4).Queue("b");
  const uint64_t outside = JobBuilder("b").Gpus(2).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, outside);
  system.Step(1);
  const uint64_t elastic = JobBuilder("a").Workers(2, 4).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, elastic);
  EXPECT_EQ(TaskOf(system.state, elastic).current()->workers, 2);
  system.Step(30);
  const Plan plan = DecideQuickly(&system);
  EXPECT_EQ(StopsIn(plan), 2) << "the borrower goes, the gang comes back larger";
  ReportAll(&system, outside, pb::GONE, 0, true);
  ReportAll(&system, elastic, pb::GONE, 0, true);
  DecideQuickly(&system);
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
  DecideQuickly(&system);
  StartAll(&system, slices);
  const uint64_t outside = JobBuilder("b").Workers(5).SubmitTo(&system);
  DecideQuickly(&system);
  const uint64_t elastic = JobBuilder("a").Workers(3, 12).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, outside);
  StartAll(&system, elastic);
  ASSERT_EQ(TaskOf(system.state, elastic).current()->workers, 3);
  const std::string gone =
      system.state.host(TaskOf(system.state, slices).current()->parts[0].host).name;
  system.HostState("c", gone, pb::HOST_UNREACHABLE);
  system.Cancel(slices);
  DecideQuickly(&system);
  system.Step(60);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  system.HostState("c", gone, pb::HOST_UP);
  ReportAll(&system, slices, pb::GONE, 0, true);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1) << "it grows";
}

// Found by sched-fuzz, seed 320: of six devices the parent may use, the claim will have four, what
// is outside S has one and the elastic gang one. While the claim waits for its devices, one more
// breaks no limit; when it has them, it does.
TEST(Grow, CountsWhatDevicesAreHeldForAgainstLimits) {
  for (const int64_t limit : {6, 7}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 2, 4).Queue("p", 6, limit).Queue("p/own", 6).Queue("p/lent");
    system.Queue("other");
    const auto start = [&](const JobBuilder& builder) {
      const uint64_t job = JobBuilder(builder).SubmitTo(&system);
      DecideQuickly(&system);
      StartAll(&system, job);
      return job;
    };
    start(JobBuilder("other").Gpus(4));
    const uint64_t filler = start(JobBuilder("other").Gpus(2));
    const uint64_t lent = start(JobBuilder("p/lent"));
    const uint64_t elastic = start(JobBuilder("p/own").Workers(1, 2));
    ASSERT_EQ(TaskOf(system.state, elastic).current()->workers, 1);
    system.Step(30);
    ReportAll(&system, filler, pb::GONE, 0);
    JobBuilder("p/own").Gpus(4).Priority(1).SubmitTo(&system);
    const Plan plan = DecideQuickly(&system);
    ASSERT_EQ(TaskOf(system.state, elastic).current()->state, pb::TASK_STOPPING) << "it grows";
    EXPECT_EQ(TaskOf(system.state, lent).current()->state == pb::TASK_STOPPING, limit == 6)
        << "what is outside S makes way for that";
    EXPECT_EQ(StopsIn(plan), limit == 6 ? 3 : 2);
  }
}

// Five of eight devices are free: a gang in multiples of two gets four, and grows by two when two
// more are.
TEST(Grow, AGangInMultiplesStartsAndGrowsByWholeSteps) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("a");
  const auto start = [&](const JobBuilder& builder) {
    const uint64_t job = JobBuilder(builder).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, job);
    return job;
  };
  const uint64_t stays = start(JobBuilder("a").Gpus(2));
  const uint64_t goes = start(JobBuilder("a").Gpus(1));
  const uint64_t elastic = start(JobBuilder("a").Workers(2, 8).MultipleOf(2));
  ASSERT_EQ(TaskOf(system.state, elastic).current()->workers, 4) << "five are free";
  system.Step(30);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0) << "one is free";
  ReportAll(&system, goes, pb::GONE, 0);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1);
  EXPECT_EQ(TaskOf(system.state, elastic).current()->next_workers, 6);
  ReportAll(&system, elastic, pb::GONE, 0, true);
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, elastic).current()->workers, 6);
  EXPECT_TRUE(TaskOf(system.state, stays).current() != nullptr);
}

// It is entitled to eight, and with what is free it could have seven.
TEST(Grow, AGangInMultiplesTakesWhatIsFreeByWholeSteps) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("a", 8).Queue("b");
  const auto start = [&](const JobBuilder& builder) {
    const uint64_t job = JobBuilder(builder).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, job);
    return job;
  };
  start(JobBuilder("b").Gpus(1));
  const uint64_t goes = start(JobBuilder("b").Gpus(5));
  const uint64_t elastic = start(JobBuilder("a").Workers(2, 8).MultipleOf(2));
  ASSERT_EQ(TaskOf(system.state, elastic).current()->workers, 2);
  ReportAll(&system, goes, pb::GONE, 0);
  system.Step(30);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1);
  EXPECT_EQ(TaskOf(system.state, elastic).current()->next_workers, 6);
}

// What S grants beyond the gang is whole steps, too, and each counts in full: of a limit of seven a
// gang of two has two more steps of two.
TEST(Grow, AStepThatALimitHoldsInPartOnlyIsNotGranted) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("a", 0, 7);
  const uint64_t elastic = JobBuilder("a").Workers(2, 8).MultipleOf(2).SubmitTo(&system);
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, elastic).current()->workers, 6);
}

TEST(HeldQueue, WhatRunsThereDoesNotGrow) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("a", 4).Queue("b");
  const uint64_t other = JobBuilder("b").Gpus(2).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, other);
  const uint64_t elastic = JobBuilder("a").Workers(2, 4).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, elastic);
  ASSERT_EQ(TaskOf(system.state, elastic).current()->workers, 2);
  SetHeld(&system, "a", true);
  system.Step(30);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0) << "nor stops others for that";
  ReportAll(&system, other, pb::GONE, 0);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  SetHeld(&system, "a", false);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1);
}

}  // namespace
}  // namespace muster
