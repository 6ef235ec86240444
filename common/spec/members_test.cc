#include "common/spec/members.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/spec/member_names.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

pb::JobSpec Sweep(const std::vector<std::pair<std::string, std::vector<std::string>>>& names) {
  pb::JobSpec spec;
  for (const auto& [name, values] : names) {
    pb::SweepValues* of = spec.add_sweep();
    of->set_name(name);
    for (const std::string& value : values) of->add_values(value);
  }
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  return spec;
}

pb::JobSpec Array(const std::string& indices) {
  pb::JobSpec spec = Sweep({});
  spec.set_array(indices);
  return spec;
}

TEST(ParseArray, IndicesAreRangesWithSteps) {
  struct Case {
    const char* text;
    std::vector<int64_t> indices;
    int32_t at_a_time;
  };
  for (const Case& c : std::vector<Case>{{"5", {5}, 1},
                                         {"0-3", {0, 1, 2, 3}, 4},
                                         {"1-9:4", {1, 5, 9}, 3},
                                         {"7,1-2", {7, 1, 2}, 3},
                                         {"0-9%4", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 4}}) {
    const pb::JobSpec spec = Array(c.text);
    ASSERT_EQ(MembersOf(spec), static_cast<int32_t>(c.indices.size())) << c.text;
    EXPECT_EQ(MembersAtATime(spec), c.at_a_time) << c.text;
    for (size_t m = 0; m < c.indices.size(); ++m) {
      EXPECT_EQ(IndexOfMember(spec, static_cast<int32_t>(m)), c.indices[m]) << c.text;
      EXPECT_EQ(MemberOfIndex(spec, c.indices[m]), static_cast<int32_t>(m)) << c.text;
    }
    EXPECT_EQ(MemberOfIndex(spec, 1000), -1) << c.text;
  }
}

TEST(ParseArray, WhatIsNoArrayIsRefusedWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is no index"},
      {"a-b", "is no index"},
      {"1-", "is no index"},
      {"3-1", "ends before it begins"},
      {"1-9:0", "is no index"},
      {"0-10000", "more than 10000"},
      {"1,1-2", "index 1 is there twice"},
      {"0-9%0", "at a time"},
      {"0-9%x", "at a time"},
      {"-1", "is no index"},
      {"99999999999", "is no index"}};
  for (const auto& [text, message] : cases) {
    std::string why;
    EXPECT_FALSE(ParseArray(text, &why).has_value()) << text;
    EXPECT_NE(why.find(message), std::string::npos) << text << ": " << why;
  }
}

TEST(Members, ASweepIsEveryCombinationTheLastNameTheFastest) {
  const pb::JobSpec spec = Sweep({{"lr", {"1e-4", "3e-4"}}, {"seed", {"1", "2", "3"}}});
  ASSERT_EQ(MembersOf(spec), 6);
  EXPECT_EQ(ValuesOfMember(spec, 0), (SweptValues{{"lr", "1e-4"}, {"seed", "1"}}));
  EXPECT_EQ(ValuesOfMember(spec, 1), (SweptValues{{"lr", "1e-4"}, {"seed", "2"}}));
  EXPECT_EQ(ValuesOfMember(spec, 5), (SweptValues{{"lr", "3e-4"}, {"seed", "3"}}));
  EXPECT_EQ(MemberId(spec, 17, 5), "17_5");
}

