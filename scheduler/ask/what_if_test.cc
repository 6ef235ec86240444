// Future, forecast, preview, explain, simulate, top: questions to systems that read like sentences.
#include "scheduler/state/what_if.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/explain.h"
#include "scheduler/ask/forecast.h"
#include "scheduler/ask/simulate.h"
#include "scheduler/ask/top.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::muster::testing::JobBuilder;
using ::muster::testing::ReportAll;
using ::muster::testing::StartAll;
using ::muster::testing::Stopping;
using ::muster::testing::SystemBuilder;
using ::muster::testing::TaskOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Decides, applies, and starts what was placed.
Plan Go(SystemBuilder* system) {
  const Plan plan = Decide(system->state, system->now_ns, SchedulingOptions());
  for (const pb::Event& event : plan.events) system->Do(event);
  for (const pb::Event& event : plan.events) {
    if (!event.has_attempt_placed()) continue;
    const JobRow* job = system->state.FindJobByUid(event.attempt_placed().key().job_uid());
    StartAll(system, job->number, TaskIndex(*job->spec, event.attempt_placed().key().task()));
  }
  return plan;
}

// The newest attempt of its first task has a checkpoint.
void Checkpointed(SystemBuilder* system, uint64_t job) {
  pb::Event event;
  *event.mutable_checkpoint_seen()->mutable_key() =
      KeyOf(*system->state.FindJob(job), 0, TaskOf(system->state, job).attempts.back().number);
  event.mutable_checkpoint_seen()->mutable_checkpoint()->set_step(1);
  event.mutable_checkpoint_seen()->mutable_checkpoint()->set_path(absl::StrCat("/disk/", job));
  event.mutable_checkpoint_seen()->set_loaded_step(-1);
  system->Do(event);
}

void Progressed(SystemBuilder* system, uint64_t job, int64_t step, int64_t of) {
  pb::Event seen;
  *seen.mutable_progress_seen()->mutable_key() =
      KeyOf(*system->state.FindJob(job), 0, TaskOf(system->state, job).attempts.back().number);
  seen.mutable_progress_seen()->mutable_progress()->set_step(step);
  seen.mutable_progress_seen()->mutable_progress()->set_total_steps(of);
  system->Do(seen);
}

int64_t At(int64_t seconds) { return SystemBuilder::kStart + seconds * kSecond; }
// Futures are decided in grains of 1/64 of the distance.
MATCHER_P(About, seconds, "") {
  return arg >= At(seconds) && arg <= At(seconds + seconds / 60 + 1);
}

TEST(Future, WhatWaitsStartsWhenWhatRunsIsExpectedToEnd) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  const uint64_t first = JobBuilder("research").Workers(4).TimeLimit(600).SubmitTo(&s);
  Go(&s);
  const uint64_t second = JobBuilder("research").Workers(2).TimeLimit(100).SubmitTo(&s);
  const uint64_t third = JobBuilder("research").Workers(4).SubmitTo(&s);
  const State before = s.state;
  const Forecast forecast = MakeForecast(s.state, s.now_ns, SchedulingOptions(), FutureOptions());
  EXPECT_TRUE(forecast.complete);
  ASSERT_EQ(forecast.starts.size(), 2u);
  EXPECT_THAT(forecast.starts.at({second, 0}).start_ns, About(600));
  EXPECT_EQ(forecast.starts.at({second, 0}).place, "lab/h00");
  EXPECT_THAT(forecast.starts.at({third, 0}).start_ns, About(700));
  EXPECT_FALSE(forecast.starts.contains({first, 0}));
  EXPECT_EQ(State::Difference(s.state, before), "") << "a question changes nothing";
}

TEST(Future, WithoutAnyExpectedEndTheStartIsUnknown) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  JobBuilder("research").Workers(4).SubmitTo(&s);
  Go(&s);
  JobBuilder("research").SubmitTo(&s);
  const Forecast forecast = MakeForecast(s.state, s.now_ns, SchedulingOptions(), FutureOptions());
  EXPECT_TRUE(forecast.complete);
  EXPECT_THAT(forecast.starts, IsEmpty());
}

TEST(Future, EndsWhenItsTimeIsOverAndSaysSo) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 1).Queue("research");
  for (int i = 0; i < 20; ++i) JobBuilder("research").TimeLimit(60).SubmitTo(&s);
  FutureOptions options;
  int asked = 0;
  options.expired = [&asked] { return ++asked > 5; };
  const Forecast forecast = MakeForecast(s.state, s.now_ns, SchedulingOptions(), options);
  EXPECT_FALSE(forecast.complete);
  EXPECT_EQ(forecast.starts.size(), 5u);
}

// When an elastic gang of 4, half done after 100 s, ends if another takes two of its workers then.
int64_t EndOfTheShrunk(bool checkpoint) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research", 2).Queue("prod", 2);
  const uint64_t elastic = JobBuilder("research").Workers(2, 4).SubmitTo(&s);
  Go(&s);
  EXPECT_EQ(TaskOf(s.state, elastic).attempts.back().workers, 4);
  s.Step(100);
  if (checkpoint) Checkpointed(&s, elastic);
  Progressed(&s, elastic, 100, 200);
  JobBuilder("prod").Workers(2).SubmitTo(
      &s);  // takes two of its workers: what is left takes twice as long
  Future future(s.state, s.now_ns, SchedulingOptions(), FutureOptions());
  future.Run();
  int64_t end_ns = 0;
  for (const Foreseen& turn : future.foreseen()) {
    if (turn.kind == Foreseen::kEnded && turn.task.job == elastic) end_ns = turn.at_ns;
  }
  return end_ns;
}

TEST(Future, ProgressSaysWhenAnElasticGangEndsWhateverItsSize) {
  EXPECT_GE(EndOfTheShrunk(true), At(100 + 200));
  EXPECT_LE(EndOfTheShrunk(true), At(100 + 225));
}

