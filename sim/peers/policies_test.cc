#include "sim/peers/policies.h"

#include "common/base/files.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/report.h"
#include "sim/world.h"

namespace muster::sim {
namespace {

constexpr char kClusters[] = R"(
skus:
  h100x4: {flavour: h100, gpus: 4, nvlink_island: 4, cpus: 32, memory: 256GiB, disk: 1TiB, declared: true}
storages:
  shared: {path: /sim, clusters: [phx, dal]}
clusters:
  - {name: phx, sku: h100x4, job_storage: shared, topology: {b1: {r1: ["h[1-2]"]}}}
  - {name: dal, sku: h100x4, job_storage: shared, topology: {b1: {r1: ["h[1-2]"]}}}
)";
constexpr char kQueues[] = R"(
queues:
  - {name: a, quota: {h100: {guarantee: 8}}}
  - {name: b, quota: {h100: {guarantee: 8}}}
)";

constexpr char kHomes[] = R"(
queues:
  - {name: a, quota: {h100: {guarantee: {phx: 8}}}}
  - {name: b, quota: {h100: {guarantee: {dal: 8}}}}
)";

constexpr char kTwoHomes[] = R"(
queues:
  - {name: a, quota: {h100: {guarantee: {phx: 8, dal: 8}}}}
  - {name: b, quota: {h100: {weight: 1}}}
)";

struct Fixture {
  pb::ClusterFile clusters;
  pb::QueueTree queues;
  explicit Fixture(const char* tree = kQueues) {
    std::vector<Problem> problems;
    EXPECT_TRUE(ParseClusterFile(kClusters, "clusters.yaml", &clusters, &problems))
        << FormatProblems(problems, "clusters.yaml");
    EXPECT_TRUE(ParseQueueFile(tree, "queues.yaml", {}, &queues, &problems))
        << FormatProblems(problems, "queues.yaml");
  }
  WorldResult Run(const std::string& policy, const Trace& trace, WorldOptions options = {}) const {
    options.check_plans = policy == "muster";
    options.decide = *MakePolicy(policy, &trace, PolicyOptions{});
    auto result = RunWorld(clusters, queues, trace, options);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->stuck, testing::IsEmpty()) << policy;
    return *std::move(result);
  }
};

TraceJob Job(const std::string& queue, int64_t submit_s, int64_t duration_s, int32_t workers,
             int64_t gpus, std::vector<std::string> clusters = {"phx"}) {
  TraceJob job;
  job.queue = queue;
  job.name = queue + std::to_string(submit_s);
  job.submit_ns = submit_s * kSecond;
  job.duration_ns = duration_s * kSecond;
  job.workers = job.max_workers = workers;
  job.gpus_milli = gpus * 1000;
  job.gpu_type = "h100";
  job.clusters = std::move(clusters);
  return job;
}

int64_t WaitS(const WorldResult& result, size_t job) {
  return (result.jobs[job].start_ns - result.jobs[job].submit_ns) / kSecond;
}

TEST(Policies, FifoBlocksBehindWhatDoesNotFitAndBackfillPassesItOver) {
  Fixture fixture;
  Trace trace;
  trace.jobs = {Job("a", 0, 1000, 1, 4), Job("a", 10, 100, 2, 4), Job("a", 20, 100, 1, 1)};
  const WorldResult fifo = fixture.Run("fifo", trace),
                    backfill = fixture.Run("fifo-backfill", trace);
  EXPECT_GT(WaitS(fifo, 2), 900);
  EXPECT_EQ(WaitS(backfill, 2), 0);
  EXPECT_GT(WaitS(backfill, 1), 900);
}

TEST(Policies, DrfServesTheQueueThatHoldsLeast) {
  Fixture fixture;
  Trace trace;
  for (int i = 0; i < 6; ++i) trace.jobs.push_back(Job("a", i, 1000, 1, 4));  // two run, four wait
  trace.jobs.push_back(Job("b", 100, 100, 1, 4));
  EXPECT_LT(WaitS(fixture.Run("drf", trace), 6), 1100);
  EXPECT_GT(WaitS(fixture.Run("fifo-backfill", trace), 6), 1900);
}

TEST(Policies, PreemptiveOnesLetAShortJobInAndLoseNoWork) {
  Fixture fixture;
  for (const char* policy : {"las", "dlas", "srtf"}) {
    Trace trace;
    trace.jobs = {Job("a", 0, 7200, 2, 4), Job("a", 3600, 120, 1, 4)};
    const WorldResult result = fixture.Run(policy, trace);
    EXPECT_LT(WaitS(result, 1), 60) << policy;
    EXPECT_EQ(result.jobs[0].evictions, 1) << policy;
    // It stopped with a checkpoint: what it lost is the other's time and two restarts.
    EXPECT_LT(result.jobs[0].end_ns, (7200 + 400) * kSecond) << policy;
    ASSERT_EQ(result.jobs[0].segments.size(), 2u) << policy;
  }
}

