#include "sim/peers/kueue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::sim {
namespace {

constexpr char kGenerator[] = R"(# two cohorts of three queues
cohorts:
  - className: cohort
    count: 2
    queuesSets:
    - className: cq
      count: 3
      nominalQuota: 20
      borrowingLimit: 100
      reclaimWithinCohort: Any
      workloadsSets:
      - count: 7
        creationIntervalMs: 100
        workloads:
        - className: small
          runtimeMs: 200
          priority: 50
          request: 1
      - count: 2
        creationIntervalMs: 1200
        workloads:
        - className: large
          runtimeMs: 1000
          priority: 200
          request: "2500m"
          podCount: 8
          tasConstraint: "required"
          tasLevel: "cloud.provider.com/topology-rack"
)";

TEST(KueueTest, CohortsBecomeQueuesAndClusterQueuesTheirLeaves) {
  const absl::StatusOr<KueueSetup> setup =
      ParseKueueGenerator(kGenerator, "g.yaml", {.guarantees = true});
  ASSERT_TRUE(setup.ok()) << setup.status();
  ASSERT_EQ(setup->queues.queues_size(), 2);
  const pb::QueueSpec& cohort = setup->queues.queues(1);
  EXPECT_EQ(cohort.name(), "cohort-1");
  EXPECT_EQ(cohort.quota().at("cpu").limit_milli(), 60'000);
  ASSERT_EQ(cohort.queues_size(), 3);
  EXPECT_EQ(cohort.queues(2).quota().at("cpu").guarantee_milli(), 20'000);
  EXPECT_EQ(cohort.queues(2).quota().at("cpu").limit_milli(), 120'000);
  EXPECT_EQ(setup->nominal_milli, 120'000);
  EXPECT_EQ(setup->queue_class, "cq");
  EXPECT_EQ(ParseKueueGenerator(kGenerator, "g.yaml", {})
                ->queues.queues(0)
                .quota()
                .at("cpu")
                .guarantee_milli(),
            0);
}

TEST(KueueTest, WorkloadsAreCreatedAtTheirIntervals) {
  const KueueSetup setup = *ParseKueueGenerator(kGenerator, "g.yaml", {});
  ASSERT_EQ(setup.jobs.size(), 2u * 3 * 9);
  int64_t last_small_ns = 0;
  for (const KueueJob& job : setup.jobs) {
    if (job.class_name == "small") last_small_ns = job.submit_ns;
  }
  EXPECT_EQ(last_small_ns, 600'000'000);
  const KueueJob& last = setup.jobs.back();
  EXPECT_EQ(last.submit_ns, 1'200'000'000);
  EXPECT_EQ(last.class_name, "large");
  EXPECT_EQ(last.runtime_ns, 1'000'000'000);
  EXPECT_EQ(last.spec.queue(), "cohort-1/cq-2");
  EXPECT_EQ(last.spec.priority(), 100);
  EXPECT_EQ(last.spec.tasks(0).workers().min(), 8);
  EXPECT_EQ(last.spec.tasks(0).resources().cpus_milli(), 2500);
  EXPECT_EQ(last.spec.tasks(0).topology().required(), pb::RACK);
  EXPECT_EQ(ParseKueueGenerator(kGenerator, "g.yaml", {.divide = 3})->jobs.size(),
            2u * 3 * (3 + 1));
}

TEST(KueueTest, ItsJobsAreATraceForMusterSim) {
  EXPECT_TRUE(LooksLikeKueueGenerator(kGenerator));
  EXPECT_TRUE(LooksLikeKueueGenerator("# a comment\ncohorts: []\n"));
  EXPECT_FALSE(LooksLikeKueueGenerator("submit_s,duration_s\n0,1\n"));
  const KueueSetup setup = *ParseKueueGenerator(kGenerator, "g.yaml", {});
  const Trace trace = TraceOf(setup);
  ASSERT_EQ(trace.jobs.size(), setup.jobs.size());
  const TraceJob& last = trace.jobs.back();
  EXPECT_EQ(last.submit_ns, 1'200'000'000);
  EXPECT_EQ(last.duration_ns, 1'000'000'000);
  EXPECT_EQ(last.queue, "cohort-1/cq-2");
  EXPECT_EQ(last.workers, 8);
  EXPECT_EQ(last.gpus_milli, 0);
  EXPECT_EQ(last.cpus_milli, 2500);
  EXPECT_EQ(last.priority, 100);
  EXPECT_EQ(last.required, pb::RACK);
}

TEST(KueueTest, ATopologyMakesTheHosts) {
  const std::string text = std::string(kGenerator) + R"(topology:
  levels:
    - {name: block, count: 1}
    - {name: rack, count: 2}
    - {name: node, count: 3, capacity: {cpu: "96", memory: 256Gi}}
)";
  const absl::StatusOr<KueueSetup> setup = ParseKueueGenerator(text, "g.yaml", {});
  ASSERT_TRUE(setup.ok()) << setup.status();
  ASSERT_EQ(setup->clusters.clusters(0).hosts_size(), 6);
  EXPECT_EQ(setup->clusters.clusters(0).hosts(5).name(), "b0-r01-n02");
  EXPECT_EQ(setup->clusters.clusters(0).hosts(5).rack(), "b0-r01");
  EXPECT_EQ(setup->clusters.skus().at("node").cpus_milli(), 96'000);
}

TEST(KueueTest, WhatIsMissingOrOtherwiseIsToldWithItsLine) {
  std::string text = kGenerator;
  text.replace(text.find("runtimeMs: 200"), 14, "runtimeMs: fast");
  EXPECT_THAT(std::string(ParseKueueGenerator(text, "g.yaml", {}).status().message()),
              ::testing::StartsWith("g.yaml:16: \"fast\""));
  EXPECT_THAT(
      std::string(ParseKueueGenerator("cohorts: [{count: 1}]", "g.yaml", {}).status().message()),
      ::testing::HasSubstr("is missing"));
}

}  // namespace
}  // namespace muster::sim
