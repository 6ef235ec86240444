// Whole decisions: State in, Plan out, validated and applied, with hosts that do as they are told.
#include "scheduler/decide/decide.h"
#include "scheduler/decide/testing/fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::Report;
using testing::ReportAll;
using testing::StartAll;
using testing::SystemBuilder;
using testing::TaskOf;

SchedulingOptions Quick() {
  SchedulingOptions options;
  options.grow_interval_ns = 5 * kSecond;
  options.min_runtime_ns = 5 * kSecond;
  options.spill_cost_ns = 10 * kSecond;
  options.restart_cost_ns = kSecond;
  return options;
}

Plan Go(SystemBuilder* system, const SchedulingOptions& options = Quick()) {
  return testing::DecideAndApply(system, options);
}

// Without what is said of reservations.
int ActsOf(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.events.begin(), plan.events.end(),
                                        [](const pb::Event& e) { return !e.has_reservation(); }));
}

pb::VerdictCode CodeOf(const Plan& plan, uint64_t job, int task = 0) {
  const Verdict* verdict = plan.verdicts.Find({job, task});
  return verdict == nullptr ? pb::VERDICT_UNSPECIFIED : verdict->code;
}

int32_t WorkersOf(const SystemBuilder& system, uint64_t job) {
  const AttemptRow* attempt = TaskOf(system.state, job).current();
  return attempt == nullptr ? 0 : attempt->workers;
}

// The demo's system: research is guaranteed 2 in lab, prod 2 in lab and 2 in cloud.
SystemBuilder DemoSystem() {
  SystemBuilder system;
  system.Cluster("lab", "shared")
      .Cluster("cloud", "shared2")
      .Hosts("lab", 2, 2)
      .Hosts("cloud", 1, 2);
  system.Queue("research", 2).Queue("prod", 4);
  system.GuaranteeIn("research", "lab", 2)
      .GuaranteeIn("prod", "lab", 2)
      .GuaranteeIn("prod", "cloud", 2);
  return system;
}

TEST(Decide, StartsAnElasticGangAtWhatFitsAndBorrows) {
  SystemBuilder system = DemoSystem();
  const uint64_t job = JobBuilder("research").Workers(2, 4).In({"lab"}).SubmitTo(&system);
  const Plan plan = Go(&system);
  EXPECT_EQ(CodeOf(plan, job), pb::V_STARTING_NOW);
  EXPECT_EQ(WorkersOf(system, job), 4);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_PREPARING);
}

TEST(Decide, ShrinksTheBorrowerForAGuaranteedClaimAndGrowsItWhenTheClaimantLeaves) {
  SystemBuilder system = DemoSystem();
  const uint64_t borrower = JobBuilder("research").Workers(2, 4).In({"lab"}).SubmitTo(&system);
  Go(&system);
  StartAll(&system, borrower);
  system.Step(1);
  const uint64_t claimant = JobBuilder("prod").Workers(2).In({"lab"}).SubmitTo(&system);
  Plan plan = Go(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  const pb::AttemptStopping& stop = plan.events[0].attempt_stopping();
  EXPECT_EQ(stop.cause(), pb::PREEMPTION);
  EXPECT_EQ(stop.next_workers(), 2);
  EXPECT_EQ(stop.claimant().attempt(), 1);
  EXPECT_EQ(CodeOf(plan, claimant), pb::V_RECLAIMING);
  EXPECT_EQ(ActsOf(Go(&system)), 0) << "a claim that waits stops nobody else";
  system.Step(2);
  ReportAll(&system, borrower, pb::GONE, 0, true);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, claimant), 2);
  EXPECT_EQ(WorkersOf(system, borrower), 2);
  EXPECT_EQ(TaskOf(system.state, borrower).restarts_used, 0);
  StartAll(&system, borrower);
  StartAll(&system, claimant);
  system.Step(4);
  ReportAll(&system, claimant, pb::GONE, 0);
  EXPECT_EQ(system.state.FindJob(claimant)->state, pb::SUCCEEDED);
  plan = Go(&system);
  EXPECT_EQ(ActsOf(plan), 0) << "grow_interval";
  EXPECT_EQ(plan.next_wake_ns, SystemBuilder::kStart + 7 * kSecond);
  system.Step(7);
  plan = Go(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::RESIZE);
  EXPECT_EQ(plan.events[0].attempt_stopping().next_workers(), 4);
  ReportAll(&system, borrower, pb::GONE, 0, true);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, borrower), 4);
}

