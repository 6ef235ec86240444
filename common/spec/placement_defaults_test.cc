#include "common/spec/placement_defaults.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

struct Given {
  const char* name;
  const char* trainer;  // "": it runs a command
  int min_workers, max_workers, gpus;
  const char* want;     // as PlacementText says it
  int multiple_of = 0;  // 0 here and below: left out
  int processes = 0;
  int block = 0;  // GPUs of the one that its file requires on one host
};

pb::JobSpec SpecOf(const Given& given) {
  pb::JobSpec spec;
  spec.set_name("j");
  spec.set_queue("research");
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  task->set_trainer_json(given.trainer);
  if (task->trainer_json().empty()) task->mutable_run()->set_shell("true");
  task->mutable_workers()->set_min(given.min_workers);
  task->mutable_workers()->set_max(given.max_workers);
  task->mutable_workers()->set_multiple_of(given.multiple_of);
  task->set_processes_per_worker(given.processes);
  if (given.gpus > 0) {
    task->mutable_resources()->set_gpus_milli(1'000 * given.gpus);
    task->mutable_resources()->add_gpu_types("h100-80g");
  }
  if (given.block > 0) {
    pb::RankBlock* block = task->mutable_topology()->add_blocks();
    block->set_gpus(given.block);
    block->set_required(pb::HOST);
  }
  return spec;
}

// "by 8; 2 island, 8 host": wishes; "by 8; 8 required".
std::string PlacementText(const pb::TaskSpec& task) {
  std::string text;
  if (task.workers().multiple_of() != 0) text = absl::StrCat("by ", task.workers().multiple_of());
  const char* between = "; ";
  for (const pb::RankBlock& block : task.topology().blocks()) {
    absl::StrAppend(&text, between, block.gpus(),
                    block.preferred() == pb::ISLAND ? " island"
                    : block.preferred() == pb::HOST ? " host"
                                                    : " required");
    between = ", ";
  }
  return text;
}

const std::vector<Given>& Cases() {
  static const std::vector<Given> cases = {
      {"no trainer", "", 4, 8, 1, ""},
      {"no layout", R"({"max_steps": 1})", 4, 8, 1, ""},
      {"slices over workers", R"({"parallel": {"tp": 4}})", 4, 8, 1, "by 4; 4 island"},
      {"of a fixed gang", R"({"parallel": {"tp": 4}})", 8, 8, 1, "by 4; 4 island"},
      {"within a worker", R"({"parallel": {"tp": 4}})", 1, 7, 8, ""},
      {"as large as a worker", R"({"parallel": {"tp": 2, "cp": 4}})", 1, 7, 8, ""},
      {"workers of several GPUs", R"({"parallel": {"tp": 8}})", 2, 8, 4, "by 2; 8 island"},
      {"slices and parts of rows", R"({"parallel": {"tp": 2, "cp": 4}})", 8, 16, 1,
       "by 8; 2 island, 8 host"},
      {"slices within a worker, parts not", R"({"parallel": {"tp": 2, "cp": 4}})", 4, 8, 2,
       "by 4; 8 host"},
      {"parts of rows alone", R"({"parallel": {"cp": 2}})", 2, 4, 1, "by 2; 2 host"},
      {"stages are no block", R"({"parallel": {"tp": 4, "pp": 2}})", 2, 6, 4, "by 2"},
      {"a replica is larger than a block", R"({"parallel": {"tp": 2, "pp": 3}})", 6, 12, 1,
       "by 6; 2 island"},
      {"experts", R"({"parallel": {"ep": 8}})", 2, 4, 4, "by 2"},
      {"experts beside slices", R"({"parallel": {"ep": 3, "tp": 2}})", 6, 6, 1, "by 6; 2 island"},
      {"ranks that share one copy", R"({"shard_size": 8})", 2, 4, 4, "by 2"},
      {"the trainer chooses", R"({"parallel": "auto", "shard_size": 8})", 2, 4, 4, ""},
      {"sizes that are no replicas", R"({"parallel": {"tp": 4}})", 2, 6, 1, ""},
      {"steps that are no replicas", R"({"parallel": {"tp": 4}})", 4, 8, 1, "by 2", 2},
      {"steps of several replicas", R"({"parallel": {"tp": 4}})", 8, 16, 1, "by 8; 4 island", 8},
      {"no GPUs", R"({"parallel": {"tp": 2}})", 2, 4, 0, "by 2"},
      {"ranks of two GPUs", R"({"parallel": {"tp": 8}})", 2, 4, 8, "by 2; 16 island", 0, 4},
      {"no whole workers", R"({"parallel": {"tp": 6}})", 3, 6, 4, "by 3"},
      {"too many for a block", R"({"parallel": {"tp": 131072}})", 131'072, 131'072, 1, ""},
      {"no numbers", R"({"parallel": {"tp": "many", "cp": [2], "pp": -1}})", 4, 8, 1, ""},
      {"no ranks", R"({"parallel": {"tp": 16777216, "cp": 16777216}})", 4, 8, 1, ""},
      {"nor these", R"({"parallel": {"tp": 1e300, "pp": 1e12}})", 4, 8, 1, ""},
      {"no layout at all", R"({"parallel": [2]})", 4, 8, 1, ""},
      {"the file's own block", R"({"parallel": {"tp": 2, "pp": 4}})", 16, 32, 1, "by 8; 8 required",
       0, 0, 8},
      {"replicas that make whole blocks", R"({"parallel": {"tp": 4}})", 12, 24, 1,
       "by 12; 6 required", 0, 0, 6},
      {"whose replicas don't fit", R"({"parallel": {"pp": 8}})", 4, 8, 1, "by 4; 4 required", 0, 0,
       4},
      {"a command's own block", "", 4, 8, 1, "by 4; 4 required", 0, 0, 4},
  };
  return cases;
}

TEST(FillPlacement, WhatAFileLeavesOutFollowsFromTheTrainersLayout) {
  for (const Given& given : Cases()) {
    SCOPED_TRACE(given.name);
    const pb::JobSpec spec = SpecOf(given);
    pb::JobSpec filled = spec;
    ApplyDefaults(&filled);
    EXPECT_EQ(PlacementText(filled.tasks(0)), given.want);
    EXPECT_EQ(CheckSpec(filled).size(), CheckSpec(spec).size())
        << "what is filled in is no mistake of the file's";
    pb::JobSpec again = filled;
    ApplyDefaults(&again);
    EXPECT_EQ(PlacementText(again.tasks(0)), given.want);
  }
}

TEST(FillPlacement, IsTakenAwayAgainButForTheFilesOwnWords) {
  for (const Given& given : Cases()) {
    SCOPED_TRACE(given.name);
    const pb::JobSpec spec = SpecOf(given);
    pb::JobSpec filled = spec;
    ApplyDefaults(&filled);
    EXPECT_EQ(PlacementText(WithoutFilledPlacement(filled, filled.tasks(0))),
              PlacementText(spec.tasks(0)));
  }
}

TEST(FillPlacement, OnlyWhatWasFilledInForAnotherLayoutIsLeftOut) {
  const struct {
    const char* trainer;  // the changed one
    int max_workers, multiple_of;
    const char* kept;
  } cases[] = {
      {R"({"parallel": {"tp": 2}})", 16, 0, "by 2; 2 island"},
      {R"({"parallel": {"tp": 2}, "max_steps": 9})", 16, 0, "by 2; 2 island"},
      {R"({"parallel": {"tp": 2}})", 24, 0, "by 2; 2 island"},
      {R"({"parallel": {"tp": 4}})", 16, 0, ""},
      {R"({"parallel": {"tp": 1}})", 16, 0, ""},
      {R"({"parallel": {"tp": 2}})", 17, 0, ""},
      {R"({"parallel": {"tp": 4}})", 16, 8, "by 8"},
      {R"({"parallel": {"tp": 2}})", 16, 8, "by 8; 2 island"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.trainer, " ", c.max_workers, " ", c.multiple_of));
    pb::JobSpec spec = SpecOf({"", R"({"parallel": {"tp": 2}})", 8, 16, 1, "", c.multiple_of});
    ApplyDefaults(&spec);
    pb::JobSpec changed = WithoutFilledPlacements(spec);
    changed.mutable_tasks(0)->set_trainer_json(c.trainer);
    changed.mutable_tasks(0)->mutable_workers()->set_max(c.max_workers);
    const pb::JobSpec kept = WithoutOutdatedPlacements(spec, changed);
    EXPECT_EQ(PlacementText(kept.tasks(0)), c.kept);
    EXPECT_EQ(kept.tasks(0).trainer_json(), spec.tasks(0).trainer_json());
  }
}