TEST(Future, WithoutACheckpointAStopLosesAllThatWasDone) {
  EXPECT_GE(EndOfTheShrunk(false), At(100 + 400));
  EXPECT_LE(EndOfTheShrunk(false), At(100 + 425));
}

// Nobody tells progress in a future: what runs there isn't taken for hung. What is hung already is
// stopped.
TEST(Future, WhatMakesProgressGoesOnMakingIt) {
  for (const int64_t silent_s : {0, 700}) {
    SystemBuilder s;
    s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
    JobBuilder runs("research");
    runs.Workers(4);
    runs.task()->set_hang_timeout_ns(600 * kSecond);
    runs.task()->set_max_restarts(0);
    const uint64_t first = runs.SubmitTo(&s);
    Go(&s);
    s.Step(100);
    Progressed(&s, first, 100, 10'000);  // a step a second
    const uint64_t second = JobBuilder("research").Workers(4).SubmitTo(&s);
    s.Step(100 + silent_s);
    const Forecast forecast = MakeForecast(s.state, s.now_ns, SchedulingOptions(), FutureOptions());
    ASSERT_TRUE(forecast.starts.contains({second, 0})) << silent_s;
    if (silent_s == 0) {
      EXPECT_THAT(forecast.starts.at({second, 0}).start_ns, About(10'000));
    } else {
      EXPECT_LE(forecast.starts.at({second, 0}).start_ns, At(100 + silent_s + 60));
    }
  }
}

TEST(Future, WhatIsJustBeingStartedAgainHasTheRestToDo) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  const uint64_t first = JobBuilder("research").Workers(4).SubmitTo(&s);
  Go(&s);
  s.Step(100);
  Checkpointed(&s, first);
  Progressed(&s, first, 100, 400);
  s.Do(Stopping(s.state, first, pb::DRAIN));
  ReportAll(&s, first, pb::GONE, -1, true);
  for (const pb::Event& event : Decide(s.state, s.now_ns, SchedulingOptions()).events) s.Do(event);
  for (const pb::Event& event : Decide(s.state, s.now_ns, SchedulingOptions()).events) s.Do(event);
  ASSERT_EQ(TaskOf(s.state, first).attempts.size(), 2u);
  ASSERT_EQ(TaskOf(s.state, first).attempts.back().start_ns, 0) << "placed, not started";
  const uint64_t second = JobBuilder("research").Workers(4).SubmitTo(&s);
  const Forecast forecast = MakeForecast(s.state, s.now_ns, SchedulingOptions(), FutureOptions());
  ASSERT_TRUE(forecast.starts.contains({second, 0}));
  EXPECT_THAT(forecast.starts.at({second, 0}).start_ns, About(400));
}

TEST(Future, WhatWaitsRunsAsLongAsItsLikeDid) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  const uint64_t like = JobBuilder("research").Workers(4).SubmitTo(&s);
  Go(&s);
  s.Step(60);
  ReportAll(&s, like, pb::GONE, 0);
  JobBuilder other("research");
  other.Workers(4).TimeLimit(600);
  other.spec.set_name("other");
  other.SubmitTo(&s);
  Go(&s);
  JobBuilder("research").Workers(4).TimeLimit(7 * 86'400).SubmitTo(&s);
  JobBuilder last("research");
  last.Workers(4);
  last.spec.set_name("last");
  const uint64_t number = last.SubmitTo(&s);
  const Forecast forecast = MakeForecast(s.state, s.now_ns, SchedulingOptions(), FutureOptions());
  ASSERT_TRUE(forecast.starts.contains({number, 0}));
  EXPECT_THAT(forecast.starts.at({number, 0}).start_ns, About(60 + 600 + 60));
}

// A decision counts with the first end for each of those that wait; a forecast knows their turns.
TEST(Forecast, TakesAwayAStartThatItHasSeenPass) {
  Forecast forecast;
  forecast.now_ns = At(0);
  forecast.until_ns = At(3600);
  forecast.starts[{1, 0}].start_ns = At(600);
  forecast.later.insert({2, 0});
  const struct {
    uint64_t job;
    int64_t expected_s, want_s;  // 0: none
  } kCases[] = {{1, 500, 600}, {2, 600, 0}, {2, 4000, 4000}, {3, 600, 600}};
  for (const auto& c : kCases) {
    pb::Job job;
    job.add_tasks()->set_state(pb::TASK_WAITING);
    job.mutable_tasks(0)->mutable_verdict()->set_code(pb::V_CAPACITY);
    job.mutable_tasks(0)->mutable_verdict()->set_expected_start_ns(At(c.expected_s));
    AddForecast(forecast, c.job, At(10), &job);
    EXPECT_EQ(job.tasks(0).verdict().expected_start_ns(), c.want_s == 0 ? 0 : At(c.want_s))
        << c.job << " " << c.expected_s;
  }
}

TEST(Future, WhatHappensInOneOfTwoIsADecisionInBoth) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  JobBuilder("research").Workers(4).TimeLimit(600).SubmitTo(&s);
  Go(&s);
  Future still(s.state, s.now_ns, SchedulingOptions(), FutureOptions()),
      changed(s.state, s.now_ns, SchedulingOptions(), FutureOptions());
  pb::Event drain;
  drain.mutable_drain_changed()->set_target("lab/h00");
  drain.mutable_drain_changed()->set_drained(true);
  changed.At(At(100), drain);
  std::vector<int64_t> moments;
  while (Future::StepBoth(&still, &changed)) {
    EXPECT_EQ(still.now_ns(), changed.now_ns());
    moments.push_back((still.now_ns() - At(0)) / kSecond);
  }
  EXPECT_THAT(moments, ::testing::Contains(100)) << "nothing happens then as it is";
  EXPECT_THAT(moments, ::testing::Contains(110)) << "what was stopped has left";
}

pb::PreviewResponse Ask(const SystemBuilder& s, const pb::JobSpec& spec) {
  const Resolution resolution = ResolveSpec(s.state, spec, SpecDefaults{});
  EXPECT_TRUE(resolution.ok()) << resolution.problems[0].message;
  return Preview(s.state, resolution.resolved, "ann", s.now_ns, SchedulingOptions());
}

pb::JobSpec Runs(pb::JobSpec spec) {
  for (pb::TaskSpec& task : *spec.mutable_tasks()) task.mutable_run()->set_shell("true");
  return spec;
}

TEST(Preview, OfAJobThatWaitsForHostsSaysNeverAndHoldsNobodyUp) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 2).Queue("research", 4);
  const uint64_t large = JobBuilder("research").Workers(8).SubmitTo(&s);
  const uint64_t wide =
      JobBuilder("research").Gpus(4).SubmitTo(&s);  // as many as there are, but not on one host
  const uint64_t small = JobBuilder("research").Workers(4).SubmitTo(&s);
  Go(&s);
  EXPECT_TRUE(TaskOf(s.state, large).attempts.empty());
  EXPECT_TRUE(TaskOf(s.state, wide).attempts.empty());
  EXPECT_EQ(TaskOf(s.state, small).attempts.size(), 1u);
  s.Hosts("lab", 6, 2);
  Go(&s);
  EXPECT_EQ(TaskOf(s.state, large).attempts.size(), 1u) << "the hosts came";
}

