#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::ActsOf;
using testing::DecideQuickly;
using testing::JobBuilder;
using testing::QuickOptions;
using testing::Report;
using testing::ReportAll;
using testing::StartAll;
using testing::SystemBuilder;
using testing::TaskOf;

TEST(Decide, DrainsWithACheckpointAndPlacesElsewhere) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  const uint64_t job = JobBuilder("q").SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, job);
  const HostId from = TaskOf(system.state, job).attempts.back().parts[0].host;
  system.Drain("c/" + system.state.host(from).name);
  const Plan plan = DecideQuickly(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::DRAIN);
  EXPECT_EQ(plan.events[0].attempt_stopping().grace_ns(), 10 * kSecond);
  ReportAll(&system, job, pb::GONE, 0, true);
  DecideQuickly(&system);
  EXPECT_NE(TaskOf(system.state, job).attempts.back().parts[0].host, from);
}

TEST(Decide, StopsAtTheTimeLimitAndOnAHang) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  const uint64_t limited = JobBuilder("q").TimeLimit(30).SubmitTo(&system);
  JobBuilder hanging("q");
  hanging.task()->set_hang_timeout_ns(20 * kSecond);
  const uint64_t hangs = hanging.SubmitTo(&system);
  DecideQuickly(&system);
  StartAll(&system, limited);
  StartAll(&system, hangs);
  system.Step(25);
  EXPECT_EQ(DecideQuickly(&system).next_wake_ns, SystemBuilder::kStart + 30 * kSecond)
      << "the hang clock starts with the first line";
  pb::Event progress;
  *progress.mutable_progress_seen()->mutable_key() = KeyOf(*system.state.FindJob(hangs), 0, 1);
  progress.mutable_progress_seen()->mutable_progress()->set_at_ns(system.now_ns);
  system.Do(progress);
  system.Step(30);
  Plan plan = DecideQuickly(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::TIME_LIMIT);
  system.Step(45);
  plan = DecideQuickly(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::HANG);
}

TEST(Decide, ATimeLimitCountsTheRunsOfAllAttempts) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  const uint64_t job = JobBuilder("q").TimeLimit(60).SubmitTo(&system);
  DecideQuickly(&system);
  int64_t ran = 0;
  const auto start_at = [&](int64_t second) {
    system.Step(second);
    DecideQuickly(&system);
    StartAll(&system, job);
    ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING) << second;
    EXPECT_EQ(DecideQuickly(&system).next_wake_ns,
              SystemBuilder::kStart + (second + 60 - ran) * kSecond)
        << "what it ran before counts: " << ran << " s";
  };
  start_at(0);
  system.Step(25);
  ran += 25;
  ReportAll(&system, job, pb::GONE, 1);
  DecideQuickly(&system);
  start_at(100);  // what it waited for doesn't count
  system.Step(120);
  ran += 20;
  ReportAll(&system, job, pb::GONE, 1);
  DecideQuickly(&system);
  start_at(300);
  system.Step(314);
  EXPECT_EQ(ActsOf(DecideQuickly(&system)), 0);
  system.Step(315);
  const Plan plan = DecideQuickly(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::TIME_LIMIT);
}

// A task that has told a line at 0 s and is silent since, with a hang_timeout of 100 s.
struct SilentTask {
  SystemBuilder system;
  uint64_t job = 0;
  SilentTask() {
    system.Cluster("c").Hosts("c", 1, 1).Queue("q");
    JobBuilder builder("q");
    builder.task()->set_hang_timeout_ns(100 * kSecond);
    job = builder.SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, job);
    Say(SystemBuilder::kStart);
  }
  void Say(int64_t host_ns) {  // by the host's clock
    pb::Event progress;
    *progress.mutable_progress_seen()->mutable_key() = KeyOf(*system.state.FindJob(job), 0, 1);
    progress.mutable_progress_seen()->mutable_progress()->set_at_ns(host_ns);
    system.Do(progress);
  }
  void ListenAgain(int64_t seconds) {
    pb::Event step;
    step.mutable_step()->set_now_ns(system.now_ns = SystemBuilder::kStart + seconds * kSecond);
    step.mutable_step()->set_epoch(1);
    step.mutable_step()->set_listens_again(true);
    system.Do(step);
  }
  // When it is taken for hung, if nothing else happens; -1: never.
  int64_t HungAtSeconds() {
    const Plan plan = Decide(system.state, system.now_ns, QuickOptions());
    for (const pb::Event& event : plan.events) {
      if (event.has_attempt_stopping() && event.attempt_stopping().cause() == pb::HANG)
        return (system.now_ns - SystemBuilder::kStart) / kSecond;
    }
    return plan.next_wake_ns == INT64_MAX ? -1
                                          : (plan.next_wake_ns - SystemBuilder::kStart) / kSecond;
  }
};

