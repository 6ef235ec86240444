// Whole decisions: State in, Plan out, validated and applied, with hosts that do as they are told.
#include "scheduler/decide/decide.h"
#include "scheduler/decide/decider.h"
#include "scheduler/decide/testing/fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::ActsOf;
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

// Its devices are nobody else's: not to run on, not to be entitled to.
TEST(Decide, AClusterOfOneUsersTakesTheirJobsAlone) {
  SystemBuilder system;
  system.Cluster("lab", "shared").Cluster("anns", "home").Hosts("lab", 1, 2).Hosts("anns", 1, 2);
  system.OnlyFor("anns", "ann").Queue("research", 2);
  const uint64_t full = JobBuilder("research").Owner("bob").Workers(2).SubmitTo(&system);
  const uint64_t bobs = JobBuilder("research").Owner("bob").SubmitTo(&system);
  const uint64_t named = JobBuilder("research").Owner("bob").In({"anns"}).SubmitTo(&system);
  Go(&system);
  StartAll(&system, full);
  for (int i = 0; i < 5; ++i) {
    system.Step(60);
    Go(&system);
  }
  EXPECT_EQ(WorkersOf(system, full), 2);
  EXPECT_EQ(WorkersOf(system, bobs), 0) << "its free devices are none of his";
  EXPECT_EQ(WorkersOf(system, named), 0);
  const uint64_t anns = JobBuilder("research").In({"anns"}).Workers(2).SubmitTo(&system);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, anns), 2);
  EXPECT_EQ(WorkersOf(system, full), 2) << "and he isn't stopped for it";
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

// Its old size and its new one together would be more than its queue may hold: what is kept for it
// would be taken back, and the next in line could have it.
TEST(Decide, AGangThatShrinksIsChargedByTheSizeThatItComesBackWith) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 2, 2).Queue("research", 0, 4).Queue("prod", 2);
  system.GuaranteeIn("prod", "lab", 2);
  const uint64_t borrower = JobBuilder("research").Workers(2, 4).SubmitTo(&system);
  Go(&system);
  StartAll(&system, borrower);
  ASSERT_EQ(WorkersOf(system, borrower), 4);
  system.Step(1);
  const uint64_t claimant = JobBuilder("prod").Workers(2).SubmitTo(&system);
  ASSERT_EQ(ActsOf(Go(&system)), 1);
  const auto kept = [&] {
    const auto& reservation = TaskOf(system.state, borrower).reservation;
    return reservation != nullptr && reservation->held ? reservation->workers : 0;
  };
  ASSERT_EQ(kept(), 2);
  const Plan plan = Go(&system);
  EXPECT_EQ(plan.events.size(), 0u) << plan.events[0].ShortDebugString();
  EXPECT_EQ(kept(), 2);
  system.Step(2);
  ReportAll(&system, borrower, pb::GONE, 0, true);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, borrower), 2);
  EXPECT_EQ(WorkersOf(system, claimant), 2);
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

