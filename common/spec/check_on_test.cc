// `on` in a job file: how it is read, written, and refused.
#include "common/spec/check_on.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(On, IsWrittenAsItWasRead) {
  pb::JobSpec spec, again;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseJobFile("{queue: q, run: r, on: 17}", "job.yaml", {}, &spec, &problems));
  EXPECT_EQ(spec.on(), "17");
  ASSERT_TRUE(ParseJobFile(SpecToYaml(spec), "job.yaml", {}, &again, &problems));
  EXPECT_EQ(again.on(), "17");
}

TEST(On, IsAJobsNumberAndForOneTaskWithOneWorker) {
  struct Case {
    const char* job;
    const char* says;  // empty: it is good
  };
  for (const Case& c : std::vector<Case>{
           {"on: 17, run: r", ""},
           {"on: dev, run: r", "\"dev\" is no job's number"},
           {"on: 17_3, run: r", "\"17_3\" is no job's number"},
           {"on: 0, run: r", "\"0\" is no job's number"},
           {"on: 17, run: r, array: 1-3", "goes without array"},
           {"on: 17, run: r, workers: 2", "one task with one worker"},
           {"on: 17, tasks: [{name: a, run: r}, {name: b, run: r}]", "one task with one worker"},
       }) {
    SCOPED_TRACE(c.job);
    pb::JobSpec spec;
    std::vector<Problem> problems;
    const bool good =
        ParseJobFile(absl::StrCat("{queue: q, ", c.job, "}"), "job.yaml", {}, &spec, &problems);
    EXPECT_EQ(good, *c.says == '\0');
    if (*c.says == '\0') continue;
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_THAT(problems[0].message, HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace muster
