#include "scheduler/ask/ask.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "scheduler/ask/taken.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  ASSERT_TRUE(resolution.ok()) << resolution.problems[0].path << ": "
                               << resolution.problems[0].message;
  pb::Event event;
  *event.mutable_queues_applied()->mutable_tree() = resolution.resolved;
  event.mutable_queues_applied()->set_version(1);
  Apply(state, event);
}

pb::JobSpec Spec(const std::string& more) {
  return Parse<pb::JobSpec>(
      "name: \"j\" queue: \"default\" tasks { name: \"main\" run { shell: \"true\" } " + more +
      " }");
}

TEST(ResolveSpec, ADemandThatNoClusterHoldsIsRefusedWithTheNumbers) {
  const State state = TwoClusters();
  const struct {
    const char* what;
    const char* task;
    const char* want;  // empty: accepted
  } kCases[] = {
      {"fits lab",
       "workers { min: 4 max: 4 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }", ""},
      {"too many workers for any cluster",
       "workers { min: 5 max: 5 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }",
       "5 workers x 1 = 5 cpu-slot in one cluster; lab (cpu-slot) holds 4 workers, cloud "
       "(cpu-slot) holds 2 workers\nIt can start with  workers: 4"},
      {"too many even for its least",
       "workers { min: 5 max: 8 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }",
       "It can start with  workers: 4  or  workers: {min: 4, max: 8}"},
      {"too many in multiples",
       "workers { min: 6 max: 9 multiple_of: 3 } resources { gpus_milli: 1000 gpu_types: "
       "\"cpu-slot\" }",
       "It can start with  workers: 3  or  workers: {min: 3, max: 9, multiple_of: 3}"},
      {"not even one multiple",
       "workers { min: 5 max: 5 multiple_of: 5 } resources { gpus_milli: 1000 gpu_types: "
       "\"cpu-slot\" }",
       "It can't start with 5 workers, as multiple_of asks for; use a multiple_of of at most "},
      {"too many devices for any host",
       "workers { min: 1 max: 1 } resources { gpus_milli: 3000 gpu_types: \"cpu-slot\" }",
       "a worker takes 3 cpu-slot of one host; the largest host has 2 cpu-slot (lab/h1)\nIt can "
       "start with  gpus: 2  and more workers"},
      {"too much memory",
       "workers { min: 1 max: 1 } resources { cpus_milli: 1000 memory_bytes: 99999999999 }",
       "of one host; the largest host has 8GiB (lab/h1)\nIt can start with  memory: 8GiB"},
      {"too many cores", "resources { cpus_milli: 5000 }",
       "a worker takes 5 cores of one host; the largest host has 4 cores (lab/h1)\nIt can start "
       "with  cpus: 4"},
  };
  for (const auto& c : kCases) {
    const Resolution resolution = ResolveSpec(state, Spec(c.task), SpecDefaults{});
    if (*c.want == '\0') {
      EXPECT_TRUE(resolution.ok())
          << c.what << ": " << (resolution.ok() ? "" : resolution.problems[0].message);
    } else {
      ASSERT_FALSE(resolution.ok()) << c.what;
      EXPECT_THAT(resolution.problems[0].message, HasSubstr(c.want)) << c.what;
      EXPECT_TRUE(resolution.never_fits) << c.what;
    }
  }
}

TEST(ResolveSpec, AClusterOfOneUsersCountsForThemAlone) {
  State state = TwoClusters();
  pb::Event event;
  *event.mutable_clusters_configured()->mutable_file() = state.cluster_file();
  event.mutable_clusters_configured()->mutable_file()->mutable_clusters(0)->set_only_user("ann");
  Apply(&state, event);
  const struct {
    const char* owner;
    int workers;  // lab, ann's, has room for 4, cloud for 2
    std::vector<std::string> clusters;
    const char* why;  // empty: accepted
  } cases[] = {
      {"ann", 4, {}, ""},
      {"ann", 4, {"lab"}, ""},
      {"bob", 2, {}, ""},
      {"bob", 4, {}, "cloud holds 2 workers"},
      {"bob", 1, {"cloud", "lab"}, "cluster lab is for jobs of ann alone; leave it out"},
      {"", 4, {}, "cloud holds 2 workers"},
  };
  for (const auto& test : cases) {
    pb::JobSpec spec = Spec(absl::StrCat("workers { min: ", test.workers, " max: ", test.workers,
                                         " } resources { gpus_milli: 1000 gpu_types: "
                                         "\"cpu-slot\" }"));
    for (const std::string& cluster : test.clusters) spec.add_clusters(cluster);
    const Resolution resolution = ResolveSpec(state, spec, SpecDefaults{}, false, test.owner);
    if (*test.why == '\0') {
      EXPECT_TRUE(resolution.ok()) << test.owner << " " << test.workers;
      EXPECT_EQ(resolution.resolved.clusters_size(), static_cast<int>(test.clusters.size()));
      continue;
    }
    ASSERT_EQ(resolution.problems.size(), 1u) << test.owner << " " << test.workers;
    EXPECT_THAT(resolution.problems[0].message, HasSubstr(test.why));
  }
}