// Before islands were wished, hosts were; and a job's own block of that size is no wish of ours.
TEST(FillPlacement, WhatReleasesBeforeFilledInIsKnownAgain) {
  const struct {
    pb::TopologyLevel preferred, required;
    const char* bare;
  } cases[] = {
      {pb::ISLAND, pb::TOPOLOGY_LEVEL_UNSPECIFIED, ""},
      {pb::HOST, pb::TOPOLOGY_LEVEL_UNSPECIFIED, ""},
      {pb::RACK, pb::TOPOLOGY_LEVEL_UNSPECIFIED, "; 2 required"},
      {pb::HOST, pb::RACK, "; 2 host"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.bare);
    pb::JobSpec spec = SpecOf({"", R"({"parallel": {"tp": 2}})", 8, 16, 1, ""});
    ApplyDefaults(&spec);
    pb::RankBlock* block = spec.mutable_tasks(0)->mutable_topology()->mutable_blocks(0);
    block->set_preferred(c.preferred);
    block->set_required(c.required);
    const pb::JobSpec bare = WithoutFilledPlacements(spec);
    EXPECT_EQ(PlacementText(bare.tasks(0)), c.bare);
    pb::JobSpec changed = bare;
    changed.mutable_tasks(0)->set_trainer_json(R"({"parallel": {"tp": 2}, "max_steps": 9})");
    EXPECT_EQ(WithoutOutdatedPlacements(spec, changed).SerializeAsString(),
              spec.SerializeAsString())
        << "of one layout all words stay";
  }
}