TEST(Decide, SpillsWhenTheNextClusterStartsItSoonerByMoreThanItCosts) {
  for (const int64_t left_s : {5, 60}) {
    SystemBuilder system = DemoSystem();
    for (const char* queue : {"research", "prod"}) {
      const uint64_t full =
          JobBuilder(queue).Workers(2).In({"lab"}).TimeLimit(left_s).SubmitTo(&system);
      Go(&system);
      StartAll(&system, full);
    }
    const uint64_t job = JobBuilder("research").In({"lab", "cloud"}).SubmitTo(&system);
    const Plan plan = Go(&system);
    const bool spilled = !TaskOf(system.state, job).opened.empty();
    EXPECT_EQ(spilled, left_s == 60) << left_s;
    if (spilled) {
      EXPECT_EQ(system.state.FindJob(job)->cluster, "cloud");
      EXPECT_NE(TaskOf(system.state, job).spill_reason, "");
    }
  }
}

TEST(Decide, PlacesAGangWholeOrNotAtAll) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 8).Queue("q");
  const uint64_t fits = JobBuilder("q").Workers(3).Gpus(8).SubmitTo(&system);
  const uint64_t big = JobBuilder("q").Workers(2).Gpus(8).SubmitTo(&system);
  const Plan plan = Go(&system);
  EXPECT_EQ(WorkersOf(system, fits), 3);
  EXPECT_EQ(WorkersOf(system, big), 0);
  EXPECT_EQ(CodeOf(plan, big), pb::V_SHARE);
}

struct PlacementCase {
  const char* name;
  int workers, gpus;
  pb::TopologyLevel required;
  size_t hosts;      // that the gang is spread over; 0: not placed
  const char* rack;  // that it must lie in; "": any
};

TEST(Decide, PlacesOnTheTightestLevel) {
  const PlacementCase cases[] = {
      {"one host", 4, 1, pb::CLUSTER, 1, ""},
      {"one rack, the smallest that holds it", 2, 4, pb::CLUSTER, 2, "small"},
      {"the larger rack where the small one doesn't hold it", 3, 4, pb::CLUSTER, 3, "large"},
      {"the cluster where no rack holds it", 5, 4, pb::CLUSTER, 5, ""},
      {"rack required", 5, 4, pb::RACK, 0, ""},
      {"host required", 2, 4, pb::HOST, 0, ""},
  };
  for (const PlacementCase& c : cases) {
    SystemBuilder system;
    system.Cluster("c")
        .Hosts("c", 3, 4, "gpu", "large")
        .Hosts("c", 2, 4, "gpu", "small")
        .Queue("q");
    JobBuilder builder("q");
    builder.Workers(c.workers).Gpus(c.gpus).task()->mutable_topology()->set_required(c.required);
    const uint64_t job = builder.SubmitTo(&system);
    Go(&system);
    const AttemptRow* attempt = TaskOf(system.state, job).current();
    ASSERT_EQ(attempt == nullptr, c.hosts == 0) << c.name;
    if (attempt == nullptr) continue;
    EXPECT_EQ(attempt->parts.size(), c.hosts) << c.name;
    for (const PartRow& part : attempt->parts) {
      EXPECT_TRUE(*c.rack == '\0' || system.state.host(part.host).rack == c.rack) << c.name;
    }
  }
}

TEST(Decide, SharesADeviceAndRespectsCpus) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 1, "gpu", "", 4).Queue("q");
  const uint64_t a = JobBuilder("q").GpusMilli(500).SubmitTo(&system);
  const uint64_t b = JobBuilder("q").GpusMilli(400).SubmitTo(&system);
  const uint64_t c = JobBuilder("q").GpusMilli(200).SubmitTo(&system);
  const uint64_t cpu = JobBuilder("q").GpusMilli(0).Cpus(3).SubmitTo(&system);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, a), 1);
  EXPECT_EQ(WorkersOf(system, b), 1);
  EXPECT_EQ(WorkersOf(system, c), 0);
  EXPECT_EQ(WorkersOf(system, cpu), 0) << "2 of 4 CPUs are left";
}

