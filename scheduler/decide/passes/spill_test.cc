// Spill over the whole list of clusters, what moving costs, and looking again (docs/scheduling.md
// §4, decision 019).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/decide/decide.h"
#include "scheduler/decide/testing/drafting.h"
#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobBuilder;
using testing::ReportAll;
using testing::StartAll;
using testing::SystemBuilder;
using testing::TaskOf;

Plan Go(SystemBuilder* system) {
  SchedulingOptions options;
  options.spill_cost_ns = 10 * kSecond;
  return testing::DecideAndApply(system, options);
}

// One device each in a, b and c, held by a job for so many seconds; 0: free.
struct ThreeClusters {
  SystemBuilder system;
  uint64_t holder[3] = {0, 0, 0};
  explicit ThreeClusters(const std::vector<int64_t>& seconds) {
    const char* names[] = {"a", "b", "c"};
    for (const char* name : names) system.Cluster(name, "shared");
    for (const char* name : names) system.Hosts(name, 1, 1);
    system.Queue("q");
    for (int c = 0; c < 3; ++c) {
      if (seconds[c] == 0) continue;
      holder[c] = JobBuilder("q").In({names[c]}).TimeLimit(seconds[c]).SubmitTo(&system);
      Go(&system);
      StartAll(&system, holder[c]);
    }
  }
};

TEST(Spill, OpensTheListAsFarAsTheFirstClusterThatPays) {
  const struct {
    const char* why;
    std::vector<int64_t> seconds;
    std::vector<std::string> opened;
    const char* runs_in;
  } kCases[] = {
      {"the second is free", {1000, 0, 0}, {"b"}, "b"},
      {"the second is as full as the first", {1000, 1000, 0}, {"b", "c"}, "c"},
      {"the second pays, though later than the third", {1000, 500, 600}, {"b"}, ""},
      {"nothing pays", {1000, 1000, 1000}, {}, ""},
      {"the first is free sooner than moving pays", {5, 0, 0}, {}, ""},
  };
  for (const auto& c : kCases) {
    ThreeClusters at(c.seconds);
    const uint64_t job = JobBuilder("q").In({"a", "b", "c"}).SubmitTo(&at.system);
    Go(&at.system);
    EXPECT_EQ(TaskOf(at.system.state, job).opened, c.opened) << c.why;
    EXPECT_EQ(at.system.state.FindJob(job)->cluster, c.runs_in) << c.why;
  }
}

TEST(Spill, WhatComesBackIsTiedToItsOldPoolUntilAnotherComesToTheFront) {
  SystemBuilder system;
  for (const char* name : {"a", "b"}) system.Cluster(name, "shared").Hosts(name, 1, 2);
  system.Queue("q");
  const uint64_t job = JobBuilder("q").Workers(1, 2).In({"a", "b"}).SubmitTo(&system);
  Go(&system);
  StartAll(&system, job);
  system.Do(testing::Stopping(system.state, job, pb::RESIZE, /*next_workers=*/1));
  ReportAll(&system, job, pb::GONE, 143, true);
  ASSERT_TRUE(TaskOf(system.state, job).comes_back());
  const auto left_pool = [&] {
    const testing::Drafting drafting(system);
    const Gang& gang = drafting.gang(job);
    return std::pair(gang.left_pool, gang.pools[0]);
  };
  const auto [left, first] = left_pool();
  EXPECT_EQ(left, first) << "its place in a";
  pb::Event opened;
  opened.mutable_cluster_opened()->set_job_uid(system.state.FindJob(job)->uid);
  opened.mutable_cluster_opened()->set_task("main");
  opened.mutable_cluster_opened()->set_cluster("b");
  opened.mutable_cluster_opened()->set_to_front(true);
  system.Do(opened);
  EXPECT_EQ(left_pool().first, -1) << "b has free devices for it, now";
  EXPECT_NE(left_pool().second, first);
}

