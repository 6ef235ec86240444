#include "scheduler/ask/usage.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "scheduler/state/testing/story.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kGibOfTest = int64_t{1} << 30;

std::shared_ptr<const pb::HostUsage> UsageTold(const std::string& text) {
  auto usage = std::make_shared<pb::HostUsage>();
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, usage.get())) << text;
  return usage;
}

// An attempt of a minute on h00, and on h01 if there are two texts.
AttemptRow AttemptOn(const std::vector<std::string>& hosts, int workers = 1) {
  AttemptRow attempt;
  attempt.number = 1;
  attempt.start_ns = testing::Story::kStart;
  attempt.end_ns = attempt.start_ns + kMinute;
  attempt.cause = pb::DONE;
  for (size_t i = 0; i < hosts.size(); ++i) {
    PartRow& part = attempt.parts.emplace_back();
    part.host = static_cast<HostId>(i);
    part.workers = workers;
    part.phase = pb::GONE;
    if (!hosts[i].empty()) part.usage = UsageTold(hosts[i]);
  }
  return attempt;
}

TEST(SumUsage, TellsOfAWorkerByTheHostThatUsedMostAndOfAllTogether) {
  const testing::Story story;
  const AttemptRow attempt = AttemptOn(
      {"ran_ns: 10000000000 memory_peak_bytes: 801 cpu_us: 40000000 cpus_most_milli: 9000",
       "ran_ns: 8000000000 memory_peak_bytes: 600 cpu_us: 48000000 cpus_most_milli: 8000"},
      2);
  const std::optional<pb::Usage> usage = SumUsage(story.state, attempt);
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->ran_ns(), 10 * kSecond);
  EXPECT_EQ(usage->memory_peak_bytes(), 401);
  EXPECT_EQ(usage->cpu_us(), 88'000'000);
  EXPECT_EQ(usage->cpus_mean_milli(), 3000);
  EXPECT_EQ(usage->cpus_most_milli(), 4500);
  EXPECT_FALSE(usage->has_gpus());
}

TEST(SumUsage, OfHostsThatTellNothingNothingIsSaid) {
  const testing::Story story;
  EXPECT_FALSE(SumUsage(story.state, AttemptOn({"", ""})).has_value());
  const std::optional<pb::Usage> memory =
      SumUsage(story.state, AttemptOn({"ran_ns: 5 memory_peak_bytes: 0", ""}));
  ASSERT_TRUE(memory.has_value());
  EXPECT_TRUE(memory->has_memory_peak_bytes()) << "none is a figure, too";
  EXPECT_FALSE(memory->has_cpu_us());
  EXPECT_FALSE(memory->has_cpus_mean_milli());
}

TEST(SumUsage, OfWhatRunsTheNewestWordCountsUntilItsEndIsTold) {
  const testing::Story story;
  const UsageByHost live = {{"h00", *UsageTold("ran_ns: 1000000000 cpu_us: 7000000")},
                            {"h01", *UsageTold("ran_ns: 1000000000 cpu_us: 2000000")},
                            {"h03", *UsageTold("ran_ns: 1000000000 cpu_us: 9999999")}};
  EXPECT_EQ(SumUsage(story.state, AttemptOn({"", ""}), live)->cpu_us(), 9'000'000);
  EXPECT_EQ(
      SumUsage(story.state, AttemptOn({"ran_ns: 2000000000 cpu_us: 8000000", ""}), live)->cpu_us(),
      10'000'000)
      << "the end of one host has been told";
}

TEST(SumUsage, GpusAreAddedUpAndTheirSlotsMadeAsLongAsTheLongest) {
  const testing::Story story;
  const AttemptRow attempt = AttemptOn(
      {"ran_ns: 240 gpus { watched_ns: 240 busy_ns: 120 memory_peak_bytes: 5 memory_bytes: 80 "
       "slot_ns: 60 busy_permille: [1000, 0, -1, 500] }",
       "ran_ns: 240 gpus { watched_ns: 240 busy_ns: 60 memory_peak_bytes: 70 memory_bytes: 90 "
       "slot_ns: 120 busy_permille: [200, -1] }"});
  const pb::GpuUsage gpus = SumUsage(story.state, attempt)->gpus();
  EXPECT_EQ(gpus.watched_ns(), 480);
  EXPECT_EQ(gpus.busy_ns(), 180);
  EXPECT_EQ(gpus.memory_peak_bytes(), 70);
  EXPECT_EQ(gpus.memory_bytes(), 90);
  EXPECT_EQ(gpus.slot_ns(), 120);
  EXPECT_THAT(gpus.busy_permille(), ElementsAre(400, 500));
}

TEST(SumUsage, FiguresOfManyHostsDoNotOverflow) {
  const testing::Story story;
  const std::string most =
      "ran_ns: 1 cpu_us: 9000000000000000000 gpus { watched_ns: 9000000000000000000 busy_ns: "
      "9000000000000000000 slot_ns: 1 }";
  const std::optional<pb::Usage> usage = SumUsage(story.state, AttemptOn({most, most}));
  EXPECT_GT(usage->cpu_us(), 0);
  EXPECT_GT(usage->cpus_mean_milli(), 0);
  EXPECT_GT(usage->gpus().busy_ns(), 0);
}

