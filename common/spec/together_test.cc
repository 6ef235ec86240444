#include "common/spec/together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A task a line: its name and what else it has.
std::string JobOf(const std::vector<std::string>& tasks) {
  std::string text = "queue: q\ntasks:\n";
  for (const std::string& task : tasks) absl::StrAppend(&text, "  - {run: r, name: ", task, "}\n");
  return text;
}

pb::JobSpec Read(const std::vector<std::string>& tasks) {
  pb::JobSpec spec;
  std::vector<Problem> problems;
  EXPECT_TRUE(ParseJobFile(JobOf(tasks), "job.yaml", {}, &spec, &problems))
      << (problems.empty() ? "" : problems[0].message);
  return spec;
}

TEST(Together, IsWhateverIsJoinedInEitherDirectionHoweverFar) {
  pb::JobSpec spec = Read({"a, with: [b]", "b", "c, with: [b]", "alone", "d, with: [e]", "e"});
  EXPECT_THAT(TogetherWith(spec, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(TogetherWith(spec, 3), ElementsAre(3));
  EXPECT_THAT(TogetherWith(spec, 4), ElementsAre(4, 5));
  JoinTasks(&spec);
  EXPECT_THAT(spec.tasks(0).with(), ElementsAre("b", "c"));
  EXPECT_THAT(spec.tasks(1).with(), ElementsAre("a", "c"));
  EXPECT_THAT(spec.tasks(2).with(), ElementsAre("a", "b"));
  EXPECT_EQ(spec.tasks(3).with_size(), 0);
}

TEST(Together, AllComeAfterWhatOneComesAfter) {
  pb::JobSpec spec = Read({"first", "a, after: [first]", "b, with: [a]", "second",
                           "c, with: [b], after: [second, first]"});
  ApplyDefaults(&spec);
  for (const int t : {1, 2, 4})
    EXPECT_THAT(spec.tasks(t).after(), ElementsAre("first", "second")) << t;
  EXPECT_EQ(spec.tasks(0).after_size(), 0);
  const pb::JobSpec once = spec;
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.SerializeAsString(), once.SerializeAsString());
}

TEST(Together, IsWrittenAsItWasRead) {
  const pb::JobSpec spec = Read({"trainer", "server, with: [trainer], until: [trainer]"});
  pb::JobSpec again;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseJobFile(SpecToYaml(spec), "job.yaml", {}, &again, &problems));
  EXPECT_THAT(again.tasks(1).with(), ElementsAre("trainer"));
  EXPECT_THAT(again.tasks(1).until(), ElementsAre("trainer"));
}

TEST(Together, AnAddressHasAVariablesName) {
  EXPECT_EQ(AddressVariable("server"), "MUSTER_TASK_SERVER_ADDRESS");
  EXPECT_EQ(AddressVariable("eval-2.b"), "MUSTER_TASK_EVAL_2_B_ADDRESS");
}

TEST(Together, AJobWithoutTasksIsToldWhereItsFieldsGo) {
  for (const char* field : {"with", "until"}) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    const std::string file = absl::StrCat("queue: q\nrun: r\n", field, ": [server]\n");
    EXPECT_FALSE(ParseJobFile(file, "job.yaml", {}, &spec, &problems));
    ASSERT_EQ(problems.size(), 1u) << field;
    EXPECT_EQ(problems[0].path, field);
    EXPECT_EQ(problems[0].line, 3);
    EXPECT_THAT(problems[0].message, HasSubstr(absl::StrCat("as tasks[0].", field)));
  }
}

TEST(Together, WhatCannotBeIsRefusedWithItsPlaceAndARemedy) {
  std::vector<std::string> many;
  for (int i = 0; i < 17; ++i) many.push_back(absl::StrCat("t", i, i > 0 ? ", with: [t0]" : ""));
  struct Case {
    std::vector<std::string> tasks;
    const char* path;
    const char* message;
  };
  const Case cases[] = {
      {{"trainer", "b, with: [trainr]"}, "tasks[1].with[0]", "no task \"trainr\" in this job"},
      {{"a, with: [a]", "b"}, "tasks[0].with[0]", "names the task itself"},
      {{"a, with: [b, b]", "b"}, "tasks[0].with[1]", "listed twice"},
      {{"a", "b, with: [a], after: [a]"}, "tasks[1].after", "take it out of with or of after"},
      {{"a", "x, after: [a]", "b, with: [a], after: [x]"}, "tasks[2].after", "come after it"},
      {{"a, after: [c]", "b, with: [a]", "c", "d, with: [c], after: [b]"},
       "tasks[0].after",
       "come after it"},
      {{"a", "b, with: [a], workers: {min: 1, max: 3}"}, "tasks[1].workers", "write workers: 1"},
      {{"a, resources: {gpus: 1, gpu_types: [h100]}",
        "b, with: [a], resources: {gpus: 1, gpu_types: [a100, h100]}"},
       "tasks[1].resources.gpu_types",
       "write what a has: [h100]"},
      {{"a-b", "a_b, with: [a-b]"}, "tasks[1].name", "give it another name"},
      {{"a", "b, until: [a]"}, "tasks[1].until[0]", "add it to with"},
      {{"a", "b, with: [a], until: [b]"}, "tasks[1].until[0]", "names the task itself"},
      {{"a", "b, with: [a], until: [c]"}, "tasks[1].until[0]", "no task \"c\""},
      {many, "tasks[0].with", "at most 16"},
  };
  for (const Case& c : cases) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    EXPECT_FALSE(ParseJobFile(JobOf(c.tasks), "job.yaml", {}, &spec, &problems)) << c.message;
    const std::vector<FieldProblem> found = CheckSpec(spec);
    ASSERT_FALSE(found.empty()) << c.message;
    EXPECT_EQ(found[0].path, c.path);
    EXPECT_THAT(found[0].message, HasSubstr(c.message));
  }
}

TEST(Together, ATrainerEndsByItself) {
  pb::JobSpec spec = Read({"a", "b, with: [a], until: [a]"});
  spec.mutable_tasks(1)->clear_run();
  spec.mutable_tasks(1)->set_trainer_json("{}");
  const std::vector<FieldProblem> found = CheckSpec(spec);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].path, "tasks[1].until");
}

}  // namespace
}  // namespace muster