TEST(Decide, WhatCouldNotBeHeardIsNoHang) {
  SilentTask still;
  EXPECT_EQ(still.HungAtSeconds(), 100);
  still.system.Step(100);
  EXPECT_EQ(still.HungAtSeconds(), 100);

  SilentTask restarted;  // musterd was down from 10 s to 3000 s
  restarted.ListenAgain(3000);
  EXPECT_EQ(restarted.HungAtSeconds(), 3100);

  SilentTask cut;
  cut.system.Step(50);
  cut.system.HostState("c", "h00", pb::HOST_SILENT);
  EXPECT_EQ(cut.HungAtSeconds(), -1);
  cut.system.Step(200);
  cut.system.HostState("c", "h00", pb::HOST_UNREACHABLE);
  EXPECT_EQ(cut.HungAtSeconds(), -1);
  cut.system.Step(3000);
  cut.system.HostState("c", "h00", pb::HOST_UP);
  EXPECT_EQ(cut.HungAtSeconds(), 3100);

  SilentTask skewed;  // its host's clock is an hour behind, or ahead
  skewed.system.Step(60);
  skewed.Say(SystemBuilder::kStart - kHour);
  EXPECT_EQ(skewed.HungAtSeconds(), 160);
  skewed.system.Step(80);
  skewed.Say(SystemBuilder::kStart - kHour);
  EXPECT_EQ(skewed.HungAtSeconds(), 160) << "the same line, said again to a new session";
  skewed.Say(SystemBuilder::kStart + kHour);
  EXPECT_EQ(skewed.HungAtSeconds(), 180);
}

TEST(Decide, AHostThatDoesntPrepareAGangInTimeKeepsItNoLonger) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 1).Queue("q");
  JobBuilder builder("q");
  builder.Workers(3);
  const uint64_t job = builder.SubmitTo(&system);
  DecideQuickly(&system);
  const std::vector<PartRow> parts = TaskOf(system.state, job).attempts.back().parts;
  system.Do(Report(system.state, job, 0, 1, 0, pb::PREPARED));
  system.Do(Report(system.state, job, 0, 1, 2, pb::PREPARED));
  constexpr int64_t kAllowedS = kLaunchTimeoutNs / kSecond;
  EXPECT_EQ(DecideQuickly(&system).next_wake_ns, SystemBuilder::kStart + kLaunchTimeoutNs);
  // What can't be reached is waited for in its own way, and what can again has the whole time.
  system.Step(100);
  system.HostState("c", system.state.host(parts[1].host).name, pb::HOST_SILENT);
  EXPECT_EQ(DecideQuickly(&system).next_wake_ns, INT64_MAX);
  system.Step(kAllowedS + 1);
  EXPECT_EQ(ActsOf(DecideQuickly(&system)), 0);
  system.HostState("c", system.state.host(parts[1].host).name, pb::HOST_UP);
  EXPECT_EQ(DecideQuickly(&system).next_wake_ns,
            SystemBuilder::kStart + (2 * kAllowedS + 1) * kSecond);
  system.Step(2 * kAllowedS);
  EXPECT_EQ(ActsOf(DecideQuickly(&system)), 0);
  system.Step(2 * kAllowedS + 1);
  Plan plan = DecideQuickly(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::LAUNCH_FAILED);
  EXPECT_EQ(plan.events[0].attempt_stopping().detail(),
            absl::StrCat(system.state.HostName(parts[1].host), " hasn't prepared it for 10m"));
  ReportAll(&system, job, pb::GONE);
  system.Step(2 * kAllowedS + 60);
  DecideQuickly(&system);
  ASSERT_EQ(TaskOf(system.state, job).attempts.back().number, 2);
  for (const PartRow& part : TaskOf(system.state, job).attempts.back().parts)
    EXPECT_NE(part.host, parts[1].host);
}

TEST(Decide, ATaskThatLosesOneHostAfterTheOtherEndsAtTheTenth) {
  for (const int workers : {1, 2}) {
    SCOPED_TRACE(workers);
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 60, 1).Queue("q");
    JobBuilder builder("q");
    builder.Workers(workers);
    builder.task()->set_when_unreachable(pb::REPLACE);
    if (workers > 1) builder.task()->set_trainer_json("{}");  // its other members end by themselves
    const uint64_t job = builder.SubmitTo(&system);
    int64_t second = 0;
    int attempts = 0;
    while (attempts < 20 && !system.state.FindJob(job)->finished()) {
      system.Step(++second);
      for (int i = 0; i < 4; ++i)
        DecideQuickly(&system);  // stops of a gang's other host, the loss, the next placement
      if (system.state.FindJob(job)->finished()) break;
      const AttemptRow& newest = TaskOf(system.state, job).attempts.back();
      if (newest.state == pb::TASK_STOPPING) {
        for (size_t p = 0; p < newest.parts.size(); ++p) {
          if (system.state.host(newest.parts[p].host).state == pb::HOST_UP)
            system.Do(Report(system.state, job, 0, newest.number, p, pb::GONE, 143, true));
        }
        continue;
      }
      ++attempts;
      StartAll(&system, job);
      system.Step(second += 60);
      system.HostState(
          "c", system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name,
          pb::HOST_UNREACHABLE);
    }
    EXPECT_EQ(attempts, kHostsLostInRow);
    EXPECT_EQ(system.state.FindJob(job)->state, pb::FAILED);
    EXPECT_EQ(system.state.FindJob(job)->cause, pb::HOST_LOST);
    EXPECT_EQ(system.state.FindJob(job)->detail,
              "10 attempts in a row lost a host before they made progress: see the attempts before "
              "this one");
    EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "");
  }
}

}  // namespace
}  // namespace muster