TEST(Decide, RestartsAfterAFailureWithinTheBudget) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  JobBuilder builder("q");
  builder.Workers(2).task()->set_max_restarts(1);
  const uint64_t job = builder.SubmitTo(&system);
  Go(&system);
  for (int failure = 1; failure <= 2; ++failure) {
    StartAll(&system, job);
    EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING);
    const int32_t number = TaskOf(system.state, job).attempts.back().number;
    system.Do(Report(system.state, job, 0, number, 1, pb::EXITED, 3));
    const Plan plan = Go(&system);
    ASSERT_EQ(ActsOf(plan), 1);
    EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::PROGRAM_ERROR);
    EXPECT_EQ(plan.events[0].attempt_stopping().grace_ns(), 0);
    ReportAll(&system, job, pb::GONE, 137, true);
    if (failure == 2) break;
    EXPECT_EQ(CodeOf(Go(&system), job), pb::V_BACKOFF);
    system.Step(failure * 10);
    Go(&system);
    EXPECT_EQ(TaskOf(system.state, job).attempts.back().number, failure + 1);
  }
  EXPECT_EQ(system.state.FindJob(job)->state, pb::FAILED);
  EXPECT_EQ(system.state.FindJob(job)->cause, pb::PROGRAM_ERROR);
}

TEST(Decide, ReplacesWhatIsOnAnUnreachableHostOnlyWhereTheTaskAllowsIt) {
  for (const bool replace : {true, false}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 2, 1).Queue("q");
    JobBuilder builder("q");
    builder.task()->set_when_unreachable(replace ? pb::REPLACE : pb::WAIT);
    const uint64_t job = builder.SubmitTo(&system);
    Go(&system);
    StartAll(&system, job);
    const HostId first = TaskOf(system.state, job).attempts.back().parts[0].host;
    system.HostState("c", system.state.host(first).name, pb::HOST_SILENT);
    EXPECT_EQ(ActsOf(Go(&system)), 0);
    system.Step(60);
    system.HostState("c", system.state.host(first).name, pb::HOST_UNREACHABLE);
    const Plan plan = Go(&system);
    if (!replace) {
      EXPECT_EQ(CodeOf(plan, job), pb::V_UNREACHABLE);
      EXPECT_EQ(ActsOf(plan), 0);
      continue;
    }
    ASSERT_EQ(ActsOf(plan), 2);
    EXPECT_TRUE(plan.events[0].has_attempt_lost());
    EXPECT_EQ(TaskOf(system.state, job).attempts.back().number, 2);
    // Its devices stay down until the host answers Gone for that attempt.
    const std::string name = system.state.host(first).name;
    system.Hello("c", name, 1);
    EXPECT_EQ(system.state.host(first).device_used_milli[0], 1000);
    system.Do(Report(system.state, job, 0, 1, 0, pb::GONE, 0));
    EXPECT_EQ(system.state.host(first).device_used_milli[0], 0);
    EXPECT_EQ(TaskOf(system.state, job).attempts.back().number, 2) << "Lost is final";
  }
}