TEST(Preview, TellsWhereWhenAndFromWhomForEachPool) {
  SystemBuilder s;
  s.Cluster("lab")
      .Hosts("lab", 2, 2, "gpu", "r1")
      .Cluster("cloud")
      .Hosts("cloud", 1, 2)
      .Cluster("old")
      .Hosts("old", 1, 2, "k80");
  s.Queue("research", 4).Queue("prod", 2);
  s.GuaranteeIn("research", "lab", 2)
      .GuaranteeIn("research", "cloud", 2)
      .GuaranteeIn("prod", "lab", 2);
  const uint64_t elastic = JobBuilder("research").Workers(2, 4).In({"lab"}).SubmitTo(&s);
  Go(&s);
  const uint64_t other =
      JobBuilder("research").Workers(2).In({"cloud"}).TimeLimit(1800).SubmitTo(&s);
  Go(&s);
  Checkpointed(&s, elastic);
  s.Step(400);
  const pb::PreviewResponse preview = Ask(s, Runs(JobBuilder("prod").Workers(2).spec));
  ASSERT_EQ(preview.candidates_size(), 3);
  const auto& lab = preview.candidates(0);
  EXPECT_EQ(lab.cluster(), "lab");
  EXPECT_TRUE(lab.chosen());
  EXPECT_EQ(lab.start_ns(), At(410)) << "once the others have left";
  ASSERT_EQ(lab.takes_from_size(), 1);
  EXPECT_EQ(lab.takes_from(0).job(), elastic);
  EXPECT_EQ(lab.takes_from(0).gpus_milli(), 2000);
  EXPECT_EQ(lab.takes_from(0).outcome(), "goes on with 2 workers");
  EXPECT_GT(lab.takes_from(0).lost_gpu_ms(), 0);
  const auto& cloud = preview.candidates(1);
  EXPECT_EQ(cloud.cluster(), "cloud");
  EXPECT_THAT(cloud.start_ns(), About(1800));
  EXPECT_THAT(cloud.takes_from(), IsEmpty());
  EXPECT_THAT(cloud.after_jobs(), ElementsAre(other));
  EXPECT_EQ(cloud.within(), "1 host");
  const auto& old = preview.candidates(2);
  EXPECT_EQ(old.start_ns(), -1);
  EXPECT_EQ(old.reason(), "gpu_types allows only gpu");
  EXPECT_EQ(preview.queue_line(), "Queue prod: 0 of 2 guaranteed gpu in use, 2 with this job.");
}

TEST(Preview, ClustersThatCanNeverTakeItSayWhy) {
  SystemBuilder s;
  s.Cluster("lab")
      .Hosts("lab", 4, 2)
      .Cluster("small")
      .Hosts("small", 1, 2)
      .Cluster("flat")
      .Hosts("flat", 1, 0)
      .Cluster("away")
      .Hosts("away", 4, 2);
  s.Queue("research");
  s.Drain("away");
  pb::JobSpec spec =
      Runs(JobBuilder("research").Workers(4).In({"lab", "small", "flat", "away"}).spec);
  const pb::PreviewResponse preview = Ask(s, spec);
  std::vector<std::string> said;
  for (const auto& candidate : preview.candidates()) {
    said.push_back(absl::StrCat(candidate.cluster(),
                                candidate.start_ns() < 0 ? " never: " : " starts",
                                candidate.reason()));
  }
  EXPECT_THAT(said, ElementsAre("lab starts", "small never: has 2 of the 4 that it needs",
                                "flat never: has no GPUs", "away never: is drained"));
}

TEST(Preview, WhatIsDrainedOrAwayIsNamedRatherThanOthersEnds) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 2).Queue("research");
  const auto reason = [&s] {
    return Ask(s, Runs(JobBuilder("research").Workers(4).spec)).candidates(0).reason();
  };
  EXPECT_EQ(reason(), "");
  s.Drain("lab/h00");
  EXPECT_EQ(reason(), "lab/h00 is drained");
  s.Drain("lab/h00", false);
  s.HostState("lab", "h01", pb::HOST_UNREACHABLE);
  EXPECT_EQ(reason(), "is not up with as much as it needs; not reached: lab/h01");
  s.Drain("lab/h00");
  EXPECT_EQ(reason(), "lab/h00 is drained; not reached: lab/h01");
  s.Drain("lab/h00", false);
  s.HostState("lab", "h01", pb::HOST_UP);
  JobBuilder("research").Workers(4).SubmitTo(&s);
  Go(&s);
  EXPECT_EQ(reason(), "nobody's end is known that would make room for it");
}

// A queue that is guaranteed all of the two devices, and one that is guaranteed none.
SystemBuilder OneGuaranteed() {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 2).Queue("prod", 2).Queue("research");
  return s;
}

