#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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