TEST(ResolveSpec, WhatNoClusterHoldsYetIsAcceptedWhenItMayWaitForHosts) {
  State state = TwoClusters();
  for (const char* const task :
       {"workers { min: 7 max: 7 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }",
        "resources { gpus_milli: 3000 gpu_types: \"cpu-slot\" }",
        "resources { cpus_milli: 5000 }"}) {
    const Resolution refused = ResolveSpec(state, Spec(task), SpecDefaults{});
    EXPECT_TRUE(refused.never_fits) << task;
    EXPECT_TRUE(refused.may_wait) << task;
    const Resolution waits =
        ResolveSpec(state, Spec(task), SpecDefaults{}, /*wait_for_capacity=*/true);
    EXPECT_TRUE(waits.ok()) << task;
    EXPECT_FALSE(waits.may_wait) << task;
  }
  // A limit of its queue holds whatever comes.
  ApplyQueues(
      &state,
      Parse<pb::QueueTree>(
          R"(queues { name: "default" quota { key: "cpu-slot" value { limit_milli: 2000 } } })"));
  const pb::JobSpec limited =
      Spec("workers { min: 7 max: 7 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }");
  EXPECT_FALSE(ResolveSpec(state, limited, SpecDefaults{}).may_wait);
  const Resolution still = ResolveSpec(state, limited, SpecDefaults{}, /*wait_for_capacity=*/true);
  EXPECT_TRUE(still.never_fits);
  ASSERT_EQ(still.problems.size(), 1u);
  EXPECT_THAT(still.problems[0].message, HasSubstr("limited to 2 cpu-slot"));
}

// lab: 2 x 2 cpu-slot; cloud: 2 x 1 h100; `storages` says which clusters reach the storage of each.
State TwoFlavours(const std::string& storages) {
  State state;
  Apply(&state, Parse<pb::Event>("step { now_ns: 1700000000000000000 epoch: 1 }"));
  Apply(&state, Parse<pb::Event>("clusters_configured { file { " + storages + R"(
      skus { key: "slots" value { flavour: "cpu-slot" gpus: 2 cpus_milli: 4000 memory_bytes: 8589934592 declared: true } }
      skus { key: "gpu" value { flavour: "h100" gpus: 1 cpus_milli: 2000 memory_bytes: 8589934592 } }
      clusters { name: "lab" sku: "slots" job_storage: "a" hosts { name: "h1" } hosts { name: "h2" } }
      clusters { name: "cloud" sku: "gpu" job_storage: "b" hosts { name: "c1" } hosts { name: "c2" } } } })"));
  return state;
}

TEST(ResolveSpec, TasksThatFitOnlyInClustersWithoutACommonStorageAreRefusedTogether) {
  const char* const kApart =
      "storages { key: \"a\" value { path: \"/a\" clusters: \"lab\" } } storages { key: \"b\" "
      "value { path: \"/b\" clusters: \"cloud\" } }";
  const char* const kShared =
      "storages { key: \"a\" value { path: \"/a\" clusters: \"lab\" clusters: \"cloud\" } } "
      "storages { key: \"b\" value { path: \"/b\" clusters: \"cloud\" } }";
  const std::string prepare =
      "tasks { name: \"prepare\" run { shell: \"true\" } resources { cpus_milli: 4000 } } ";  // lab
                                                                                              // only
  const std::string light = "tasks { name: \"prepare\" run { shell: \"true\" } } ";  // both
  const std::string train =
      "tasks { name: \"train\" after: \"prepare\" run { shell: \"true\" } resources { gpus_milli: "
      "1000 gpu_types: \"h100\" } }";
  const struct {
    const char* what;
    const char* storages;
    std::string tasks;
    const char* want;  // part of the refusal; empty: accepted
    std::vector<std::string> clusters;
  } kCases[] = {
      {"each fits alone, not together",
       kApart,
       prepare + train,
       "task prepare fits only in lab and task train fits only in cloud, but tasks of one job "
       "share its directory, and no storage reaches both",
       {}},
      {"one storage reaches both", kShared, prepare + train, "", {}},
      {"one fits in both: the job is kept to where the other fits",
       kApart,
       light + train,
       "",
       {"cloud"}},
      {"all fit everywhere",
       kApart,
       light + "tasks { name: \"b\" run { shell: \"true\" } }",
       "",
       {}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    const Resolution resolution = ResolveSpec(
        TwoFlavours(c.storages), Parse<pb::JobSpec>("name: \"j\" queue: \"default\" " + c.tasks),
        SpecDefaults{});
    if (*c.want != '\0') {
      ASSERT_EQ(resolution.problems.size(), 1u);
      EXPECT_EQ(resolution.problems[0].path, "tasks[1].resources");
      EXPECT_THAT(resolution.problems[0].message, HasSubstr(c.want));
      EXPECT_THAT(resolution.problems[0].message, HasSubstr("submit them as jobs of their own"));
      EXPECT_TRUE(resolution.never_fits);
    } else {
      ASSERT_TRUE(resolution.ok())
          << (resolution.problems.empty() ? "" : resolution.problems[0].message);
      EXPECT_EQ(std::vector<std::string>(resolution.resolved.clusters().begin(),
                                         resolution.resolved.clusters().end()),
                c.clusters);
    }
  }
}

TEST(ResolveSpec, ATrainerJobWaitsUntilSomebodyHasToldTheSchema) {
  State state = TwoClusters();
  pb::JobSpec spec = Spec("");
  spec.mutable_tasks(0)->clear_run();
  spec.mutable_tasks(0)->set_trainer_json("{\"max_steps\":\"many\"}");
  const Resolution early = ResolveSpec(state, spec, SpecDefaults{});
  EXPECT_FALSE(early.ok());
  EXPECT_TRUE(early.problems.empty());
  EXPECT_THAT(early.not_now, HasSubstr("no host with muster-trainer has joined"));
  Apply(
      &state,
      Parse<pb::Event>(
          R"(host_hello { cluster: "lab" host: "h1" state_id: "s" boot_id: "b" inventory { cpus_milli: 1000
      trainer_schema_json: "{\"type\":\"object\",\"properties\":{\"max_steps\":{\"type\":\"integer\"}}}" } })"));
  const Resolution later = ResolveSpec(state, spec, SpecDefaults{});
  EXPECT_EQ(later.not_now, "");
  ASSERT_FALSE(later.problems.empty()) << "now it is checked";
  EXPECT_EQ(later.problems[0].path, "trainer.max_steps");
}