TEST(Preview, SaysThatWhatIsBorrowedMayBeStoppedAtOnce) {
  SystemBuilder s = OneGuaranteed();
  const auto line = [&](const char* queue) {
    return Ask(s, Runs(JobBuilder(queue).Workers(2).spec)).queue_line();
  };
  EXPECT_EQ(line("research"),
            "Queue research: 0 gpu in use, nothing guaranteed; this job takes 2 more. Borrowed: "
            "may be stopped at once for work within a guarantee.");
  EXPECT_THAT(line("prod"), Not(HasSubstr("orrowed")));
  SystemBuilder alone;
  alone.Cluster("lab").Hosts("lab", 1, 2).Queue("research");
  EXPECT_THAT(Ask(alone, Runs(JobBuilder("research").spec)).queue_line(), Not(HasSubstr("orrowed")))
      << "nobody is guaranteed anything";
}

// ---- explain ----

std::vector<std::string> Said(const pb::ExplainResponse& response) {
  std::vector<std::string> said;
  for (const auto& r : response.relaxations()) {
    said.push_back(absl::StrCat((r.start_ns() - response.now_ns()) / kSecond, " s: ", r.change(),
                                " on ", r.place()));
  }
  return said;
}

pb::ExplainResponse Explained(SystemBuilder* s, uint64_t job) {
  const Plan plan = Go(s);
  return Explain(s->state, plan, job, s->now_ns, SchedulingOptions());
}

TEST(Explain, FewerWorkersStartAtOnceAndThatIsTrue) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 4).Queue("research");
  const uint64_t running = JobBuilder("research").Workers(2).TimeLimit(3600).SubmitTo(&s);
  // Nobody has to outdo what has no turn yet.
  JobBuilder("research").Priority(90).NotBefore(s.now_ns + 30 * 86'400 * kSecond).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(8).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  EXPECT_TRUE(response.complete());
  EXPECT_THAT(response.start_ns(), About(3600));
  ASSERT_EQ(response.why_size(), 1);
  ASSERT_EQ(response.why(0).holders_size(), 1);
  EXPECT_EQ(response.why(0).holders(0).job(), running);
  EXPECT_EQ(response.why(0).holders(0).held_milli(), 2000);
  EXPECT_THAT(response.why(0).holders(0).until_ns(), About(3600));
  EXPECT_THAT(Said(response),
              ElementsAre("0 s: workers: 6 on lab/h00,h01", "310 s: priority: 1 on lab/h00,h01",
                          absl::StrCat("0 s: job ", running, " (research) ended on lab/h00,h01")));

  // What it says is what happens: the same job with that change, submitted now.
  ASSERT_TRUE(response.relaxations(0).own());
  pb::Event event;
  event.mutable_job_submitted()->set_number(s.state.next_job_number());
  event.mutable_job_submitted()->set_uid("changed");
  *event.mutable_job_submitted()->mutable_spec() = response.relaxations(0).spec();
  s.Cancel(waits);
  s.Do(event);
  Go(&s);
  EXPECT_EQ(s.state.FindJobByUid("changed")->state, pb::RUNNING);
}

TEST(Explain, FewerWorkersOfAGangInMultiplesAreAMultiple) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 4).Queue("research");
  JobBuilder("research").Workers(1).TimeLimit(3600).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(8, 12).MultipleOf(4).SubmitTo(&s);
  const std::vector<std::string> said = Said(Explained(&s, waits));
  ASSERT_FALSE(said.empty());
  EXPECT_THAT(said[0], HasSubstr("workers: {min: 4, max: 12, multiple_of: 4}"))
      << "not 7, which are free";
}

TEST(Explain, NamesWhatItWouldGetWithoutItsBlocksOfRanks) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 4).Queue("research");
  for (const char* host : {"h00", "h01"}) {
    const uint64_t other = JobBuilder("research").SubmitTo(&s);
    s.Do(testing::Placed(s.state, other, "lab", {{host, {0}}}));
  }
  JobBuilder gang("research");
  pb::RankBlock* block = gang.Workers(6).MultipleOf(2).task()->mutable_topology()->add_blocks();
  block->set_gpus(2);
  block->set_required(pb::HOST);
  const std::vector<std::string> said = Said(Explained(&s, gang.SubmitTo(&s)));
  EXPECT_THAT(said, ::testing::Contains(HasSubstr(
                        "0 s: topology: {required: cluster, blocks: []} on lab/h00,h01")));
  EXPECT_THAT(said, ::testing::Contains(HasSubstr("0 s: workers: 4")));
}

TEST(Explain, SaysHowSoonWhatIsBorrowedMayBeStopped) {
  SystemBuilder s = OneGuaranteed();
  const auto borrowed = [&](uint64_t job) {
    const pb::ExplainResponse response = Explained(&s, job);
    return response.borrowed_size() == 0 ? "" : response.borrowed(0).text();
  };
  JobBuilder with_time("research");
  with_time.TimeLimit(3600).task()->mutable_checkpoint()->set_interval_ns(600 * kSecond);
  const uint64_t runs = with_time.SubmitTo(&s), waits = with_time.Workers(2).SubmitTo(&s);
  const std::string at_once = "borrowed: may be stopped at once for work within a guarantee";
  EXPECT_EQ(borrowed(runs), at_once);
  EXPECT_EQ(borrowed(waits), at_once) << "once it runs";
  // It works for a checkpoint interval, is stopped for a while, and runs again.
  s.Step(700);
  const uint64_t claims = JobBuilder("prod").Workers(2).SubmitTo(&s);
  EXPECT_EQ(borrowed(claims), "");
  testing::ReportAll(&s, runs, pb::GONE, 0, true);
  Go(&s);
  EXPECT_EQ(borrowed(claims), "") << "within its guarantee";
  s.Step(800);
  testing::ReportAll(&s, claims, pb::GONE, 0);
  Go(&s);
  s.Step(860);
  EXPECT_EQ(borrowed(runs),
            "borrowed: may be stopped for work within a guarantee, but not in the next 4m");
  s.Step(1101);
  EXPECT_EQ(borrowed(runs), at_once);
}

