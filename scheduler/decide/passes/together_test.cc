// Tasks that start together, by whole decisions.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/spec/together.h"
#include "scheduler/decide/decider.h"
#include "scheduler/decide/testing/fixture.h"

namespace muster {
namespace {

using namespace testing;

struct Of {
  const char* name;
  int gpus;
  int workers = 1;
};

// All of them start together.
JobBuilder Group(const std::string& queue, const std::vector<Of>& tasks) {
  JobBuilder builder(queue);
  for (const Of& of : tasks) {
    builder.Task(of.name).Gpus(of.gpus).Workers(of.workers);
    if (builder.spec.tasks_size() > 1) builder.task()->add_with(tasks[0].name);
  }
  JoinTasks(&builder.spec);
  return builder;
}

int RunningOf(const SystemBuilder& system, uint64_t job) {
  int running = 0;
  for (const TaskRow& task : system.state.FindJob(job)->tasks) running += task.current() != nullptr;
  return running;
}

void StartTasks(SystemBuilder* system, uint64_t job) {
  for (size_t t = 0; t < system->state.FindJob(job)->tasks.size(); ++t) {
    if (system->state.FindJob(job)->tasks[t].current() != nullptr)
      StartAll(system, job, static_cast<int>(t));
  }
}

pb::VerdictCode CodeOf(const Plan& plan, uint64_t job, int task) {
  const Verdict* verdict = plan.verdicts.Find({job, task});
  return verdict == nullptr ? pb::VERDICT_UNSPECIFIED : verdict->code;
}

TEST(Together, StartsWholeOrNotAtAll) {
  for (const bool guaranteed : {true, false}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 2, 4).Queue("q", guaranteed ? 8 : 0).Queue("other");
    const uint64_t first = JobBuilder("q").Gpus(3).SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, first);
    const uint64_t job = Group("q", {{"trainer", 4}, {"server", 2}}).SubmitTo(&system);
    const Plan plan = DecideQuickly(&system);
    EXPECT_EQ(RunningOf(system, job), 0) << "4 find a host, 2 more don't";
    for (const int t : {0, 1}) {
      EXPECT_EQ(plan.verdicts.Find({job, t})->missing_milli, 1000) << "6 of them, and 5 are free";
    }
    ReportAll(&system, first, pb::GONE, 0);
    DecideQuickly(&system);
    EXPECT_EQ(RunningOf(system, job), 2);
  }
}

TEST(Together, TheQueueIsChargedForTheWhole) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 4).Queue("q", 0, 6);
  const uint64_t large = Group("q", {{"trainer", 4}, {"server", 3}}).SubmitTo(&system);
  const uint64_t fits = Group("q", {{"trainer", 4}, {"server", 2}}).SubmitTo(&system);
  const Plan plan = DecideQuickly(&system);
  EXPECT_EQ(RunningOf(system, large), 0) << "each task is within the limit, both are not";
  EXPECT_EQ(CodeOf(plan, large, 0), pb::V_LIMIT);
  EXPECT_EQ(CodeOf(plan, large, 1), pb::V_LIMIT);
  EXPECT_EQ(RunningOf(system, fits), 2);
  EXPECT_EQ((plan.entitled_milli.at({"q", "gpu"})), 6000);
}

TEST(Together, StartsInOneCluster) {
  SystemBuilder system;
  system.Cluster("a").Cluster("b").Hosts("a", 1, 4).Hosts("b", 1, 8).Queue("q", 12);
  const uint64_t job = Group("q", {{"trainer", 4}, {"server", 4}}).SubmitTo(&system);
  DecideQuickly(&system);
  ASSERT_EQ(RunningOf(system, job), 2) << "in b, the second of its list, which is open";
  for (const int t : {0, 1}) EXPECT_EQ(TaskOf(system.state, job, t).current()->cluster, 1);
}

