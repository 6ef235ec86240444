// What is said of jobs that wait for a time: verdicts, explain, preview, simulate.
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/explain.h"
#include "scheduler/ask/future.h"
#include "scheduler/ask/simulate.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::muster::testing::JobBuilder;
using ::muster::testing::SystemBuilder;
using ::testing::HasSubstr;

class TimeTest : public ::testing::Test {
 protected:
  TimeTest() {
    s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
    s.Step(1);
  }

  // As a user submits it.
  pb::JobSpec In(int64_t wait_ns) const {
    JobBuilder builder("research");
    builder.spec.mutable_tasks(0)->mutable_run()->set_shell("true");
    builder.spec.set_not_before(absl::FormatTime(
        absl::RFC3339_full, absl::FromUnixNanos(s.now_ns + wait_ns), absl::UTCTimeZone()));
    return builder.spec;
  }
  uint64_t Submit(int64_t wait_ns) {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid("timed");
    e->set_owner("ann");
    *e->mutable_spec() = In(wait_ns);
    e->set_not_before_ns(s.now_ns + wait_ns);
    s.Do(event);
    plan = Decide(s.state, s.now_ns, SchedulingOptions());
    return e->number();
  }

  // The job of a schedule's next time; the one of the time before runs for ever.
  uint64_t AfterOneThatRuns(pb::Overlap overlap) {
    const uint64_t previous = JobBuilder("research").SubmitTo(&s);
    for (const pb::Event& event : Decide(s.state, s.now_ns, SchedulingOptions()).events)
      s.Do(event);
    testing::StartAll(&s, previous);
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid(absl::StrCat("next", e->number()));
    e->set_owner("ann");
    *e->mutable_spec() = In(0);
    e->mutable_spec()->mutable_schedule()->set_cron("*/30 * * * *");
    e->mutable_spec()->mutable_schedule()->set_overlap(overlap);
    e->set_not_before_ns(s.now_ns + kHour);
    e->set_previous(previous);
    s.Do(event);
    plan = Decide(s.state, s.now_ns, SchedulingOptions());
    return e->number();
  }

  SystemBuilder s;
  Plan plan;
};

TEST_F(TimeTest, ATimeThatWillBeSkippedIsNotForetold) {
  for (const pb::Overlap overlap : {pb::SKIP, pb::ALLOW}) {
    const uint64_t job = AfterOneThatRuns(overlap);
    const pb::ExplainResponse told =
        Explain(s.state, plan, job, s.now_ns, SchedulingOptions(), nullptr);
    EXPECT_EQ(told.start_ns(), overlap == pb::ALLOW ? s.now_ns + kHour : 0);
    s.Cancel(job);
  }
}

TEST_F(TimeTest, ATimeThatWasLeftOutForWantOfARightSaysSoAndNoneIsForetold) {
  const uint64_t job = AfterOneThatRuns(pb::ALLOW);
  pb::Event due;
  due.mutable_job_due()->set_number(job);
  due.mutable_job_due()->set_skip_to_ns(s.now_ns + 2 * kHour);
  due.mutable_job_due()->set_no_right(true);
  s.Do(due);
  plan = Decide(s.state, s.now_ns, SchedulingOptions());
  EXPECT_THAT(DescribeVerdict(s.state, plan, *s.state.FindJob(job), 0).text(),
              HasSubstr("; 1 time was left out, as ann may not submit to queue research; "));
  EXPECT_EQ(Explain(s.state, plan, job, s.now_ns, SchedulingOptions(), nullptr).start_ns(), 0);
  FutureOptions options;
  options.steps_max = 30;
  Future future(s.state, s.now_ns, SchedulingOptions(), options);
  future.Run();
  EXPECT_FALSE(future.cut()) << "nor is any of its 44 times of a day looked at";
}

TEST_F(TimeTest, TheVerdictNamesTheTimeAndDecideWakesThen) {
  const uint64_t job = Submit(kHour);
  EXPECT_TRUE(plan.events.empty());
  EXPECT_EQ(plan.next_wake_ns, s.now_ns + kHour);
  const pb::Verdict verdict = DescribeVerdict(s.state, plan, *s.state.FindJob(job), 0);
  EXPECT_EQ(verdict.code(), pb::V_TIME);
  EXPECT_EQ(verdict.expected_start_ns(), s.now_ns + kHour);
  EXPECT_THAT(verdict.text(), ::testing::StartsWith("waits for its time, "));
}

TEST_F(TimeTest, ExplainForeseesThatItStartsThen) {
  const uint64_t job = Submit(kHour);
  const pb::ExplainResponse told =
      Explain(s.state, plan, job, s.now_ns, SchedulingOptions(), nullptr);
  ASSERT_EQ(told.why_size(), 1);
  EXPECT_EQ(told.why(0).code(), pb::V_TIME);
  EXPECT_EQ(told.start_ns(), s.now_ns + kHour);
  EXPECT_EQ(told.relaxations_size(), 0) << "only time helps";
}

TEST_F(TimeTest, APreviewStartsThenOrSaysThatItIsTooFarAway) {
  const pb::PreviewResponse soon =
      Preview(s.state, In(kHour), "ann", s.now_ns, SchedulingOptions());
  ASSERT_EQ(soon.candidates_size(), 1);
  EXPECT_EQ(soon.candidates(0).start_ns(), s.now_ns + kHour);
  pb::JobSpec daily = In(0);
  daily.mutable_schedule()->set_cron("0 0 1 1 *");
  const pb::PreviewResponse late = Preview(s.state, daily, "ann", s.now_ns, SchedulingOptions());
  EXPECT_EQ(late.candidates(0).start_ns(), 0);
  EXPECT_THAT(late.candidates(0).reason(), HasSubstr("it waits for its time, "));
  EXPECT_THAT(late.candidates(0).reason(), HasSubstr("too far away"));
}

TEST_F(TimeTest, SimulateStartsItThenToo) {
  pb::SimulateRequest request;
  *request.add_jobs() = In(kHour);
  request.mutable_jobs(0)->set_name("then");
  const auto all = [](const JobRow&) { return true; };
  const Changes changes = ResolveChanges(s.state, request, SpecDefaults{}, "ann");
  ASSERT_TRUE(changes.problems.empty()) << changes.problems[0].message;
  const pb::SimulateResponse told = Simulate(s.state, changes, "ann", 0, s.now_ns,
                                             SchedulingOptions(), FutureOptions(), nullptr, all);
  ASSERT_EQ(told.submitted_size(), 1);
  EXPECT_EQ(told.submitted(0).start_ns(), s.now_ns + kHour);
}

}  // namespace
}  // namespace muster