TEST(Explain, WhatGainsSecondsIsNotTold) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  JobBuilder("research").Workers(2).TimeLimit(3600).SubmitTo(&s);
  JobBuilder("research").Workers(2).TimeLimit(3630).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(4).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  EXPECT_THAT(response.start_ns(), About(3630));
  for (const auto& relaxation : response.relaxations())
    EXPECT_LE(relaxation.start_ns() + kMinute, response.start_ns()) << relaxation.change();
}

// It is charged to lab, and cloud has room first.
TEST(Explain, WhereTheForecastNamesAnotherClusterThatIsSaid) {
  SystemBuilder s;
  s.Cluster("lab", "disk")
      .Hosts("lab", 1, 2)
      .Cluster("cloud")
      .Hosts("cloud", 1, 2)
      .Queue("research")
      .Queue("prod");
  JobBuilder("research").Workers(2).In({"lab"}).TimeLimit(7200).SubmitTo(&s);
  JobBuilder("research").Workers(2).In({"cloud"}).TimeLimit(3600).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(2).In({"lab", "cloud"}).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  ASSERT_EQ(response.why(0).cluster(), "lab");
  ASSERT_THAT(response.place(), HasSubstr("cloud"));
  EXPECT_THAT(
      response.why(0).text(),
      HasSubstr("; by the forecast there is room in cloud before that, and it starts there"));
}

TEST(Explain, ListsWhatWouldHelpCheapestFirst) {
  SystemBuilder s;
  s.Cluster("lab")
      .Hosts("lab", 1, 4)
      .Cluster("cloud")
      .Hosts("cloud", 1, 4)
      .Hosts("cloud", 1, 4, "a100")
      .Queue("research");
  JobBuilder("research").Workers(4).In({"lab"}).TimeLimit(3600).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(4).In({"lab"}).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  ASSERT_GE(response.relaxations_size(), 2);
  EXPECT_EQ(response.relaxations(0).kind(), pb::ExplainResponse::OTHER_CLUSTERS);
  EXPECT_EQ(response.relaxations(0).change(), "clusters: [lab, cloud]");
  EXPECT_EQ(response.relaxations(0).cluster(), "cloud");
  EXPECT_EQ(response.relaxations(response.relaxations_size() - 1).kind(),
            pb::ExplainResponse::JOB_ENDS);
  EXPECT_LE(response.relaxations_size(), kRelaxationsShown);
}

TEST(Explain, OtherGpuTypesWithSmallerHostsGetWorkersOfTheirShape) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 8, "h100").Hosts("lab", 2, 4, "a100").Queue("research");
  JobBuilder("research").Workers(1).Gpus(8).Flavours({"h100"}).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(1).Gpus(8).Flavours({"h100"}).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  ASSERT_GE(response.relaxations_size(), 1);
  EXPECT_EQ(response.relaxations(0).change(), "gpu_types: [a100], gpus: 4, workers: 2");
  EXPECT_EQ(response.relaxations(0).flavour(), "a100");
  EXPECT_EQ(response.relaxations(0).start_ns(), response.now_ns());
  EXPECT_EQ(response.start_ns(), 0) << "as it is nobody knows when";
}

TEST(Explain, AReachedLimitNamesTheQuotaThatWouldLetItStart) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research", 0, 2);
  JobBuilder("research").Workers(2).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(2).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  EXPECT_EQ(response.why(0).code(), pb::V_LIMIT);
  const auto& last = response.relaxations(response.relaxations_size() - 1);
  EXPECT_EQ(last.kind(), pb::ExplainResponse::MORE_QUOTA);
  EXPECT_EQ(last.change(), "limit of research gpu raised to 4");
  EXPECT_EQ(last.start_ns(), response.now_ns());
  EXPECT_FALSE(last.own());
}

TEST(Explain, AGuaranteeWouldReclaimAndSaysFromWhom) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research").Queue("prod");
  const uint64_t victim = JobBuilder("prod").Workers(4).SubmitTo(&s);
  Go(&s);
  s.Step(3600);
  const uint64_t waits = JobBuilder("research").Workers(4).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  const auto& last = response.relaxations(response.relaxations_size() - 1);
  EXPECT_EQ(last.change(), "guarantee of research gpu raised from 0 to 4");
  ASSERT_EQ(last.takes_from_size(), 1);
  EXPECT_EQ(last.takes_from(0).job(), victim);
  EXPECT_EQ(last.takes_from(0).outcome(), "waits, and starts over: it has no checkpoint");
}

TEST(Explain, WhereItsTurnHasComeItSaysWhoRunsInItsPlace) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research").Queue("prod");
  JobBuilder("research").Workers(4).TimeLimit(3600).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research")
                             .Workers(4)
                             .Priority(1)
                             .SubmitTo(&s);  // the other may not be stopped yet: min_runtime
  const pb::ExplainResponse response = Explained(&s, waits);
  ASSERT_EQ(response.why_size(), 1);
  EXPECT_EQ(response.why(0).code(), pb::V_CAPACITY);
  EXPECT_THAT(response.why(0).text(),
              HasSubstr("its turn has come, and it waits for 4 more gpu in lab to become free"));
  EXPECT_THAT(response.why(0).text(),
              HasSubstr("; research uses 4 of the 4 gpu that it is entitled to, so others of its "
                        "own jobs run in this one's place"));
}