TEST(Together, StandsBesideDevicesWithoutAny) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 4).Queue("q", 4);
  const uint64_t job = Group("q", {{"watcher", 0}, {"trainer", 4}}).SubmitTo(&system);
  DecideQuickly(&system);
  EXPECT_EQ(RunningOf(system, job), 2);
}

TEST(Together, AClaimTakesAllOfThemAndTheyComeBackTogether) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4).Queue("q").Queue("prod", 4);
  const uint64_t job = Group("q", {{"trainer", 4}, {"server", 2}}).SubmitTo(&system);
  DecideQuickly(&system);
  StartTasks(&system, job);
  system.Step(60);
  const uint64_t claimant = JobBuilder("prod").Gpus(4).SubmitTo(&system);
  const Plan plan = DecideQuickly(&system);
  EXPECT_EQ(StopsIn(plan), 2);
  for (const int t : {0, 1}) {
    EXPECT_EQ(TaskOf(system.state, job, t).state, pb::TASK_STOPPING);
    EXPECT_EQ(TaskOf(system.state, job, t).current()->cause, pb::PREEMPTION);
  }
  ReportAll(&system, job, pb::GONE, 0, true, 0);
  const Plan waits = DecideQuickly(&system);
  EXPECT_EQ(CodeOf(waits, job, 0), pb::V_TOGETHER) << "the other is being stopped";
  ReportAll(&system, job, pb::GONE, 0, true, 1);
  DecideQuickly(&system);
  EXPECT_TRUE(IsRunning(system, claimant));
  EXPECT_EQ(RunningOf(system, job), 0) << "2 would fit, both don't";
  StartAll(&system, claimant);
  ReportAll(&system, claimant, pb::GONE, 0);
  DecideQuickly(&system);
  EXPECT_EQ(RunningOf(system, job), 2);
}

TEST(Together, ClaimsForAllOfThemAtOnce) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4).Queue("q", 8).Queue("other");
  std::vector<uint64_t> others;
  for (int i = 0; i < 8; ++i) others.push_back(JobBuilder("other").Gpus(1).SubmitTo(&system));
  DecideQuickly(&system);
  for (const uint64_t other : others) StartAll(&system, other);
  system.Step(60);
  const uint64_t job = Group("q", {{"trainer", 4}, {"server", 2}}).SubmitTo(&system);
  const Plan plan = DecideQuickly(&system);
  EXPECT_EQ(StopsIn(plan), 6);
  for (const int t : {0, 1}) {
    ASSERT_NE(TaskOf(system.state, job, t).reservation, nullptr);
    EXPECT_TRUE(TaskOf(system.state, job, t).reservation->held);
    EXPECT_EQ(CodeOf(plan, job, t), pb::V_RECLAIMING);
  }
  std::vector<uint64_t> stopping;
  for (const uint64_t other : others) {
    if (TaskOf(system.state, other).state == pb::TASK_STOPPING) stopping.push_back(other);
  }
  for (const uint64_t other : stopping) {
    EXPECT_EQ(RunningOf(system, job), 0) << "until all of it is free";
    ReportAll(&system, other, pb::GONE, 0, true);
    DecideQuickly(&system);
  }
  EXPECT_EQ(RunningOf(system, job), 2);
}

TEST(Together, WaitsWithAReservationForEach) {
  SystemBuilder system;  // in the end 3 are free on each host
  system.Cluster("c").Hosts("c", 2, 4).Queue("q", 8);
  const uint64_t first = JobBuilder("q").Gpus(1).TimeLimit(100).SubmitTo(&system);
  const uint64_t filler = JobBuilder("q").Gpus(3).SubmitTo(&system);
  const uint64_t last = JobBuilder("q").Gpus(1).SubmitTo(&system);
  DecideQuickly(&system);
  for (const uint64_t one : {first, filler, last}) StartAll(&system, one);
  ReportAll(&system, filler, pb::GONE, 0);
  const uint64_t job = Group("q", {{"trainer", 4}, {"server", 2}}).SubmitTo(&system);
  const Plan plan = DecideQuickly(&system);
  for (const int t : {0, 1}) {
    const Reservation* reservation = TaskOf(system.state, job, t).reservation.get();
    ASSERT_NE(reservation, nullptr) << t;
    EXPECT_FALSE(reservation->held);
    EXPECT_EQ(reservation->start_ns, SystemBuilder::kStart + 100 * kSecond);
    EXPECT_EQ(plan.verdicts.Find({job, t})->expected_start_ns, reservation->start_ns);
  }
}