// Racks "large" (three hosts of 4) and "small" (two); a GPU of the first host is taken.
TEST(Decide, BlocksOfRanksLieTogetherInTheOrderOfRank) {
  const struct {
    const char* name;
    int workers, gpus;
    pb::TopologyLevel required;
    std::vector<int32_t> parts;  // workers of each; none: not placed
  } cases[] = {
      {"apart where nobody asks", 19, 1, pb::TOPOLOGY_LEVEL_UNSPECIFIED, {3, 4, 4, 4, 4}},
      {"pairs on one host each", 18, 2, pb::HOST, {2, 4, 4, 4, 4}},
      {"five blocks of three", 15, 3, pb::HOST, {3, 3, 3, 3, 3}},
      {"no host for the sixth, though by number", 18, 3, pb::HOST, {}},
      {"blocks of four", 16, 4, pb::HOST, {4, 4, 4, 4}},
      {"a rack for each block of eight", 16, 8, pb::RACK, {4, 4, 4, 4}},
  };
  for (const auto& c : cases) {
    SystemBuilder system;
    system.Cluster("c")
        .Hosts("c", 3, 4, "gpu", "large")
        .Hosts("c", 2, 4, "gpu", "small")
        .Queue("q");
    const uint64_t other = JobBuilder("q").SubmitTo(&system);
    system.Do(testing::Placed(system.state, other, "c", {{"h00", {0}}}));
    JobBuilder builder("q");
    builder.Workers(c.workers);
    if (c.required != pb::TOPOLOGY_LEVEL_UNSPECIFIED) {
      pb::RankBlock* block = builder.task()->mutable_topology()->add_blocks();
      block->set_gpus(c.gpus);
      block->set_required(c.required);
    }
    const uint64_t job = builder.SubmitTo(&system);
    Go(&system);
    std::vector<int32_t> parts;
    if (const AttemptRow* attempt = TaskOf(system.state, job).current(); attempt != nullptr) {
      for (const PartRow& part : attempt->parts) parts.push_back(part.workers);
    }
    EXPECT_EQ(parts, c.parts) << c.name;
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

// A gang on two hosts; that of the first two ranks told one end, and then lost track of the other.
TEST(Decide, ReplacesAGangOfWhichAHostForgotAMemberOnceTheOtherHostIsUnreachable) {
  for (const bool forgot : {true, false}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 8, 2).Queue("q");
    JobBuilder builder("q");
    builder.Workers(4).task()->set_when_unreachable(pb::REPLACE);
    const uint64_t job = builder.SubmitTo(&system);
    Go(&system);
    StartAll(&system, job);
    const AttemptRow& attempt = TaskOf(system.state, job).attempts.back();
    ASSERT_EQ(attempt.parts.size(), 2u);
    const HostId other = attempt.parts[1].host;
    pb::Event event = Report(system.state, job, 0, 1, 0, pb::STARTED, 0);
    pb::AttemptReport* report = event.mutable_attempt_reported()->mutable_report();
    if (!forgot) report->set_phase(pb::GONE);
    if (forgot) report->mutable_exits()->RemoveLast();
    system.Do(event);
    if (forgot) system.Do(Report(system.state, job, 0, 1, 0, pb::GONE));
    Go(&system);  // the others are stopped, where there is need
    system.HostState("c", system.state.host(other).name, pb::HOST_SILENT);
    system.Step(60);
    system.HostState("c", system.state.host(other).name, pb::HOST_UNREACHABLE);
    const Plan plan = Go(&system);
    const bool lost = std::any_of(plan.events.begin(), plan.events.end(),
                                  [](const pb::Event& e) { return e.has_attempt_lost(); });
    EXPECT_EQ(lost, forgot) << "a member that ended well needs no one to be replaced";
  }
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

// A mass loss is told by silence: hosts fall silent at different times, and the first lease to run
// out is that of one host alone.
TEST(Decide, OneUnreachableHostIsNotLostWhileOthersAreMerelySilent) {
  struct Case {
    int hosts, silent;  // beside the one that is unreachable
    bool lost;
  };
  for (const Case& c : {Case{5, 0, true}, Case{5, 1, true}, Case{5, 2, false}, Case{6, 2, true},
                        Case{6, 3, false}, Case{3, 2, false}}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", c.hosts, 1).Queue("q");
    JobBuilder builder("q");
    builder.task()->set_when_unreachable(pb::REPLACE);
    const uint64_t job = builder.SubmitTo(&system);
    Go(&system);
    StartAll(&system, job);
    const HostId first = TaskOf(system.state, job).attempts.back().parts[0].host;
    system.HostState("c", system.state.host(first).name, pb::HOST_UNREACHABLE);
    int silent = 0;
    for (const HostId id : system.state.hosts()) {
      if (id != first && silent++ < c.silent)
        system.HostState("c", system.state.host(id).name, pb::HOST_SILENT);
    }
    if (c.silent + 1 == c.hosts) {  // nobody is left to start it elsewhere
      EXPECT_EQ(ActsOf(Go(&system)), 0);
      continue;
    }
    EXPECT_EQ(ActsOf(Go(&system)) > 0, c.lost)
        << "1 of " << c.hosts << " is unreachable, and " << c.silent << " are silent";
  }
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

TEST(Decide, WaitsForAnAgentThatDoesWhatATaskNeedsAndStopsNobodyForIt) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 2).Queue("q").Queue("prod", 4);
  system.Hello("c", "h00", 2, "gpu", 64, "s1", 0);
  system.Hello("c", "h01", 2, "gpu", 64, "s1", kGivesSecrets);
  for (int i = 0; i < 3; ++i) JobBuilder("q").SubmitTo(&system);
  Go(&system);
  StartAll(&system, 1);
  StartAll(&system, 2);
  StartAll(&system, 3);
  system.Step(60);
  JobBuilder image("prod");
  image.task()->set_image("/image");
  const uint64_t entitled = image.Workers(4).SubmitTo(&system);
  const Plan plan = Go(&system);
  EXPECT_EQ(testing::StopsIn(plan), 0) << "with all of them stopped it would find no place either";
  EXPECT_EQ(WorkersOf(system, entitled), 0);
  const uint64_t plain = JobBuilder("q").SubmitTo(&system);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, plain), 1) << "nothing is kept free for it meanwhile";
  for (const uint64_t job : {1, 2, 3, static_cast<int>(plain)}) system.Cancel(job);
  Go(&system);
  for (const uint64_t job : {1, 2, 3, static_cast<int>(plain)}) ReportAll(&system, job, pb::GONE);
  system.Hello("c", "h00", 2);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, entitled), 0) << "one of two hosts";
  system.Hello("c", "h01", 2);
  Go(&system);
  EXPECT_EQ(WorkersOf(system, entitled), 4);
}