// Once nothing was heard of the host for fence_after + grace + 5 s, and what clocks may drift, its
// shim has stopped it.
TEST(Decide, LosesWhatIsFencedOnlyOnceItsFenceHasPassedForCertain) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  JobBuilder builder("q");
  builder.task()->set_when_unreachable(pb::FENCE);
  builder.task()->set_fence_after_ns(60 * kSecond);
  builder.task()->set_grace_ns(10 * kSecond);
  const int64_t wait_ns = FenceWaitNs(*builder.task());
  EXPECT_GT(wait_ns, 76 * kSecond);
  EXPECT_LT(wait_ns, 77 * kSecond);
  const uint64_t job = builder.SubmitTo(&system);
  Go(&system);
  StartAll(&system, job);
  const HostId first = TaskOf(system.state, job).attempts.back().parts[0].host;
  pb::Event quiet;
  quiet.mutable_host_state()->set_cluster("c");
  quiet.mutable_host_state()->set_host(system.state.host(first).name);
  quiet.mutable_host_state()->set_state(pb::HOST_UNREACHABLE);
  system.Step(45);
  system.Do(quiet);
  EXPECT_EQ(ActsOf(Go(&system)), 0);
  quiet.mutable_host_state()->set_quiet_ns(wait_ns - 1);
  system.Do(quiet);
  EXPECT_EQ(ActsOf(Go(&system)), 0);
  quiet.mutable_host_state()->set_quiet_ns(wait_ns);
  system.Do(quiet);
  const Plan plan = Go(&system);
  ASSERT_EQ(ActsOf(plan), 2);
  EXPECT_TRUE(plan.events[0].has_attempt_lost());
}

TEST(Decide, LosesWhatWaitsForItsHostOnceSomebodySaysThatItIsOff) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  JobBuilder builder("q");
  builder.task()->set_when_unreachable(pb::WAIT);
  const uint64_t job = builder.SubmitTo(&system);
  Go(&system);
  StartAll(&system, job);
  const HostId first = TaskOf(system.state, job).attempts.back().parts[0].host;
  pb::Event off;
  off.mutable_host_confirmed_off()->set_cluster("c");
  off.mutable_host_confirmed_off()->set_host(system.state.host(first).name);
  off.mutable_host_confirmed_off()->set_by("operator");
  system.Do(off);
  EXPECT_TRUE(system.state.host(first).confirmed_off_by.empty()) << "it can be reached";
  system.Step(60);
  system.HostState("c", system.state.host(first).name, pb::HOST_UNREACHABLE);
  EXPECT_EQ(ActsOf(Go(&system)), 0);
  system.Do(off);
  EXPECT_EQ(ActsOf(Go(&system)), 2);
  system.HostState("c", system.state.host(first).name, pb::HOST_UP);
  EXPECT_TRUE(system.state.host(first).confirmed_off_by.empty())
      << "it speaks: the word no longer holds";
}

// A trainer's gang of three workers with two GPUs each, running.
uint64_t StartTrainer(SystemBuilder* system) {
  JobBuilder builder("q");
  builder.Workers(3).Gpus(2);
  builder.task()->set_trainer_json("{}");
  const uint64_t job = builder.SubmitTo(system);
  Go(system);
  StartAll(system, job);
  return job;
}

void LoseItsSecondHost(SystemBuilder* system, uint64_t job) {
  system->Step(60);
  system->HostState(
      "c", system->state.host(TaskOf(system->state, job).attempts.back().parts[1].host).name,
      pb::HOST_UNREACHABLE);
}

// A gang over three of four hosts, of which one can't be reached any more, beside a job that waits
// for two of them.
TEST(Decide, AGangKeepsItsOtherHostsAndTakesASpareForTheOneThatIsLost) {
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails ? "its members fail for it" : "its members notice nothing");
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 4, 2).Queue("q");
    const uint64_t job = StartTrainer(&system);
    const auto hosts = [&] {
      std::vector<HostId> found;
      for (const PartRow& part : TaskOf(system.state, job).attempts.back().parts)
        found.push_back(part.host);
      return found;
    };
    const std::vector<HostId> first = hosts();
    ASSERT_EQ(first.size(), 3u);
    JobBuilder other("q");
    const uint64_t waits = other.Workers(2).Gpus(2).SubmitTo(&system);
    Go(&system);
    LoseItsSecondHost(&system, job);
    if (fails) {
      for (const size_t part : {0, 2})
        system.Do(Report(system.state, job, 0, 1, part, pb::EXITED, 1));
      Go(&system);
    }
    Go(&system);
    EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
    ASSERT_NE(TaskOf(system.state, job).reservation, nullptr)
        << "what its next attempt gets is nobody else's";
    for (const size_t part : {0, 2}) {
      EXPECT_EQ(TaskOf(system.state, job).attempts.size(), 1u);
      EXPECT_EQ(TaskOf(system.state, waits).state, pb::TASK_WAITING);
      system.Do(Report(system.state, job, 0, 1, part, pb::GONE, 1, true));
      Go(&system);
    }
    ASSERT_EQ(TaskOf(system.state, job).attempts.size(), 2u);
    EXPECT_EQ(TaskOf(system.state, job).attempts[0].cause, pb::HOST_LOST);
    const std::vector<HostId> second = hosts();
    ASSERT_EQ(second.size(), 3u);
    EXPECT_EQ(second[0], first[0]);
    EXPECT_EQ(second[2], first[2]);
    EXPECT_EQ(std::count(first.begin(), first.end(), second[1]), 0);
    EXPECT_EQ(TaskOf(system.state, job).restarts_used, 0);
    EXPECT_EQ(TaskOf(system.state, waits).state, pb::TASK_WAITING);
  }
}