TEST(Members, FindTheirValuesInCommandEnvironmentAndTrainer) {
  pb::JobSpec spec = Sweep({{"lr", {"1e-4", "3e-4"}}, {"trainer.seed", {"1", "2"}}});
  (*spec.mutable_env())["OUT"] = "/out/{{lr}}/{{index}}";
  pb::TaskSpec* task = spec.mutable_tasks(0);
  task->mutable_run()->set_shell("train --lr {{lr}} {{other}}");
  task->set_setup("echo {{index}}");
  (*task->mutable_env())["LR"] = "{{lr}}";
  task->set_trainer_json("{\"seed\":0,\"max_steps\":7}");
  const pb::TaskSpec own = TaskOfMember(spec, 0, 3);
  EXPECT_EQ(own.run().shell(), "train --lr 3e-4 {{other}}");
  EXPECT_EQ(own.setup(), "echo 3");
  EXPECT_EQ(own.env().at("LR"), "3e-4");
  EXPECT_EQ(own.trainer_json(), "{\"max_steps\":7,\"seed\":2}");
  EXPECT_EQ(JobEnvOfMember(spec, 3).at("OUT"), "/out/3e-4/3");
  const std::map<std::string, std::string> variables = {
      {"MUSTER_JOB", "17_3"},     {"MUSTER_ARRAY_INDEX", "3"}, {"MUSTER_ARRAY_JOB", "17"},
      {"MUSTER_ARRAY_SIZE", "4"}, {"MUSTER_SWEEP_lr", "3e-4"}, {"MUSTER_SWEEP_trainer_seed", "2"}};
  EXPECT_EQ(MemberVariables(spec, 17, 3), variables);
}

TEST(Members, IndependentWorkersAboveTheLeastNumberStandBehind) {
  pb::JobSpec spec = Sweep({});
  spec.mutable_independent_workers()->set_min(2);
  spec.mutable_independent_workers()->set_max(4);
  EXPECT_EQ(MembersOf(spec), 4);
  EXPECT_FALSE(StandsBehind(spec, 1));
  EXPECT_TRUE(StandsBehind(spec, 2));
  EXPECT_FALSE(StandsBehind(Array("0-9"), 9));
}

TEST(Members, JobFilesSayThemAndAreWrittenBack) {
  for (const std::string members :
       {"array: 0-99%8\n", "sweep:\n  lr: [1e-4, 3e-4]\n  seed: [1, 2]\n",
        "independent_workers: {min: 1, max: 16}\n", "independent_workers: 3\n"}) {
    pb::JobSpec spec, again;
    std::vector<Problem> problems;
    ASSERT_TRUE(ParseJobFile(members + "run: work\n", "a.yaml", {}, &spec, &problems)) << members;
    EXPECT_GT(MembersOf(spec), 0);
    ApplyDefaults(&spec);
    EXPECT_TRUE(CheckSpec(spec).empty()) << members;
    ASSERT_TRUE(ParseJobFile(SpecToYaml(spec), "a.yaml", {}, &again, &problems))
        << SpecToYaml(spec);
    ApplyDefaults(&again);
    EXPECT_EQ(again.DebugString(), spec.DebugString());
  }
}