TEST(FillPlacement, AnotherLayoutHasAnotherPlacement) {
  pb::JobSpec spec = SpecOf({"", R"({"parallel": {"tp": 2}})", 8, 16, 1, ""});
  ApplyDefaults(&spec);
  ASSERT_EQ(PlacementText(spec.tasks(0)), "by 2; 2 island");
  *spec.mutable_tasks(0) = WithoutFilledPlacement(spec, pb::TaskSpec(spec.tasks(0)));
  spec.mutable_tasks(0)->set_trainer_json(R"({"parallel": {"tp": 4, "pp": 2}})");
  ApplyDefaults(&spec);
  EXPECT_EQ(PlacementText(spec.tasks(0)), "by 8; 4 island");
}

// "PATH: MESSAGE" of the first problem.
std::string FirstProblem(const pb::JobSpec& spec) {
  const std::vector<FieldProblem> problems = CheckSpec(spec);
  return problems.empty() ? "" : absl::StrCat(problems[0].path, ": ", problems[0].message);
}

TEST(FillPlacement, AGangGrowsByReplicasUnlessItsLayoutIsSwept) {
  const struct {
    const char* swept;  // a name of a sweep
    int min, max, multiple_of;
    const char* want;
  } cases[] = {
      {"", 4, 8, 0, ""},
      {"", 4, 10, 0,
       "trainer.parallel.tp: 4 must divide the ranks of a gang of 4 to 10 workers, whatever its "
       "size: use 1, which divides the 1 process of a worker, or give workers a min and max that "
       "are multiples of 4"},
      {"", 2, 12, 2,
       "trainer.parallel.tp: 4 must divide the ranks of a gang of 2 to 12 workers, whatever its "
       "size: use 2, which divides the 2 processes of 2 workers, or give workers a min and max "
       "that are multiples of 4, and multiple_of: 4"},
      {"trainer.learning_rate", 4, 8, 0, ""},
      {"trainer.parallel.tp", 4, 8, 0,
       "trainer.parallel.tp: 4 must divide the ranks of a gang of 4 to 8 workers, whatever its "
       "size: use 1, which divides the 1 process of a worker, or give workers multiple_of: 4"},
      {"trainer.parallel.tp", 4, 8, 4, ""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.swept, " ", c.min, " ", c.max, " ", c.multiple_of));
    pb::JobSpec spec =
        SpecOf({"", R"({"parallel": {"tp": 4}})", c.min, c.max, 1, "", c.multiple_of});
    const std::string swept = c.swept;
    if (!swept.empty()) {
      pb::SweepValues* values = spec.add_sweep();
      values->set_name(swept);
      values->add_values("1");
      values->add_values("2");
    }
    EXPECT_EQ(FirstProblem(spec), c.want);
    ApplyDefaults(&spec);
    const bool fills = swept != "trainer.parallel.tp" && c.max == 8;
    EXPECT_EQ(spec.tasks(0).topology().blocks_size(), fills ? 1 : 0);
  }
}

}  // namespace
}  // namespace muster
