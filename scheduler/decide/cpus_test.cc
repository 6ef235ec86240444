// Work without devices on the hosts of work with: CPUs are lent to it, and given back
// (docs/decisions/046-cpus-beside-devices.md).
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/decide/decide.h"
#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::ReportAll;
using testing::ReservationOf;
using testing::StartAll;
using testing::StopsIn;
using testing::SystemBuilder;
using testing::TaskOf;

SchedulingOptions Quick() {
  SchedulingOptions options;
  options.min_runtime_ns = 10 * kSecond;
  options.starve_after_ns = 1000 * kSecond;
  return options;
}

Plan Go(SystemBuilder* system) { return testing::DecideAndApply(system, Quick()); }

bool Runs(const SystemBuilder& system, uint64_t job) {
  const AttemptRow* current = TaskOf(system.state, job).current();
  return current != nullptr && current->state != pb::TASK_STOPPING;
}
uint64_t Started(SystemBuilder* system, JobBuilder job) {
  const uint64_t number = job.SubmitTo(system);
  Go(system);
  StartAll(system, number);
  return number;
}

JobBuilder Prep(const std::string& queue, int64_t cpus) {
  JobBuilder job(queue);
  job.GpusMilli(0).Cpus(cpus);
  return job;
}

// One host of 8 devices and 16 CPUs, which preprocessing has taken all.
struct Full {
  SystemBuilder system;
  uint64_t prep = 0;
  explicit Full(const std::string& queue = "data", int prep_priority = 0, int64_t promised_cpus = 0,
                int64_t promised_gpus = 8) {
    system.Cluster("c")
        .Hosts("c", 1, 8, "gpu", "", 16)
        .Queue("gpus", promised_gpus)
        .Queue("data", promised_cpus, -1, 1, "cpu");
    prep = Started(&system, Prep(queue, 16).Priority(prep_priority));
  }
};

TEST(CpusBeside, AGuaranteedClaimForDevicesStopsWhatBorrowsTheCpus) {
  Full at;
  at.system.Step(1);  // within the other's min_runtime
  const uint64_t train = JobBuilder("gpus").Gpus(8).Cpus(12).SubmitTo(&at.system);
  const Plan plan = Go(&at.system);
  ASSERT_EQ(StopsIn(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().cause(), pb::PREEMPTION);
  EXPECT_EQ(plan.events[0].attempt_stopping().detail(),
            "job 2 is entitled to devices of its hosts and CPUs beside them");
  ASSERT_NE(ReservationOf(at.system, train), nullptr);
  EXPECT_TRUE(ReservationOf(at.system, train)->held);
  ReportAll(&at.system, at.prep, pb::GONE, 0, true);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, train));
  EXPECT_FALSE(Runs(at.system, at.prep)) << "4 CPUs are left";
  const uint64_t small = Started(&at.system, Prep("data", 4));
  EXPECT_TRUE(Runs(at.system, small));
}

TEST(CpusBeside, AClaimBeyondItsGuaranteeWaitsForMinRuntime) {
  Full at("data", 0, 0, /*promised_gpus=*/0);
  at.system.Step(1);
  const uint64_t train = JobBuilder("gpus").Gpus(8).Cpus(12).SubmitTo(&at.system);
  EXPECT_EQ(StopsIn(Go(&at.system)), 0);
  ASSERT_NE(ReservationOf(at.system, train), nullptr) << "it knows when that has passed";
  EXPECT_EQ(ReservationOf(at.system, train)->start_ns,
            SystemBuilder::kStart + 20 * kSecond);  // 10 s of min_runtime, 10 s of grace
  at.system.Step(11);
  EXPECT_EQ(StopsIn(Go(&at.system)), 1);
}

TEST(CpusBeside, CpusThatWerePromisedStay) {
  Full at("data", 0, /*promised_cpus=*/16);
  at.system.Step(60);
  const uint64_t train = JobBuilder("gpus").Gpus(8).Cpus(12).SubmitTo(&at.system);
  Go(&at.system);
  at.system.Step(600);
  EXPECT_EQ(StopsIn(Go(&at.system)), 0);
  EXPECT_TRUE(Runs(at.system, at.prep));
  EXPECT_FALSE(Runs(at.system, train));
}

TEST(CpusBeside, OfItsOwnQueueItStopsWhatIsNoMoreUrgent) {
  for (const int priority : {0, 1}) {
    Full at("gpus", priority);
    at.system.Step(60);
    JobBuilder("gpus").Gpus(8).Cpus(12).SubmitTo(&at.system);
    EXPECT_EQ(StopsIn(Go(&at.system)), priority == 0 ? 1 : 0) << priority;
  }
}

TEST(CpusBeside, ClaimsForCpusStopNoWorkWithDevices) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8, "gpu", "", 16).Queue("gpus").Queue("data", 16, -1, 1, "cpu");
  const uint64_t train = Started(&system, JobBuilder("gpus").Gpus(8).Cpus(12));
  system.Step(60);
  Prep("data", 16).SubmitTo(&system);
  Go(&system);
  system.Step(600);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
  EXPECT_TRUE(Runs(system, train));
}

