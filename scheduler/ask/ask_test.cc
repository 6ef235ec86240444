#include "scheduler/ask/ask.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// lab: 2 hosts x 2 cpu-slot (declared); cloud: 1 host x 2. Nobody has joined yet.
State TwoClusters() {
  State state;
  Apply(&state, Parse<pb::Event>("step { now_ns: 1700000000000000000 epoch: 1 }"));
  Apply(&state, Parse<pb::Event>(R"(
    clusters_configured { file {
      skus { key: "slots" value { flavour: "cpu-slot" gpus: 2 cpus_milli: 4000 memory_bytes: 8589934592 disk_bytes: 1000000 declared: true } }
      storages { key: "shared" value { path: "/s" clusters: "lab" clusters: "cloud" } }
      clusters { name: "lab" sku: "slots" job_storage: "shared" hosts { name: "h1" } hosts { name: "h2" } }
      clusters { name: "cloud" sku: "slots" job_storage: "shared" hosts { name: "c1" } } } })"));
  return state;
}

void ApplyQueues(State* state, const pb::QueueTree& tree) {
  const QueueResolution resolution = ResolveQueues(*state, tree);
  ASSERT_TRUE(resolution.ok()) << resolution.problems[0].path << ": " << resolution.problems[0].message;
  pb::Event event;
  *event.mutable_queues_applied()->mutable_tree() = resolution.resolved;
  event.mutable_queues_applied()->set_version(1);
  Apply(state, event);
}

pb::JobSpec Spec(const std::string& more) {
  return Parse<pb::JobSpec>("name: \"j\" queue: \"default\" tasks { name: \"main\" run { shell: \"true\" } " + more + " }");
}

TEST(ResolveSpec, ADemandThatNoClusterHoldsIsRefusedWithTheNumbers) {
  const State state = TwoClusters();
  const struct {
    const char* what;
    const char* task;
    const char* want;  // empty: accepted
  } kCases[] = {
      {"fits lab", "workers { min: 4 max: 4 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }", ""},
      {"too many workers for any cluster", "workers { min: 5 max: 5 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }",
       "lab cpu-slot holds 4, cloud cpu-slot holds 2. It can start with workers: 4"},
      {"too many devices for any host", "workers { min: 1 max: 1 } resources { gpus_milli: 3000 gpu_types: \"cpu-slot\" }", "can never start"},
      {"too much memory", "workers { min: 1 max: 1 } resources { cpus_milli: 1000 memory_bytes: 99999999999 }", "can never start"},
  };
  for (const auto& c : kCases) {
    const Resolution resolution = ResolveSpec(state, Spec(c.task), SpecDefaults{});
    if (*c.want == '\0') {
      EXPECT_TRUE(resolution.ok()) << c.what << ": " << (resolution.ok() ? "" : resolution.problems[0].message);
    } else {
      ASSERT_FALSE(resolution.ok()) << c.what;
      EXPECT_THAT(resolution.problems[0].message, HasSubstr(c.want)) << c.what;
      EXPECT_TRUE(resolution.never_fits) << c.what;
    }
  }
}

TEST(ResolveSpec, UnknownQueuesAndFlavoursAreNamedWithWhatThereIs) {
  State state = TwoClusters();
  pb::JobSpec spec = Spec("resources { gpus_milli: 1000 gpu_types: \"h100\" }");
  EXPECT_THAT(ResolveSpec(state, spec, SpecDefaults{}).problems[0].message, HasSubstr("cpu-slot"));
  spec = Spec("");
  spec.set_queue("nowhere");
  const Resolution resolution = ResolveSpec(state, spec, SpecDefaults{});
  ASSERT_FALSE(resolution.ok());
  EXPECT_EQ(resolution.problems[0].path, "queue");
  EXPECT_THAT(resolution.problems[0].message, HasSubstr("default"));
  EXPECT_FALSE(resolution.never_fits);
}

TEST(ResolveSpec, TheQueuesLimitsHold) {
  State state = TwoClusters();
  ApplyQueues(&state, Parse<pb::QueueTree>(R"(queues { name: "default" max_time_limit_ns: 1000000000 max_gpus_per_job_milli: 3000
                                              quota { key: "cpu-slot" value { limit_milli: 2000 } } })"));
  const Resolution large = ResolveSpec(state, Spec("workers { min: 4 max: 4 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }"), SpecDefaults{});
  ASSERT_EQ(large.problems.size(), 2u);
  EXPECT_THAT(large.problems[0].message, HasSubstr("limited to 2 cpu-slot"));
  const Resolution longer = ResolveSpec(state, Spec("time_limit_ns: 2000000000"), SpecDefaults{});
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.problems[0].path, "time_limit");
  const Resolution left_out = ResolveSpec(state, Spec(""), SpecDefaults{});
  ASSERT_TRUE(left_out.ok());
  EXPECT_EQ(left_out.resolved.tasks(0).time_limit_ns(), 1000000000);
}