TEST(ResolveSpec, ATrainersLayoutSaysWhichRanksBelongTogether) {
  State state = TwoClusters();
  Apply(&state, Parse<pb::Event>(R"(
    host_hello { cluster: "cloud" host: "c1" state_id: "s" boot_id: "b" inventory {
      cpus_milli: 1000 trainer_schema_json: "{\"type\":\"object\"}" } })"));
  const auto resolve = [&](const char* trainer, const char* workers) {
    pb::JobSpec spec =
        Spec(std::string(workers) + " resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }");
    spec.mutable_tasks(0)->clear_run();
    spec.mutable_tasks(0)->set_trainer_json(trainer);
    return ResolveSpec(state, spec, SpecDefaults{});
  };
  const Resolution two = resolve(R"({"parallel": {"tp": 2}})", "workers { min: 2 max: 4 }");
  ASSERT_TRUE(two.ok()) << (two.problems.empty() ? two.not_now : two.problems[0].message);
  const pb::TaskSpec& task = two.resolved.tasks(0);
  EXPECT_EQ(task.workers().multiple_of(), 2);
  ASSERT_EQ(task.topology().blocks_size(), 1);
  EXPECT_EQ(task.topology().blocks(0).gpus(), 2);
  EXPECT_EQ(task.topology().blocks(0).preferred(), pb::ISLAND);
  EXPECT_EQ(task.topology().blocks(0).required(), pb::TOPOLOGY_LEVEL_UNSPECIFIED);
  const Resolution eight = resolve(R"({"parallel": {"tp": 8}})", "workers { min: 8 max: 8 }");
  ASSERT_EQ(eight.problems.size(), 1u);
  EXPECT_THAT(eight.problems[0].message,
              HasSubstr("It can't start with fewer than 8 workers, which one replica of the model "
                        "takes (trainer.parallel); share the model out among fewer ranks"));
  const char* const kBlocks =
      "workers { min: 8 max: 8 } topology { blocks { gpus: 2 preferred: HOST } }";
  const Resolution blocks = resolve(R"({"parallel": {"pp": 8}})", kBlocks);
  ASSERT_EQ(blocks.problems.size(), 1u);
  EXPECT_THAT(blocks.problems[0].message,
              HasSubstr("It can't start with fewer than 8 workers, which one replica of the model "
                        "takes in whole blocks of ranks (trainer.parallel, topology.blocks); share "
                        "the model out among fewer ranks, or use smaller blocks"));
  const Resolution command = ResolveSpec(
      state,
      Spec("workers { min: 8 max: 8 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" } "
           "topology { blocks { gpus: 8 preferred: HOST } }"),
      SpecDefaults{});
  ASSERT_EQ(command.problems.size(), 1u);
  EXPECT_THAT(command.problems[0].message,
              HasSubstr("It can't start with fewer than 8 workers, which one block of ranks takes "
                        "(topology.blocks); use smaller blocks"));
}