TEST(Spill, OutsideSItLooksFirstForWhatHasRunTheLeast) {
  const struct {
    const char* why;
    int priority;   // of what has run
    int64_t now_s;  // when b has room; the time since 20 s it waits
    bool goes;
  } kCases[] = {
      {"another never ran", 0, 40, false},
      {"it has the higher priority", 1, 40, true},
      {"it has been passed over for two weeks", 0, 15 * 24 * 3600, true},
  };
  for (const auto& c : kCases) {
    ThreeClusters at({0, 2'000'000, 2'000'000});
    JobBuilder builder("q");
    builder.In({"a", "b", "c"}).Priority(c.priority).task()->set_max_restarts(1);
    const uint64_t older = builder.SubmitTo(&at.system);
    Go(&at.system);
    StartAll(&at.system, older);
    at.system.Step(20);
    ReportAll(&at.system, older, pb::GONE, 1);
    const uint64_t first =
        JobBuilder("q").In({"a"}).Priority(2).TimeLimit(1'900'000).SubmitTo(&at.system);
    Go(&at.system);
    StartAll(&at.system, first);
    const uint64_t fresh = JobBuilder("q").In({"a", "b", "c"}).SubmitTo(&at.system);
    at.system.Step(c.now_s);
    ReportAll(&at.system, at.holder[1], pb::GONE, 0);
    Go(&at.system);
    EXPECT_EQ(TaskOf(at.system.state, fresh).current() != nullptr, !c.goes) << c.why;
    EXPECT_EQ(TaskOf(at.system.state, older).current() != nullptr, c.goes) << c.why;
  }
}

TEST(Spill, PriorityOrdersOneQueueAndNotAnothersTasksBehindIt) {
  for (const bool one_queue : {false, true}) {
    ThreeClusters at({0, 5000, 5000});
    at.system.Queue("lent", 0, -1, 0).Queue("also", 0, -1, 0);
    const uint64_t first = JobBuilder("q").In({"a"}).TimeLimit(1000).SubmitTo(&at.system);
    Go(&at.system);
    StartAll(&at.system, first);
    const uint64_t older = JobBuilder("lent").In({"a", "b", "c"}).SubmitTo(&at.system);
    const uint64_t younger = JobBuilder(one_queue ? "lent" : "also")
                                 .In({"a", "b", "c"})
                                 .Priority(5)
                                 .SubmitTo(&at.system);
    at.system.Step(40);
    ReportAll(&at.system, at.holder[1], pb::GONE, 0);
    Go(&at.system);
    EXPECT_EQ(TaskOf(at.system.state, older).current() != nullptr, !one_queue) << one_queue;
    EXPECT_EQ(TaskOf(at.system.state, younger).current() != nullptr, one_queue) << one_queue;
  }
}

TEST(Spill, ABurstTakesEachFreeDeviceOnce) {
  ThreeClusters at({1000, 0, 0});
  std::vector<uint64_t> jobs;
  for (int i = 0; i < 3; ++i)
    jobs.push_back(JobBuilder("q").In({"a", "b", "c"}).SubmitTo(&at.system));
  Go(&at.system);
  EXPECT_EQ(at.system.state.FindJob(jobs[0])->cluster, "b");
  EXPECT_EQ(at.system.state.FindJob(jobs[1])->cluster, "c");
  EXPECT_EQ(at.system.state.FindJob(jobs[2])->cluster, "");
}

TEST(Spill, LooksAgainWhenWhatItCostsHasPassed) {
  ThreeClusters at({2000, 500, 3000});
  const uint64_t job = JobBuilder("q").In({"a", "b", "c"}).SubmitTo(&at.system);
  const Plan first = Go(&at.system);
  EXPECT_THAT(TaskOf(at.system.state, job).opened, ElementsAre("b"));
  EXPECT_LE(first.next_wake_ns, SystemBuilder::kStart + 10 * kSecond);
  at.system.Cancel(at.holder[2]);
  Go(&at.system);
  ReportAll(&at.system, at.holder[2], pb::GONE, 0, true);
  at.system.Step(9);
  Go(&at.system);
  EXPECT_THAT(TaskOf(at.system.state, job).opened, ElementsAre("b")) << "too early";
  at.system.Step(10);
  Go(&at.system);
  EXPECT_THAT(TaskOf(at.system.state, job).opened, ElementsAre("b", "c"));
  EXPECT_EQ(at.system.state.FindJob(job)->cluster, "c");
}

