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
using testing::Report;
using testing::StartAll;
using testing::SystemBuilder;
using testing::TaskOf;

// A trainer's task and another, of two devices each.
JobBuilder TwoTasks(int64_t first_limit_s) {
  JobBuilder builder("q");
  builder.Task("first").Gpus(2).TimeLimit(first_limit_s);
  builder.task()->set_trainer_json("{}");
  builder.Task("second").Gpus(2);
  return builder;
}

// Its first task is over its time limit, on a host that can't be reached: the plan that declares it
// lost ends the job, and reserves nothing for the second, though another job leaves the devices
// that this waits for.
TEST(Decide, AJobThatEndsByALossIsKeptNoDevices) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 2).Queue("q");
  JobBuilder builder = TwoTasks(30);
  const uint64_t leaves = JobBuilder("q").Gpus(2).SubmitTo(&system);
  const uint64_t stays = JobBuilder("q").Workers(2).Gpus(2).SubmitTo(&system);
  DecideQuickly(&system);
  const uint64_t job = builder.SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, leaves);
  StartAll(&system, stays);
  system.Do(Report(system.state, job, 0, 1, 0, pb::STARTED));
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING);
  ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_WAITING);
  system.Step(60);
  DecideQuickly(&system);
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  system.HostState("c",
                   system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name,
                   pb::HOST_UNREACHABLE);
  system.Cancel(leaves);
  const Plan plan = DecideQuickly(&system);
  for (const pb::Event& event : plan.events)
    EXPECT_FALSE(event.has_reservation()) << event.ShortDebugString();
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_FAILED);
  EXPECT_TRUE(TaskOf(system.state, job, 1).finished());
}

// As above, where others' tasks have the devices that the second is entitled to: none of them is
// stopped for it.
TEST(Decide, NobodyIsStoppedForAJobThatEndsByALoss) {
  for (const bool ends : {false, true}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 4, 2).Queue("q").Queue("other");
    JobBuilder builder = TwoTasks(ends ? 3 : 1000);
    std::vector<uint64_t> others;
    for (int i = 0; i < 3; ++i) others.push_back(JobBuilder("other").Gpus(2).SubmitTo(&system));
    DecideQuickly(&system);
    for (const uint64_t other : others) StartAll(&system, other);
    const uint64_t job = builder.SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, job);
    ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_WAITING);
    system.Step(4);
    DecideQuickly(&system);
    ASSERT_EQ(TaskOf(system.state, job).state, ends ? pb::TASK_STOPPING : pb::TASK_RUNNING);
    for (const uint64_t other : others)
      ASSERT_EQ(TaskOf(system.state, other).state, pb::TASK_RUNNING) << "within its min_runtime";
    system.Step(12);
    const std::string& host =
        system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name;
    if (ends) system.HostState("c", host, pb::HOST_UNREACHABLE);
    const Plan plan = DecideQuickly(&system);
    const auto claims = [](const pb::Event& event) {
      return event.has_attempt_stopping() && event.attempt_stopping().has_claimant();
    };
    EXPECT_EQ(std::count_if(plan.events.begin(), plan.events.end(), claims), ends ? 0 : 1);
    EXPECT_EQ(TaskOf(system.state, job).state == pb::TASK_FAILED, ends);
  }
}

// On a quiet system nothing else would make it look again.
TEST(Decide, WhatElseRunsOfAJobThatEndsByALossStopsInTheSamePlan) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 2).Queue("q");
  JobBuilder builder = TwoTasks(3);
  const uint64_t job = builder.SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, job);
  StartAll(&system, job, 1);
  ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_RUNNING);
  system.Step(4);
  DecideQuickly(&system);
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_RUNNING);
  system.Step(6);
  system.HostState("c",
                   system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name,
                   pb::HOST_UNREACHABLE);
  const Plan plan = DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_FAILED);
  EXPECT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_STOPPING);
  EXPECT_EQ(TaskOf(system.state, job, 1).attempts.back().detail, "task first failed");
  EXPECT_LE(plan.next_wake_ns, system.state.now_ns()) << "what the job held up may start";
}

TEST(Decide, LooksAgainAtOnceAfterAStopThatNobodyWillAnswer) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 2).Queue("q");
  JobBuilder builder("q");
  builder.task()->set_trainer_json("{}");
  const uint64_t job = builder.SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, job);
  system.HostState("c",
                   system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name,
                   pb::HOST_UNREACHABLE);
  system.Cancel(job);
  const Plan plan = DecideQuickly(&system);
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  EXPECT_LE(plan.next_wake_ns, system.state.now_ns());
  DecideQuickly(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_CANCELLED);
}

}  // namespace
}  // namespace muster
