#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::DecideQuickly;
using testing::IsRunning;
using testing::JobBuilder;
using testing::Placed;
using testing::ReportAll;
using testing::ReservationOf;
using testing::Scattered;
using testing::SetHeld;
using testing::StartAll;
using testing::StopsIn;
using testing::SystemBuilder;
using testing::TaskOf;

TEST(Consolidate, AnOverdueGuaranteedClaimGetsAWholeHostAndWhatStoodThereGoesOnBeside) {
  Scattered at(8);
  ASSERT_EQ(at.stay.size(), 2u);
  const uint64_t whole = JobBuilder("q").Gpus(4).SubmitTo(&at.system);
  EXPECT_EQ(StopsIn(DecideQuickly(&at.system)), 0);
  EXPECT_FALSE(IsRunning(at.system, whole));
  at.system.Step(30);
  const Plan plan = DecideQuickly(&at.system);
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
  EXPECT_EQ(StopsIn(DecideQuickly(&at.system)), 0) << "its claim stands";
  ReportAll(&at.system, moved, pb::GONE, 0, true);
  DecideQuickly(&at.system);
  ASSERT_TRUE(IsRunning(at.system, whole));
  ASSERT_TRUE(IsRunning(at.system, moved));
  EXPECT_EQ(TaskOf(at.system.state, moved).current()->parts[0].host,
            TaskOf(at.system.state, stays).current()->parts[0].host);
}

TEST(Consolidate, WhatMovesTakesThePlaceOfWhatTheClaimantMayStop) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4).Queue("a", 8).Queue("b");
  std::vector<uint64_t> jobs;
  for (const char* queue : {"a", "b", "a", "b"}) {  // a host has 2 of each
    jobs.push_back(JobBuilder(queue).Gpus(2).SubmitTo(&system));
    DecideQuickly(&system);
    StartAll(&system, jobs.back());
  }
  system.Step(60);
  const uint64_t claimant = JobBuilder("a").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  system.Step(70);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 3);
  for (const uint64_t job : jobs) {
    if (TaskOf(system.state, job).current()->state == pb::TASK_STOPPING)
      ReportAll(&system, job, pb::GONE, 0, true);
  }
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, claimant));
  EXPECT_TRUE(IsRunning(system, jobs[0]) && IsRunning(system, jobs[2]));
}

TEST(Consolidate, NobodyMovesForABorrowerOrWhereTheMovedWouldFindNoPlace) {
  Scattered borrows(0);
  JobBuilder("q").Gpus(4).SubmitTo(&borrows.system);
  DecideQuickly(&borrows.system);
  borrows.system.Step(60);
  EXPECT_EQ(StopsIn(DecideQuickly(&borrows.system)), 0);

  // Each takes more than half of its host's CPUs: there is no room beside the other.
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4, "gpu", "", 8).Queue("q", 8);
  const uint64_t x = JobBuilder("q").Gpus(1).Cpus(5).SubmitTo(&system);
  const uint64_t y = JobBuilder("q").Gpus(1).Cpus(5).SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, x);
  StartAll(&system, y);
  ASSERT_NE(TaskOf(system.state, x).current()->parts[0].host,
            TaskOf(system.state, y).current()->parts[0].host);
  JobBuilder("q").Gpus(4).SubmitTo(&system);
  DecideQuickly(&system);
  system.Step(60);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
}

// A borrower on each host of the pool, which is charged to it only because it runs there: the
// devices that come first in its list were taken when it started, and are free now.
TEST(Consolidate, WhatIsChargedWhereItRunsComesBackThere) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8, "first").Hosts("c", 2, 4).Queue("q", 8).Queue("b");
  const auto start = [&](JobBuilder job) {
    const uint64_t number = job.SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, number);
    return number;
  };
  const uint64_t full = start(JobBuilder("b").Gpus(8).Flavours({"first"}));
  const uint64_t filler = start(JobBuilder("b").Gpus(3));
  std::vector<uint64_t> stay;
  for (int i = 0; i < 2; ++i) {
    stay.push_back(start(JobBuilder("b").Gpus(1 + i).Flavours({"first", "gpu"})));
  }
  ReportAll(&system, full, pb::GONE, 0);
  ReportAll(&system, filler, pb::GONE, 0);
  ASSERT_NE(TaskOf(system.state, stay[0]).current()->parts[0].host,
            TaskOf(system.state, stay[1]).current()->parts[0].host);
  const uint64_t whole = JobBuilder("q").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  system.Step(30);
  ASSERT_EQ(StopsIn(DecideQuickly(&system)), 1);
  const uint64_t moved =
      TaskOf(system.state, stay[0]).current()->state == pb::TASK_STOPPING ? stay[0] : stay[1];
  ReportAll(&system, moved, pb::GONE, 0, true);
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, whole));
  ASSERT_TRUE(IsRunning(system, moved));
  EXPECT_EQ(TaskOf(system.state, stay[0]).current()->parts[0].host,
            TaskOf(system.state, stay[1]).current()->parts[0].host)
      << "not on the first";
}