// The only spare is still another job's, which is being stopped: until it has left the gang runs
// on.
TEST(Decide, AGangIsNotStoppedForASpareThatIsStillToBeGivenBack) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 4, 2).Queue("q");
  const uint64_t job = StartTrainer(&system);
  const uint64_t leaves = JobBuilder("q").Gpus(2).SubmitTo(&system);
  Go(&system);
  StartAll(&system, leaves);
  ASSERT_EQ(TaskOf(system.state, leaves).state, pb::TASK_RUNNING);
  system.Cancel(leaves);
  Go(&system);
  ASSERT_EQ(TaskOf(system.state, leaves).state, pb::TASK_STOPPING);
  LoseItsSecondHost(&system, job);
  for (int round = 0; round < 3; ++round) {
    Go(&system);
    EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING) << "round " << round;
  }
  EXPECT_NE(TaskOf(system.state, job).reservation, nullptr) << "it is the next to have that host";
  ReportAll(&system, leaves, pb::GONE, 0, true);
  Go(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  for (const size_t part : {0, 2})
    system.Do(Report(system.state, job, 0, 1, part, pb::GONE, 1, true));
  Go(&system);
  EXPECT_EQ(TaskOf(system.state, job).attempts.size(), 2u);
}

// Without a spare it keeps running where it is: its devices are not given up for a place that
// doesn't exist.
TEST(Decide, AGangWithALostHostAndNoSpareIsNotStopped) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 2).Queue("q");
  const uint64_t job = StartTrainer(&system);
  LoseItsSecondHost(&system, job);
  EXPECT_EQ(ActsOf(Go(&system)), 0);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING);
}

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
  Go(&system);
  const uint64_t job = builder.SubmitTo(&system);
  Go(&system);
  StartAll(&system, leaves);
  StartAll(&system, stays);
  system.Do(Report(system.state, job, 0, 1, 0, pb::STARTED));
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING);
  ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_WAITING);
  system.Step(60);
  Go(&system);
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  system.HostState("c",
                   system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name,
                   pb::HOST_UNREACHABLE);
  system.Cancel(leaves);
  const Plan plan = Go(&system);
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
    Go(&system);
    for (const uint64_t other : others) StartAll(&system, other);
    const uint64_t job = builder.SubmitTo(&system);
    Go(&system);
    StartAll(&system, job);
    ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_WAITING);
    system.Step(4);
    Go(&system);
    ASSERT_EQ(TaskOf(system.state, job).state, ends ? pb::TASK_STOPPING : pb::TASK_RUNNING);
    for (const uint64_t other : others)
      ASSERT_EQ(TaskOf(system.state, other).state, pb::TASK_RUNNING) << "within its min_runtime";
    system.Step(6);
    const std::string& host =
        system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name;
    if (ends) system.HostState("c", host, pb::HOST_UNREACHABLE);
    const Plan plan = Go(&system);
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
  Go(&system);
  StartAll(&system, job);
  StartAll(&system, job, 1);
  ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_RUNNING);
  system.Step(4);
  Go(&system);
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  ASSERT_EQ(TaskOf(system.state, job, 1).state, pb::TASK_RUNNING);
  system.Step(6);
  system.HostState("c",
                   system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name,
                   pb::HOST_UNREACHABLE);
  const Plan plan = Go(&system);
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
  Go(&system);
  StartAll(&system, job);
  system.HostState("c",
                   system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name,
                   pb::HOST_UNREACHABLE);
  system.Cancel(job);
  const Plan plan = Go(&system);
  ASSERT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING);
  EXPECT_LE(plan.next_wake_ns, system.state.now_ns());
  Go(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_CANCELLED);
}