TEST(ResolveSpec, WhatBeginsFromCheckpointsIsKeptToClustersThatReachThem) {
  State state;
  Apply(&state, Parse<pb::Event>("step { now_ns: 1700000000000000000 epoch: 1 }"));
  Apply(&state, Parse<pb::Event>(R"(
    clusters_configured { file {
      skus { key: "slots" value { flavour: "cpu-slot" gpus: 2 cpus_milli: 4000 memory_bytes: 8589934592 } }
      storages { key: "near" value { path: "/near" clusters: "lab" } }
      storages { key: "own" value { path: "/home/{user}/muster" clusters: "cloud" } }
      storages { key: "wide" value { url: "s3://wide/a/" clusters: "lab" clusters: "cloud" } }
      clusters { name: "lab" sku: "slots" hosts { name: "h1" } }
      clusters { name: "cloud" sku: "slots" hosts { name: "c1" } } } })"));
  const struct {
    const char* paths;
    std::vector<std::string> clusters;  // empty: all of them
  } kCases[] = {
      {R"("/near/jobs/7/step-1")", {"lab"}},
      {R"("/home/ann/muster/jobs/7/step-1")", {"cloud"}},
      {R"("s3://wide/a/jobs/7/step-1")", {}},
      {R"("s3://wide/abc/step-1")", {}},
      {R"("/nearby/step-1")", {}},
      {R"("/near/step-2", "s3://wide/a/step-1")", {}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.paths);
    const Resolution resolution = ResolveSpec(
        state, Spec(absl::StrCat("checkpoint { resume_from: [", c.paths, "] }")), SpecDefaults{});
    ASSERT_TRUE(resolution.ok()) << resolution.problems[0].message;
    EXPECT_THAT(resolution.resolved.clusters(), ::testing::ElementsAreArray(c.clusters));
  }
  pb::JobSpec spec = Spec(R"(checkpoint { resume_from: "/near/step-1" })");
  spec.add_clusters("cloud");
  const Resolution nowhere = ResolveSpec(state, spec, SpecDefaults{});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.problems[0].path, "checkpoint.resume_from");
  EXPECT_EQ(nowhere.problems[0].message,
            "they lie in storage near, which none of the job's clusters reaches: cloud");
}

TEST(ResolveSpec, WhatToBeginFromIsPathsThatAProgramCanBeTold) {
  const State state = TwoClusters();
  for (const char* path : {"step-1", "", "/a,b"}) {
    const Resolution resolution = ResolveSpec(
        state, Spec(absl::StrCat("checkpoint { resume_from: \"", path, "\" }")), SpecDefaults{});
    ASSERT_FALSE(resolution.ok()) << path;
    EXPECT_THAT(resolution.problems[0].message, HasSubstr("absolute paths or URLs"));
  }
  pb::JobSpec spec = Spec("");
  for (int i = 0; i < 17; ++i)
    spec.mutable_tasks(0)->mutable_checkpoint()->add_resume_from(absl::StrCat("/", i));
  EXPECT_THAT(ResolveSpec(state, spec, SpecDefaults{}).problems[0].message,
              HasSubstr("at most 16; got 17"));
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
  ApplyQueues(
      &state,
      Parse<pb::QueueTree>(
          R"(queues { name: "default" max_time_limit_ns: 1000000000 max_gpus_per_job_milli: 3000
                                              quota { key: "cpu-slot" value { limit_milli: 2000 } } })"));
  const Resolution large = ResolveSpec(
      state,
      Spec("workers { min: 4 max: 4 } resources { gpus_milli: 1000 gpu_types: \"cpu-slot\" }"),
      SpecDefaults{});
  ASSERT_EQ(large.problems.size(), 2u);
  EXPECT_THAT(large.problems[0].message, HasSubstr("limited to 2 cpu-slot"));
  const Resolution longer = ResolveSpec(state, Spec("time_limit_ns: 2000000000"), SpecDefaults{});
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.problems[0].path, "time_limit");
  const Resolution left_out = ResolveSpec(state, Spec(""), SpecDefaults{});
  ASSERT_TRUE(left_out.ok());
  EXPECT_EQ(left_out.resolved.tasks(0).time_limit_ns(), 1000000000);
}

// lab: two racks of two hosts x 2 h100 in one block, and a host of 2 a100 in another; queue `small`
// is limited to 2 a100 and 2 cores.
TEST(ResolveSpec, WhatNoDomainOrNoLimitedFlavourHoldsIsRefused) {
  State state;
  Apply(&state, Parse<pb::Event>("step { now_ns: 1700000000000000000 epoch: 1 }"));
  Apply(&state, Parse<pb::Event>(R"(clusters_configured { file {
      skus { key: "h" value { flavour: "h100" gpus: 2 cpus_milli: 4000 memory_bytes: 8589934592 } }
      skus { key: "a" value { flavour: "a100" gpus: 2 cpus_milli: 4000 memory_bytes: 8589934592 } }
      clusters { name: "lab" hosts { name: "h1" block: "b" rack: "r1" sku: "h" } hosts { name: "h2" block: "b" rack: "r1" sku: "h" }
                 hosts { name: "h3" block: "b" rack: "r2" sku: "h" } hosts { name: "h4" block: "b" rack: "r2" sku: "h" }
                 hosts { name: "a1" block: "c" rack: "r1" sku: "a" } } } })"));
  ApplyQueues(&state, Parse<pb::QueueTree>(R"(queues { name: "default" }
      queues { name: "small" quota { key: "h100" value { limit_milli: 4000 } } quota { key: "a100" value { limit_milli: 1000 } }
                             quota { key: "cpu" value { limit_milli: 2000 } } max_gpus_per_job_milli: 4000 })"));
  const std::string h100 = "resources { gpus_milli: 2000 gpu_types: \"h100\" } ",
                    one = "resources { gpus_milli: 1000 gpu_types: \"h100\" } ";
  const struct {
    const char* what;
    const char* queue;
    std::string task;
    const char* want;  // part of the refusal; empty: accepted
  } kCases[] = {
      {"a rack holds two", "default",
       h100 + "workers { min: 2 max: 2 } topology { required: RACK }", ""},
      {"a rack doesn't hold three", "default",
       h100 + "workers { min: 3 max: 3 } topology { required: RACK }",
       "3 workers x 2 = 6 h100 in one rack; lab holds 2 workers in one rack\nIt can start with  "
       "workers: 2, or with a wider topology.required"},
      {"the block holds four", "default",
       h100 + "workers { min: 4 max: 4 } topology { required: BLOCK }", ""},
      {"a block doesn't hold five", "default",
       h100 + "workers { min: 5 max: 5 } topology { required: BLOCK }",
       "in one block; lab holds 4 workers in one block"},
      {"a host holds two", "default", one + "workers { min: 2 max: 2 } topology { required: HOST }",
       ""},
      {"a host doesn't hold three", "default",
       one + "workers { min: 3 max: 3 } topology { required: ISLAND }",
       "in one island; lab holds 2 workers in one island"},
      {"a host holds each block of two", "default",
       one + "workers { min: 8 max: 8 } topology { blocks { gpus: 2 required: HOST } }", ""},
      {"an island, which a host is here, holds each block of two", "default",
       one + "workers { min: 8 max: 8 } topology { blocks { gpus: 2 required: ISLAND } }", ""},
      {"no host holds a block of four", "default",
       one + "workers { min: 4 max: 4 } topology { blocks { gpus: 4 required: HOST } }",
       "lab holds its 4 workers, but not in blocks of 4 GPUs within one host each, as "
       "topology.blocks says\nIt can start with  smaller blocks, wider levels, or preferred in "
       "place of required"},
      {"nor all of it, if blocks were none", "default",
       one + "workers { min: 16 max: 16 } topology { blocks { gpus: 4 required: HOST } }",
       "no cluster holds a block of ranks of 4 workers (topology.blocks), and its 16 workers don't "
       "fit\nUse smaller blocks or wider levels, and fewer workers"},
      {"a wish is none", "default",
       one + "workers { min: 4 max: 4 } topology { blocks { gpus: 4 preferred: HOST } }", ""},
      {"each rack holds one block", "default",
       one +
           "workers { min: 8 max: 8 } topology { blocks { gpus: 2 required: HOST } blocks { gpus: "
           "4 required: RACK } }",
       ""},
      {"within one rack only one block", "default",
       one + "workers { min: 8 max: 8 } topology { required: RACK blocks { gpus: 4 required: RACK "
             "} }",
       "8 workers x 1 = 8 h100 in one rack; lab holds 4 workers in one rack"},
      {"the flavour with room is limited, the other too few", "small",
       "resources { gpus_milli: 2000 gpu_types: \"h100\" gpu_types: \"a100\" } workers { min: 2 "
       "max: 2 }",
       ""},
      {"no flavour is both admitted and large enough", "small",
       "resources { gpus_milli: 3000 gpu_types: \"a100\" gpu_types: \"h100\" }",
       "a worker takes 3 a100 or h100 of one host; the largest host has 2"},
      {"each flavour is limited somewhere", "small",
       "resources { gpus_milli: 1000 gpu_types: \"a100\" } workers { min: 2 max: 2 }",
       "it needs 2; queue small is limited to 1 a100"},
      {"more cores than the queue may ever use", "small", "resources { cpus_milli: 3000 }",
       "it needs 3 cores; queue small is limited to 2 cpu"},
      {"larger, when it has grown, than a job may be", "small", one + "workers { min: 1 max: 5 }",
       "the job may hold 5 GPUs at its largest; queue small allows a job 4"},
      {"as large as a job may be", "small", one + "workers { min: 1 max: 4 }", ""},
  };
  for (const auto& c : kCases) {
    pb::JobSpec spec = Spec(c.task);
    spec.set_queue(c.queue);
    const Resolution resolution = ResolveSpec(state, spec, SpecDefaults{});
    EXPECT_EQ(resolution.ok(), *c.want == 0)
        << c.what << ": " << (resolution.ok() ? "" : resolution.problems[0].message);
    if (!resolution.ok()) {
      EXPECT_THAT(resolution.problems[0].message, HasSubstr(c.want)) << c.what;
    }
  }
  pb::JobSpec chain = Parse<pb::JobSpec>("name: \"j\" queue: \"small\" ");
  for (const char* name : {"first", "second"}) {
    pb::TaskSpec* task = chain.add_tasks();
    *task = Spec(one + "workers { min: 3 max: 3 }").tasks(0);
    task->set_name(name);
  }
  const Resolution together = ResolveSpec(state, chain, SpecDefaults{});
  ASSERT_EQ(together.problems.size(), 2u);
  EXPECT_THAT(together.problems[1].message, HasSubstr("the job may hold 6 GPUs"));
  chain.mutable_tasks(1)->add_after("first");
  EXPECT_TRUE(ResolveSpec(state, chain, SpecDefaults{}).ok()) << "one after the other";
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
  State state = TwoClusters();
  pb::Event configured;  // with SKUs that no host is of yet
  *configured.mutable_clusters_configured()->mutable_file() = state.cluster_file();
  for (const char* flavour : {"h100-80g", "h200"})
    (*configured.mutable_clusters_configured()->mutable_file()->mutable_skus())[flavour]
        .set_flavour(flavour);
  Apply(&state, configured);
  const struct {
    const char* tree;
    const char* path;
    const char* message;
  } kCases[] = {
      {R"(queues { name: "a" quota { key: "cpu-slot" value { guarantee_milli: 7000 } } })",
       "queues[0].quota.cpu-slot.guarantee", "1 of 7"},
      {R"(queues { name: "a" quota { key: "h100-80g" value { guarantee_milli: 1000 } } })",
       "queues[0].quota.h100-80g.guarantee", "no cluster has any h100-80g"},
      {R"(queues { name: "a" quota { key: "cpu-slot" value { guarantee_milli: 5000 guarantee_per_cluster { key: "lab" value: 5000 } } } })",
       "queues[0].quota.cpu-slot.guarantee", "in lab exceed what the clusters have there by 1"},
      {R"(queues { name: "a" quota { key: "cpu-slot" value { guarantee_milli: 1000 guarantee_per_cluster { key: "mars" value: 1000 } } } })",
       "", "mars"},
      {R"(queues { name: "a" quota { key: "h200" value { guarantee_milli: 1000 guarantee_per_cluster { key: "lab" value: 1000 } } } })",
       "queues[0].quota.h200.guarantee",
       "no cluster has any h200. What there is: muster cluster list"},
  };
  for (const auto& c : kCases) {
    const QueueResolution resolution = ResolveQueues(state, Parse<pb::QueueTree>(c.tree));
    ASSERT_FALSE(resolution.ok()) << c.tree;
    if (*c.path != '\0') {
      EXPECT_EQ(resolution.problems[0].path, c.path);
    }
    EXPECT_THAT(resolution.problems[0].path + " " + resolution.problems[0].message,
                HasSubstr(c.message));
  }
}

TEST(ResolveQueues, AFlavourThatNobodyHasIsRefusedUnlessAnOpenClusterMayBringIt) {
  const State listed = TwoClusters();
  const auto open = [](const char* cluster,
                       const char*
                           flavour) {  // flavour: of the host that has joined; "-": none has
    State state;
    Apply(&state, Parse<pb::Event>(absl::StrCat(R"(clusters_configured { file {
      skus { key: "slots" value { flavour: "cpu-slot" gpus: 2 cpus_milli: 4000 } }
      clusters { name: "home" open: true )",
                                                cluster, " } } }")));
    pb::Event joined = Parse<pb::Event>(
        R"(host_hello { cluster: "home" host: "h" state_id: "s" boot_id: "b" inventory { cpus_milli: 1000 } })");
    joined.mutable_host_hello()->mutable_inventory()->set_flavour(flavour);
    if (*flavour != '\0') joined.mutable_host_hello()->mutable_inventory()->add_devices();
    if (*flavour != '-') Apply(&state, joined);
    return state;
  };
  const char* const kLimit =
      R"(queues { name: "a" queues { name: "b" quota { key: "cpu-slt" value { limit_milli: 2000 } } } })";
  const char* const kWeight =
      R"(queues { name: "a" quota { key: "cpu-slot" value { weight: 2 } } quota { key: "h100" value { weight: 2 } } })";
  const char* const kNear =
      "queues[0].queues[0].quota.cpu-slt: no flavour \"cpu-slt\" here. Did you mean cpu-slot? One "
      "still to come needs a SKU in the clusters file";
  const char* const kFar =
      "queues[0].quota.h100: no flavour \"h100\" here; known are cpu, cpu-slot. One still to come "
      "needs a SKU in the clusters file";
  State in_force = listed;
  pb::Event applied;  // before that flavour went from the clusters file
  *applied.mutable_queues_applied()->mutable_tree() = Parse<pb::QueueTree>(kLimit);
  Apply(&in_force, applied);
  const struct {
    const char* what;
    State state;
    const char* tree;
    std::string want;  // empty: accepted
  } kCases[] = {
      {"only a limit", listed, kLimit, kNear},
      {"only a weight", listed, kWeight, kFar},
      {"of a SKU, before any host came", listed,
       R"(queues { name: "a" quota { key: "cpu-slot" value { limit_milli: 2000 } } })", ""},
      {"CPUs are everywhere", listed,
       R"(queues { name: "a" quota { key: "cpu" value { limit_milli: 2000 } } })", ""},
      {"before the first host of an open cluster", open("", "-"), kLimit, ""},
      {"that has a host without devices", open("", ""), kWeight, ""},
      {"that has a host with others", open("", "cpu-slot"), kLimit, kNear},
      {"of such a host, not of a SKU", open("", "h100"), kWeight, ""},
      {"that names a SKU", open("sku: \"slots\"", "-"), kWeight, kFar},
      {"no cluster at all", State(), kLimit, ""},
      {"of the tree in force", in_force, kLimit, ""},
  };
  for (const auto& c : kCases) {
    std::string problems;
    for (const FieldProblem& problem :
         ResolveQueues(c.state, Parse<pb::QueueTree>(c.tree)).problems)
      absl::StrAppend(&problems, problem.path, ": ", problem.message);
    EXPECT_EQ(problems, c.want) << c.what;
  }
}

TEST(ResolveQueues, ChangesSayWhatDiffersAndNothingElse) {
  State state = TwoClusters();
  const char* const kTree =
      R"(queues { name: "a" submit: "*" quota { key: "cpu-slot" value { guarantee_milli: 2000 limit_milli: 4000 weight: 1 } } })";
  ApplyQueues(&state, Parse<pb::QueueTree>(kTree));
  const struct {
    const char* tree;
    std::vector<std::string> changes;
  } kCases[] = {
      {kTree, {}},
      {R"(queues { name: "a" submit: "*" quota { key: "cpu-slot" value { guarantee_milli: 2000 limit_milli: 4000 } } })",
       {}},
      {R"(queues { name: "a" submit: "*" quota { key: "cpu-slot" value { guarantee_milli: 2000 limit_milli: 4000 weight: 2 } } })",
       {"~ a: cpu-slot guarantee 2 limit 4 -> cpu-slot guarantee 2 limit 4 weight 2"}},
      {R"(queues { name: "a" submit: "ann" held: true quota { key: "cpu-slot" value { guarantee_milli: 2000 limit_milli: 4000 } } })",
       {"~ a: submit [*] -> [ann]; held no -> yes"}},
      {R"(queues { name: "a" submit: "*" quota { key: "cpu-slot" value { guarantee_milli: 2000 limit_milli: 4000 guarantee_per_cluster { key: "cloud" value: 2000 } } } })",
       {"~ a: cpu-slot guarantee 2 limit 4 (2 in lab) -> cpu-slot guarantee 2 limit 4 (2 in "
        "cloud)"}},
  };
  for (const auto& c : kCases)
    EXPECT_EQ(ResolveQueues(state, Parse<pb::QueueTree>(c.tree)).changes, c.changes) << c.tree;
}

TEST(ResolveQueues, EveryQueueThatWouldLoseItsUnfinishedJobsIsNamed) {
  testing::SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 2).Queue("a").Queue("b").Queue("c");
  const uint64_t first = testing::JobBuilder("a").SubmitTo(&s);
  testing::JobBuilder("a").SubmitTo(&s);
  const uint64_t other = testing::JobBuilder("b").SubmitTo(&s);
  const QueueResolution resolution =
      ResolveQueues(s.state, Parse<pb::QueueTree>("queues { name: \"c\" }"));
  ASSERT_EQ(resolution.problems.size(), 2u);
  EXPECT_EQ(resolution.problems[0].path, "a");
  EXPECT_THAT(resolution.problems[0].message,
              HasSubstr(absl::StrCat("has 2 unfinished jobs (job ", first, " among them)")));
  EXPECT_THAT(resolution.problems[1].message,
              HasSubstr(absl::StrCat("has 1 unfinished job (job ", other, ")")));
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

TEST(Describe, ARemovedHostIsNoneOfItsClusterAnyMore) {
  testing::SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 2, "gpu", "r1").Hosts("lab", 1, 2).Close("lab");
  EXPECT_EQ(DescribeCluster(s.state, 0).hosts_known(), 2) << "it is heard from";
  s.HostState("lab", "h01", pb::HOST_UNREACHABLE);
  EXPECT_EQ(DescribeCluster(s.state, 0).hosts_known(), 1);
  s.HostState("lab", "h00", pb::HOST_UNREACHABLE);
  EXPECT_EQ(DescribeCluster(s.state, 0).hosts_known(), 1) << "it is listed";
}

TEST(Describe, WhatIsFreeOnDrainedHostsIsCountedApart) {
  testing::SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 2).Queue("research", 4);
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s);
  s.Do(testing::Placed(s.state, job, "lab", {{"h00", {0}}}));
  EXPECT_EQ(DescribeCluster(s.state, 0).capacity(0).drained_milli(), 0);
  for (const char* host : {"lab/h00", "lab/h01"}) {
    pb::Event event;
    event.mutable_drain_changed()->set_target(host);
    event.mutable_drain_changed()->set_drained(true);
    s.Do(event);
  }
  const pb::Capacity capacity = DescribeCluster(s.state, 0).capacity(0);
  EXPECT_EQ(capacity.total_milli(), 4000);
  EXPECT_EQ(capacity.used_milli(), 1000);
  EXPECT_EQ(capacity.drained_milli(), 3000);
}