// Cores are held by work with devices and without, and either's end helps.
TEST(Explain, WhoeverHoldsTheCoresIsNamed) {
  for (const bool devices : {false, true}) {
    SystemBuilder s;
    s.Cluster("lab").Hosts("lab", 1, 4, "gpu", "", 8).Queue("research");
    const auto job = [&](bool gpus, int64_t cores) {
      JobBuilder one("research");
      one.Gpus(gpus ? 1 : 0).Cpus(cores).TimeLimit(3600);
      return one.SubmitTo(&s);
    };
    const uint64_t running = job(devices, 7);
    Go(&s);
    const pb::ExplainResponse response = Explained(&s, job(!devices, 4));
    ASSERT_EQ(response.why_size(), 1) << devices;
    EXPECT_THAT(response.why(0).text(),
                HasSubstr(devices ? "3 more cores in lab to become free"
                                  : "waits for cores in lab beside free gpu"));
    EXPECT_EQ(response.why(0).lacks(),
              devices ? pb::Verdict::LACKS_UNSPECIFIED : pb::Verdict::LACKS_CORES);
    EXPECT_THAT(response.why(0).text(), HasSubstr(absl::StrCat("held by job ", running)));
    ASSERT_EQ(response.why(0).holders_size(), 1) << devices;
    EXPECT_EQ(response.why(0).holders(0).job(), running);
    EXPECT_EQ(response.why(0).holders(0).held_milli(), 7000);
    EXPECT_THAT(Said(response),
                ::testing::Contains(HasSubstr(absl::StrCat("job ", running, " (research) ended"))));
  }
}

TEST(Explain, DrainedHostsAreNamed) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 4).Queue("research");
  s.Drain("lab/h00");
  const uint64_t waits = JobBuilder("research").Workers(8).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, waits);
  bool named = false;
  for (const auto& r : response.relaxations()) named = named || r.change() == "lab/h00 resumed";
  EXPECT_TRUE(named) << response.DebugString();
}

TEST(Explain, OfDrainedHostsNothingIsMissing) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  s.Drain("lab/h00");
  JobBuilder cpu_job("research");
  cpu_job.Gpus(0).Cpus(1);
  for (const uint64_t waits :
       {JobBuilder("research").Workers(4).SubmitTo(&s), cpu_job.SubmitTo(&s)}) {
    const pb::ExplainResponse response = Explained(&s, waits);
    ASSERT_EQ(response.why_size(), 1);
    EXPECT_EQ(response.why(0).code(), pb::V_HELD);
    EXPECT_EQ(response.why(0).missing_milli(), 0);
    EXPECT_THAT(response.why(0).text(), HasSubstr("lab/h00 is drained"));
  }
}

TEST(Explain, APriorityIsProposedWithWhatItCostsTheQueuesOthers) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  JobBuilder("research").Workers(4).Priority(60).TimeLimit(3600).SubmitTo(&s);
  Go(&s);
  const uint64_t first =
      JobBuilder("research").Workers(4).Priority(50).TimeLimit(7200).SubmitTo(&s);
  const uint64_t second = JobBuilder("research").Workers(4).TimeLimit(7200).SubmitTo(&s);
  const pb::ExplainResponse response = Explained(&s, second);
  std::vector<std::string> proposed;
  for (const auto& r : response.relaxations())
    if (r.kind() == pb::ExplainResponse::HIGHER_PRIORITY) proposed.push_back(r.change());
  ASSERT_EQ(proposed.size(), 1u) << response.DebugString();
  EXPECT_THAT(proposed[0], ::testing::StartsWith("priority: 61 (job "));
  EXPECT_THAT(proposed[0], HasSubstr(absl::StrCat("(job ", first, " then starts ")));
  EXPECT_THAT(proposed[0], ::testing::EndsWith(" later)"));
}

TEST(Explain, WithoutTimeItSaysThatItIsNotComplete) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  JobBuilder("research").Workers(4).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(2).SubmitTo(&s);
  const Plan plan = Go(&s);
  const pb::ExplainResponse response =
      Explain(s.state, plan, waits, s.now_ns, SchedulingOptions(), [](int) { return true; });
  EXPECT_FALSE(response.complete());
  EXPECT_EQ(response.why_size(), 1) << "the verdict costs nothing";
  EXPECT_THAT(response.relaxations(), IsEmpty());
}

TEST(ReplaceSpec, LeavesAStateThatItsFactsDerive) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 4).Queue("research");
  const uint64_t running = JobBuilder("research").Workers(2).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(8).SubmitTo(&s);
  const State before = s.state;
  State changed = s.state;
  pb::JobSpec spec = *s.state.FindJob(waits)->spec;
  spec.mutable_tasks(0)->mutable_workers()->set_min(3);
  ReplaceSpec(&changed, waits, spec);
  EXPECT_EQ(changed.FindJob(waits)->task_spec(0).workers().min(), 3);
  EXPECT_EQ(State::Difference(changed, changed.Rebuilt()), "");
  EXPECT_EQ(State::Difference(s.state, before), "");
  ReplaceSpec(&changed, running, spec);
  EXPECT_EQ(changed.FindJob(running)->task_spec(0).workers().min(), 2)
      << "what runs keeps what it runs with";
}

// ---- simulate ----

pb::SimulateResponse Simulated(const SystemBuilder& s, const pb::SimulateRequest& request) {
  const Changes changes = ResolveChanges(s.state, request, SpecDefaults{}, "ann");
  EXPECT_THAT(changes.problems, IsEmpty())
      << changes.problems[0].path << " " << changes.problems[0].message;
  return Simulate(s.state, changes, "ann", request.delay_ns(), s.now_ns, SchedulingOptions(),
                  FutureOptions(), {}, [](const JobRow&) { return true; });
}

