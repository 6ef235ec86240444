#include "common/spec/fields.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/spec.h"
#include "common/spec/testing/test_schema.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(Fields, TheCommittedReferenceIsUpToDate) {
  std::ifstream in("docs/job-reference.md");
  std::stringstream committed;
  committed << in.rdbuf();
  EXPECT_EQ(committed.str(), JobReferenceMarkdown()) << "run: ninja job-reference";
}

// The reader knows each field that the proto has, by its documented path.
TEST(Fields, EachDocumentedFieldIsRead) {
  for (const FieldDoc& field : JobFields()) {
    const std::string_view path = field.path;
    if (field.task && (path == "name" || path == "with" || path == "until"))
      continue;  // of a task: only below tasks:
    const std::vector<std::string> parts = absl::StrSplit(field.path, '.');
    const std::string text = parts.size() == 1 ? absl::StrCat(parts[0], ":\n")
                                               : absl::StrCat(parts[0], ": {", parts[1], ": }\n");
    pb::JobSpec spec;
    std::vector<Problem> problems;
    EXPECT_FALSE(ParseJobFile(text, "x.yaml", {}, &spec, &problems)) << text;
    bool read = false;
    for (const Problem& problem : problems) {
      EXPECT_EQ(problem.message.find("no such field"), std::string::npos)
          << text << problem.message;
      read = read || (problem.path == field.path &&
                      problem.message == "has no value; give one or leave the field out");
    }
    EXPECT_TRUE(read) << text;
  }
}

TEST(Fields, TextIsFoundByPathAndTheTrainersFromItsSchema) {
  EXPECT_THAT(FieldsText(""),
              testing::AllOf(testing::HasSubstr("  queue "), testing::HasSubstr("  workers "),
                             testing::Not(testing::HasSubstr("gpus_milli"))));
  EXPECT_THAT(FieldsText("resources"),
              testing::AllOf(testing::HasSubstr("resources.gpus  (number)"),
                             testing::HasSubstr("resources.memory  (size)")));
  EXPECT_EQ(FieldsText("resources.memory").find("gpus  ("), std::string::npos);
  EXPECT_EQ(FieldsText("resources.memory"), FieldsText("tasks[].resources.memory"));
  EXPECT_EQ(FieldsText("trainer.dtype", kTestTrainerSchema),
            "trainer.dtype  (fp32, bf16)\n    Type of weights. Default fp32.\n");
  EXPECT_EQ(FieldsText("trainer.model.head_dim", kTestTrainerSchema),
            "trainer.model.head_dim  (whole number)\n    Width of a head.\n");
  EXPECT_EQ(FieldsText("trainer.model.rope_scaling", kTestTrainerSchema),
            "trainer.model.rope_scaling  (map)\n    Rotary "
            "embeddings.\ntrainer.model.rope_scaling.factor  (number)\n    By how much.\n");
  EXPECT_THAT(FieldsText("trainer.parallel", kTestTrainerSchema),
              testing::HasSubstr("trainer.parallel  (map, or auto)\n"));
  EXPECT_THAT(FieldsText("trainer.model", kTestTrainerSchema),
              testing::HasSubstr("trainer.model.hidden_act  (silu)"));
  EXPECT_EQ(FieldsText("trainer.model.nope", kTestTrainerSchema), "");
  EXPECT_THAT(FieldsText("trainer", kTestTrainerSchema),
              testing::HasSubstr("trainer.max_steps  (whole number)"));
  EXPECT_EQ(FieldsText("resource"), "");
  EXPECT_EQ(FieldSuggestion("resource"), " Did you mean resources?");
  EXPECT_EQ(FieldSuggestion("gpus"), " Did you mean resources.gpus?");
  EXPECT_EQ(FieldSuggestion("tasks[].trainer.max_step", kTestTrainerSchema),
            " Did you mean trainer.max_steps?");
  EXPECT_EQ(FieldSuggestion("trainer.model.hidden_cat", kTestTrainerSchema),
            " Did you mean trainer.model.hidden_act?");
  EXPECT_TRUE(IsTrainersField("tasks[].trainer.lora") && IsTrainersField("trainer") &&
              !IsTrainersField("trainers"));
}

}  // namespace
}  // namespace muster