TEST(Evictions, AreWhatTheNextDecisionTakesBecauseOfTheTree) {
  testing::SystemBuilder s;
  s.Cluster("lab", "disk").Hosts("lab", 1, 4).Queue("research").Queue("prod");
  const uint64_t borrower = testing::JobBuilder("research").Workers(4).SubmitTo(&s);
  s.Do(testing::Placed(s.state, borrower, "lab", {{"h00", {0, 1, 2, 3}, 4}}));
  testing::StartAll(&s, borrower);
  testing::JobBuilder("prod").Workers(2).SubmitTo(&s);
  s.Step(60);
  pb::QueueTree tree = s.state.queue_tree();
  EXPECT_TRUE(Evictions(s.state, tree, s.now_ns, SchedulingOptions{}).empty()) << "as things are";
  auto& quota = *tree.mutable_queues(1)->mutable_quota();
  quota["gpu"].set_guarantee_milli(4000);
  (*quota["gpu"].mutable_guarantee_per_cluster())["lab"] = 4000;
  const auto evicted = Evictions(s.state, tree, s.now_ns, SchedulingOptions{});
  ASSERT_EQ(evicted.size(), 1u);
  EXPECT_EQ(evicted[0].job(), borrower);
  EXPECT_EQ(evicted[0].gpus_milli(), 4000);
  EXPECT_EQ(evicted[0].outcome(), "waits, and starts over: it has no checkpoint");
}