// What units with devices leave of the CPUs is in S, and nothing of it has to go.
TEST(CpusBeside, WhatIsLeftOfTheCpusIsEntitled) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 8, "gpu", "", 16).Queue("gpus", 16).Queue("data");
  const uint64_t train = Started(&system, JobBuilder("gpus").Gpus(8).Cpus(12));
  const uint64_t first = Started(&system, Prep("data", 16));
  const uint64_t second = Started(&system, Prep("data", 4));
  ASSERT_TRUE(Runs(system, train) && Runs(system, first) && Runs(system, second));
  EXPECT_EQ(Go(&system).entitled_milli.at({"data", "cpu"}), 20'000);
  system.Step(60);
  JobBuilder("gpus").Gpus(4).Cpus(8).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 1);
  EXPECT_FALSE(Runs(system, first));
  EXPECT_TRUE(Runs(system, second));
}

// By number there are CPUs enough, but on no host with free devices: what is entitled to them goes
// on beside.
TEST(CpusBeside, AnOverdueClaimMovesWhatStandsInItsWay) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 8, "gpu", "", 16).Queue("gpus", 16).Queue("data");
  std::vector<uint64_t> preps, fillers;
  for (int i = 0; i < 2; ++i) {  // a host has one of each
    preps.push_back(Started(&system, Prep("data", 7)));
    fillers.push_back(Started(&system, Prep("data", 9)));
  }
  ASSERT_NE(TaskOf(system.state, preps[0]).current()->parts[0].host,
            TaskOf(system.state, preps[1]).current()->parts[0].host);
  for (const uint64_t filler : fillers) ReportAll(&system, filler, pb::GONE, 0);
  const uint64_t train = JobBuilder("gpus").Gpus(8).Cpus(12).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
  system.Step(30);
  const Plan plan = Go(&system);
  ASSERT_EQ(StopsIn(plan), 1);
  EXPECT_EQ(plan.events[0].attempt_stopping().next_workers(), 1) << "it comes back";
  const uint64_t moved =
      system.state.FindJobByUid(plan.events[0].attempt_stopping().key().job_uid())->number;
  ReportAll(&system, moved, pb::GONE, 0, true);
  Go(&system);
  EXPECT_TRUE(Runs(system, train) && Runs(system, preps[0]) && Runs(system, preps[1]));
}

// One host; preprocessing that was promised its CPUs has 10 of the 16 until 100 s, and a gang waits
// for 12 of them.
struct Ends {
  SystemBuilder system;
  uint64_t prep = 0, train = 0;
  explicit Ends(int64_t promised_gpus) {
    system.Cluster("c")
        .Hosts("c", 1, 8, "gpu", "", 16)
        .Queue("gpus", promised_gpus)
        .Queue("data", 10, -1, 1, "cpu")
        .Queue("more");
    JobBuilder until("data");
    until.GpusMilli(0).Cpus(10).TimeLimit(100);
    prep = Started(&system, until);
    train = JobBuilder("gpus").Gpus(8).Cpus(12).SubmitTo(&system);
    Go(&system);
  }
};

TEST(CpusBeside, WhoWaitsForThemKnowsWhenTheyEnd) {
  Ends at(8);
  ASSERT_NE(ReservationOf(at.system, at.train), nullptr);
  EXPECT_EQ(ReservationOf(at.system, at.train)->start_ns, SystemBuilder::kStart + 100 * kSecond);
  const uint64_t beside = Prep("more", 4).SubmitTo(&at.system),
                 in_the_way = Prep("more", 2).SubmitTo(&at.system);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, beside) && Runs(at.system, in_the_way))
      << "a guaranteed claim stops them at once";
  at.system.Step(100);
  ReportAll(&at.system, at.prep, pb::GONE, 0);
  EXPECT_EQ(StopsIn(Go(&at.system)), 1);
  EXPECT_TRUE(Runs(at.system, beside) != Runs(at.system, in_the_way));
}

TEST(CpusBeside, WhatCannotBeStoppedInTimeStartsOnlyBesideAReservation) {
  Ends at(0);
  at.system.Step(85);  // min_runtime and grace are 20 s
  const uint64_t first = Prep("more", 4).SubmitTo(&at.system),
                 second = Prep("more", 2).SubmitTo(&at.system);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, first)) << "4 CPUs are left beside the gang";
  EXPECT_FALSE(Runs(at.system, second));
  at.system.Step(100);
  ReportAll(&at.system, at.prep, pb::GONE, 0);
  Go(&at.system);
  EXPECT_TRUE(Runs(at.system, at.train) && Runs(at.system, first));
}

// The queue has no guarantee of its own; the one above it has.
TEST(CpusBeside, WhatAQueueAboveWasPromisedStays) {
  SystemBuilder system;
  system.Cluster("c")
      .Hosts("c", 1, 8, "gpu", "", 16)
      .Queue("gpus")
      .Queue("data", 16, -1, 1, "cpu")
      .Queue("data/etl");
  const uint64_t prep = Started(&system, Prep("data/etl", 16));
  system.Step(60);
  JobBuilder("gpus").Gpus(8).Cpus(12).SubmitTo(&system);
  Go(&system);
  EXPECT_TRUE(Runs(system, prep));
}