TEST(Decide, StartsNothingOnAHostThatIsShortOfDiskAndLetsRunWhatRuns) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 2).Queue("q");
  const uint64_t runs = JobBuilder("q").SubmitTo(&system);
  Go(&system);
  StartAll(&system, runs);
  system.LowDisk("c", "h00", "/data has 1MiB left of 1GiB");
  const uint64_t waits = JobBuilder("q").SubmitTo(&system);
  const Plan plan = Go(&system);
  EXPECT_EQ(testing::StopsIn(plan), 0);
  EXPECT_EQ(WorkersOf(system, runs), 1);
  EXPECT_EQ(WorkersOf(system, waits), 0);
  system.LowDisk("c", "h00", "");
  Go(&system);
  EXPECT_EQ(WorkersOf(system, waits), 1);
}

// With its removed host lab could hold the job.
TEST(Decide, AJobDoesNotWaitInAClusterThatCouldHoldItBeforeAHostWasRemoved) {
  SystemBuilder system;
  system.Cluster("lab").Hosts("lab", 1, 2, "gpu", "r1").Hosts("lab", 1, 2).Close("lab");
  system.Cluster("cloud").Hosts("cloud", 1, 4).Queue("q");
  const uint64_t job = JobBuilder("q").Workers(4).In({"lab", "cloud"}).SubmitTo(&system);
  Decider kept;
  kept.Decide(system.state, system.now_ns, Quick());
  system.HostState("lab", "h01", pb::HOST_UNREACHABLE);
  EXPECT_EQ(CodeOf(kept.Decide(system.state, system.now_ns, Quick()), job), pb::V_STARTING_NOW);
  EXPECT_EQ(CodeOf(Go(&system), job), pb::V_STARTING_NOW);
}

// A store that was restored, and whose hosts have said what they run: `host` still has an attempt
// of the job, which the backup doesn't know.
pb::Event StrayOn(const SystemBuilder& system, const std::string& host, uint64_t job,
                  pb::AttemptPhase phase = pb::STARTED, int32_t attempt = 40) {
  pb::Event stray;
  pb::AttemptReported* e = stray.mutable_attempt_reported();
  e->set_cluster("c");
  e->set_host(host);
  e->set_state_id(system.state.host(system.state.FindHost("c", host)).state_id);
  *e->mutable_report()->mutable_key() = KeyOf(*system.state.FindJob(job), 0, attempt);
  e->mutable_report()->set_phase(phase);
  return stray;
}

void Restored(SystemBuilder* system) {
  pb::Event event;
  event.mutable_store_adopted()->set_epoch(static_cast<uint64_t>(kAttemptsSinceS + 5000) * 1000);
  system->Do(event);
  event.mutable_store_adopted()->set_settled(true);
  system->Do(event);
}