TEST(Members, WhatGoesNotTogetherIsRefusedAtItsPlace) {
  struct Case {
    const char* file;
    const char* path;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {"array: 3-1\nrun: a\n", "array", "ends before it begins"},
           {"array: 0-3\nsweep: {a: [1]}\nrun: a\n", "sweep", "exclude each other"},
           {"array: 0-3\nindependent_workers: 2\nrun: a\n", "independent_workers",
            "exclude each other"},
           {"independent_workers: 2\nworkers: 2\nrun: a\n", "workers", "leave it out"},
           {"independent_workers: {min: 3, max: 2}\nrun: a\n", "independent_workers",
            "min no larger than max"},
           {"independent_workers: {min: 2, max: 4, multiple_of: 2}\nrun: a\n",
            "independent_workers.multiple_of", "one at a time; leave it out"},
           {"independent_workers: 10001\nrun: a\n", "independent_workers", "from 1 to 10000"},
           {"independent_workers: {min: 0, max: 3}\nrun: a\n", "independent_workers.min",
            "from 1 to 10000"},
           {"independent_workers: {min: 1}\nrun: a\n", "independent_workers.max",
            "or one number: independent_workers: 4"},
           {"independent_workers: 2\ntasks: [{name: a, run: a}, {name: b, run: b}]\n",
            "independent_workers", "goes with one task"},
           {"independent_workers: 2\ntrainer: {}\n", "independent_workers", "goes with run"},
           {"sweep: {a: []}\nrun: a\n", "sweep.a", "has no values"},
           {"sweep: {a: 1}\nrun: a\n", "sweep.a", "must be a list"},
           {"sweep: {1a: [1]}\nrun: a\n", "sweep.1a", "is no name"},
           {"sweep: {index: [1]}\nrun: a\n", "sweep.index", "take another name"},
           {"sweep: {a: [1, 1]}\nrun: a\n", "sweep.a[1]", "is there twice"},
           {"sweep: {trainer.lr: [1]}\nrun: a\n", "sweep.trainer.lr", "add trainer:"},
           {"sweep: {trainer.a.b: [1], trainer.a_b: [1]}\ntrainer: {}\n", "sweep.trainer.a_b",
            "as trainer.a.b has"},
           {"sweep: {trainer.a.b: [1], trainer.a: [1]}\ntrainer: {}\n", "sweep.trainer.a.b",
            "is a key below trainer.a"},
           {"array: 0-1\ntrainer: {export: /out}\n", "trainer.export", "add {{index}}"},
           {"array: ''\nrun: a\n", "array", "is empty"},
           {"array: 0-1\nrun: 'a {{Index}}'\n", "run", "write {{index}}"},
           {"sweep: {lr: [1]}\nrun: 'a {{.Id}} {{ lr }}'\n", "run", "write {{lr}}"},
           {"sweep: {rank: [1]}\nrun: 'a {{rnk}} {{rnak}}'\n", "run",
            "Did you mean rank? Known: index, rank. Is it another program's? Put that text into"},
           {"sweep: {trainer.learning_rate: [1]}\ntrainer: {export: 'o/{{learning_rate}}'}\n",
            "trainer.export", "Did you mean trainer.learning_rate?"},
           {"sweep: {trainer.learning_rate: [1]}\ntrainer: {export: "
            "'o/{{trainer.learning_rat}}'}\n",
            "trainer.export", "Did you mean trainer.learning_rate?"},
           {"sweep: {trainer.model.layers: [1]}\ntrainer: {export: 'o/{{model.layers}}'}\n",
            "trainer.export", "Did you mean trainer.model.layers?"},
           {"array: 0-1\nrun: a\nenv: {A: '{{indx}}'}\n", "env.A", "Did you mean index?"},
           {"sweep: {rate: [1, 2]}\ntrainer: {export: 'out/{{ratee}}'}\n", "trainer.export",
            "Did you mean rate?"},
           {"sweep: {learning_rate: [1]}\nrun: 'a {{learning-rate}}'\n", "run",
            "{{learning-rate}} is replaced by nothing; write {{learning_rate}}"},
           {"sweep: {learning_rate: [1]}\nrun: 'a {{learnin-rate}}'\n", "run",
            "Did you mean learning_rate?"},
           {"sweep: {trainer.learning_rate: [1]}\ntrainer: {export: 'o/{{learning-rate}}'}\n",
            "trainer.export", "Did you mean trainer.learning_rate?"},
           {"sweep: {lrr: [1, 2], seed: [3]}\nrun: 'a {{lr}} {{seed}}'\n", "sweep.lrr",
            "nothing takes it, and {{lr}} has no value. Write {{lrr}}, or call it lr"},
           {"sweep: {messages: [1]}\nrun: 'a {{message}}'\n", "sweep.messages",
            "and {{message}} has no value"},
           {"sweep: {seeds: [1, 2]}\ntrainer: {max_steps: 5}\n", "sweep.seeds",
            "nothing takes it: no {{seeds}} stands in env or trainer.export, and the trainer reads "
            "no MUSTER_SWEEP_seeds. A key of trainer is trainer.KEY; members that are the same are "
            "an array: 0-9."},
           {"sweep: {a: [1, 2], b: [3, 4]}\ntrainer: {export: '/out/{{a}}'}\n", "trainer.export",
            "members 0 and 1 would both export to /out/1"}}) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    EXPECT_FALSE(ParseJobFile(c.file, "a.yaml", {}, &spec, &problems)) << c.file;
    const auto said = [&](const Problem& problem) {
      return problem.path == c.path && problem.message.find(c.message) != std::string::npos;
    };
    std::string all;
    for (const Problem& problem : problems)
      absl::StrAppend(&all, problem.path, ": ", problem.message, "\n");
    EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), said)) << c.file << all;
  }
}