// Two hosts of 8 with 4 + 1 + 1 each: of one the small ones go to the other. What takes as much as
// the claimant asks for stays: it would find no place where that finds none.
TEST(Consolidate, TheSmallMoveAndWhatIsAsLargeAsTheClaimantStays) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 8).Queue("q", 16);
  const auto start = [&](int64_t gpus) {
    const uint64_t number = JobBuilder("q").Gpus(gpus).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, number);
    return number;
  };
  const auto host_of = [&](uint64_t job) {
    return TaskOf(system.state, job).current()->parts[0].host;
  };
  std::vector<uint64_t> fours, ones;
  for (int i = 0; i < 4; ++i) fours.push_back(start(4));
  const auto other = std::find_if(fours.begin() + 1, fours.end(),
                                  [&](uint64_t job) { return host_of(job) != host_of(fours[0]); });
  const std::vector<uint64_t> large = {fours[0], *other};
  for (const uint64_t job : fours) {
    if (std::find(large.begin(), large.end(), job) == large.end())
      ReportAll(&system, job, pb::GONE, 0);
  }
  for (int i = 0; i < 8; ++i) ones.push_back(start(1));
  std::map<HostId, int> gone;
  for (const uint64_t job : ones) {
    if (gone[host_of(job)]++ < 2) ReportAll(&system, job, pb::GONE, 0);
  }
  const uint64_t claimant = JobBuilder("q").Gpus(4).SubmitTo(&system);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  system.Step(30);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 2);
  for (const uint64_t job : large)
    EXPECT_NE(TaskOf(system.state, job).current()->state, pb::TASK_STOPPING) << job;
  for (const uint64_t job : ones) {
    const AttemptRow* const attempt = TaskOf(system.state, job).current();
    if (attempt != nullptr && attempt->state == pb::TASK_STOPPING)
      ReportAll(&system, job, pb::GONE, 0, true);
  }
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, claimant));
}

// Both hosts have room for 4 once tasks of 2 devices together have moved: of the first the task of
// 4 would lose the most, but it stays, so that the least is lost there. Topology is as submission
// fills it in.
TEST(Consolidate, WhatStaysDoesNotMakeAHostDear) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 8).Queue("q", 16);
  const auto submit = [&](int64_t gpus) {
    JobBuilder job("q");
    pb::Topology* topology = job.Gpus(gpus).task()->mutable_topology();
    topology->set_preferred(pb::ISLAND);
    topology->set_required(pb::CLUSTER);
    return job.SubmitTo(&system);
  };
  const auto start = [&](const char* host, const std::vector<int>& devices) {
    const uint64_t job = submit(static_cast<int64_t>(devices.size()));
    system.Do(Placed(system.state, job, "c", {{host, devices}}));
    StartAll(&system, job);
    return job;
  };
  start("h00", {0, 1, 2, 3});
  system.Step(20);
  const std::vector<uint64_t> ones = {start("h00", {4}), start("h00", {5})};
  for (const int device : {0, 2, 4}) start("h01", {device, device + 1});
  submit(4);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  system.Step(60);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 2);
  for (const uint64_t job : ones)
    EXPECT_EQ(TaskOf(system.state, job).current()->state, pb::TASK_STOPPING) << job;
}

// Three hosts of 4 with 3 devices taken on each: the gang of 3 x 1 spreads, although together it
// takes more than the claimant's worker.
TEST(Consolidate, AGangOfSmallWorkersOnOneHostSpreads) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 4).Queue("q", 12);
  const auto start = [&](int64_t gpus, int workers) {
    const uint64_t number = JobBuilder("q").Workers(workers).Gpus(gpus).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, number);
    return number;
  };
  const uint64_t first = start(3, 1);
  start(3, 1);
  start(3, 1);
  ReportAll(&system, first, pb::GONE, 0);
  const uint64_t gang = start(1, 3);
  ASSERT_EQ(TaskOf(system.state, gang).current()->parts.size(), 1u);
  const uint64_t claimant = JobBuilder("q").Gpus(2).SubmitTo(&system);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 0);
  system.Step(30);
  EXPECT_EQ(StopsIn(DecideQuickly(&system)), 1);
  EXPECT_EQ(TaskOf(system.state, gang).current()->state, pb::TASK_STOPPING);
  ReportAll(&system, gang, pb::GONE, 0, true);
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, claimant));
  EXPECT_TRUE(IsRunning(system, gang));
}

TEST(HeldQueue, WhatRunsThereDoesNotMove) {
  Scattered at(4);
  JobBuilder("other").Gpus(4).SubmitTo(&at.system);
  SetHeld(&at.system, "q", true);
  at.system.Step(30);
  EXPECT_EQ(StopsIn(DecideQuickly(&at.system)), 0);
  SetHeld(&at.system, "q", false);
  at.system.Step(60);
  EXPECT_EQ(StopsIn(DecideQuickly(&at.system)), 1);
}

}  // namespace
}  // namespace muster
