// What hosts say that was used: what of it can be true, and that it is kept once.
#include "scheduler/state/usage.h"

#include <limits>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "scheduler/state/testing/story.h"

namespace muster {
namespace {

using testing::Report;
using testing::Story;

pb::HostUsage UsageTold(const std::string& text) {
  pb::HostUsage usage;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &usage)) << text;
  return usage;
}

TEST(PlausibleUsage, KeepsWhatAHostCanHaveUsed) {
  constexpr char kGpus[] = "gpus { watched_ns: 8 busy_ns: 4 memory_bytes: 9 slot_ns: 1 ";
  const struct {
    const char* what;
    std::string told, kept;  // "": nothing
  } kCases[] = {
      {"all of it", "ran_ns: 1000 memory_peak_bytes: 5 cpu_us: 7 cpus_most_milli: 3",
       "ran_ns: 1000 memory_peak_bytes: 5 cpu_us: 7 cpus_most_milli: 3"},
      {"nothing", "", ""},
      {"no figure", "ran_ns: 1000", ""},
      {"it did not run", "cpu_us: 7", ""},
      {"a time that runs backwards", "ran_ns: -5 cpu_us: 7", ""},
      {"a thousand years", "ran_ns: 9223372036854775807 cpu_us: 7", ""},
      {"negative memory", "ran_ns: 1000 memory_peak_bytes: -1 cpu_us: 7", "ran_ns: 1000 cpu_us: 7"},
      {"more memory than there is", "ran_ns: 1000 memory_peak_bytes: 9223372036854775807 cpu_us: 7",
       "ran_ns: 1000 cpu_us: 7"},
      {"negative CPU time", "ran_ns: 1000 memory_peak_bytes: 5 cpu_us: -7",
       "ran_ns: 1000 memory_peak_bytes: 5"},
      {"more CPU time than a host has",
       "ran_ns: 1000 memory_peak_bytes: 5 cpu_us: 9223372036854775807",
       "ran_ns: 1000 memory_peak_bytes: 5"},
      {"a million cores", "ran_ns: 1000 cpu_us: 5 cpus_most_milli: 1000000000",
       "ran_ns: 1000 cpu_us: 5"},
      {"GPUs", absl::StrCat("ran_ns: 1000 ", kGpus, "busy_permille: [-1, 0, 1000] }"),
       absl::StrCat("ran_ns: 1000 ", kGpus, "busy_permille: [-1, 0, 1000] }")},
      {"busier than all the time", absl::StrCat("ran_ns: 1000 ", kGpus, "busy_permille: 1001 }"),
       ""},
      {"busy for longer than watched", "ran_ns: 1000 gpus { watched_ns: 8 busy_ns: 9 slot_ns: 1 }",
       ""},
      {"never watched", "ran_ns: 1000 gpus { slot_ns: 1 }", ""},
      {"more of a GPU's memory than it has",
       "ran_ns: 1000 gpus { watched_ns: 8 memory_bytes: 9 memory_peak_bytes: 10 slot_ns: 1 }", ""},
      {"slots without a length", "ran_ns: 1000 gpus { watched_ns: 8 busy_permille: 1 }", ""},
      {"watched for ages", "ran_ns: 1000 gpus { watched_ns: 9223372036854775807 slot_ns: 1 }", ""},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    const std::shared_ptr<const pb::HostUsage> kept = PlausibleUsage(UsageTold(c.told));
    ASSERT_EQ(kept != nullptr, !c.kept.empty());
    if (kept == nullptr) continue;
    EXPECT_EQ(kept->DebugString(), UsageTold(c.kept).DebugString());
  }
  pb::HostUsage many = UsageTold(absl::StrCat("ran_ns: 1000 ", kGpus, "}"));
  for (int i = 0; i <= kGpuSlotsMax; ++i) many.mutable_gpus()->add_busy_permille(1);
  EXPECT_EQ(PlausibleUsage(many), nullptr) << "more slots than are kept";
}

pb::Event EndedWith(const Story& story, uint64_t job, size_t part, int64_t cpu_us) {
  pb::Event event = Report(story.state, job, 0, story.Newest(job).number, part, pb::GONE, 0);
  pb::HostUsage* usage = event.mutable_attempt_reported()->mutable_report()->mutable_usage();
  usage->set_ran_ns(kSecond);
  usage->set_cpu_us(cpu_us);
  return event;
}

TEST(AttemptUsage, IsStoredOnceWithTheEndOfEachHostsPart) {
  Story story;
  const uint64_t job = story.Running(2);
  pb::Event early = EndedWith(story, job, 0, 1);
  early.mutable_attempt_reported()->mutable_report()->set_phase(pb::STARTED);
  early.mutable_attempt_reported()->mutable_report()->clear_exits();
  story.ExpectNoEffect(early, "it has not ended");
  story.Do(EndedWith(story, job, 0, 5'000'000));
  story.ExpectNoEffect(EndedWith(story, job, 0, 9'000'000), "said again, and otherwise");
  EXPECT_EQ(story.Newest(job).parts[1].usage, nullptr);
  story.Do(EndedWith(story, job, 1, 7'000'000));
  EXPECT_EQ(story.State(job), pb::TASK_SUCCEEDED);
  EXPECT_EQ(story.Newest(job).parts[0].usage->cpu_us(), 5'000'000);
  EXPECT_EQ(story.Newest(job).parts[1].usage->cpu_us(), 7'000'000);
  const absl::StatusOr<State> loaded = State::Load(story.state.AllRows());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(State::Difference(story.state, *loaded), "");
  EXPECT_EQ(loaded->FindJob(job)->tasks[0].attempts[0].parts[1].usage->cpu_us(), 7'000'000);
}

TEST(AttemptUsage, AnAbsurdOneEndsTheAttemptAllTheSame) {
  Story story;
  const uint64_t job = story.Running(1);
  story.Do(EndedWith(story, job, 0, std::numeric_limits<int64_t>::min()));
  EXPECT_EQ(story.State(job), pb::TASK_SUCCEEDED);
  EXPECT_EQ(story.Newest(job).parts[0].usage, nullptr);
}

}  // namespace
}  // namespace muster