TEST(Spill, MovingWhatIsReadCostsItsBytesOverTheBandwidth) {
  const struct {
    const char* why;
    int64_t here_s;  // until a is free
    const char* home;
    int64_t bits_per_s;  // of b
    bool spills;
    const char* says;
  } kCases[] = {
      {"12 GiB at 10 Gbit/s are 10 s, and 10 s it costs anyway", 25, "a", 10'000'000'000, true,
       "moving 12GiB at 10 Gbit/s: 10s"},
      {"that is too long", 19, "a", 10'000'000'000, false, ""},
      {"it lies in b", 19, "b", 10'000'000'000, true, ""},
      {"it lies near to all", 19, "", 10'000'000'000, true, ""},
      {"no bandwidth is known", 19, "a", 0, true, ""},
      {"slowly: 103 s", 100, "a", 1'000'000'000, false, ""},
  };
  for (const auto& c : kCases) {
    ThreeClusters at({c.here_s, 0, 1000});
    pb::Event configured;
    pb::ClusterFile* file = configured.mutable_clusters_configured()->mutable_file();
    *file = at.system.state.cluster_file();
    (*file->mutable_storages())["shared"].set_home(c.home);
    file->mutable_clusters(1)->set_bandwidth_bits_per_s(c.bits_per_s);
    at.system.Do(configured);
    JobBuilder builder("q");
    builder.In({"a", "b"});
    builder.spec.mutable_tasks(0)->mutable_input()->set_storage("shared");
    builder.spec.mutable_tasks(0)->mutable_input()->set_size_bytes(int64_t{12} << 30);
    const uint64_t job = builder.SubmitTo(&at.system);
    Go(&at.system);
    const TaskRow& task = TaskOf(at.system.state, job);
    EXPECT_EQ(!task.opened.empty(), c.spills) << c.why;
    EXPECT_THAT(task.spill_reason, HasSubstr(c.says)) << c.why;
    EXPECT_EQ(task.spill_reason.find("moving") != std::string::npos, *c.says != '\0') << c.why;
  }
}

TEST(Spill, NeverOpensAClusterThatDoesNotReachTheInput) {
  ThreeClusters at({1000, 0, 1000});
  pb::Event configured;
  pb::ClusterFile* file = configured.mutable_clusters_configured()->mutable_file();
  *file = at.system.state.cluster_file();
  (*file->mutable_storages())["local"].add_clusters("a");
  at.system.Do(configured);
  JobBuilder builder("q");
  builder.In({"a", "b"});
  builder.spec.mutable_tasks(0)->mutable_input()->set_storage("local");
  builder.spec.mutable_tasks(0)->mutable_input()->set_size_bytes(1);
  const uint64_t job = builder.SubmitTo(&at.system);
  Go(&at.system);
  EXPECT_THAT(TaskOf(at.system.state, job).opened, IsEmpty());
}

// The task that starts first binds the job's directory to its cluster's storage (decision 017),
// which doesn't reach the other one.
TEST(Spill, OpensNothingThatTheSamePlanPutsOutOfReach) {
  SystemBuilder system;
  system.Cluster("a", "in_a").Cluster("b", "in_b").Hosts("a", 1, 2).Hosts("b", 1, 2).Queue("q");
  JobBuilder builder("q");
  builder.In({"a", "b"}).Task("small").Task("large").Gpus(2);
  const uint64_t job = builder.SubmitTo(&system);
  Go(&system);  // which holds the plan against Validate
  EXPECT_EQ(system.state.FindJob(job)->cluster, "a");
  EXPECT_THAT(TaskOf(system.state, job, 1).opened, IsEmpty());
}

// Of a's four devices two are free at 100 s, which a gang of two takes that came before.
TEST(Spill, WhoCameBeforeTakesWithAllItsWorkersWhatIsFreedFirst) {
  for (const int workers : {1, 2}) {
    SystemBuilder system;
    system.Cluster("a", "shared").Cluster("b", "shared");
    system.Hosts("a", 1, 4).Hosts("b", 1, 1).Queue("q");
    for (const int64_t seconds : {100, 1000}) {
      const uint64_t holder =
          JobBuilder("q").In({"a"}).Gpus(2).TimeLimit(seconds).SubmitTo(&system);
      Go(&system);
      StartAll(&system, holder);
    }
    const uint64_t holder = JobBuilder("q").In({"b"}).TimeLimit(500).SubmitTo(&system);
    Go(&system);
    StartAll(&system, holder);
    JobBuilder("q").In({"a"}).Workers(workers).SubmitTo(&system);
    const uint64_t job = JobBuilder("q").In({"a", "b"}).SubmitTo(&system);
    Go(&system);
    EXPECT_EQ(TaskOf(system.state, job).opened.size(), workers == 2 ? 1u : 0u) << workers;
  }
}

}  // namespace
}  // namespace muster