TEST(Describe, TheLedgerNamesAllClasses) {
  const pb::LedgerResponse ledger = DescribeLedger(TwoClusters());
  std::vector<std::string> classes;
  int64_t sum = 0;
  for (const auto& entry : ledger.entries()) {
    classes.push_back(entry.class_());
    sum += entry.device_us();
  }
  EXPECT_THAT(classes, ElementsAre("productive", "restart", "preemption", "reserved", "fragmented",
                                   "idle", "down"));
  EXPECT_EQ(sum, ledger.capacity_device_us());
}

TEST(Describe, AQueueCountsTheJobsOfAllBelowItAndNobodyElses) {
  testing::SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("ml").Queue("ml/nlp").Queue("ml/vision").Queue("mlops");
  const uint64_t runs = testing::JobBuilder("ml/nlp").SubmitTo(&s);
  s.Do(testing::Placed(s.state, runs, "lab", {{"h00", {0}}}));
  testing::JobBuilder("ml/nlp").SubmitTo(&s);
  testing::JobBuilder("ml/vision").SubmitTo(&s);
  testing::JobBuilder("mlops").SubmitTo(&s);
  s.Cancel(testing::JobBuilder("ml/vision").SubmitTo(&s));
  std::vector<std::string> told;
  for (const pb::Queue& queue : DescribeQueues(s.state, Plan{})) {
    told.push_back(
        absl::StrCat(queue.path(), " ", queue.running_jobs(), " ", queue.waiting_jobs()));
  }
  EXPECT_THAT(told, ElementsAre("ml 1 2", "ml/nlp 1 1", "ml/vision 0 1", "mlops 0 1"));
  EXPECT_EQ(DescribeQueue(s.state, Plan{}, "ml")->waiting_jobs(), 2);
}

