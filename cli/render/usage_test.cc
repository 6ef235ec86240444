#include "cli/render/usage.h"

#include "cli/render/job.h"
#include "cli/render/json.h"
#include "common/base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGibOfTest = int64_t{1} << 30;

pb::Job JobOfTwoAttempts() {
  pb::Job job;
  job.set_number(7);
  job.set_state(pb::SUCCEEDED);
  pb::TaskSpec* spec = job.mutable_spec()->add_tasks();
  spec->set_name("main");
  spec->mutable_resources()->set_memory_bytes(64 * kGibOfTest);
  spec->mutable_resources()->set_cpus_milli(16'000);
  pb::Task* task = job.add_tasks();
  task->set_name("main");
  task->set_state(pb::TASK_SUCCEEDED);
  pb::Usage* usage = task->add_attempts()->mutable_usage();
  task->mutable_attempts(0)->set_number(1);
  usage->set_ran_ns(kMinute);
  usage->set_memory_peak_bytes(9 * kGibOfTest + kGibOfTest / 8);
  usage->set_cpu_us(126'000'000);
  usage->set_cpus_mean_milli(2149);
  usage->set_cpus_most_milli(3499);
  usage->mutable_gpus()->set_watched_ns(1000);
  usage->mutable_gpus()->set_busy_ns(119);
  usage->mutable_gpus()->set_memory_peak_bytes(23 * kGibOfTest);
  usage->mutable_gpus()->set_memory_bytes(80 * kGibOfTest);
  usage->mutable_gpus()->set_slot_ns(kMinute);
  for (const int32_t busy_permille : {0, 1000, -1, 500})
    usage->mutable_gpus()->add_busy_permille(busy_permille);
  task->add_attempts()->set_number(2);
  task->add_advice("asked for 64GiB of memory, used 9.1GiB at most: memory: 12GiB would do");
  return job;
}

TEST(Usage, StandsBesideWhatWasAskedForWithTheAdvice) {
  const pb::Job job = JobOfTwoAttempts();
  Screen screen;
  screen.utf8 = true;
  screen.width = 200;
  const std::string shown = RenderJob(job, screen, 1795269600 * kSecond);
  EXPECT_THAT(shown, HasSubstr("9.1GiB of 64GiB  2.1 of 16"));
  EXPECT_THAT(shown, HasSubstr("3.4"));
  EXPECT_THAT(shown, HasSubstr("11 %"));
  EXPECT_THAT(shown, HasSubstr("23GiB of 80GiB  ▁█ ▄ 60 s each"));
  EXPECT_THAT(shown, HasSubstr(" advice      asked for 64GiB of memory, used 9.1GiB at most"));
  screen.utf8 = false;
  EXPECT_THAT(RenderJob(job, screen, 1795269600 * kSecond), Not(HasSubstr("█")));
}

TEST(Usage, OfJobsThatTellNothingNothingIsShown) {
  pb::Job job = JobOfTwoAttempts();
  job.mutable_tasks(0)->mutable_attempts(0)->clear_usage();
  job.mutable_tasks(0)->clear_advice();
  const std::string shown = RenderJob(job, Screen(), 1795269600 * kSecond);
  EXPECT_THAT(shown, Not(HasSubstr("PEAK MEMORY")));
  EXPECT_THAT(shown, Not(HasSubstr("advice")));
  EXPECT_EQ(ShortUsage(job), "");
  EXPECT_THAT(ToJson(job, false), Not(HasSubstr("memory_peak_bytes")));
}

TEST(Usage, InAListIsOfTheNewestAttemptThatTellsIt) {
  pb::Job job = JobOfTwoAttempts();
  EXPECT_EQ(ShortUsage(job), "9.1GiB, 2.1 cpus, GPUs 11 %");
  job.mutable_tasks(0)->mutable_attempts(1)->mutable_usage()->set_cpus_mean_milli(500);
  EXPECT_EQ(ShortUsage(job), "0.5 cpus");
  EXPECT_THAT(HistoryTable({job}, 1795269600 * kSecond).Render(Screen(), {}).value(),
              HasSubstr("0.5 cpus"));
}

TEST(Usage, ManySlotsAreShownAsFew) {
  pb::Job job = JobOfTwoAttempts();
  pb::GpuUsage* gpus = job.mutable_tasks(0)->mutable_attempts(0)->mutable_usage()->mutable_gpus();
  gpus->clear_busy_permille();
  for (int i = 0; i < 64; ++i) gpus->add_busy_permille(1000);
  Screen screen;
  screen.utf8 = true;
  EXPECT_THAT(UsageTable(job, screen).Render(screen),
              HasSubstr("  ██████████████████████ 3 m each"));
}

}  // namespace
}  // namespace muster