TEST(Simulate, ASubmissionShowsItsStartAndWhoWaitsLonger) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research", 0).Queue("prod", 4);
  const uint64_t victim = JobBuilder("research").Workers(4).TimeLimit(600).SubmitTo(&s);
  Go(&s);
  const uint64_t waits = JobBuilder("research").Workers(4).TimeLimit(100).SubmitTo(&s);
  s.Step(400);
  Checkpointed(&s, victim);
  pb::SimulateRequest request;
  *request.add_jobs() = Runs(JobBuilder("prod").Workers(4).TimeLimit(1000).spec);
  const pb::SimulateResponse response = Simulated(s, request);
  ASSERT_EQ(response.submitted_size(), 1);
  EXPECT_EQ(response.submitted(0).start_ns(), At(410))
      << "its queue is guaranteed them: they are taken back at once";
  EXPECT_EQ(response.submitted(0).takes_from_size(), 1);
  EXPECT_THAT(response.submitted(0).end_ns(), About(1410));
  ASSERT_EQ(response.effects_size(), 2);
  EXPECT_EQ(response.effects(0).cause(), pb::PREEMPTION);
  EXPECT_EQ(response.effects(0).outcome(), "waits 16m, then goes on from its checkpoint");
  EXPECT_EQ(response.effects(0).gpus_milli(), 4000);
  EXPECT_EQ(response.effects(1).job(), waits);
  EXPECT_THAT(response.effects(1).start_before_ns(), About(600));
  EXPECT_GT(response.effects(1).start_after_ns(), At(1400));
}

TEST(Simulate, ADrainedHostsJobsMoveOrWait) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 4).Queue("research");
  const uint64_t job = JobBuilder("research").Workers(4).TimeLimit(3600).SubmitTo(&s);
  Go(&s);
  const std::string host = s.state.HostName(TaskOf(s.state, job).attempts.back().parts[0].host);
  pb::SimulateRequest request;
  request.add_drain(host);
  const pb::SimulateResponse response = Simulated(s, request);
  ASSERT_EQ(response.effects_size(), 1);
  EXPECT_EQ(response.effects(0).job(), job);
  EXPECT_EQ(response.effects(0).cause(), pb::DRAIN);
  EXPECT_EQ(response.effects(0).outcome(), "goes on from its start: it has no checkpoint");
}

TEST(Simulate, ADrainListsWhatItStopsThoughThatWouldBeStoppedLaterAnyway) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 8).Queue("research").Queue("prod", 8);
  const uint64_t job = JobBuilder("research").Workers(4).SubmitTo(&s);
  const uint64_t prod = JobBuilder("prod")
                            .Task("first")
                            .TimeLimit(3600)
                            .Task("then", {"first"})
                            .Workers(8)
                            .SubmitTo(&s);
  Go(&s);
  pb::SimulateRequest request;
  const pb::SimulateResponse none = Simulated(s, request);
  EXPECT_THAT(none.effects(), IsEmpty());
  request.add_drain("lab/h00");
  const pb::SimulateResponse response = Simulated(s, request);
  ASSERT_EQ(response.effects_size(), 2);
  for (const auto& effect : response.effects()) {
    EXPECT_EQ(effect.stopped_ns(), s.now_ns) << effect.job();
    EXPECT_EQ(effect.cause(), pb::DRAIN);
    EXPECT_EQ(effect.outcome(), "waits, and starts over: it has no checkpoint");
    EXPECT_EQ(effect.gpus_milli(), effect.job() == job ? 4000 : 1000);
  }
  EXPECT_EQ(response.effects(1).job(), prod);
}

TEST(Simulate, WhatADrainTakesFromOthersIsListedToo) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 2, 4).Queue("research").Queue("prod", 4);
  const uint64_t borrows = JobBuilder("research").Workers(2, 4).SubmitTo(&s);
  Go(&s);
  const uint64_t prod = JobBuilder("prod").Workers(4).SubmitTo(&s);
  Go(&s);
  s.Step(3600);
  ASSERT_EQ(TaskOf(s.state, borrows).attempts.back().workers, 4);
  pb::SimulateRequest request;
  request.add_drain(s.state.HostName(TaskOf(s.state, prod).attempts.back().parts[0].host));
  const pb::SimulateResponse response = Simulated(s, request);
  ASSERT_EQ(response.effects_size(), 2);
  EXPECT_EQ(response.effects(0).job(), borrows);
  EXPECT_EQ(response.effects(0).cause(), pb::PREEMPTION);
  EXPECT_EQ(response.effects(0).gpus_milli(), 4000);
  EXPECT_EQ(response.effects(1).job(), prod);
  EXPECT_EQ(response.effects(1).cause(), pb::DRAIN);
}

TEST(Simulate, ChangedGuaranteesShowInTheQueues) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research", 2).Queue("prod", 2);
  const uint64_t elastic = JobBuilder("research").Workers(2, 4).SubmitTo(&s);
  Go(&s);
  s.Step(3600);
  const uint64_t waits = JobBuilder("prod").Workers(3).SubmitTo(&s);
  Go(&s);
  pb::SimulateRequest request;
  request.set_change_queues(true);
  *request.mutable_queues() = s.state.queue_tree();
  (*request.mutable_queues()->mutable_queues(0)->mutable_quota())["gpu"].set_guarantee_milli(1000);
  (*request.mutable_queues()->mutable_queues(1)->mutable_quota())["gpu"].set_guarantee_milli(3000);
  const pb::SimulateResponse response = Simulated(s, request);
  EXPECT_THAT(response.changes(), ::testing::SizeIs(2));
  ASSERT_GE(response.queues_size(), 2);
  EXPECT_EQ(response.queues(0).path(), "prod");
  EXPECT_EQ(response.queues(0).guarantee_before_milli(), 2000);
  EXPECT_EQ(response.queues(0).guarantee_after_milli(), 3000);
  EXPECT_EQ(response.queues(0).used_after_milli(), 3000);
  bool elastic_hit = false, waits_starts = false;
  for (const auto& effect : response.effects()) {
    elastic_hit = elastic_hit || (effect.job() == elastic && effect.cause() == pb::PREEMPTION);
    waits_starts = waits_starts || (effect.job() == waits && effect.start_before_ns() == 0 &&
                                    effect.start_after_ns() > 0);
  }
  EXPECT_TRUE(elastic_hit) << response.DebugString();
  EXPECT_TRUE(waits_starts) << response.DebugString();
}

TEST(Simulate, NonsenseIsRefusedWithItsPlace) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  pb::SimulateRequest request;
  *request.add_jobs() = Runs(JobBuilder("nowhere").spec);
  request.add_drain("mars/h1");
  const Changes changes = ResolveChanges(s.state, request, SpecDefaults{}, "ann");
  ASSERT_EQ(changes.problems.size(), 2u);
  EXPECT_EQ(changes.problems[0].path, "drain[0]");
  EXPECT_EQ(changes.problems[1].path, "jobs[0].queue");
}

