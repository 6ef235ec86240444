// Bars and lines of a job that runs, as who follows it sees them.
#include "cli/render/bar.h"

#include "cli/render/array.h"
#include "cli/render/escapes.h"
#include "cli/render/job.h"
#include "cli/render/testing/job318.h"
#include "common/base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(BarTest, ShowsAllFiguresAndDropsTheRightmostWhenNarrow) {
  pb::Job job = Job318();
  EXPECT_EQ(TaskBar(job.tasks(0), Terminal(140), kNow),
            "main ━━━━━━━━━───────────── "
            " 41%  246/600  loss 1.321  106k tok/s  MFU 37% causal  ckpt 240  ends 15:40");
  EXPECT_EQ(TaskBar(job.tasks(0), Terminal(60), kNow),
            "main ━━━━━━━━━─────────────  41%  246/600  loss 1.321");
  Screen ascii;
  EXPECT_EQ(TaskBar(job.tasks(0), ascii, kNow),
            "main [#########-------------]  41%  246/600  loss 1.321  106k tok/s  MFU 37% causal  "
            "ckpt 240");
  for (int width = 20; width < 160; ++width) {
    std::string bar = TaskBar(job.tasks(0), Terminal(width), kNow);
    if (width >= 40) {
      EXPECT_LE(DisplayWidth(bar), width) << bar;
    }
  }
}

TEST(BarTest, StepsBeyondTheTotalAndUnknownTotals) {
  pb::Job job = Job318();
  job.mutable_tasks(0)->mutable_progress()->set_step(1'000'000);
  EXPECT_THAT(TaskBar(job.tasks(0), Screen(), kNow), HasSubstr("[######################] 100%"));
  job.mutable_tasks(0)->mutable_progress()->set_total_steps(0);
  EXPECT_THAT(TaskBar(job.tasks(0), Screen(), kNow),
              ::testing::StartsWith("main  step 1000000  loss 1.321"));
  job.mutable_tasks(0)->mutable_progress()->set_total_steps(INT64_MAX);
  EXPECT_THAT(TaskBar(job.tasks(0), Screen(), kNow), HasSubstr("[----------------------]   0%"));
  job.mutable_tasks(0)->clear_progress();
  EXPECT_EQ(TaskBar(job.tasks(0), Screen(), kNow), "main runs on phx/h07,h08");
}