TEST(Members, ExportToPlacesOfTheirOwn) {
  for (const char* file :
       {"array: 0-1\nrun: 'docker ps --format {{.Id}} {{lr}}'\n",
        "sweep: {env: [1]}\nrun: 'a {{if .A}} {{end}} {{messages}}'\n",
        "sweep: {model_size: [1], user_count: [1], messages: [1], prompts: [1], lr: [1]}\n"
        "run: 'a {{model}} {{user}} {{message}} {{prompt}} {{lrr}} {{model.size}}'\n"
        "env: {A: '{{model_size}}{{user_count}}{{messages}}{{prompts}}', B: $MUSTER_SWEEP_lr}\n",
        "sweep: {seed: [1]}\nrun: ./train.sh\n",
        "sweep: {seed: [1, 2]}\nsetup: ./prepare.sh\ntrainer: {}\n",
        "array: 0-1\ntrainer: {export: out}\n", "array: '5'\ntrainer: {export: /out}\n",
        "array: 0-1\ntrainer: {export: '/out/{{index}}'}\n",
        "sweep: {a: [1, 2], b: [3, 4]}\ntrainer: {export: '/out/{{a}}-{{b}}'}\n",
        "sweep: {trainer.export: [/a, /b]}\ntrainer: {}\n"}) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    EXPECT_TRUE(ParseJobFile(file, "a.yaml", {}, &spec, &problems)) << file;
  }
  pb::JobSpec spec = Sweep({{"lr", {"1e-4", "3\"e"}}});
  spec.mutable_tasks(0)->set_trainer_json(R"({"export":"/out/{{lr}}/{{index}}"})");
  EXPECT_EQ(ExportOf(TaskOfMember(spec, 0, 1)), "/out/3\"e/1");
}

// Each member's row has the spec: few bytes must not become many.
TEST(Members, AreBoundedInBytes) {
  pb::JobSpec spec = Array("0-9999");
  spec.mutable_tasks(0)->mutable_run()->set_shell(std::string(60'000, 'a'));
  ApplyDefaults(&spec);
  const std::vector<FieldProblem> problems = CheckSpec(spec);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "array");
  EXPECT_NE(problems[0].message.find("together at most 64 MiB"), std::string::npos);
  std::string odd = "1";
  for (int i = 3; i < 4'000; i += 2) absl::StrAppend(&odd, ",", i);
  std::string why;
  EXPECT_FALSE(ParseArray(odd, &why).has_value());
  EXPECT_NE(why.find("write ranges"), std::string::npos) << why;
}

// 16 names with 10,000 values each would be looked at one by one.
TEST(Members, TooManyCombinationsAreRefusedBeforeTheirValuesAreLookedAt) {
  std::vector<std::string> many;
  for (int i = 0; i < 5'000; ++i) many.push_back(absl::StrCat(i));
  pb::JobSpec spec = Sweep({{"trainer.a", many}, {"trainer.b", many}});
  spec.mutable_tasks(0)->set_trainer_json("{}");
  ApplyDefaults(&spec);
  SpecContext context;
  context.trainer_schema_json = R"({"type":"object","properties":{"a":{"type":"boolean"}}})";
  const std::vector<FieldProblem> problems = CheckSpec(spec, context);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "sweep");
}

TEST(Members, EachValueOfATrainersKeyIsHeldAgainstItsSchema) {
  SpecContext context;
  context.trainer_schema_json =
      R"({"type":"object","properties":{"max_steps":{"type":"integer","minimum":1}}})";
  pb::JobSpec spec;
  std::vector<Problem> problems;
  EXPECT_TRUE(ParseJobFile("sweep: {trainer.max_steps: [1, 2]}\ntrainer: {max_steps: 5}\n",
                           "a.yaml", context, &spec, &problems));
  EXPECT_FALSE(ParseJobFile("sweep: {trainer.max_steps: [1, 0]}\ntrainer: {max_steps: 5}\n",
                            "a.yaml", context, &spec, &problems));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "sweep.trainer.max_steps[1]");
}

TEST(Members, ATrainersKeyTakesTheNumbersThatItTakesInTheFile) {
  const std::pair<const char*, const char*> cases[] = {
      {".5", "0.5"},      {"-.5", "-0.5"},  {"+5", "5"},        {"5.", "5.0"},
      {"1e-4", "0.0001"}, {"true", "true"}, {"007", "\"007\""}, {".5.1", "\".5.1\""},
      {".", "\".\""},     {"-", "\"-\""}};
  for (const auto& [value, json] : cases) {
    std::string trainer = "{}";
    ASSERT_TRUE(SetTrainerKey("trainer.a", value, &trainer)) << value;
    EXPECT_EQ(trainer, absl::StrCat("{\"a\":", json, "}")) << value;
  }
  SpecContext context;
  context.trainer_schema_json =
      R"({"type":"object","properties":{"learning_rate":{"type":"number"}}})";
  pb::JobSpec spec;
  std::vector<Problem> problems;
  EXPECT_TRUE(ParseJobFile("sweep: {trainer.learning_rate: [.5, 1e-4]}\ntrainer: {}\n", "a.yaml",
                           context, &spec, &problems))
      << problems[0].message;
}

TEST(Members, ANameThatOnlyTheTrainerCouldTakeIsRefusedWithTheKeyThatIsNear) {
  SpecContext context;
  context.trainer_schema_json =
      R"({"type":"object","properties":{"max_steps":{},"learning_rate":{"type":"number"}}})";
  pb::JobSpec spec;
  std::vector<Problem> problems;
  EXPECT_FALSE(ParseJobFile("sweep: {learning-rate: [1]}\ntrainer: {max_steps: 5}\n", "a.yaml",
                            context, &spec, &problems));
  problems.clear();
  EXPECT_FALSE(ParseJobFile("sweep: {learning_rate: [1]}\ntrainer: {max_steps: 5}\n", "a.yaml",
                            context, &spec, &problems));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "sweep.learning_rate");
  EXPECT_NE(problems[0].message.find("Did you mean trainer.learning_rate?"), std::string::npos)
      << problems[0].message;
}