// ---- top and the ledger's rows ----

TEST(Top, RowsOfEveryGroupingAddUpToTheUse) {
  SystemBuilder s;
  s.Cluster("lab")
      .Hosts("lab", 1, 4)
      .Cluster("cloud")
      .Hosts("cloud", 1, 2)
      .Queue("research", 4)
      .Queue("prod");
  JobBuilder("research").Workers(3).In({"lab"}).SubmitTo(&s);
  JobBuilder("prod").Workers(2).In({"cloud"}).SubmitTo(&s);
  Go(&s);
  JobBuilder("prod").Workers(2).In({"cloud"}).SubmitTo(&s);
  const Plan plan = Go(&s);
  for (const auto by : {pb::TopRequest::QUEUE, pb::TopRequest::CLUSTER, pb::TopRequest::USER,
                        pb::TopRequest::JOB}) {
    pb::TopRequest request;
    request.set_by(by);
    const pb::TopResponse top =
        DescribeTop(s.state, plan, request, s.now_ns, [](const JobRow&) { return true; });
    ASSERT_EQ(top.totals_size(), 1);
    EXPECT_EQ(top.totals(0).total_milli(), 6000);
    EXPECT_EQ(top.totals(0).used_milli(), 5000);
    EXPECT_EQ(top.totals(0).waiting_milli(), 2000);
    EXPECT_EQ(top.running_jobs(), 2);
    EXPECT_EQ(top.waiting_jobs(), 1);
    int64_t used_milli = 0, waiting_milli = 0;
    for (const auto& row : top.rows()) {
      used_milli += row.used_milli();
      waiting_milli += row.waiting_milli();
    }
    EXPECT_EQ(used_milli, 5000) << by;
    EXPECT_EQ(waiting_milli, 2000) << by;
  }
}

TEST(Top, AJobThatHoldsAnythingOfARowRunsThereWhateverElseItWaitsFor) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research");
  JobBuilder two("research");
  two.Workers(4).Task("second").Workers(2);
  const uint64_t job = two.SubmitTo(&s);
  const Plan plan = Go(&s);
  ASSERT_EQ(s.state.FindJob(job)->state, pb::RUNNING);
  pb::TopRequest request;
  request.set_by(pb::TopRequest::QUEUE);
  const pb::TopResponse top =
      DescribeTop(s.state, plan, request, s.now_ns, [](const JobRow&) { return true; });
  EXPECT_EQ(top.running_jobs(), 1) << "as `muster jobs` and `muster queue list` say";
  EXPECT_EQ(top.waiting_jobs(), 0);
  EXPECT_EQ(DescribeQueue(s.state, plan, "research")->running_jobs(), 1);
  for (const auto& row : top.rows()) {
    if (row.waiting_tasks() + row.running_tasks() == 0) continue;
    EXPECT_EQ(row.running_jobs(), 1) << row.flavour();
    EXPECT_EQ(row.waiting_jobs(), 0) << row.flavour();
  }
}

void ExpectRowsSumToBooks(const State& state) {
  for (const auto by :
       {pb::GetLedgerRequest::USER, pb::GetLedgerRequest::JOB, pb::GetLedgerRequest::QUEUE}) {
    std::map<int, int64_t> sums, books;
    for (const auto& row : LedgerRows(state, by, [](const JobRow&) { return true; })) {
      for (int c = 0; c < row.device_us_size(); ++c) sums[c] += row.device_us(c);
    }
    for (size_t c = 0; c < std::size(kLedgerClasses); ++c) books[static_cast<int>(c)] = 0;
    for (const auto& [key, device_us] : state.ledger()) {
      if (!key.first.empty()) books[key.second] += device_us;
    }
    EXPECT_EQ(sums, books) << by;
  }
}

TEST(Ledger, RowsOfJobsSumToTheBooksOfTheirQueues) {
  SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 4).Queue("research", 2).Queue("prod", 2);
  const uint64_t elastic = JobBuilder("research").Workers(2, 4).SubmitTo(&s);
  Go(&s);
  s.Step(400);
  JobBuilder("prod").Workers(2).SubmitTo(&s);
  Go(&s);  // stops it, to go on with two
  s.Step(407);
  ::muster::testing::ReportAll(&s, elastic, pb::GONE, 0, true);
  Go(&s);
  s.Step(1000);
  ExpectRowsSumToBooks(s.state);
}

TEST(Ledger, RowsOfJobsHaveNothingOfTheWaitForAnExport) {
  for (const char* error : {"", "disk full"}) {
    SystemBuilder s;
    s.Cluster("lab").Hosts("lab", 1, 4).Queue("research", 2);
    const uint64_t job = JobBuilder("research").Workers(2).SubmitTo(&s);
    Go(&s);
    s.Step(10);
    ReportAll(&s, job, pb::GONE, 1);
    s.Step(100);
    Go(&s);
    const pb::AttemptKey key = KeyOf(*s.state.FindJob(job), 0, 2);
    pb::Event staged, published;
    *staged.mutable_export_staged()->mutable_key() = key;
    staged.mutable_export_staged()->set_staged("/disk/staged");
    staged.mutable_export_staged()->set_target("/disk/model");
    *published.mutable_export_published()->mutable_key() = key;
    published.mutable_export_published()->set_detail(error);
    s.Do(staged);
    s.Step(400);
    ReportAll(&s, job, pb::GONE, 0);
    s.Step(1000);
    ExpectRowsSumToBooks(s.state);
    for (int tries = 0; tries < kExportTries; ++tries) s.Do(published);
    ASSERT_TRUE(s.state.FindJob(job)->finished());
    s.Step(1100);
    ExpectRowsSumToBooks(s.state);
  }
}

}  // namespace
}  // namespace muster