TEST(ResolveQueues, PlainGuaranteesAreSplitOverTheClustersSoThatTheyNest) {
  const State state = TwoClusters();
  const QueueResolution resolution = ResolveQueues(state, Parse<pb::QueueTree>(R"(
    queues { name: "research" quota { key: "cpu-slot" value { guarantee_milli: 2000 guarantee_per_cluster { key: "lab" value: 2000 } } } }
    queues { name: "prod" quota { key: "cpu-slot" value { guarantee_milli: 4000 } }
             queues { name: "serving" quota { key: "cpu-slot" value { guarantee_milli: 2000 guarantee_per_cluster { key: "cloud" value: 2000 } } } } })"));
  ASSERT_TRUE(resolution.ok()) << resolution.problems[0].message;
  const auto& prod = resolution.resolved.queues(1).quota().at("cpu-slot").guarantee_per_cluster();
  EXPECT_EQ(prod.at("lab"), 2000);
  EXPECT_EQ(prod.at("cloud"), 2000);
  EXPECT_EQ(resolution.changes.size(), 3u);
}

TEST(ResolveQueues, GuaranteesThatExceedWhatThereIsAreRefusedWithTheirPlace) {
  const State state = TwoClusters();
  const struct {
    const char* tree;
    const char* path;
    const char* message;
  } kCases[] = {
      {R"(queues { name: "a" quota { key: "cpu-slot" value { guarantee_milli: 7000 } } })", "queues[0].quota.cpu-slot.guarantee", "1 of 7"},
      {R"(queues { name: "a" quota { key: "cpu-slot" value { guarantee_milli: 5000 guarantee_per_cluster { key: "lab" value: 5000 } } } })",
       "queues[0].quota.cpu-slot.guarantee", "in lab exceed what the clusters have there by 1"},
      {R"(queues { name: "a" quota { key: "cpu-slot" value { guarantee_milli: 1000 guarantee_per_cluster { key: "mars" value: 1000 } } } })", "", "mars"},
  };
  for (const auto& c : kCases) {
    const QueueResolution resolution = ResolveQueues(state, Parse<pb::QueueTree>(c.tree));
    ASSERT_FALSE(resolution.ok()) << c.tree;
    if (*c.path != '\0') { EXPECT_EQ(resolution.problems[0].path, c.path); }
    EXPECT_THAT(resolution.problems[0].path + " " + resolution.problems[0].message, HasSubstr(c.message));
  }
}

TEST(Describe, ListedHostsAreShownBeforeTheirAgentsCame) {
  const State state = TwoClusters();
  const pb::Host host = DescribeHost(state, state.FindHost("lab", "h1"));
  EXPECT_EQ(host.name(), "lab/h1");
  EXPECT_EQ(host.state(), pb::HOST_NEVER_SEEN);
  EXPECT_EQ(host.inventory().devices_size(), 2);
  EXPECT_TRUE(host.inventory().declared());
  const pb::Cluster cluster = DescribeCluster(state, 0);
  EXPECT_EQ(cluster.hosts_known(), 2);
  EXPECT_EQ(cluster.hosts_up(), 0);
}

TEST(Describe, TheLedgerNamesAllClasses) {
  const pb::LedgerResponse ledger = DescribeLedger(TwoClusters());
  std::vector<std::string> classes;
  int64_t sum = 0;
  for (const auto& entry : ledger.entries()) {
    classes.push_back(entry.class_());
    sum += entry.device_us();
  }
  EXPECT_THAT(classes, ElementsAre("productive", "restart", "preemption", "reserved", "idle", "down"));
  EXPECT_EQ(sum, ledger.capacity_device_us());
}

TEST(Describe, AnUnknownQueueIsNotFoundAndTheOthersAreNamed) {
  const State state = TwoClusters();
  const auto queue = DescribeQueue(state, Plan{}, "nowhere");
  EXPECT_EQ(queue.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(queue.status().message()), HasSubstr("default"));
}

}  // namespace
}  // namespace muster