TEST(Decide, LosesNothingWhileMostOfAClusterIsSilent) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 5, 1).Queue("q");
  JobBuilder builder("q");
  builder.task()->set_when_unreachable(pb::REPLACE);
  const uint64_t job = builder.SubmitTo(&system);
  Go(&system);
  StartAll(&system, job);
  const HostId first = TaskOf(system.state, job).attempts.back().parts[0].host;
  int silent = 0;
  for (const HostId id : system.state.hosts()) {
    if (id == first || silent++ < 2)
      system.HostState("c", system.state.host(id).name, pb::HOST_UNREACHABLE);
  }
  EXPECT_EQ(ActsOf(Go(&system)), 0);
}

TEST(Decide, HostsThatWereLongUnreachableCountNeitherAmongTheSilentNorAmongAll) {
  struct Case {
    int hosts, long_gone, silent;
    bool lost;
  };
  for (const Case& c : {Case{5, 2, 1, true}, Case{8, 3, 3, false}, Case{8, 0, 3, true}}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", c.hosts, 1).Queue("q");
    JobBuilder builder("q");
    builder.task()->set_when_unreachable(pb::REPLACE);
    const uint64_t job = builder.SubmitTo(&system);
    Go(&system);
    StartAll(&system, job);
    const HostId first = TaskOf(system.state, job).attempts.back().parts[0].host;
    int gone = 0, silent = 0;
    for (const HostId id : system.state.hosts()) {
      if (id != first && gone++ < c.long_gone)
        system.HostState("c", system.state.host(id).name, pb::HOST_UNREACHABLE);
    }
    system.Step(4 * SchedulingOptions().lease_ns / kSecond);
    system.HostState("c", system.state.host(first).name, pb::HOST_UNREACHABLE);
    for (const HostId id : system.state.hosts()) {
      if (system.state.host(id).state == pb::HOST_UP && ++silent < c.silent)
        system.HostState("c", system.state.host(id).name, pb::HOST_UNREACHABLE);
    }
    const Plan plan = Go(&system);
    EXPECT_EQ(ActsOf(plan) > 0, c.lost) << c.silent << " of " << c.hosts << " are silent, and "
                                        << c.long_gone << " have been for long";
  }
}

TEST(Decide, DrainsWithACheckpointAndPlacesElsewhere) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  const uint64_t job = JobBuilder("q").SubmitTo(&system);
  Go(&system);
  StartAll(&system, job);
  const HostId from = TaskOf(system.state, job).attempts.back().parts[0].host;
  system.Drain("c/" + system.state.host(from).name);
  const Plan plan = Go(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::DRAIN);
  EXPECT_EQ(plan.events[0].attempt_stopping().grace_ns(), 10 * kSecond);
  ReportAll(&system, job, pb::GONE, 0, true);
  Go(&system);
  EXPECT_NE(TaskOf(system.state, job).attempts.back().parts[0].host, from);
}