TEST(Members, WhatOfTheirNamesHasNoEffectIsNoted) {
  const struct {
    const char* file;
    std::vector<std::string> notes;
  } cases[] = {
      {"sweep: {lr: [1]}\nrun: 'a {{lr}} {{index}}'\n", {}},
      {"sweep: {lr: [1]}\nrun: 'a $MUSTER_SWEEP_lr {{.Id}} {{end}}'\n", {}},
      {"sweep: {lr: [1], seed: [1]}\nrun: 'a {{seed}}'\n",
       {"sweep.lr: no {{lr}} stands in the job; only a program that reads MUSTER_SWEEP_lr takes "
        "its values"}},
      {"sweep: {lr: [1], lrr: [1]}\nrun: 'a {{lr}}'\n",
       {"sweep.lrr: no {{lrr}} stands in the job. Did you mean lr? Only a program that reads "
        "MUSTER_SWEEP_lrr takes its values"}},
      {"sweep: {x1: [1], x2: [1]}\nrun: a\n",
       {"sweep.x1: no {{x1}} stands in the job; only a program that reads MUSTER_SWEEP_x1 takes "
        "its values",
        "sweep.x2: no {{x2}} stands in the job; only a program that reads MUSTER_SWEEP_x2 takes "
        "its values"}},
      {"run: 'a {{learning-rate}} {{learning-rate}}'\n",
       {"run: {{learning-rate}} stays as it stands: no sweep of the job has that name"}},
      {"run: a\nenv: {A: '{{index}}'}\n",
       {"env.A: {{index}} stays as it stands: the job is no array"}},
      {"array: 0-1\nrun: 'a {{index}}'\n", {}},
  };
  for (const auto& c : cases) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    ASSERT_TRUE(ParseJobFile(c.file, "a.yaml", {}, &spec, &problems)) << c.file;
    EXPECT_EQ(NotesOnNames(spec), c.notes) << c.file;
  }
}

}  // namespace
}  // namespace muster