TEST(Policies, GangsStayInOneClusterAndTakeTheNextOneOfTheirList) {
  Fixture fixture;
  for (const char* policy : {"fifo", "fifo-backfill", "drf", "las", "dlas", "srtf"}) {
    Trace trace;
    trace.jobs = {Job("a", 0, 1000, 1, 4, {"phx", "dal"}), Job("a", 1, 1000, 2, 4, {"phx", "dal"})};
    const WorldResult result = fixture.Run(policy, trace);
    EXPECT_EQ(WaitS(result, 1), 0) << policy;
    EXPECT_EQ(result.jobs[0].segments[0].cluster, 0) << policy;
    EXPECT_EQ(result.jobs[1].segments[0].cluster, 1) << policy;
  }
}

TEST(Policies, AJobThatItsGuaranteeCoversIsLateOnlyWhereNobodyCares) {
  Fixture fixture;
  Trace trace;
  for (int i = 0; i < 4; ++i)
    trace.jobs.push_back(Job("a", i, 7200, 1, 4, {}));  // all of both clusters
  trace.jobs.push_back(Job("b", 1000, 60, 1, 4, {}));
  const WorldResult peer = fixture.Run("fifo-backfill", trace),
                    muster = fixture.Run("muster", trace);
  EXPECT_EQ(peer.late, 1);
  EXPECT_EQ(peer.left_out, 1) << "and nobody promises it a place";
  EXPECT_GT(peer.jobs[4].late_ns, 6000 * kSecond);
  EXPECT_EQ(muster.late, 0);
  EXPECT_EQ(muster.left_out, 0);
}

TraceJob Important(TraceJob job) {
  job.priority = 1;
  return job;
}

TEST(Policies, WhoIsLateFollowsFromTheQueuesOrderAndFromWhatItHoldsWhereItIsPromisedIt) {
  const Fixture one(kHomes), two(kTwoHomes);
  struct Case {
    std::string name;
    const Fixture* fixture;
    std::vector<TraceJob> jobs;  // none of them starts before the first one ends, where they wait
    std::vector<bool> late, overtaken;
  };
  const TraceJob of_b = Job("b", 0, 7200, 1, 4),
                 of_b_in_dal = Job("b", 0, 7200, 1, 4, {"dal"});  // on half of what is a's
  const std::vector<std::string> both = {"phx", "dal"};
  const std::vector<Case> cases = {
      {"nobody of its queue is in its way",
       &one,
       {of_b, Job("a", 1, 60, 2, 4)},
       {false, true},
       {false, false}},
      {"what it could start on is its own queue's, of younger jobs",
       &one,
       {of_b, Job("a", 1, 60, 2, 4), Job("a", 2, 7200, 1, 4)},
       {false, false, false},
       {false, true, false}},
      {"they come and go",
       &one,
       {of_b, Job("a", 1, 60, 2, 4), Job("a", 2, 300, 1, 4), Job("a", 400, 300, 1, 4),
        Job("a", 800, 300, 1, 4), Job("a", 1200, 7200, 1, 1)},
       {false, false, false, false, false, false},
       {false, true, false, false, false, false}},
      {"what it could start on is its own queue's, of a lower priority",
       &one,
       {of_b, Job("a", 1, 7200, 1, 4), Important(Job("a", 2, 60, 2, 4))},
       {false, false, true},
       {false, false, false}},
      {"a higher one has it",
       &one,
       {of_b, Job("a", 1, 60, 2, 4), Important(Job("a", 2, 7200, 1, 4))},
       {false, false, false},
       {false, false, false}},
      {"the older gang has all of the guarantee",
       &one,
       {of_b, Job("a", 1, 60, 2, 4), Job("a", 2, 7200, 1, 4), Job("a", 3, 60, 1, 1)},
       {false, false, false, false},
       {false, true, false, false}},
      {"what an older one leaves is enough for it",
       &one,
       {of_b, Job("a", 1, 7200, 1, 4), Job("a", 2, 60, 1, 4)},
       {false, false, true},
       {false, false, false}},
      {"what its queue holds elsewhere doesn't count",
       &one,
       {of_b, Job("a", 1, 7200, 2, 4, {"dal"}), Job("a", 2, 60, 2, 4)},
       {false, false, true},
       {false, false, false}},
      {"it isn't promised anything where it may run",
       &one,
       {of_b, Job("b", 1, 7200, 1, 4), Job("b", 2, 60, 1, 4)},
       {false, false, false},
       {false, false, false}},
      {"younger ones have one of its two promises, others the second",
       &two,
       {of_b, of_b_in_dal, Job("a", 1, 60, 2, 4, both), Job("a", 2, 7200, 1, 4)},
       {false, false, true, false},
       {false, false, false, false}},
      {"younger ones have both of them",
       &two,
       {of_b, of_b_in_dal, Job("a", 1, 60, 2, 4, both), Job("a", 2, 7200, 1, 4),
        Job("a", 3, 7200, 1, 4, {"dal"})},
       {false, false, false, false, false},
       {false, false, true, false, false}},
      {"an older one runs where its second promise is",
       &two,
       {of_b, Job("a", 1, 7200, 2, 4, both), Job("a", 2, 60, 2, 4)},
       {false, false, true},
       {false, false, false}},
  };
  for (const Case& each : cases) {
    Trace trace;
    trace.jobs = each.jobs;
    const WorldResult result = each.fixture->Run("fifo-backfill", trace);
    int left_out = 0;
    for (size_t i = 0; i < each.late.size(); ++i) {
      EXPECT_EQ(result.jobs[i].late_ns > 600 * kSecond, each.late[i]) << each.name << ": " << i;
      EXPECT_EQ(result.jobs[i].overtaken_ns > 600 * kSecond, each.overtaken[i])
          << each.name << ": " << i;
      // What it waits for is held by borrowers.
      EXPECT_EQ(result.jobs[i].late_room_ns > 600 * kSecond, each.late[i])
          << each.name << ": " << i;
      left_out += each.late[i] || each.overtaken[i];
    }
    // This policy has no entitled set: whoever the order covers is outside it, for all of the wait.
    EXPECT_EQ(result.left_out, left_out) << each.name;
  }
}