// A process that can't be ended keeps its own job waiting and its host empty, and nobody else.
TEST(Decide, WhatARestoredStoreDoesntKnowKeepsItsJobAndItsHostAlone) {
  enum class Ends { kGone, kSaidToBeOff };
  for (const Ends ends : {Ends::kGone, Ends::kSaidToBeOff}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 3, 1).Queue("q");
    const uint64_t job = JobBuilder("q").SubmitTo(&system);
    const uint64_t other = JobBuilder("q").SubmitTo(&system);
    const uint64_t third = JobBuilder("q").SubmitTo(&system);
    Restored(&system);
    system.Do(StrayOn(system, "h00", job));
    Decider kept;
    kept.Decide(system.state, system.now_ns, Quick());
    const Plan plan = Go(&system);
    EXPECT_EQ(CodeOf(plan, job), pb::V_RESTORING);
    EXPECT_EQ(WorkersOf(system, other), 1);
    EXPECT_EQ(WorkersOf(system, third), 1) << "two hosts are free for them";
    if (ends == Ends::kGone) {
      system.Do(StrayOn(system, "h00", job, pb::GONE));
    } else {
      system.Cancel(other);
      ReportAll(&system, other, pb::GONE, 0, true);
      system.HostState("c", "h00", pb::HOST_UNREACHABLE);
      EXPECT_EQ(CodeOf(Go(&system), job), pb::V_RESTORING) << "it may run there";
      pb::Event off;
      off.mutable_host_confirmed_off()->set_cluster("c");
      off.mutable_host_confirmed_off()->set_host("h00");
      system.Do(off);
    }
    EXPECT_EQ(CodeOf(kept.Decide(system.state, system.now_ns, Quick()), job), pb::V_STARTING_NOW);
    EXPECT_EQ(CodeOf(Go(&system), job), pb::V_STARTING_NOW);
  }
}

// What no lost time can have begun is a host's word alone: the host gets nothing, and the job waits
// for nobody.
TEST(Decide, AnAttemptThatNobodyCanHaveBegunKeepsItsHostAlone) {
  for (const bool restored : {false, true}) {
    SystemBuilder system;
    system.Cluster("c").Hosts("c", 2, 1).Queue("q");
    const uint64_t job = JobBuilder("q").SubmitTo(&system);
    if (restored) Restored(&system);
    const int32_t number = restored ? 1 << 30 : 40;
    system.Do(StrayOn(system, "h00", job, pb::STARTED, number));
    EXPECT_EQ(CodeOf(Go(&system), job), pb::V_STARTING_NOW) << restored;
    const AttemptRow& attempt = TaskOf(system.state, job).attempts.back();
    EXPECT_EQ(system.state.host(attempt.parts[0].host).name, "h01") << restored;
  }
}

// It couldn't start again.
TEST(Decide, WhatRunsBesideAStrayOfItsJobIsNotStoppedToGrow) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 1).Queue("q");
  JobBuilder builder("q");
  builder.task()->mutable_workers()->set_min(1);
  builder.task()->mutable_workers()->set_max(2);
  const uint64_t job = builder.SubmitTo(&system);
  const uint64_t other = JobBuilder("q").SubmitTo(&system);
  const uint64_t third = JobBuilder("q").SubmitTo(&system);
  Go(&system);
  for (const uint64_t one : {job, other, third}) StartAll(&system, one);
  ASSERT_EQ(WorkersOf(system, job), 1);
  Restored(&system);
  const std::string stray_on =
      system.state.host(TaskOf(system.state, third).attempts.back().parts[0].host).name;
  system.Do(StrayOn(system, stray_on, job));
  system.Cancel(other);
  Go(&system);
  ReportAll(&system, other, pb::GONE, 0, true);
  system.Step(10'000);
  Go(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_RUNNING);
  system.Do(StrayOn(system, stray_on, job, pb::GONE));
  Go(&system);
  EXPECT_EQ(TaskOf(system.state, job).state, pb::TASK_STOPPING) << "now it grows";
}

// The backup shows it running where nobody is heard of, and a host runs a later attempt of it.
TEST(Decide, WhatIsLostIsNotReplacedBesideAnAttemptThatNobodyKnows) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 1).Queue("q");
  JobBuilder builder("q");
  builder.task()->set_trainer_json("{}");
  const uint64_t job = builder.SubmitTo(&system);
  Go(&system);
  StartAll(&system, job);
  const std::string runs_on =
      system.state.host(TaskOf(system.state, job).attempts.back().parts[0].host).name;
  const std::string stray_on = runs_on == "h02" ? "h01" : "h02";
  Restored(&system);
  system.Do(StrayOn(system, stray_on, job));
  system.Step(100);
  system.HostState("c", runs_on, pb::HOST_UNREACHABLE);
  EXPECT_EQ(ActsOf(Go(&system)), 0);
  system.Do(StrayOn(system, stray_on, job, pb::GONE));
  Go(&system);
  EXPECT_EQ(TaskOf(system.state, job).attempts.size(), 2u) << "now it is replaced";
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
