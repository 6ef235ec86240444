// What is said of jobs that come after others: verdicts, explain, preview, simulate, refusals.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/check_after.h"
#include "scheduler/ask/explain.h"
#include "scheduler/ask/simulate.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::muster::testing::JobBuilder;
using ::muster::testing::ReportAll;
using ::muster::testing::StartAll;
using ::muster::testing::SystemBuilder;
using ::muster::testing::TellEnd;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AfterTest : public ::testing::Test {
 protected:
  AfterTest() { s.Cluster("lab").Hosts("lab", 1, 4).Queue("research"); }

  void Go() {
    plan = Decide(s.state, s.now_ns, SchedulingOptions());
    for (const pb::Event& event : plan.events) s.Do(event);
    for (const pb::Event& event : plan.events) {
      if (!event.has_attempt_placed()) continue;
      StartAll(&s, s.state.FindJobByUid(event.attempt_placed().key().job_uid())->number);
    }
  }
  uint64_t Running(int64_t ends_in_s = 0) {
    const uint64_t job = JobBuilder("research").SubmitTo(&s);
    Go();
    if (ends_in_s > 0) TellEnd(&s, job, ends_in_s);
    return job;
  }
  // As a user submits it.
  static pb::JobSpec Spec(JobBuilder builder) {
    builder.spec.mutable_tasks(0)->mutable_run()->set_shell("true");
    return builder.spec;
  }
  std::string Verdict(uint64_t job) {
    Go();
    return DescribeVerdict(s.state, plan, *s.state.FindJob(job), 0).text();
  }

  SystemBuilder s;
  Plan plan;
};

TEST_F(AfterTest, TheVerdictSaysForWhomItWaitsAndUntilWhen) {
  const uint64_t a = Running(600), b = Running();
  const struct {
    std::vector<uint64_t> after, any;
    const char* text;
  } kCases[] = {
      {{a}, {}, "waits for job 1 to succeed, expected by "},
      {{}, {b}, "waits for job 2 to end"},
      {{a, b}, {}, "waits for jobs 1, 2 to succeed"},
      {{b}, {a}, "waits for job 2 to succeed and for job 1 to end"},
  };
  for (const auto& c : kCases) {
    JobBuilder builder("research");
    for (const uint64_t job : c.after) builder.After(absl::StrCat(job));
    for (const uint64_t job : c.any) builder.AfterAny(absl::StrCat(job));
    const std::string text = Verdict(builder.SubmitTo(&s));
    EXPECT_THAT(text, ::testing::StartsWith(c.text));
    EXPECT_EQ(text.find("expected") != std::string::npos, c.after == std::vector<uint64_t>{a})
        << "known of all of them: " << text;
  }
}

TEST_F(AfterTest, ExplainSaysTheSameAndWhenItStartsThen) {
  const uint64_t first = Running(600);
  const uint64_t second = JobBuilder("research").After(absl::StrCat(first)).SubmitTo(&s);
  Go();
  const pb::ExplainResponse told =
      Explain(s.state, plan, second, s.now_ns, SchedulingOptions(), nullptr);
  ASSERT_EQ(told.why_size(), 1);
  EXPECT_EQ(told.why(0).code(), pb::V_AFTER);
  EXPECT_THAT(told.why(0).text(), HasSubstr("waits for job 1 to succeed"));
  EXPECT_GE(told.start_ns(), s.now_ns + 600 * kSecond);
  EXPECT_LE(told.start_ns(), s.now_ns + 630 * kSecond);
  EXPECT_EQ(told.relaxations_size(), 0) << "only that job's end helps";
}

TEST_F(AfterTest, APreviewStartsWhereTheOtherEnds) {
  const uint64_t first = Running(600);
  const pb::JobSpec spec = Spec(JobBuilder("research").After(absl::StrCat(first)));
  const pb::PreviewResponse known = Preview(s.state, spec, "ann", s.now_ns, SchedulingOptions());
  ASSERT_EQ(known.candidates_size(), 1);
  EXPECT_GE(known.candidates(0).start_ns(), s.now_ns + 600 * kSecond);
  EXPECT_THAT(known.candidates(0).after_jobs(), ElementsAre(first));
  const uint64_t endless = Running();
  const pb::JobSpec never = Spec(JobBuilder("research").AfterAny(absl::StrCat(endless)));
  const pb::PreviewResponse unknown = Preview(s.state, never, "ann", s.now_ns, SchedulingOptions());
  EXPECT_EQ(unknown.candidates(0).start_ns(), 0);
  EXPECT_EQ(unknown.candidates(0).reason(),
            "it waits for job 2 to end, and nobody knows when that is");
}

TEST_F(AfterTest, SimulateStartsItThenToo) {
  const uint64_t first = Running(600);
  pb::SimulateRequest request;
  *request.add_jobs() = Spec(JobBuilder("research").After(absl::StrCat(first)));
  request.mutable_jobs(0)->set_name("then");
  const auto all = [](const JobRow&) { return true; };
  const Changes changes = ResolveChanges(s.state, request, SpecDefaults{}, "ann");
  ASSERT_TRUE(changes.problems.empty()) << changes.problems[0].message;
  const pb::SimulateResponse told = Simulate(s.state, changes, "ann", 0, s.now_ns,
                                             SchedulingOptions(), FutureOptions(), nullptr, all);
  EXPECT_GE(told.submitted(0).start_ns(), s.now_ns + 600 * kSecond);
  request.mutable_jobs(0)->set_after(0, "77");
  const Changes refused = ResolveChanges(s.state, request, SpecDefaults{}, "ann");
  ASSERT_EQ(refused.problems.size(), 1u);
  EXPECT_EQ(refused.problems[0].path, "jobs[0].after[0]");
}

TEST_F(AfterTest, NamesThatLeadNowhereAreRefusedWithTheirPlace) {
  JobBuilder once("research");
  once.task()->set_max_restarts(0);
  const uint64_t failed = once.SubmitTo(&s);
  const uint64_t cancelled = Running(), done = Running();
  ReportAll(&s, failed, pb::GONE, 1);
  s.Cancel(cancelled);
  ReportAll(&s, cancelled, pb::GONE);
  ReportAll(&s, done, pb::GONE, 0);
  const struct {
    std::string after, any, problem;
  } kCases[] = {
      {absl::StrCat(done), "", ""},
      {"", absl::StrCat(failed), ""},
      {absl::StrCat(failed), "",
       "after[0]: job 1 failed, so this one would never start. Name the "
       "job that does it again (muster rerun 1), or take this one out"},
      {absl::StrCat(cancelled), "",
       "after[0]: job 2 was cancelled, so this one would never start."},
      {"99", "", "after[0]: there is no job \"99\". Jobs have numbers: muster jobs"},
      {"", "1_0", "after_any[0]: there is no job \"1_0\"."},
  };
  for (const auto& c : kCases) {
    pb::JobSpec spec;
    if (!c.after.empty()) spec.add_after(c.after);
    if (!c.any.empty()) spec.add_after_any(c.any);
    const std::vector<FieldProblem> problems = CheckAfter(s.state, spec, FindNamedJob);
    ASSERT_EQ(problems.size(), c.problem.empty() ? 0u : 1u) << c.problem;
    if (problems.empty()) continue;
    EXPECT_THAT(absl::StrCat(problems[0].path, ": ", problems[0].message), HasSubstr(c.problem));
  }
}

}  // namespace
}  // namespace muster