struct AdviceCase {
  const char* what;
  std::string asked;  // resources
  AttemptRow attempt;
  std::vector<std::string> advice;
};

AttemptRow EndedBy(AttemptRow attempt, pb::Cause cause, int64_t ran_ns) {
  attempt.cause = cause;
  attempt.end_ns = attempt.start_ns + ran_ns;
  return attempt;
}

AttemptRow KilledForIt(AttemptRow attempt) {
  attempt.parts[0].exits.emplace_back().set_oom(true);
  return EndedBy(std::move(attempt), pb::OUT_OF_MEMORY, kHour);
}

TEST(AdviceOf, IsGivenWhereAnAttemptHasShownWhatItNeeds) {
  const testing::Story story;
  const std::string memory =
      absl::StrCat("ran_ns: 60000000000 memory_peak_bytes: ", 9 * kGibOfTest);
  const std::string cpus = "ran_ns: 60000000000 cpu_us: 126000000 cpus_most_milli: 3400";
  const std::string gpus =
      "ran_ns: 3600000000000 gpus { watched_ns: 3600000000000 busy_ns: 396000000000 slot_ns: 1 }";
  const std::string of_memory = "memory_bytes: 68719476736", of_cpus = "cpus_milli: 16000";
  const std::string less = "asked for 64GiB of memory, used 9GiB at most: memory: 12GiB would do";
  const AdviceCase kCases[] = {
      {"memory", of_memory, AttemptOn({memory}), {less}},
      {"CPUs",
       of_cpus,
       AttemptOn({cpus}),
       {"asked for 16 cpus, used 2.1 on average and 3.4 at most: cpus: 5 would do"}},
      {"GPUs",
       "gpus_milli: 1000",
       AttemptOn({gpus}),
       {"its GPUs were busy 11 % of the time: fewer of them, or cheaper ones, might do; or it "
        "waited for its data"}},
      {"it asked for nothing", "", AttemptOn({memory}), {}},
      {"it used most of it", "memory_bytes: 12884901888", AttemptOn({memory}), {}},
      {"it would save little",
       "memory_bytes: 134217728",
       AttemptOn({"ran_ns: 60000000000 memory_peak_bytes: 1048576"}),
       {}},
      {"its host tells nothing", of_memory, AttemptOn({""}), {}},
      {"one of its hosts tells nothing", of_memory, AttemptOn({memory, ""}), {}},
      {"it ran for a moment", of_memory, EndedBy(AttemptOn({memory}), pb::DONE, kMinute - 1), {}},
      {"it failed", of_memory, EndedBy(AttemptOn({memory}), pb::PROGRAM_ERROR, kHour), {}},
      {"it was stopped early",
       of_memory,
       EndedBy(AttemptOn({memory}), pb::PREEMPTION, kMinute),
       {}},
      {"it was stopped late",
       of_memory,
       EndedBy(AttemptOn({memory}), pb::PREEMPTION, kHour),
       {less}},
      {"its host was lost", of_memory, EndedBy(AttemptOn({memory}), pb::HOST_LOST, kHour), {}},
      {"it was killed for memory",
       of_memory,
       KilledForIt(AttemptOn({memory})),
       {"killed for memory with the 64GiB that it had asked for: it needs more, memory: 96GiB for "
        "example"}},
      {"it was killed for memory, having asked for none",
       "",
       KilledForIt(AttemptOn({memory})),
       {"killed for memory, and it had asked for none: say what it needs, memory: 14GiB"}},
      {"a GPU's memory was too small",
       of_memory,
       EndedBy(AttemptOn({memory}), pb::OUT_OF_MEMORY, kHour),
       {}},
  };
  for (const AdviceCase& c : kCases) {
    SCOPED_TRACE(c.what);
    pb::TaskSpec spec;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(c.asked, spec.mutable_resources()));
    TaskRow task;
    task.attempts.push_back(c.attempt);
    EXPECT_EQ(AdviceOf(story.state, spec, task), c.advice);
    task.attempts.emplace_back().number = 2;
    EXPECT_EQ(AdviceOf(story.state, spec, task), c.advice) << "while another attempt runs";
  }
}

TEST(AdviceOf, WhatAnEarlierAttemptNeededIsNotAdvisedAgainst) {
  const testing::Story story;
  pb::TaskSpec spec;
  spec.mutable_resources()->set_memory_bytes(64 * kGibOfTest);
  TaskRow task;
  task.attempts.push_back(
      AttemptOn({absl::StrCat("ran_ns: 60000000000 memory_peak_bytes: ", 60 * kGibOfTest)}));
  task.attempts.push_back(
      AttemptOn({absl::StrCat("ran_ns: 60000000000 memory_peak_bytes: ", kGibOfTest)}));
  EXPECT_THAT(AdviceOf(story.state, spec, task), IsEmpty());
  task.attempts.erase(task.attempts.begin());
  EXPECT_THAT(AdviceOf(story.state, spec, task), ElementsAre(HasSubstr("memory: 2GiB")));
}

}  // namespace
}  // namespace muster