// It may be taken back for the waiting one, and that takes too long here.
TEST(Policies, WhatItsQueueGrewByDoesntCountAsHeldWhereSomebodyOfItWaits) {
  const Fixture fixture(kHomes);
  Trace trace;
  trace.jobs = {Job("a", 0, 20000, 1, 4), Job("a", 5000, 60, 1, 4)};
  trace.jobs[0].max_workers = 2;
  WorldOptions options;
  options.hosts.stop_ns = 1200 * kSecond;
  const WorldResult result = fixture.Run("muster", trace, options);
  EXPECT_GT(result.jobs[1].late_ns, 1100 * kSecond);
  EXPECT_EQ(result.jobs[1].overtaken_ns, 0);
  EXPECT_EQ(result.left_out, 0);
}

TEST(Policies, AnUnknownOneIsRefusedWithTheNames) {
  Trace trace;
  EXPECT_THAT(MakePolicy("magic", &trace, PolicyOptions{}).status().message(),
              testing::HasSubstr("there are muster, fifo, "));
}

// The whole of the simulator in one expectation: whoever changes what a peer's run gives, on
// purpose, replaces the file by what this test prints. Muster's own row is not in it, since its
// decisions get better; it is held to the peers' instead.
TEST(Policies, AFixedSimulationGivesTheTableThatIsWrittenDown) {
  Fixture fixture;
  const Trace trace = RandomTrace(300, 5, {"a", "b"}, {"h100"}, 4);
  std::vector<std::pair<std::string, WorldResult>> runs;
  for (const std::string& policy : PolicyNames()) {
    if (policy != "muster") runs.emplace_back(policy, fixture.Run(policy, trace));
  }
  const std::string table = PolicyTable(runs, WorldOptions{}.patience_ns);
  const auto expected = ReadFile("sim/peers/policies.txt");
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(table, *expected);
  const Summary muster = Summarize(fixture.Run("muster", trace), "", WorldOptions{}.patience_ns);
  const Summary fifo = Summarize(runs[0].second, "", WorldOptions{}.patience_ns);
  EXPECT_EQ(muster.unfinished, 0);
  EXPECT_LT(muster.wait_mean_ns, fifo.wait_mean_ns);
}

TEST(Policies, TheSameTraceGivesTheSameRunTwice) {
  Fixture fixture;
  const Trace trace = RandomTrace(150, 11, {"a", "b"}, {"h100"}, 4);
  for (const std::string& policy : PolicyNames()) {
    const WorldResult one = fixture.Run(policy, trace), two = fixture.Run(policy, trace);
    EXPECT_EQ(one.digest, two.digest) << policy;
    EXPECT_EQ(one.used_device_us, two.used_device_us) << policy;
  }
}

}  // namespace
}  // namespace muster::sim