TEST(Together, OneThatFailsStartsAgainBesideTheOthers) {
  SystemBuilder system;
  system.Cluster("a").Cluster("b").Hosts("a", 1, 6).Hosts("b", 1, 8).Queue("q", 14);
  const uint64_t job = Group("q", {{"trainer", 4}, {"server", 2}}).SubmitTo(&system);
  DecideQuickly(&system);
  StartTasks(&system, job);
  ReportAll(&system, job, pb::EXITED, 1, false, 1);
  DecideQuickly(&system);
  ReportAll(&system, job, pb::GONE, 1, false, 1);
  EXPECT_EQ(CodeOf(DecideQuickly(&system), job, 1), pb::V_BACKOFF);
  EXPECT_EQ(TaskOf(system.state, job, 0).state, pb::TASK_RUNNING);
  system.Step(60);
  DecideQuickly(&system);
  ASSERT_EQ(RunningOf(system, job), 2);
  EXPECT_EQ(TaskOf(system.state, job, 1).current()->cluster, 0) << "where the trainer is";
  EXPECT_EQ(TaskOf(system.state, job, 0).next_attempt, 2) << "which has not been stopped";
}

TEST(Together, WhatNobodyNeedsIsStopped) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8).Queue("q", 8);
  JobBuilder builder = Group("q", {{"trainer", 4}, {"server", 2}});
  builder.spec.mutable_tasks(1)->add_until("trainer");
  const uint64_t job = builder.SubmitTo(&system);
  DecideQuickly(&system);
  StartTasks(&system, job);
  EXPECT_EQ(ActsOf(DecideQuickly(&system)), 0);
  ReportAll(&system, job, pb::GONE, 0, false, 0);
  DecideQuickly(&system);
  const AttemptRow* server = TaskOf(system.state, job, 1).current();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->state, pb::TASK_STOPPING);
  EXPECT_EQ(server->cause, pb::NOT_NEEDED);
  EXPECT_EQ(server->grace_ns, 10 * kSecond);
  ReportAll(&system, job, pb::GONE, 143, true, 1);
  EXPECT_EQ(system.state.FindJob(job)->state, pb::SUCCEEDED);
}

TEST(Together, ADeciderThatFollowsDecidesAsAFreshOne) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 4).Queue("q", 4).Queue("other", 4);
  Decider kept;
  const auto decide = [&] {
    const Plan plan = kept.Decide(system.state, system.now_ns, QuickOptions());
    const Plan fresh = Decide(system.state, system.now_ns, QuickOptions());
    ASSERT_EQ(plan.events.size(), fresh.events.size());
    for (size_t i = 0; i < plan.events.size(); ++i)
      EXPECT_EQ(plan.events[i].SerializeAsString(), fresh.events[i].SerializeAsString());
    for (const pb::Event& event : plan.events) system.Do(event);
  };
  decide();
  const uint64_t job = Group("q", {{"trainer", 2}, {"server", 2}, {"eval", 1}}).SubmitTo(&system);
  decide();
  StartTasks(&system, job);
  decide();
  ReportAll(&system, job, pb::GONE, 0, false, 0);
  decide();
  JobBuilder("other").Gpus(4).SubmitTo(&system);
  system.Step(60);
  decide();
  ReportAll(&system, job, pb::GONE, 1, false, 1);
  decide();
  system.Step(120);
  decide();
  EXPECT_EQ(TaskOf(system.state, job, 0).state, pb::TASK_SUCCEEDED);
}

}  // namespace
}  // namespace muster