TEST(BarTest, RowsHaveTheirPaceAndAnEndByIt) {
  pb::Job job = Job318();
  pb::Task* task = job.mutable_tasks(0);
  task->clear_checkpoints();
  pb::Progress* progress = task->mutable_progress();
  progress->Clear();
  progress->set_attempt(1);
  progress->set_step(4000);
  progress->set_total_steps(10'000);
  progress->set_at_ns(kNow);
  progress->set_rows_per_s(1.0);
  EXPECT_EQ(PlainProgress(*task, kNow), "14:00:00  main  40%  4000/10000  1.0 rows/s  ends 15:40");
  EXPECT_EQ(ShortProgress(*task), "40% 4000/10000 1.0 rows/s");
  EXPECT_THAT(JobsTable({job}, kNow).Render(Screen()), HasSubstr("ends 15:40"));
  progress->set_rows_per_s(12'000);
  progress->set_step(9999);
  EXPECT_THAT(TaskBar(*task, Terminal(140), kNow), HasSubstr("12.0k rows/s"));
  pb::Job array = job;
  array.mutable_array()->set_members(4);
  array.mutable_array()->set_running(4);
  EXPECT_THAT(LiveLines(array, Terminal(140), kNow),
              ::testing::ElementsAre("4 running", HasSubstr("12.0k rows/s")));
  const struct {
    int64_t step, total, at_ns;
    double rows_per_s;
    int64_t told_ns, end_ns;
  } kCases[] = {
      {0, 100, kNow, 10, 0, kNow + 10 * kSecond},
      {0, 100, kNow, 10, kNow + kHour, kNow + kHour},  // what the program says goes first
      {100, 100, kNow, 10, 0, 0},
      {0, 0, kNow, 10, 0, 0},
      {0, 100, 0, 10, 0, 0},
      {0, 100, kNow, 0, 0, 0},
      {0, INT64_MAX, kNow, 1e-300, 0, 0},
      {0, 100, kNow, std::numeric_limits<double>::infinity(), 0, kNow},
  };
  for (const auto& c : kCases) {
    progress->set_step(c.step);
    progress->set_total_steps(c.total);
    progress->set_at_ns(c.at_ns);
    progress->set_rows_per_s(c.rows_per_s);
    progress->set_expected_end_ns(c.told_ns);
    EXPECT_EQ(ExpectedEndNs(*progress), c.end_ns) << progress->ShortDebugString();
  }
}

TEST(BarTest, AResumedJobShowsWhereItWentOnFromUntilItsFirstCheckpoint) {
  pb::Job job = Job318();
  pb::Task* task = job.mutable_tasks(0);
  task->clear_checkpoints();
  task->add_checkpoints()->set_path("/old/step-200");  // of an earlier job
  EXPECT_THAT(PlainProgress(*task, kNow), Not(HasSubstr("ckpt")));
  task->mutable_attempts(0)->set_resumed_step(200);
  EXPECT_THAT(PlainProgress(*task, kNow), HasSubstr("causal  from step 200  ends"));
  pb::Checkpoint* own = task->add_checkpoints();
  own->set_attempt(1);
  own->set_step(220);
  EXPECT_THAT(PlainProgress(*task, kNow), HasSubstr("causal  ckpt 220  ends"));
}

TEST(BarTest, BadRowsAreCounted) {
  pb::Job job = Job318();
  pb::Progress* progress = job.mutable_tasks(0)->mutable_progress();
  progress->Clear();
  progress->set_attempt(1);
  progress->set_at_ns(kNow);
  progress->set_step(50);
  progress->set_total_steps(50);
  EXPECT_THAT(RenderJob(job, Screen(), kNow), Not(HasSubstr("bad row")));
  progress->set_bad_rows(2);
  EXPECT_EQ(ShortProgress(job.tasks(0)), "100% 50/50, 2 bad rows");
  EXPECT_THAT(PlainProgress(job.tasks(0), kNow), HasSubstr("50/50  2 bad rows"));
  job.set_state(pb::SUCCEEDED);
  job.mutable_tasks(0)->set_state(pb::TASK_SUCCEEDED);
  job.set_end_ns(kNow);
  EXPECT_EQ(OutcomeLine(job),
            "Job 318 sft-8b succeeded after 60 s; 2 of 50 rows could not be scored.");
  EXPECT_THAT(RenderJob(job, Screen(), kNow), HasSubstr("2 of 50 rows could not be scored"));
  job.mutable_array()->set_members(1);
  job.mutable_array()->set_succeeded(1);
  EXPECT_THAT(JobsTable({job}, kNow).Render(Terminal(200)), HasSubstr("1/1 ended, 2 bad rows"));
  EXPECT_THAT(RenderJob(job, Screen(), kNow), HasSubstr("2 of 50 rows could not be scored"));
}

TEST(BarTest, AnArrayOfWhichAMemberPausesSaysWhy) {
  pb::Job job = Job318();
  pb::Task* task = job.mutable_tasks(0);
  task->set_state(pb::TASK_WAITING);
  task->mutable_verdict()->set_code(pb::V_BACKOFF);
  task->mutable_verdict()->set_text("starts again at 14:05: attempt 1 failed, rank 0: exit 75");
  job.mutable_array()->set_members(2);
  job.mutable_array()->set_waiting(2);
  EXPECT_THAT(
      LiveLines(job, Terminal(140), kNow),
      ::testing::ElementsAre(
          "2 waiting", "main waits: starts again at 14:05: attempt 1 failed, rank 0: exit 75"));
  EXPECT_EQ(WhyText(job, kNow), "starts again at 14:05: attempt 1 failed, rank 0: exit 75")
      << "the time is said once";
}

TEST(BarTest, AnAttemptThatHasReportedNothingShowsNoOldBar) {
  pb::Job job = Job318();
  pb::Attempt* second = job.mutable_tasks(0)->add_attempts();
  second->set_number(2);
  second->set_cluster("dal");
  job.mutable_tasks(0)->set_state(pb::TASK_RUNNING);
  EXPECT_EQ(TaskBar(job.tasks(0), Screen(), kNow), "main runs on dal");
}

TEST(BarTest, PlainLinesHaveNoEscapes) {
  EXPECT_EQ(
      PlainProgress(Job318().tasks(0), kNow),
      "14:00:00  main  41%  246/600  loss 1.321  106k tok/s  MFU 37% causal  ckpt 240  ends 15:40");
  EXPECT_EQ(PlainProgress(pb::Task(), kNow), "");
}

}  // namespace
}  // namespace muster
