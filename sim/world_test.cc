#include "sim/world.h"

#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::sim {
namespace {

constexpr char kClusters[] = R"(
skus:
  h100x8: {flavour: h100, gpus: 8, nvlink_island: 8, cpus: 64, memory: 512GiB, disk: 1TiB, declared: true}
  a100x4: {flavour: a100, gpus: 4, nvlink_island: 4, cpus: 32, memory: 256GiB, disk: 1TiB, declared: true}
storages:
  shared: {path: /sim, clusters: [phx, dal]}
clusters:
  - name: phx
    sku: h100x8
    job_storage: shared
    topology:
      b1: {r1: ["h[01-02]"], r2: ["h[03-04]"]}
  - name: dal
    sku: a100x4
    job_storage: shared
    topology:
      b1: {r1: ["h[01-04]"]}
)";

constexpr char kQueues[] = R"(
queues:
  - name: prod
    quota: {h100: {guarantee: 16, weight: 1}, a100: {guarantee: 4}}
  - name: research
    quota: {h100: {guarantee: 16, weight: 3}, a100: {guarantee: 12, weight: 3}}
    queues:
      - name: nlp
        quota: {h100: {guarantee: 8}, a100: {guarantee: 4}}
      - name: vision
        quota: {h100: {guarantee: 8}, a100: {guarantee: 4}}
)";

constexpr char kLargeClusters[] = R"(
skus:
  h100x8: {flavour: h100, gpus: 8, nvlink_island: 8, cpus: 64, memory: 512GiB, disk: 1TiB, declared: true}
  a100x4: {flavour: a100, gpus: 4, nvlink_island: 4, cpus: 32, memory: 256GiB, disk: 1TiB, declared: true}
storages:
  shared: {path: /sim, clusters: [phx, dal]}
clusters:
  - name: phx
    sku: h100x8
    job_storage: shared
    topology:
      b1: {r1: ["h[01-08]"], r2: ["h[09-16]"]}
  - name: dal
    sku: a100x4
    job_storage: shared
    topology:
      b1: {r1: ["h[01-12]"], r2: ["h[13-24]"]}
)";

struct Fixture {
  pb::ClusterFile clusters;
  pb::QueueTree queues;
  explicit Fixture(const char* file = kClusters) {
    std::vector<Problem> problems;
    EXPECT_TRUE(ParseClusterFile(file, "clusters.yaml", &clusters, &problems))
        << FormatProblems(problems, "clusters.yaml");
    EXPECT_TRUE(ParseQueueFile(kQueues, "queues.yaml", {}, &queues, &problems))
        << FormatProblems(problems, "queues.yaml");
  }
};

TraceJob Job(const std::string& queue, int64_t submit_s, int64_t duration_s, int32_t workers,
             int64_t gpus) {
  TraceJob job;
  job.queue = queue;
  job.name = queue + std::to_string(submit_s);
  for (char& c : job.name) c = c == '/' ? '-' : c;
  job.submit_ns = submit_s * kSecond;
  job.duration_ns = duration_s * kSecond;
  job.workers = job.max_workers = workers;
  job.gpus_milli = gpus * 1000;
  job.gpu_type = "h100";
  return job;
}

TEST(World, AJobOnAnIdleFleetStartsAtOnceAndEnds) {
  Fixture fixture;
  Trace trace;
  trace.jobs.push_back(Job("prod", 10, 600, 2, 8));
  const auto result = RunWorld(fixture.clusters, fixture.queues, trace, WorldOptions{});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->stuck, testing::IsEmpty());
  EXPECT_EQ(result->jobs[0].refused, "");
  EXPECT_EQ(result->jobs[0].start_ns, 10 * kSecond);
  EXPECT_GE(result->jobs[0].end_ns, 610 * kSecond);
  EXPECT_LE(result->jobs[0].end_ns, 640 * kSecond);
}

TEST(World, BorrowedDevicesAreGivenBackToTheirGuaranteeWithACheckpoint) {
  Fixture fixture;
  Trace trace;
  for (int i = 0; i < 4; ++i)
    trace.jobs.push_back(Job("research/nlp", i, 7200, 1, 8));  // the whole of phx
  trace.jobs.push_back(Job("prod", 1800, 600, 2, 8));          // its guarantee
  const auto result = RunWorld(fixture.clusters, fixture.queues, trace, WorldOptions{});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->stuck, testing::IsEmpty());
  EXPECT_EQ(result->evictions, 2);
  EXPECT_LT(result->jobs[4].start_ns, 1830 * kSecond);  // as soon as two have checkpointed and left
  for (const JobResult& job : result->jobs) EXPECT_GE(job.end_ns, 0) << job.name;
}

TEST(World, AThousandRandomJobsGiveTheSamePlansBitForBitTwice) {
  Fixture fixture(kLargeClusters);
  const Trace trace =
      RandomTrace(1000, 42, {"prod", "research/nlp", "research/vision"}, {"h100", "a100"}, 4);
  const auto one = RunWorld(fixture.clusters, fixture.queues, trace, WorldOptions{});
  const auto two = RunWorld(fixture.clusters, fixture.queues, trace, WorldOptions{});
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(one->digest, two->digest);
  EXPECT_EQ(one->steps, two->steps);
  EXPECT_THAT(one->stuck, testing::IsEmpty());
  size_t ended = 0;
  for (const JobResult& job : one->jobs) ended += job.end_ns >= 0;
  EXPECT_GT(ended, 900u);
  const Trace other =
      RandomTrace(100, 43, {"prod", "research/nlp", "research/vision"}, {"h100", "a100"}, 4);
  EXPECT_NE(RunWorld(fixture.clusters, fixture.queues, other, WorldOptions{})->digest, one->digest);
}

}  // namespace
}  // namespace muster::sim