TEST(CpusBeside, AShareIsThatOfTheHostThatGivesTheMost) {
  SystemBuilder system;
  system.Cluster("c")
      .Hosts("c", 1, 8, "gpu", "", 8)
      .Hosts("c", 1, 8, "gpu", "", 64)
      .Queue("gpus", 16)
      .Queue("data");
  const uint64_t prep = Started(&system, Prep("data", 50));
  JobBuilder share("gpus");
  share.Gpus(8).task()->mutable_resources()->clear_cpus_milli();
  Started(&system, share);
  share.SubmitTo(&system);
  Go(&system);
  EXPECT_FALSE(Runs(system, prep)) << "the second one takes all of the large host";
}

// Its cores by one device would be eight times what any worker takes.
TEST(CpusBeside, AHostThatComesBackWithOneDeviceTellsNothingOfTheOthers) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 8, "gpu", "", 64).Queue("gpus", 24).Queue("data");
  JobBuilder share("gpus");
  share.Gpus(8).task()->mutable_resources()->clear_cpus_milli();
  Started(&system, share);
  const uint64_t prep = Started(&system, Prep("data", 64));
  ASSERT_TRUE(Runs(system, prep));
  const HostId other = system.state.hosts()[2];
  system.Hello("c", system.state.host(other).name, 1, "gpu", 64, "s1");
  EXPECT_EQ(Go(&system).entitled_milli.at({"data", "cpu"}), 64'000);
  EXPECT_TRUE(Runs(system, prep));
}

TEST(CpusBeside, ClaimsForOnesAreMeasuredTogether) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8, "gpu", "", 64).Queue("gpus").Queue("data");
  const uint64_t prep = Started(&system, Prep("data", 60));
  system.Step(60);
  for (int i = 0; i < 8; ++i) JobBuilder("gpus").Gpus(1).Cpus(8).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 1) << "60 for 8 is too many, for 64 it isn't";
  EXPECT_FALSE(Runs(system, prep));
}

// A gang on a host that doesn't answer keeps its devices in the capacity, and so the CPUs beside
// them.
TEST(CpusBeside, AHostThatCannotBeReachedTakesNoCpusFromOthers) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 8, "gpu", "", 16).Queue("gpus", 24).Queue("data");
  JobBuilder slices("gpus");
  slices.Gpus(8).Cpus(12).task()->set_when_unreachable(pb::WAIT);
  const uint64_t one = Started(&system, slices);
  Started(&system, slices);
  const uint64_t prep = Started(&system, Prep("data", 16));
  ASSERT_TRUE(Runs(system, prep));
  EXPECT_EQ(Go(&system).entitled_milli.at({"data", "cpu"}), 16'000);
  system.HostState("c", system.state.host(TaskOf(system.state, one).current()->parts[0].host).name,
                   pb::HOST_UNREACHABLE);
  EXPECT_EQ(Go(&system).entitled_milli.at({"data", "cpu"}), 16'000);
}

// 16 CPUs are the queue's limit. A task of S wants all of them, and waits for a whole host; with 4
// of them taken beside a GPU it couldn't start.
TEST(CpusBeside, ALimitIsKeptForWhoWaits) {
  SystemBuilder system;
  system.Cluster("c")
      .Hosts("c", 3, 8, "gpu", "", 16)
      .Queue("team", 16, 16, 1, "cpu")
      .Queue("other", 27, -1, 1, "cpu");
  std::vector<uint64_t> others;
  for (int i = 0; i < 3; ++i) others.push_back(Started(&system, Prep("other", 9)));
  const uint64_t waits = Prep("team", 16).Priority(1).SubmitTo(&system);
  Go(&system);
  ASSERT_FALSE(Runs(system, waits));
  const uint64_t train = JobBuilder("team").Gpus(1).Cpus(4).SubmitTo(&system);
  Go(&system);
  EXPECT_FALSE(Runs(system, train));
  ReportAll(&system, others[0], pb::GONE, 0);
  Go(&system);
  EXPECT_TRUE(Runs(system, waits));
}

TEST(CpusBeside, NoTaskIsStoppedForASibling) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 1, 8, "gpu", "", 16).Queue("gpus", 8);
  const uint64_t before = Started(&system, JobBuilder("gpus").Gpus(8));
  JobBuilder both("gpus");
  both.Task("load").GpusMilli(0).Cpus(10);
  both.Task("train").Gpus(8).Cpus(12);
  const uint64_t job = both.SubmitTo(&system);
  Go(&system);
  ASSERT_NE(TaskOf(system.state, job, 0).current(), nullptr);
  StartAll(&system, job, 0);
  system.Step(60);
  ReportAll(&system, before, pb::GONE, 0);
  EXPECT_EQ(StopsIn(Go(&system)), 0);
  JobBuilder("gpus").Gpus(8).Cpus(12).Priority(1).SubmitTo(&system);
  EXPECT_EQ(StopsIn(Go(&system)), 1) << "for another job's it is";
}

}  // namespace
}  // namespace muster
