// `not_before` and `schedule` in a job file: how they are read, written, refused, and what times
// they mean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/spec.h"
#include "common/spec/when.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHourNs = int64_t{3'600} * 1'000'000'000;

TEST(Schedule, IsWrittenAsItWasRead) {
  for (const char* job :
       {"not_before: 2026-12-24T03:00:00Z", "not_before: 2026-12-24T03:00:00+01:00",
        "schedule: 0 3 * * *", "schedule: \"@daily\"",
        "schedule: {cron: 0 3 * * 1-5, zone: Europe/Berlin, overlap: allow}",
        "schedule: {cron: 0 3 * * *, overlap: skip}"}) {
    SCOPED_TRACE(job);
    pb::JobSpec spec, again;
    std::vector<Problem> problems;
    ASSERT_TRUE(ParseJobFile(absl::StrCat("{queue: q, run: r, ", job, "}"), "job.yaml", {}, &spec,
                             &problems));
    EXPECT_TRUE(spec.has_schedule() || !spec.not_before().empty());
    ASSERT_TRUE(ParseJobFile(SpecToYaml(spec), "job.yaml", {}, &again, &problems));
    EXPECT_EQ(again.not_before(), spec.not_before());
    EXPECT_EQ(again.schedule().SerializeAsString(), spec.schedule().SerializeAsString());
  }
}

TEST(Schedule, IsRefusedWithItsPlace) {
  struct Case {
    const char *job, *path, *says;
  };
  for (const Case& c : std::vector<Case>{
           {"not_before: tomorrow", "not_before", "\"tomorrow\" is no time"},
           {"not_before: 2026-12-24", "not_before", "write 2026-12-24T03:00:00Z"},
           {"not_before: infinite-future", "not_before", "is no time"},
           {"not_before: 2300-01-01T00:00:00Z", "not_before", "is no time"},
           {"schedule: hourly", "schedule", "must be five fields"},
           {"schedule: {cron: 0 25 * * *, zone: UTC}", "schedule.cron", "the hour \"25\""},
           {"schedule: {cron: 0 3 * * *, zone: Berlin}", "schedule.zone",
            "no time zone \"Berlin\""},
           {"schedule: {zone: Europe/Berlin}", "schedule.cron", "must be five fields"},
           {"schedule: {cron: 0 3 * * *, overlap: both}", "schedule.overlap", "skip"},
           {"schedule: 0 0 30 2 *", "schedule", "never comes"},
           {"schedule: 0 3 * * *, array: 0-1000", "schedule", "at most 1000 members"},
           {"not_before: 2033-01-01T00:00:00Z, schedule: 0 0 29 2 */7", "schedule", "never comes"},
           {"schedule: 0 3 * * *, after: [17]", "schedule", "goes without after"},
           {"schedule: 0 3 * * *, on: 17", "schedule", "goes without on"},
           {"not_before: 2026-12-24T03:00:00Z, on: 17", "not_before", "goes without on"},
       }) {
    SCOPED_TRACE(c.job);
    pb::JobSpec spec;
    std::vector<Problem> problems;
    EXPECT_FALSE(ParseJobFile(absl::StrCat("{queue: q, run: r, ", c.job, "}"), "job.yaml", {},
                              &spec, &problems));
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_EQ(problems[0].path, c.path);
    EXPECT_THAT(problems[0].message, HasSubstr(c.says));
  }
}

TEST(Schedule, ItsFirstTimeIsNotBeforeNotBefore) {
  const int64_t now_ns = *ParseInstantNs("2026-11-26T12:00:00Z");
  pb::JobSpec spec;
  EXPECT_EQ(FirstTimeNs(spec, now_ns), 0);
  spec.set_not_before("2026-11-26T12:00:00Z");
  EXPECT_EQ(FirstTimeNs(spec, now_ns), 0) << "it has come";
  spec.set_not_before("2026-11-26T15:00:00+01:00");
  EXPECT_EQ(FirstTimeNs(spec, now_ns), now_ns + 2 * kHourNs);
  spec.mutable_schedule()->set_cron("0 13 * * *");
  EXPECT_EQ(FirstTimeNs(spec, now_ns), now_ns + 25 * kHourNs) << "13:00 comes before not_before";
  spec.mutable_schedule()->set_cron("0 14 * * *");
  EXPECT_EQ(FirstTimeNs(spec, now_ns), now_ns + 2 * kHourNs) << "not_before itself counts";
  spec.clear_not_before();
  spec.mutable_schedule()->set_cron("0 12 * * *");
  EXPECT_EQ(FirstTimeNs(spec, now_ns), now_ns + 24 * kHourNs) << "now is over";
  spec.mutable_schedule()->set_zone("Nowhere/City");
  EXPECT_EQ(FirstTimeNs(spec, now_ns), std::nullopt);
  EXPECT_EQ(NextTimeNs(spec.schedule(), now_ns), std::nullopt) << "other than that there is none";
  spec.mutable_schedule()->clear_zone();
  spec.mutable_schedule()->set_cron("0 0 29 2 */7");
  spec.set_not_before("2033-01-01T00:00:00Z");
  EXPECT_EQ(NextTimeNs(spec.schedule(), *ParseInstantNs(spec.not_before())), 0)
      << "29 February is a Sunday in 2032 and in 2060";
  EXPECT_EQ(FirstTimeNs(spec, now_ns), std::nullopt);
}

}  // namespace
}  // namespace muster
