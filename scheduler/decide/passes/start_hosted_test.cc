// Jobs on another one's devices, by whole decisions.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/decider.h"
#include "scheduler/decide/testing/fixture.h"

namespace muster {
namespace {

using namespace testing;

// A holder of 2 of 4 devices and of 4 cores. `runs`: it does.
struct Environment {
  SystemBuilder system;
  uint64_t holder = 0;
  explicit Environment(bool runs = true, const std::string& queue = "q") {
    system.Cluster("c").Hosts("c", 1, 4).Queue("q", 2).Queue("prod", 2);
    JobBuilder builder(queue);
    builder.Gpus(2).Cpus(4).task()->mutable_resources()->set_memory_bytes(8 << 20);
    holder = builder.SubmitTo(&system);
    if (!runs) return;
    DecideQuickly(&system);
    StartAll(&system, holder);
  }
  uint64_t Submit(int64_t gpus_milli, int64_t cpus = 1) {
    JobBuilder builder("q");
    builder.GpusMilli(gpus_milli).Cpus(cpus).spec.set_on(absl::StrCat(holder));
    return builder.SubmitTo(&system);
  }
  std::vector<int32_t> DevicesOf(uint64_t job) const {
    return TaskOf(system.state, job).current()->parts[0].devices;
  }
  pb::VerdictCode CodeOf(const Plan& plan, uint64_t job) const {
    return plan.verdicts.Find({job, 0})->code;
  }
};

TEST(StartHosted, WaitsUntilItsHolderRunsAndStartsOnItsDevices) {
  Environment env(/*runs=*/false);
  const uint64_t job = env.Submit(2000);
  EXPECT_EQ(env.CodeOf(DecideQuickly(&env.system), job), pb::V_HOLDER);
  EXPECT_TRUE(IsRunning(env.system, env.holder)) << "placed, not started";
  EXPECT_FALSE(IsRunning(env.system, job));
  StartAll(&env.system, env.holder);
  DecideQuickly(&env.system);
  ASSERT_TRUE(IsRunning(env.system, job)) << "2 of the 2, beside the holder itself";
  EXPECT_EQ(env.DevicesOf(job), env.DevicesOf(env.holder));
}

TEST(StartHosted, SharesOutWhatItsHolderHas) {
  struct Case {
    const char* what;
    std::vector<std::pair<int64_t, int64_t>> wants;  // GPUs' thousandths, cores
    std::vector<bool> starts;
  };
  for (const Case& c :
       std::vector<Case>{{"whole ones", {{1000, 1}, {1000, 1}, {1000, 1}}, {true, true, false}},
                         {"shares of one", {{500, 1}, {1000, 1}, {500, 1}}, {true, true, true}},
                         {"more than it has", {{3000, 1}}, {false}},
                         {"CPUs", {{0, 3}, {0, 2}, {0, 1}}, {true, false, true}}}) {
    Environment env;
    std::vector<uint64_t> jobs;
    for (const auto& [gpus_milli, cpus] : c.wants) jobs.push_back(env.Submit(gpus_milli, cpus));
    const Plan plan = DecideQuickly(&env.system);
    for (size_t j = 0; j < jobs.size(); ++j) {
      EXPECT_EQ(IsRunning(env.system, jobs[j]), c.starts[j]) << c.what << " " << j;
      EXPECT_EQ(env.CodeOf(plan, jobs[j]), c.starts[j] ? pb::V_STARTING_NOW : pb::V_HOLDER)
          << c.what << " " << j;
    }
  }
}

TEST(StartHosted, TakesNothingFromOthers) {
  Environment env;
  std::vector<uint64_t> hosted;
  for (int i = 0; i < 2; ++i) hosted.push_back(env.Submit(1000));
  const uint64_t other = JobBuilder("prod").Gpus(2).SubmitTo(&env.system);
  const Plan plan = DecideQuickly(&env.system);
  EXPECT_TRUE(IsRunning(env.system, other)) << "2 of 4 are free whoever runs on the others";
  for (const uint64_t job : hosted) EXPECT_TRUE(IsRunning(env.system, job));
  EXPECT_EQ((plan.entitled_milli.at({"q", "gpu"})), 2000) << "the holder alone";
}

TEST(StartHosted, IsStoppedWithItsHolderAndComesBackWithIt) {
  Environment env(/*runs=*/true, "q");
  const uint64_t job = env.Submit(1000);
  DecideQuickly(&env.system);
  StartAll(&env.system, job);
  env.system.Do(Stopping(env.system.state, env.holder, pb::DRAIN));
  const Plan plan = DecideQuickly(&env.system);
  EXPECT_EQ(StopsIn(plan), 1);
  EXPECT_EQ(TaskOf(env.system.state, job).current()->cause, pb::HOLDER);
  ReportAll(&env.system, env.holder, pb::GONE, 143, true);
  ReportAll(&env.system, job, pb::GONE, 143, true);
  DecideQuickly(&env.system);
  ASSERT_TRUE(IsRunning(env.system, env.holder));
  EXPECT_FALSE(IsRunning(env.system, job));
  StartAll(&env.system, env.holder);
  DecideQuickly(&env.system);
  ASSERT_TRUE(IsRunning(env.system, job));
  EXPECT_EQ(TaskOf(env.system.state, job).current()->holder_attempt, 2);
}

TEST(StartHosted, APlaceThatIsKeptForItsHolderMeanwhileWakesNobody) {
  Environment env(/*runs=*/true, "q");
  const uint64_t job = env.Submit(1000);
  DecideQuickly(&env.system);
  StartAll(&env.system, job);
  env.system.Do(Stopping(env.system.state, env.holder, pb::PREEMPTION, 1));
  DecideQuickly(&env.system);
  ASSERT_NE(ReservationOf(env.system, env.holder), nullptr) << "it comes back";
  const Plan plan = DecideQuickly(&env.system);
  EXPECT_GT(plan.next_wake_ns, env.system.now_ns);
}

// What it has then comes back: nobody else is stopped for it, and it is held for who waits.
TEST(StartHosted, WhatOutlivesItsHolderIsBeingGivenBack) {
  Environment env(/*runs=*/true, "q");
  const uint64_t job = env.Submit(1000);
  DecideQuickly(&env.system);
  StartAll(&env.system, job);
  const uint64_t other = JobBuilder("q").Gpus(2).SubmitTo(&env.system);
  DecideQuickly(&env.system);
  ASSERT_TRUE(IsRunning(env.system, other));
  StartAll(&env.system, other);
  env.system.Cancel(env.holder);
  env.system.Do(Stopping(env.system.state, env.holder, pb::CANCEL));
  ReportAll(&env.system, env.holder, pb::GONE, 143, true);
  env.system.Do(Stopping(env.system.state, job, pb::CANCEL));
  const uint64_t waits = JobBuilder("prod").Gpus(2).SubmitTo(&env.system);
  const Plan plan = DecideQuickly(&env.system);
  EXPECT_EQ(StopsIn(plan), 0);
  ASSERT_NE(ReservationOf(env.system, waits), nullptr);
  EXPECT_TRUE(ReservationOf(env.system, waits)->held);
  ReportAll(&env.system, job, pb::GONE, 143, true);
  DecideQuickly(&env.system);
  EXPECT_TRUE(IsRunning(env.system, waits));
}

TEST(StartHosted, OneModelThatIsKeptSeesItsHolderStop) {
  Environment env;
  const uint64_t job = env.Submit(1000);
  DecideQuickly(&env.system);
  StartAll(&env.system, job);
  Decider kept;
  kept.Decide(env.system.state, env.system.now_ns, QuickOptions());
  env.system.Do(Stopping(env.system.state, env.holder, pb::DRAIN));
  EXPECT_EQ(StopsIn(kept.Decide(env.system.state, env.system.now_ns, QuickOptions())), 1);
}

}  // namespace
}  // namespace muster