TEST(Decide, StopsAtTheTimeLimitAndOnAHang) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  const uint64_t limited = JobBuilder("q").TimeLimit(30).SubmitTo(&system);
  JobBuilder hanging("q");
  hanging.task()->set_hang_timeout_ns(20 * kSecond);
  const uint64_t hangs = hanging.SubmitTo(&system);
  Go(&system);
  StartAll(&system, limited);
  StartAll(&system, hangs);
  system.Step(25);
  EXPECT_EQ(Go(&system).next_wake_ns, SystemBuilder::kStart + 30 * kSecond)
      << "the hang clock starts with the first line";
  pb::Event progress;
  *progress.mutable_progress_seen()->mutable_key() = KeyOf(*system.state.FindJob(hangs), 0, 1);
  progress.mutable_progress_seen()->mutable_progress()->set_at_ns(system.now_ns);
  system.Do(progress);
  system.Step(30);
  Plan plan = Go(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::TIME_LIMIT);
  system.Step(45);
  plan = Go(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::HANG);
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
    Go(&system);
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
    const Plan plan = Decide(system.state, system.now_ns, Quick());
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
  Go(&system);
  const std::vector<PartRow> parts = TaskOf(system.state, job).attempts.back().parts;
  system.Do(Report(system.state, job, 0, 1, 0, pb::PREPARED));
  system.Do(Report(system.state, job, 0, 1, 2, pb::PREPARED));
  constexpr int64_t kAllowedS = kLaunchTimeoutNs / kSecond;
  EXPECT_EQ(Go(&system).next_wake_ns, SystemBuilder::kStart + kLaunchTimeoutNs);
  // What can't be reached is waited for in its own way, and what can again has the whole time.
  system.Step(100);
  system.HostState("c", system.state.host(parts[1].host).name, pb::HOST_SILENT);
  EXPECT_EQ(Go(&system).next_wake_ns, INT64_MAX);
  system.Step(kAllowedS + 1);
  EXPECT_EQ(ActsOf(Go(&system)), 0);
  system.HostState("c", system.state.host(parts[1].host).name, pb::HOST_UP);
  EXPECT_EQ(Go(&system).next_wake_ns, SystemBuilder::kStart + (2 * kAllowedS + 1) * kSecond);
  system.Step(2 * kAllowedS);
  EXPECT_EQ(ActsOf(Go(&system)), 0);
  system.Step(2 * kAllowedS + 1);
  Plan plan = Go(&system);
  ASSERT_EQ(ActsOf(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::LAUNCH_FAILED);
  EXPECT_EQ(plan.events[0].attempt_stopping().detail(),
            absl::StrCat(system.state.HostName(parts[1].host), " hasn't prepared it for 10m"));
  ReportAll(&system, job, pb::GONE);
  system.Step(2 * kAllowedS + 60);
  Go(&system);
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
        Go(&system);  // stops of a gang's other host, the loss, the next placement
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

TEST(Decide, GivesEveryWaitingTaskAVerdictThatSaysWhy) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 2).Queue("q").Queue("tight", 0, 1);
  JobBuilder chain("q");
  chain.Task("first").Task("second", {"first"});
  const uint64_t chained = chain.SubmitTo(&system);
  const uint64_t limited = JobBuilder("tight").Workers(2).SubmitTo(&system);
  const uint64_t nowhere = JobBuilder("q").Flavours({"other"}).SubmitTo(&system);
  const Plan plan = Go(&system);
  EXPECT_EQ(CodeOf(plan, chained, 0), pb::V_STARTING_NOW);
  EXPECT_EQ(CodeOf(plan, chained, 1), pb::V_AFTER);
  EXPECT_EQ(CodeOf(plan, limited), pb::V_LIMIT);
  EXPECT_EQ(CodeOf(plan, nowhere), pb::V_CLUSTER);
}

TEST(Decide, AThousandJobsTakeMilliseconds) {
  SystemBuilder system;
  system.Cluster("a").Cluster("b").Hosts("a", 64, 8).Hosts("b", 32, 8);
  for (int q = 0; q < 10; ++q) system.Queue(absl::StrCat("q", q), 40);
  for (int j = 0; j < 1000; ++j)
    JobBuilder(absl::StrCat("q", j % 10))
        .Workers(1 + j % 4, 1 + j % 4 + j % 3)
        .Gpus(1 + j % 2)
        .SubmitTo(&system);
  Go(&system);
  const auto from = std::chrono::steady_clock::now();
  Decide(system.state, system.now_ns, Quick());
  const auto took =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - from)
          .count();
  std::printf("decide with 1,000 jobs, 768 GPUs: %ld ms\n", static_cast<long>(took));
  EXPECT_LT(took, 1000) << "something became quadratic or worse";
}

}  // namespace
}  // namespace muster