TEST(Describe, WhatADrainMovesIsWhatIsThereStill) {
  testing::SystemBuilder s;
  s.Cluster("lab").Cluster("cloud").Hosts("lab", 2, 4).Hosts("cloud", 1, 4).Queue("research");
  const auto runs = [&](const std::string& cluster, const std::vector<testing::On>& parts,
                        int workers) {
    const uint64_t job = testing::JobBuilder("research").Workers(workers).SubmitTo(&s);
    s.Do(testing::Placed(s.state, job, cluster, parts));
    return job;
  };
  const uint64_t gang = runs("lab", {{"h00", {0}}, {"h01", {0}}}, 2);
  const uint64_t second = runs("lab", {{"h01", {1}}}, 1);
  const uint64_t elsewhere = runs("cloud", {{"h02", {0}}}, 1);
  const uint64_t ended = runs("lab", {{"h01", {2}}}, 1);
  testing::JobBuilder("research").SubmitTo(&s);
  testing::StartAll(&s, ended);
  testing::ReportAll(&s, ended, pb::GONE, 0);
  EXPECT_THAT(JobsOn(s.state, "lab"), ElementsAre(gang, second));
  EXPECT_THAT(JobsOn(s.state, "lab/h00"), ElementsAre(gang));
  EXPECT_THAT(JobsOn(s.state, "lab/h01"), ElementsAre(gang, second));
  EXPECT_THAT(JobsOn(s.state, "cloud"), ElementsAre(elsewhere));
  s.Do(testing::Report(s.state, gang, 0, 1, 0, pb::GONE));
  EXPECT_THAT(JobsOn(s.state, "lab/h00"), ElementsAre()) << "its part there is over";
  EXPECT_THAT(JobsOn(s.state, "lab/h02"), ElementsAre());
  EXPECT_THAT(JobsOn(s.state, "nowhere"), ElementsAre());
}

TEST(Describe, AnUnknownQueueIsNotFoundAndTheOthersAreNamed) {
  const State state = TwoClusters();
  const auto queue = DescribeQueue(state, Plan{}, "nowhere");
  EXPECT_EQ(queue.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(queue.status().message()), HasSubstr("default"));
}

}  // namespace
}  // namespace muster
