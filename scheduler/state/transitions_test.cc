// What each event does to State, and what it must not do: the transitions of CONTRACTS 6-14 one by one.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/state/builders.h"
#include "scheduler/state/random_events.h"

namespace muster {
namespace {

using testing::On;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job's whole row as text, its version apart: what an event without effect must leave as it was.
std::string Facts(const State& state) {
  std::string facts;
  for (const RowChange& row : state.AllRows()) {
    if (row.kind == "job") {
      pb::JobRecord record;
      record.ParseFromString(*row.bytes);
      record.clear_version();
      facts += record.DebugString();
    } else {
      facts += row.kind + row.id + *row.bytes + "\n";
    }
  }
  return facts;
}

// Cluster lab with four hosts h00..h03 of two GPUs each, queue research. Sentences are about the task's newest attempt.
class Story : public testing::SystemBuilder {
 public:
  Story() {
    Cluster("lab", "disk").Hosts("lab", 4, 2).Queue("research", 8);
    Step(1);
  }

  uint64_t Job(int workers = 1) { return testing::JobBuilder("research").Workers(workers).SubmitTo(this); }
  // A gang of two workers on h00 and h01; a task of one worker on h00.
  uint64_t Placed(int workers) {
    const uint64_t job = Job(workers);
    Place(job);
    return job;
  }
  uint64_t Running(int workers) {
    const uint64_t job = Placed(workers);
    testing::StartAll(this, job);
    EXPECT_EQ(State(job), pb::TASK_RUNNING);
    return job;
  }
  void Place(uint64_t job, int task = 0) {
    const int workers = state.FindJob(job)->task_spec(task).workers().min();
    std::vector<On> parts;
    for (int w = 0; w < workers; ++w) parts.push_back({absl::StrCat("h0", w), {0}});
    PlaceOn(job, parts, task);
  }
  // With everything there is to resume from, as Decide does it.
  void PlaceOn(uint64_t job, const std::vector<On>& parts, int task = 0) {
    pb::Event event = testing::Placed(state, job, "lab", parts, task);
    for (const std::string& path : ResumeFrom(state, Task(job, task), "lab")) event.mutable_attempt_placed()->add_resume_from(path);
    Do(event);
  }
  void Again(uint64_t job) {
    Place(job);
    testing::StartAll(this, job);
    ASSERT_EQ(State(job), pb::TASK_RUNNING);
  }
  void Says(uint64_t job, size_t part, pb::AttemptPhase phase, int exit_code = -1, bool stop_sent = false, int task = 0) {
    Do(testing::Report(state, job, task, Newest(job, task).number, part, phase, exit_code, stop_sent));
  }
  void AllSay(uint64_t job, pb::AttemptPhase phase, int exit_code = -1, bool stop_sent = false, int task = 0) {
    testing::ReportAll(this, job, phase, exit_code, stop_sent, task);
  }
  void Stop(uint64_t job, pb::Cause cause, int next_workers = 0) { Do(testing::Stopping(state, job, cause, next_workers)); }
  pb::Event LostEvent(uint64_t job, int32_t attempt, const std::string& host) const {
    pb::Event event;
    *event.mutable_attempt_lost()->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    event.mutable_attempt_lost()->set_cluster("lab");
    event.mutable_attempt_lost()->set_host(host);
    event.mutable_attempt_lost()->set_detail(host + " is silent");
    return event;
  }
  void Lose(uint64_t job, const std::string& host) { Do(LostEvent(job, Newest(job).number, host)); }
  pb::Event CheckpointEvent(uint64_t job, int32_t attempt, int64_t step, int64_t loaded = -1) const {
    pb::Event event;
    pb::CheckpointSeen* e = event.mutable_checkpoint_seen();
    *e->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    e->mutable_checkpoint()->set_step(step);
    e->mutable_checkpoint()->set_path(absl::StrCat("/disk/", attempt, "/", step));
    e->mutable_checkpoint()->set_storage("disk");
    e->set_loaded_step(loaded);
    return event;
  }
  void Checkpoint(uint64_t job, int64_t step, int64_t loaded = -1) { Do(CheckpointEvent(job, Newest(job).number, step, loaded)); }
  pb::Event GangPreparedEvent(uint64_t job) const {
    pb::Event event;
    *event.mutable_gang_prepared()->mutable_key() = KeyOf(*state.FindJob(job), 0, Newest(job).number);
    event.mutable_gang_prepared()->set_master_address("10.0.0.1");
    event.mutable_gang_prepared()->set_master_port(20'000);
    return event;
  }
  pb::Event StagedEvent(uint64_t job, int32_t attempt) const {
    pb::Event event;
    *event.mutable_export_staged()->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    event.mutable_export_staged()->set_staged(absl::StrCat("/disk/staged-", attempt));
    event.mutable_export_staged()->set_target("/disk/model");
    return event;
  }
  pb::Event PublishedEvent(uint64_t job, int32_t attempt) const {
    pb::Event event;
    *event.mutable_export_published()->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    return event;
  }

  const TaskRow& Task(uint64_t job, int task = 0) const { return testing::TaskOf(state, job, task); }
  const AttemptRow& Newest(uint64_t job, int task = 0) const { return Task(job, task).attempts.back(); }
  pb::TaskState State(uint64_t job, int task = 0) const { return Task(job, task).state; }
  int64_t UsedMilli(const std::string& host) const {
    int64_t used = 0;
    for (const int64_t milli : state.host(state.FindHost("lab", host)).device_used_milli) used += milli;
    return used;
  }
  std::vector<int64_t> Steps(uint64_t job) const {
    std::vector<int64_t> steps;
    for (const pb::Checkpoint& checkpoint : Task(job).checkpoints) steps.push_back(checkpoint.step());
    return steps;
  }
  // Devices' thousandths of a host that are booked to this class now.
  int64_t Booked(const std::string& host, LedgerClass ledger_class) const {
    int64_t milli = 0;
    for (const LedgerShare& share : state.host(state.FindHost("lab", host)).shares) {
      if (share.ledger_class == static_cast<int>(ledger_class)) milli += share.milli;
    }
    return milli;
  }
  void ExpectNoEffect(const pb::Event& event, const std::string& what) {
    const std::string before = Facts(state);
    Do(event);
    EXPECT_EQ(Facts(state), before) << what << "\n" << event.DebugString();
  }
};

// ---- starting ----

TEST(Start, AGangStartsOnlyWhenEveryHostIsPreparedAndThatIsCommitted) {
  Story s;
  const uint64_t job = s.Placed(2);
  EXPECT_EQ(s.State(job), pb::TASK_PREPARING);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::RUNNING);
  EXPECT_EQ(s.UsedMilli("h00"), 1000) << "placed devices are taken before anything runs";
  s.ExpectNoEffect(s.GangPreparedEvent(job), "nobody is prepared");
  s.Says(job, 1, pb::PREPARED);
  s.ExpectNoEffect(s.GangPreparedEvent(job), "one is missing");
  EXPECT_FALSE(AllPrepared(s.Newest(job)));
  s.Says(job, 0, pb::PREPARED);
  EXPECT_TRUE(AllPrepared(s.Newest(job)));
  EXPECT_EQ(s.State(job), pb::TASK_PREPARING) << "until GangPrepared is committed";
  s.Do(s.GangPreparedEvent(job));
  EXPECT_EQ(s.State(job), pb::TASK_STARTING);
  EXPECT_EQ(s.Newest(job).master_address, "10.0.0.1");
  EXPECT_EQ(s.Newest(job).master_port, 20'000);
  s.ExpectNoEffect(s.GangPreparedEvent(job), "repeated");
  s.Says(job, 0, pb::STARTED);
  EXPECT_EQ(s.State(job), pb::TASK_STARTING) << "half a gang doesn't run";
  EXPECT_EQ(s.Newest(job).start_ns, 0);
  s.Step(5);
  s.Says(job, 1, pb::STARTED);
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
  EXPECT_EQ(s.Newest(job).start_ns, s.now_ns);
  EXPECT_EQ(s.state.FindJob(job)->start_ns, s.now_ns);
}

TEST(Start, ATaskOnOneHostIsStartingAtOnce) {
  Story s;
  const uint64_t job = s.Placed(1);
  EXPECT_EQ(s.State(job), pb::TASK_STARTING);
  s.Says(job, 0, pb::STARTED);
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
}

TEST(Start, AGangThatEndsBeforeItsLastStartIsHeardHasRunNevertheless) {
  Story s;
  const uint64_t job = s.Placed(2);
  s.AllSay(job, pb::PREPARED);
  s.Do(s.GangPreparedEvent(job));
  s.AllSay(job, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_SUCCEEDED);
  EXPECT_NE(s.Newest(job).start_ns, 0);
}

TEST(Start, APlacementThatMakesNoSenseAnyMoreHasNoEffect) {
  Story s;
  const uint64_t job = s.Job();
  const pb::Event good = testing::Placed(s.state, job, "lab", {{"h00", {0}}});
  const struct {
    const char* what;
    std::function<void(pb::AttemptPlaced*)> change;
  } kCases[] = {
      {"another attempt than the next", [](pb::AttemptPlaced* e) { e->mutable_key()->set_attempt(2); }},
      {"no attempt", [](pb::AttemptPlaced* e) { e->mutable_key()->set_attempt(0); }},
      {"unknown job", [](pb::AttemptPlaced* e) { e->mutable_key()->set_job_uid("nobody"); }},
      {"unknown task", [](pb::AttemptPlaced* e) { e->mutable_key()->set_task("nobody"); }},
      {"unknown cluster", [](pb::AttemptPlaced* e) { e->set_cluster("nowhere"); }},
      {"unknown host", [](pb::AttemptPlaced* e) { e->mutable_placements(0)->set_host("nowhere"); }},
      {"on no host", [](pb::AttemptPlaced* e) { e->clear_placements(); }},
  };
  for (const auto& c : kCases) {
    pb::Event event = good;
    c.change(event.mutable_attempt_placed());
    s.ExpectNoEffect(event, c.what);
  }
  s.Do(good);
  s.ExpectNoEffect(good, "repeated");
  const uint64_t cancelled = s.Job();
  const pb::Event late = testing::Placed(s.state, cancelled, "lab", {{"h01", {0}}});
  s.Cancel(cancelled);
  s.ExpectNoEffect(late, "of a cancelled job");
}

// ---- reports ----

TEST(Reports, LateRepeatedAndForeignOnesHaveNoEffect) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Says(job, 0, pb::EXITED, 0);
  const pb::Event exited = testing::Report(s.state, job, 0, 1, 0, pb::EXITED, 0);
  const struct {
    const char* what;
    std::function<void(pb::AttemptReported*)> change;
  } kCases[] = {
      {"repeated", [](pb::AttemptReported*) {}},
      {"an earlier phase", [](pb::AttemptReported* e) { e->mutable_report()->set_phase(pb::STARTED); }},
      {"the first phase", [](pb::AttemptReported* e) { e->mutable_report()->set_phase(pb::PREPARED); }},
      {"no phase", [](pb::AttemptReported* e) { e->mutable_report()->set_phase(pb::ATTEMPT_PHASE_UNSPECIFIED); }},
      {"of another attempt", [](pb::AttemptReported* e) { e->mutable_report()->mutable_key()->set_attempt(2); }},
      {"of another task", [](pb::AttemptReported* e) { e->mutable_report()->mutable_key()->set_task("other"); }},
      {"of another job", [](pb::AttemptReported* e) { e->mutable_report()->mutable_key()->set_job_uid("other"); }},
      {"of a host that isn't in the gang", [](pb::AttemptReported* e) { e->set_host("h02"); }},
      {"of an unknown host", [](pb::AttemptReported* e) { e->set_host("nowhere"); }},
      {"of an unknown cluster", [](pb::AttemptReported* e) { e->set_cluster("nowhere"); }},
      {"GONE of a host that isn't in the gang",
       [](pb::AttemptReported* e) { e->set_host("h02"), e->mutable_report()->set_phase(pb::GONE); }},
  };
  for (const auto& c : kCases) {
    pb::Event event = exited;
    c.change(event.mutable_attempt_reported());
    s.ExpectNoEffect(event, c.what);
  }
  s.Says(job, 0, pb::GONE, 0);
  s.ExpectNoEffect(testing::Report(s.state, job, 0, 1, 0, pb::GONE, 1), "GONE again, with another exit");
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING) << "h01 still runs";
  s.Says(job, 1, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_SUCCEEDED);
  s.ExpectNoEffect(testing::Report(s.state, job, 0, 1, 1, pb::GONE, 1), "after the end");
}

TEST(Reports, AGoneCountsOnlyForItsOwnAttempt) {
  Story s;
  const uint64_t job = s.Running(2);
  const pb::Event gone_of_first = testing::Report(s.state, job, 0, 1, 0, pb::GONE, 1, true);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  s.Again(job);
  ASSERT_EQ(s.Newest(job).number, 2);
  s.ExpectNoEffect(gone_of_first, "attempt 1 of the same task on the same host");
  EXPECT_EQ(s.UsedMilli("h00"), 1000);
}

TEST(Reports, WithANewStateIdOnlyGoneCounts) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Hello("lab", "h00", 2, "gpu", 64, "s2");
  EXPECT_EQ(s.Newest(job).parts[0].state_id, "s1") << "the attempt stays bound to the state that it was placed on";
  EXPECT_EQ(s.state.host(s.state.FindHost("lab", "h00")).state_id, "s2");
  EXPECT_EQ(s.UsedMilli("h00"), 1000) << "absence proves nothing";
  s.ExpectNoEffect(testing::Report(s.state, job, 0, 1, 0, pb::EXITED, 0), "the new state knows nothing of its exits");
  s.Stop(job, pb::HOST_LOST);
  s.Says(job, 1, pb::GONE, 143, true);
  EXPECT_EQ(s.State(job), pb::TASK_STOPPING);
  s.Says(job, 0, pb::GONE);
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(s.Newest(job).cause, pb::HOST_LOST);
  EXPECT_EQ(s.Task(job).restarts_used, 0);
  EXPECT_EQ(s.UsedMilli("h00"), 0);
}

// ---- how an attempt ends ----

// A gang of two: what its hosts say, in order, once it runs (or was stopped for `stop`).
struct Say {
  size_t part;
  pb::AttemptPhase phase;
  int exit_code = -1;
  bool stop_sent = false;
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;
  int signal = 0;
  bool oom = false;
};

TEST(Ends, OfAGangOfTwo) {
  const struct {
    const char* what;
    pb::Cause stop;
    std::vector<Say> says;
    pb::TaskState task;
    pb::Cause cause;
    int32_t restarts_used;
    const char* detail;
  } kCases[] = {
      {"every worker exits 0", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE, 0}, {1, pb::GONE, 0}}, pb::TASK_SUCCEEDED, pb::DONE, 0, ""},
      {"the first exit 0 ends nothing", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE, 0}}, pb::TASK_RUNNING, pb::CAUSE_UNSPECIFIED, 0, ""},
      {"exited isn't gone", pb::CAUSE_UNSPECIFIED, {{0, pb::EXITED, 0}, {1, pb::EXITED, 0}}, pb::TASK_RUNNING, pb::CAUSE_UNSPECIFIED, 0, ""},
      {"one fails", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE, 0}, {1, pb::GONE, 3}}, pb::TASK_WAITING, pb::PROGRAM_ERROR, 1, "rank 1: exit 3"},
      {"one dies of a signal", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE, 0}, {1, pb::GONE, 0, false, pb::CAUSE_UNSPECIFIED, 11}}, pb::TASK_WAITING,
       pb::KILLED, 1, "rank 1: signal 11"},
      {"one runs out of memory", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE, 0}, {1, pb::GONE, 0, false, pb::CAUSE_UNSPECIFIED, 9, true}},
       pb::TASK_WAITING, pb::OUT_OF_MEMORY, 1, "rank 1"},
      {"its host says why", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE, 0}, {1, pb::GONE, 9, false, pb::SETUP_FAILED}}, pb::TASK_WAITING,
       pb::SETUP_FAILED, 1, "rank 1: exit 9"},
      {"the first outcome wins: success", pb::CAUSE_UNSPECIFIED, {{0, pb::EXITED, 0}, {0, pb::GONE, 1}, {1, pb::GONE, 0}}, pb::TASK_SUCCEEDED,
       pb::DONE, 0, ""},
      {"the first outcome wins: failure", pb::CAUSE_UNSPECIFIED, {{0, pb::EXITED, 1}, {0, pb::GONE, 0}, {1, pb::GONE, 0}}, pb::TASK_WAITING,
       pb::PROGRAM_ERROR, 1, "rank 0: exit 1"},
      {"a failure stops the rest: it is the cause, not their end", pb::PROGRAM_ERROR,
       {{1, pb::GONE, 1}, {0, pb::GONE, 143, true}}, pb::TASK_WAITING, pb::PROGRAM_ERROR, 1, ""},
      {"exit 0 after a stop was sent is no success", pb::RESIZE, {{0, pb::GONE, 0, true}, {1, pb::GONE, 0, true}}, pb::TASK_WAITING, pb::RESIZE, 0, ""},
      {"exit 0 of one after a stop was sent is no success", pb::RESIZE, {{0, pb::GONE, 0}, {1, pb::GONE, 0, true}}, pb::TASK_WAITING, pb::RESIZE, 0, ""},
      {"done before the stop reached anybody", pb::RESIZE, {{0, pb::GONE, 0}, {1, pb::GONE, 0}}, pb::TASK_SUCCEEDED, pb::DONE, 0, ""},
      {"stopped, one host still to answer", pb::PREEMPTION, {{0, pb::GONE, 143, true}}, pb::TASK_STOPPING, pb::PREEMPTION, 0, ""},
      {"preempted", pb::PREEMPTION, {{0, pb::GONE, 143, true}, {1, pb::GONE, 143, true}}, pb::TASK_WAITING, pb::PREEMPTION, 0, ""},
      {"drained", pb::DRAIN, {{0, pb::GONE, 143, true}, {1, pb::GONE, 143, true}}, pb::TASK_WAITING, pb::DRAIN, 0, ""},
      {"hung", pb::HANG, {{0, pb::GONE, 137, true}, {1, pb::GONE, 137, true}}, pb::TASK_WAITING, pb::HANG, 1, ""},
      {"over its time limit, whatever the budget", pb::TIME_LIMIT, {{0, pb::GONE, 143, true}, {1, pb::GONE, 143, true}}, pb::TASK_FAILED,
       pb::TIME_LIMIT, 0, ""},
      {"a rendezvous port was taken: no budget", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE, 1, false, pb::RENDEZVOUS}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING, pb::RENDEZVOUS, 0, ""},
      {"a host was restarted: no budget", pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0, false, pb::HOST_LOST, 9}, {1, pb::GONE, 143, true}}, pb::TASK_WAITING, pb::HOST_LOST, 0, ""},
      {"both say gone without a word: no success", pb::CAUSE_UNSPECIFIED, {{0, pb::GONE}, {1, pb::GONE}}, pb::TASK_WAITING, pb::HOST_LOST, 0, ""},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    Story s;
    const uint64_t job = s.Running(2);
    s.Step(60);
    if (c.stop != pb::CAUSE_UNSPECIFIED) s.Stop(job, c.stop);
    for (const Say& say : c.says) {
      pb::Event event = testing::Report(s.state, job, 0, 1, say.part, say.phase, say.exit_code, say.stop_sent);
      pb::AttemptReport* report = event.mutable_attempt_reported()->mutable_report();
      report->set_cause(say.cause);
      for (pb::WorkerExit& exit : *report->mutable_exits()) {
        exit.set_signal(say.signal);
        exit.set_oom(say.oom);
      }
      s.Do(event);
    }
    EXPECT_EQ(s.State(job), c.task);
    EXPECT_EQ(s.Newest(job).cause, c.cause);
    EXPECT_EQ(s.Task(job).restarts_used, c.restarts_used);
    EXPECT_THAT(s.Newest(job).detail, HasSubstr(c.detail));
    const bool over = c.task == pb::TASK_WAITING || c.task == pb::TASK_SUCCEEDED || c.task == pb::TASK_FAILED;
    EXPECT_EQ(s.Newest(job).ended(), over);
    EXPECT_EQ(s.UsedMilli("h00") + s.UsedMilli("h01"), over ? 0 : 2000) << "devices are free when every host is gone, not before";
    EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  }
}

TEST(Ends, APrepareThatFailsIsALaunchFailureWithoutBudget) {
  Story s;
  const uint64_t job = s.Placed(2);
  pb::Event event = testing::Report(s.state, job, 0, 1, 1, pb::GONE);
  event.mutable_attempt_reported()->mutable_report()->set_cause(pb::LAUNCH_FAILED);
  event.mutable_attempt_reported()->mutable_report()->set_detail("no such directory: /data");
  s.Do(event);
  EXPECT_EQ(s.State(job), pb::TASK_PREPARING);
  ASSERT_TRUE(FirstFailure(s.Newest(job)).has_value()) << "Decide stops the rest for it";
  EXPECT_EQ(FirstFailure(s.Newest(job))->cause, pb::LAUNCH_FAILED);
  s.Says(job, 0, pb::PREPARED);
  EXPECT_FALSE(AllPrepared(s.Newest(job)));
  s.ExpectNoEffect(s.GangPreparedEvent(job), "one is gone");
  s.Says(job, 0, pb::GONE);
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(s.Newest(job).cause, pb::LAUNCH_FAILED);
  EXPECT_EQ(s.Newest(job).detail, "no such directory: /data");
  EXPECT_EQ(s.Task(job).restarts_used, 0);
  EXPECT_GT(s.Task(job).backoff_until_ns, s.now_ns);
}

// ---- restarts ----

TEST(Restarts, WaitLongerEachTimeAndEndWithTheBudget) {
  Story s;
  const uint64_t job = s.Job();  // max_restarts 3
  for (const int64_t backoff_s : {1, 2, 4}) {
    s.Again(job);
    s.AllSay(job, pb::GONE, 1);
    EXPECT_EQ(s.State(job), pb::TASK_WAITING);
    EXPECT_EQ(s.Task(job).backoff_until_ns, s.state.now_ns() + backoff_s * kSecond);
  }
  EXPECT_EQ(s.Task(job).restarts_used, 3);
  s.Again(job);
  s.AllSay(job, pb::GONE, 1);
  EXPECT_EQ(s.State(job), pb::TASK_FAILED);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::FAILED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::PROGRAM_ERROR);
  EXPECT_EQ(s.state.FindJob(job)->detail, "rank 0: exit 1");
  EXPECT_EQ(s.state.FindJob(job)->end_ns, s.state.now_ns());
  EXPECT_THAT(s.state.active_jobs(), IsEmpty());
  EXPECT_EQ(s.Task(job).attempts.size(), 4u);
}

TEST(Restarts, NoneWithABudgetOfZeroAndThreeWithoutOne) {
  for (const int budget : {0, -1}) {
    Story s;
    testing::JobBuilder builder("research");
    builder.task()->clear_max_restarts();
    if (budget >= 0) builder.task()->set_max_restarts(budget);
    const uint64_t job = builder.SubmitTo(&s);
    int failures = 0;
    while (s.State(job) == pb::TASK_WAITING && failures < 10) {
      s.Again(job);
      s.AllSay(job, pb::GONE, 1);
      ++failures;
    }
    EXPECT_EQ(s.State(job), pb::TASK_FAILED);
    EXPECT_EQ(failures, budget < 0 ? 4 : 1);
  }
}

TEST(Restarts, TheBackoffStartsAsConfiguredAndStopsAtFiveMinutes) {
  Story s;
  pb::Event step;
  step.mutable_step()->set_now_ns(s.now_ns);
  step.mutable_step()->set_restart_backoff_ns(40 * kSecond);
  s.Do(step);
  testing::JobBuilder builder("research");
  builder.task()->set_max_restarts(100);
  const uint64_t job = builder.SubmitTo(&s);
  std::vector<int64_t> backoffs_s;
  for (int i = 0; i < 6; ++i) {
    s.Again(job);
    s.AllSay(job, pb::GONE, 1);
    backoffs_s.push_back((s.Task(job).backoff_until_ns - s.state.now_ns()) / kSecond);
  }
  EXPECT_THAT(backoffs_s, ElementsAre(40, 80, 160, 300, 300, 300));
}

TEST(Restarts, LaunchFailuresInARowEndTheTaskButProgressForgivesThem) {
  Story s;
  const uint64_t job = s.Job();
  const auto fail = [&] {
    s.Place(job);
    pb::Event event = testing::Report(s.state, job, 0, s.Newest(job).number, 0, pb::GONE);
    event.mutable_attempt_reported()->mutable_report()->set_cause(pb::LAUNCH_FAILED);
    event.mutable_attempt_reported()->mutable_report()->set_detail("exec: no such file");
    s.Do(event);
  };
  for (int i = 1; i < kInfraFailuresInRow; ++i) fail();
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  s.Again(job);
  s.Checkpoint(job, 10);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  for (int i = 1; i < kInfraFailuresInRow; ++i) fail();
  EXPECT_EQ(s.State(job), pb::TASK_WAITING) << "counted anew after the checkpoint";
  fail();
  EXPECT_EQ(s.State(job), pb::TASK_FAILED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::LAUNCH_FAILED);
  EXPECT_THAT(s.state.FindJob(job)->detail, HasSubstr("exec: no such file"));
  EXPECT_EQ(s.Task(job).restarts_used, 0);
}

TEST(Restarts, OnlyTheNewestTwentyAttemptsAreKept) {
  Story s;
  const uint64_t job = s.Job();
  for (int i = 0; i < kFinishedAttemptsKept + 5; ++i) {
    s.Again(job);
    s.Stop(job, pb::DRAIN);
    s.AllSay(job, pb::GONE, 143, true);
  }
  EXPECT_EQ(s.Task(job).attempts.size(), static_cast<size_t>(kFinishedAttemptsKept));
  EXPECT_EQ(s.Newest(job).number, kFinishedAttemptsKept + 5);
  EXPECT_EQ(s.Task(job).next_attempt, kFinishedAttemptsKept + 6);
}

// ---- moves ----

TEST(Moves, WaitAgainWithTheSizeToComeBackWith) {
  for (const pb::Cause cause : {pb::RESIZE, pb::PREEMPTION, pb::DRAIN}) {
    SCOPED_TRACE(pb::Cause_Name(cause));
    Story s;
    const uint64_t job = testing::JobBuilder("research").Workers(2, 4).SubmitTo(&s);
    s.Again(job);
    s.Step(60);
    s.Stop(job, cause, 3);
    EXPECT_EQ(s.State(job), pb::TASK_STOPPING);
    EXPECT_EQ(s.Newest(job).stop_ns, s.now_ns);
    EXPECT_EQ(s.Task(job).last_resize_ns, cause == pb::RESIZE ? s.now_ns : 0) << "when it last grew";
    s.AllSay(job, pb::GONE, 143, true);
    EXPECT_EQ(s.State(job), pb::TASK_WAITING);
    EXPECT_EQ(s.Newest(job).state, pb::TASK_CANCELLED);
    EXPECT_EQ(s.Task(job).wanted_workers, 3);
    EXPECT_EQ(s.Task(job).backoff_until_ns, 0);
    EXPECT_EQ(s.Task(job).restarts_used, 0);
    EXPECT_EQ(s.Task(job).waiting_since_ns, s.now_ns);
    s.PlaceOn(job, {{"h00", {0}}, {"h01", {0}}, {"h02", {0}}});
    EXPECT_EQ(s.Task(job).wanted_workers, 0);
    EXPECT_EQ(s.Newest(job).workers, 3);
  }
}

TEST(Moves, AnotherStopKeepsTheFirstCauseAndOnlyShortensTheGrace) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Stop(job, pb::RESIZE, 4);
  const auto stop = [&](pb::Cause cause, int64_t grace_ns) {
    pb::Event event = testing::Stopping(s.state, job, cause, 1);
    event.mutable_attempt_stopping()->set_grace_ns(grace_ns);
    s.Do(event);
  };
  stop(pb::CANCEL, kMinute);
  EXPECT_EQ(s.Newest(job).grace_ns, kSecond);
  stop(pb::CANCEL, 0);
  EXPECT_EQ(s.Newest(job).grace_ns, 0);
  EXPECT_EQ(s.Newest(job).cause, pb::RESIZE);
  EXPECT_EQ(s.Newest(job).next_workers, 4);
}

TEST(Moves, WhoTheDevicesWereTakenForIsRememberedUntilItIsPlaced) {
  Story s;
  const uint64_t victim = s.Running(1);
  const uint64_t claimant = s.Job(2);
  pb::Event stop = testing::Stopping(s.state, victim, pb::PREEMPTION);
  *stop.mutable_attempt_stopping()->mutable_claimant() = KeyOf(*s.state.FindJob(claimant), 0, 1);
  s.Do(stop);
  EXPECT_EQ(s.Task(claimant).claimed_attempt, 1);
  EXPECT_EQ(s.Newest(victim).claimant.job_uid(), s.state.FindJob(claimant)->uid);
  s.AllSay(victim, pb::GONE, 143, true);
  EXPECT_EQ(s.Task(claimant).claimed_attempt, 1);
  s.Place(claimant);
  EXPECT_EQ(s.Task(claimant).claimed_attempt, 0);
}

// ---- cancelling ----

TEST(Cancel, OfAWaitingJobEndsItAtOnce) {
  Story s;
  const uint64_t job = s.Job();
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(job);
  cancel.mutable_job_cancel()->set_by("bob");
  s.Do(cancel);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::CANCELLED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::CANCEL);
  EXPECT_EQ(s.state.FindJob(job)->detail, "cancelled by bob");
  EXPECT_EQ(s.state.FindJob(job)->end_ns, s.now_ns);
  s.ExpectNoEffect(cancel, "again");
  cancel.mutable_job_cancel()->set_number(77);
  s.ExpectNoEffect(cancel, "of nobody");
}

TEST(Cancel, OfAPlacedJobEndsOnlyWhenEveryHostIsGoneOrLost) {
  for (const char* phase : {"preparing", "starting", "running"}) {
    for (const bool lost : {false, true}) {
      SCOPED_TRACE(absl::StrCat(phase, lost ? ", one host lost" : ""));
      Story s;
      const uint64_t job = s.Placed(2);
      if (std::string(phase) != "preparing") {
        s.AllSay(job, pb::PREPARED);
        s.Do(s.GangPreparedEvent(job));
      }
      if (std::string(phase) == "running") s.AllSay(job, pb::STARTED);
      s.Cancel(job);
      EXPECT_TRUE(s.state.FindJob(job)->cancel_requested);
      EXPECT_NE(s.State(job), pb::TASK_CANCELLED) << "a wish doesn't end processes";
      s.Stop(job, pb::CANCEL);
      EXPECT_EQ(s.State(job), pb::TASK_STOPPING);
      s.ExpectNoEffect(s.GangPreparedEvent(job), "Start is out of the question now");
      s.Says(job, 0, pb::GONE, std::string(phase) == "running" ? 143 : -1, true);
      EXPECT_EQ(s.State(job), pb::TASK_STOPPING) << "after the first Gone";
      EXPECT_EQ(s.state.FindJob(job)->end_ns, 0);
      EXPECT_EQ(s.UsedMilli("h00") + s.UsedMilli("h01"), 2000);
      if (lost) {
        s.Lose(job, "h01");
      } else {
        s.Says(job, 1, pb::GONE, -1, true);
      }
      EXPECT_EQ(s.State(job), pb::TASK_CANCELLED);
      EXPECT_EQ(s.Newest(job).state, pb::TASK_CANCELLED);
      EXPECT_EQ(s.state.FindJob(job)->state, pb::CANCELLED);
      EXPECT_EQ(s.UsedMilli("h00"), 0);
      EXPECT_EQ(s.UsedMilli("h01"), lost ? 1000 : 0) << "a lost host's devices stay down";
    }
  }
}

TEST(Cancel, LosesAgainstASuccessThatCameFirst) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Cancel(job);
  s.Says(job, 0, pb::GONE, 0);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::SUCCEEDED);
}

TEST(Cancel, WinsAgainstAFailureAndItsRestart) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Cancel(job);
  s.Says(job, 0, pb::GONE, 1);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::CANCELLED);
  EXPECT_EQ(s.Task(job).restarts_used, 0);
}

// ---- lost hosts ----

TEST(Lost, IsFinalAndKeepsItsDevicesUntilThatHostAnswersGoneForThatAttempt) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Checkpoint(job, 10);
  s.HostState("lab", "h01", pb::HOST_UNREACHABLE);
  s.Stop(job, pb::HOST_LOST);
  s.Says(job, 0, pb::GONE, 143, true);
  s.Lose(job, "h01");
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(s.Newest(job).cause, pb::HOST_LOST);
  EXPECT_EQ(s.Task(job).restarts_used, 0);
  EXPECT_EQ(s.Task(job).backoff_until_ns, 0);
  EXPECT_EQ(s.UsedMilli("h01"), 1000);
  EXPECT_EQ(s.Booked("h01", LedgerClass::kDown), 2000);
  EXPECT_EQ(s.UsedMilli("h00"), 0);
  s.ExpectNoEffect(s.LostEvent(job, 1, "h01"), "lost twice");
  s.ExpectNoEffect(s.CheckpointEvent(job, 1, 20), "a checkpoint of a lost attempt, before its successor is placed");
  s.ExpectNoEffect(s.StagedEvent(job, 1), "an export of a lost attempt");

  s.PlaceOn(job, {{"h02", {0}}, {"h03", {0}}});
  testing::StartAll(&s, job);
  ASSERT_EQ(s.State(job), pb::TASK_RUNNING);
  s.HostState("lab", "h01", pb::HOST_UP);
  pb::Event late = testing::Report(s.state, job, 0, 1, 1, pb::EXITED, 0);
  s.ExpectNoEffect(late, "an exit of a lost attempt");
  s.ExpectNoEffect(s.CheckpointEvent(job, 1, 30), "a checkpoint of a lost attempt, after");
  EXPECT_EQ(s.UsedMilli("h01"), 1000) << "it speaks again, but its processes may be there";

  pb::Event gone = testing::Report(s.state, job, 0, 1, 1, pb::GONE, 1);
  pb::Event of_another = gone;
  of_another.mutable_attempt_reported()->mutable_report()->mutable_key()->set_attempt(2);
  s.ExpectNoEffect(of_another, "Gone for another attempt");
  of_another = gone;
  of_another.mutable_attempt_reported()->set_host("h02");
  s.ExpectNoEffect(of_another, "Gone of another host");
  EXPECT_EQ(s.UsedMilli("h01"), 1000);
  s.Do(gone);
  EXPECT_EQ(s.UsedMilli("h01"), 0);
  EXPECT_EQ(s.Booked("h01", LedgerClass::kIdle), 2000);
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
  EXPECT_EQ(s.Task(job).restarts_used, 0) << "the late exit counts for nothing";
  EXPECT_EQ(s.Task(job).attempts[0].cause, pb::HOST_LOST);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
}

TEST(Lost, AFailureOfAnotherMemberIsPutDownToTheLoss) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Says(job, 0, pb::GONE, 1);
  s.Lose(job, "h01");
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(s.Newest(job).cause, pb::HOST_LOST);
  EXPECT_EQ(s.Task(job).restarts_used, 0);
}

TEST(Lost, OneMemberLostAndTheOthersDoneIsNoSuccess) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Says(job, 0, pb::GONE, 0);
  s.Lose(job, "h01");
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
}

TEST(Lost, AMemberThatIsGoneAlreadyCannotBeLost) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Says(job, 1, pb::GONE, 0);
  s.ExpectNoEffect(s.LostEvent(job, 1, "h01"), "gone");
  s.ExpectNoEffect(s.LostEvent(job, 1, "h02"), "not a member");
  s.ExpectNoEffect(s.LostEvent(job, 2, "h00"), "not an attempt");
}

TEST(Lost, ABackFromTheDeadHostWithFewerDevicesKeepsItsBooksStraight) {
  Story s;
  const uint64_t job = s.Job();
  s.PlaceOn(job, {{"h00", {1}}});
  s.Lose(job, "h00");
  s.Hello("lab", "h00", 1, "gpu", 64, "s2");
  EXPECT_EQ(s.UsedMilli("h00"), 0);
  EXPECT_EQ(s.Booked("h00", LedgerClass::kIdle), 1000);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
}

// ---- checkpoints ----

TEST(Checkpoints, AreRecordedForTheNewestAttemptAndSealedByThePlacement) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Checkpoint(job, 10);
  s.Checkpoint(job, 20);
  s.ExpectNoEffect(s.CheckpointEvent(job, 1, 20), "repeated");
  s.ExpectNoEffect(s.CheckpointEvent(job, 2, 30), "of an attempt to come");
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  s.Do(s.CheckpointEvent(job, 1, 30));
  EXPECT_THAT(s.Steps(job), ElementsAre(10, 20, 30)) << "told after its end, but still the newest attempt";
  s.Place(job);
  EXPECT_THAT(s.Newest(job).resume_from, ElementsAre("/disk/1/30", "/disk/1/20", "/disk/1/10"));
  EXPECT_EQ(s.Newest(job).resumed_step, 30);
  s.ExpectNoEffect(s.CheckpointEvent(job, 1, 40), "of a sealed attempt");
  EXPECT_THAT(s.Newest(job).resume_from, ElementsAre("/disk/1/30", "/disk/1/20", "/disk/1/10"));
}

TEST(Checkpoints, OfABranchThatWasLeftAreStruck) {
  Story s;
  const uint64_t job = s.Running(1);
  for (const int64_t step : {10, 20, 30}) s.Checkpoint(job, step);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  s.Again(job);
  // 30 was damaged: it went on from 20.
  pb::Event loaded;
  *loaded.mutable_loaded_seen()->mutable_key() = KeyOf(*s.state.FindJob(job), 0, 2);
  loaded.mutable_loaded_seen()->set_step(20);
  loaded.mutable_loaded_seen()->add_refused("/disk/1/30: damaged");
  s.Do(loaded);
  EXPECT_EQ(s.Newest(job).resumed_step, 20);
  EXPECT_THAT(s.Newest(job).detail, HasSubstr("/disk/1/30: damaged"));
  EXPECT_THAT(s.Steps(job), ElementsAre(10, 20, 30)) << "until it has a checkpoint of its own";
  s.Checkpoint(job, 25, 20);
  EXPECT_THAT(s.Steps(job), ElementsAre(10, 20, 25));
  s.Checkpoint(job, 35, 20);
  EXPECT_THAT(s.Steps(job), ElementsAre(10, 20, 25, 35)) << "only its first one strikes";
  EXPECT_EQ(s.Task(job).checkpoints.back().attempt(), 2);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  s.Place(job);
  EXPECT_THAT(s.Newest(job).resume_from, ElementsAre("/disk/2/35", "/disk/2/25", "/disk/1/20", "/disk/1/10"));
}

TEST(Checkpoints, OfAnAttemptThatLoadedNothingStrikeEverythingBefore) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Checkpoint(job, 10);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  s.Again(job);
  s.Checkpoint(job, 5, -1);
  EXPECT_THAT(s.Steps(job), ElementsAre(5));
  EXPECT_EQ(s.Newest(job).resumed_step, -1);
}

TEST(Checkpoints, OnlyTheNewestTwentyRecordsAreKept) {
  Story s;
  const uint64_t job = s.Running(1);
  for (int64_t step = 1; step <= kCheckpointsKept + 3; ++step) s.Checkpoint(job, step);
  EXPECT_EQ(s.Steps(job).size(), static_cast<size_t>(kCheckpointsKept));
  EXPECT_EQ(s.Steps(job).front(), 4);
}

TEST(Checkpoints, ThatTheClusterCannotReachAreLeftOut) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Checkpoint(job, 10);
  EXPECT_THAT(ResumeFrom(s.state, s.Task(job), "lab"), ElementsAre("/disk/1/10"));
  EXPECT_THAT(ResumeFrom(s.state, s.Task(job), "cloud"), IsEmpty());
}

TEST(Progress, CountsOnlyOfTheNewestUnfinishedAttempt) {
  Story s;
  const uint64_t job = s.Running(1);
  const auto progress = [&](int32_t attempt, int64_t step) {
    pb::Event event;
    *event.mutable_progress_seen()->mutable_key() = KeyOf(*s.state.FindJob(job), 0, attempt);
    event.mutable_progress_seen()->mutable_progress()->set_step(step);
    return event;
  };
  s.Do(progress(1, 5));
  EXPECT_EQ(s.Task(job).progress.step(), 5);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  s.ExpectNoEffect(progress(1, 6), "after its end");
  s.Again(job);
  s.ExpectNoEffect(progress(1, 7), "of an older attempt");
  s.Do(progress(2, 3));
  EXPECT_EQ(s.Task(job).progress.step(), 3);
  EXPECT_EQ(s.Task(job).progress.attempt(), 2);
}

// ---- exports ----

TEST(Export, IsCommittedOnceAndTheTaskSucceedsWhenItIsPublished) {
  Story s;
  const uint64_t job = s.Running(1);
  s.ExpectNoEffect(s.PublishedEvent(job, 1), "nothing is staged");
  s.Do(s.StagedEvent(job, 1));
  EXPECT_EQ(s.Task(job).export_state, "staged");
  EXPECT_EQ(s.Newest(job).export_staged, "/disk/staged-1");
  s.ExpectNoEffect(s.StagedEvent(job, 1), "again");
  s.Says(job, 0, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING) << "not done before it is published";
  EXPECT_EQ(s.UsedMilli("h00"), 0) << "but nothing is held for it";
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  s.Do(s.PublishedEvent(job, 1));
  EXPECT_EQ(s.State(job), pb::TASK_SUCCEEDED);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::SUCCEEDED);
  s.ExpectNoEffect(s.PublishedEvent(job, 1), "again");
}

TEST(Export, OfALaterAttemptDoesNotReplaceTheCommittedOne) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Do(s.StagedEvent(job, 1));
  s.Says(job, 0, pb::GONE, 1);
  EXPECT_EQ(s.State(job), pb::TASK_WAITING) << "a failure doesn't wait for the export";
  s.Again(job);
  s.ExpectNoEffect(s.StagedEvent(job, 2), "attempt 1's is the task's");
  s.ExpectNoEffect(s.PublishedEvent(job, 2), "attempt 2 staged nothing");
  s.Do(s.PublishedEvent(job, 1));
  EXPECT_EQ(s.Task(job).export_state, "published");
  s.Says(job, 0, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_SUCCEEDED);
}

TEST(Export, PublishedBeforeTheEndLetsTheTaskEndByItself) {
  Story s;
  const uint64_t job = s.Running(2);
  s.Do(s.StagedEvent(job, 1));
  s.Do(s.PublishedEvent(job, 1));
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
  s.AllSay(job, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_SUCCEEDED);
}

// ---- jobs of several tasks ----

uint64_t Pipeline(Story* s) {
  testing::JobBuilder builder("research");
  builder.Task("prepare").Task("train", {"prepare"}).Task("test", {"train", "prepare"});
  return builder.SubmitTo(s);
}

TEST(After, UnblocksWhenEveryPredecessorSucceeded) {
  Story s;
  const uint64_t job = Pipeline(&s);
  EXPECT_EQ(s.State(job, 0), pb::TASK_WAITING);
  EXPECT_EQ(s.State(job, 1), pb::TASK_BLOCKED);
  EXPECT_EQ(s.State(job, 2), pb::TASK_BLOCKED);
  s.ExpectNoEffect(testing::Placed(s.state, job, "lab", {{"h00", {0}}}, 1), "placing a blocked task");
  for (int task = 0; task < 3; ++task) {
    s.Step(10 * (task + 1));
    ASSERT_EQ(s.State(job, task), pb::TASK_WAITING);
    EXPECT_EQ(s.state.FindJob(job)->state, pb::WAITING);
    s.Place(job, task);
    testing::StartAll(&s, job, task);
    EXPECT_EQ(s.state.FindJob(job)->state, pb::RUNNING);
    s.Step(10 * (task + 1) + 5);
    s.AllSay(job, pb::GONE, 0, false, task);
    EXPECT_EQ(s.State(job, task), pb::TASK_SUCCEEDED);
    if (task < 2) EXPECT_EQ(s.Task(job, task + 1).waiting_since_ns, s.now_ns) << "its wait begins when it could start";
  }
  EXPECT_EQ(s.state.FindJob(job)->state, pb::SUCCEEDED);
}

TEST(After, CancelsWhatWaitedForATaskThatFailed) {
  Story s;
  const uint64_t job = Pipeline(&s);
  pb::Event failed;
  failed.mutable_task_failed()->set_job_uid(s.state.FindJob(job)->uid);
  failed.mutable_task_failed()->set_task("prepare");
  failed.mutable_task_failed()->set_cause(pb::TIME_LIMIT);
  failed.mutable_task_failed()->set_detail("its time is used up");
  s.Do(failed);
  EXPECT_EQ(s.State(job, 0), pb::TASK_FAILED);
  EXPECT_EQ(s.State(job, 1), pb::TASK_CANCELLED);
  EXPECT_EQ(s.State(job, 2), pb::TASK_CANCELLED);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::FAILED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::TIME_LIMIT);
  EXPECT_EQ(s.state.FindJob(job)->detail, "prepare: its time is used up");
  s.ExpectNoEffect(failed, "again");
}

TEST(After, AJobWithAFailedTaskEndsWhenTheOthersAreStopped) {
  Story s;
  testing::JobBuilder builder("research");
  builder.Task("left").Task("right");
  builder.spec.mutable_tasks(0)->set_max_restarts(0);
  const uint64_t job = builder.SubmitTo(&s);
  s.PlaceOn(job, {{"h00", {0}}}, 0);
  s.PlaceOn(job, {{"h01", {0}}}, 1);
  testing::StartAll(&s, job, 0);
  testing::StartAll(&s, job, 1);
  pb::Event failed;
  failed.mutable_task_failed()->set_job_uid(s.state.FindJob(job)->uid);
  failed.mutable_task_failed()->set_task("right");
  s.ExpectNoEffect(failed, "failing a task whose attempt runs");
  s.AllSay(job, pb::GONE, 1, false, 0);
  EXPECT_EQ(s.State(job, 0), pb::TASK_FAILED);
  EXPECT_EQ(s.state.FindJob(job)->end_ns, 0) << "right still runs";
  s.Do(testing::Stopping(s.state, job, pb::CANCEL, 0, 1));
  s.AllSay(job, pb::GONE, 143, true, 1);
  EXPECT_EQ(s.State(job, 1), pb::TASK_CANCELLED);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::FAILED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::PROGRAM_ERROR);
  EXPECT_EQ(s.state.FindJob(job)->detail, "left: rank 0: exit 1");
}

// ---- jobs' indexes and bindings ----

TEST(Jobs, AreFoundByNumberUidAndTheOwnersKey) {
  Story s;
  const uint64_t first = testing::JobBuilder("research").SubmitTo(&s, "key");
  const uint64_t second = testing::JobBuilder("research").SubmitTo(&s, "other");
  EXPECT_EQ(s.state.FindByIdempotencyKey("ann", "key"), first);
  EXPECT_EQ(s.state.FindByIdempotencyKey("ann", "other"), second);
  EXPECT_EQ(s.state.FindByIdempotencyKey("bob", "key"), 0u) << "keys are each owner's own";
  EXPECT_EQ(s.state.FindByIdempotencyKey("ann", ""), 0u);
  EXPECT_EQ(s.state.FindJobByText("1"), s.state.FindJob(first));
  EXPECT_EQ(s.state.FindJobByText("uid2"), s.state.FindJob(second));
  EXPECT_EQ(s.state.FindJobByText("3"), nullptr);
  EXPECT_EQ(s.state.FindJobByText(""), nullptr);
  EXPECT_EQ(s.state.next_job_number(), 3u);
  EXPECT_THAT(s.state.active_jobs(), ElementsAre(first, second));

  pb::Event taken;
  taken.mutable_job_submitted()->set_number(first);
  taken.mutable_job_submitted()->set_uid("new");
  s.ExpectNoEffect(taken, "a number that is taken");
  taken.mutable_job_submitted()->set_number(9);
  taken.mutable_job_submitted()->set_uid("uid1");
  s.ExpectNoEffect(taken, "a uid that is taken");
}

TEST(Jobs, AreForgottenWithTheirKeysAfterAWeek) {
  Story s;
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s, "key");
  s.Step(10);
  s.Cancel(job);
  s.state.TakeChanges();
  s.Step(10 + kFinishedKeptNs / kSecond - 1);
  EXPECT_NE(s.state.FindJob(job), nullptr);
  EXPECT_EQ(s.state.FindByIdempotencyKey("ann", "key"), job);
  s.Step(10 + kFinishedKeptNs / kSecond);
  EXPECT_EQ(s.state.FindJob(job), nullptr);
  EXPECT_EQ(s.state.FindByIdempotencyKey("ann", "key"), 0u);
  EXPECT_EQ(s.state.next_job_number(), job + 1) << "numbers don't come back";
  int deleted = 0;
  for (const RowChange& row : s.state.TakeChanges()) deleted += row.kind == "job" && !row.bytes.has_value();
  EXPECT_EQ(deleted, 1);
}

TEST(Jobs, AreBoundToTheClusterOfTheirFirstPlacement) {
  testing::SystemBuilder system;
  system.Cluster("lab", "disk").Cluster("annex", "disk").Cluster("cloud", "bucket");
  system.Hosts("lab", 1, 2).Hosts("annex", 1, 2).Hosts("cloud", 1, 2).Queue("research", 8);
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&system);
  const auto allowed = [&] {
    std::vector<std::string> names;
    for (const int32_t c : AllowedClusters(system.state, *system.state.FindJob(job))) names.push_back(system.state.clusters()[c].name);
    return names;
  };
  EXPECT_THAT(allowed(), ElementsAre("lab", "annex", "cloud"));
  system.Do(testing::Placed(system.state, job, "annex", {{"h01", {0}}}));
  EXPECT_EQ(system.state.FindJob(job)->cluster, "annex");
  EXPECT_THAT(allowed(), ElementsAre("lab", "annex")) << "where its directory can be reached";
  system.Do(testing::Stopping(system.state, job, pb::DRAIN));
  testing::ReportAll(&system, job, pb::GONE, 143, true);
  system.Do(testing::Placed(system.state, job, "lab", {{"h00", {0}}}));
  EXPECT_EQ(system.state.FindJob(job)->cluster, "annex") << "its directory stays where it is";
}

TEST(Jobs, RememberWhichClustersSpillOpened) {
  Story s;
  const uint64_t job = s.Job();
  pb::Event opened;
  opened.mutable_cluster_opened()->set_job_uid(s.state.FindJob(job)->uid);
  opened.mutable_cluster_opened()->set_task("main");
  opened.mutable_cluster_opened()->set_cluster("cloud");
  opened.mutable_cluster_opened()->set_reason("starts 10 min sooner");
  s.Do(opened);
  EXPECT_THAT(s.Task(job).opened, ElementsAre("cloud"));
  EXPECT_EQ(s.Task(job).opened_attempt, 1);
  EXPECT_EQ(s.Task(job).spill_reason, "starts 10 min sooner");
  s.ExpectNoEffect(opened, "again");
}

// ---- hosts ----

TEST(Hosts, SpeakFallSilentAndComeBack) {
  Story s;
  const auto host = [&]() -> const HostRow& { return s.state.host(s.state.FindHost("lab", "h00")); };
  EXPECT_TRUE(host().usable());
  s.Step(10);
  s.HostState("lab", "h00", pb::HOST_SILENT);
  EXPECT_FALSE(host().usable());
  EXPECT_EQ(host().silent_since_ns, s.now_ns);
  EXPECT_EQ(s.Booked("h00", LedgerClass::kIdle), 2000) << "silent isn't down yet";
  const int64_t silent_ns = s.now_ns;
  s.Step(40);
  s.HostState("lab", "h00", pb::HOST_UNREACHABLE);
  EXPECT_EQ(host().silent_since_ns, silent_ns) << "counted from its last word";
  EXPECT_EQ(s.Booked("h00", LedgerClass::kDown), 2000);
  s.Step(50);
  s.Hello("lab", "h00", 2);
  EXPECT_TRUE(host().usable());
  EXPECT_EQ(host().silent_since_ns, 0);
  EXPECT_EQ(host().spoke_ns, s.now_ns);

  pb::Event never;
  never.mutable_host_state()->set_cluster("lab");
  never.mutable_host_state()->set_host("h00");
  never.mutable_host_state()->set_state(pb::HOST_NEVER_SEEN);
  s.ExpectNoEffect(never, "it was seen");
  never.mutable_host_state()->set_host("h77");
  s.ExpectNoEffect(never, "an unknown host");
}

TEST(Hosts, OfAnUnknownClusterAreNotTakenIn) {
  Story s;
  pb::Event hello;
  hello.mutable_host_hello()->set_cluster("nowhere");
  hello.mutable_host_hello()->set_host("h00");
  s.ExpectNoEffect(hello, "no such cluster");
}

TEST(Hosts, ThatAreListedButNeverSeenStayDownAndUnusable) {
  testing::SystemBuilder system;
  pb::Event configured;
  pb::ClusterSpec* lab = configured.mutable_clusters_configured()->mutable_file()->add_clusters();
  lab->set_name("lab");
  lab->add_hosts()->set_name("zoe");
  lab->add_hosts()->set_name("amy");
  system.Do(configured);
  std::vector<std::string> order;
  for (const HostId id : system.state.hosts()) order.push_back(system.state.HostName(id));
  EXPECT_THAT(order, ElementsAre("lab/zoe", "lab/amy")) << "file order";
  EXPECT_EQ(system.state.host(0).state, pb::HOST_NEVER_SEEN);
  system.HostState("lab", "zoe", pb::HOST_SILENT);
  EXPECT_EQ(system.state.host(0).state, pb::HOST_NEVER_SEEN);
  system.Hello("lab", "bob", 1);
  system.Hello("lab", "amy", 1);
  order.clear();
  for (const HostId id : system.state.hosts()) order.push_back(system.state.HostName(id));
  EXPECT_THAT(order, ElementsAre("lab/zoe", "lab/amy", "lab/bob")) << "then the others by name";
}

TEST(Drains, OfAHostAndOfAClusterTakeItsFreeDevicesDown) {
  Story s;
  const uint64_t job = s.Running(1);  // on h00
  s.Drain("lab/h00");
  EXPECT_TRUE(s.state.host(s.state.FindHost("lab", "h00")).drained);
  EXPECT_FALSE(s.state.host(s.state.FindHost("lab", "h00")).usable());
  EXPECT_EQ(s.Booked("h00", LedgerClass::kProductive), 1000) << "what runs is stopped by a plan, not by the drain";
  EXPECT_EQ(s.Booked("h00", LedgerClass::kDown), 1000);
  EXPECT_EQ(s.Booked("h01", LedgerClass::kIdle), 2000);
  s.Drain("lab/h00", false);
  EXPECT_TRUE(s.state.host(s.state.FindHost("lab", "h00")).usable());
  s.Drain("lab");
  EXPECT_TRUE(s.state.clusters()[0].drained);
  EXPECT_EQ(s.Booked("h01", LedgerClass::kDown), 2000);
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
  s.Drain("lab", false);
  EXPECT_EQ(s.Booked("h01", LedgerClass::kIdle), 2000);
  pb::Event unknown;
  for (const char* target : {"", "nowhere", "nowhere/h00", "lab/h77", "/", "lab/"}) {
    unknown.mutable_drain_changed()->set_target(target);
    unknown.mutable_drain_changed()->set_drained(true);
    s.ExpectNoEffect(unknown, target);
  }
}

TEST(Clusters, ThatLeaveTheFileKeepTheirHostsClosedUntilTheyComeBack) {
  Story s;
  const uint64_t job = s.Running(1);
  pb::Event without;
  without.mutable_clusters_configured()->mutable_file()->add_clusters()->set_name("cloud");
  const pb::ClusterFile before = s.state.cluster_file();
  s.Do(without);
  ASSERT_EQ(s.state.clusters().size(), 2u);
  EXPECT_EQ(s.state.clusters()[1].name, "lab");
  EXPECT_FALSE(s.state.clusters()[1].spec.open());
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "") << "also after a restart";
  s.Says(job, 0, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_SUCCEEDED);
  pb::Event with;
  *with.mutable_clusters_configured()->mutable_file() = before;
  s.Do(with);
  EXPECT_TRUE(s.state.clusters()[0].spec.open());
  EXPECT_EQ(s.Booked("h00", LedgerClass::kIdle), 2000);
}

// ---- the ledger ----

int64_t BookedTotal(const State& state) {
  int64_t total = 0;
  for (const auto& [key, device_us] : state.ledger()) {
    EXPECT_GE(device_us, 0) << key.first << " " << kLedgerClasses[key.second];
    total += device_us;
  }
  return total;
}

TEST(Ledger, BooksEachPhaseOfAnAttemptToItsClass) {
  Story s;
  const int productive = static_cast<int>(LedgerClass::kProductive), restart = static_cast<int>(LedgerClass::kRestart),
            preemption = static_cast<int>(LedgerClass::kPreemption), idle = static_cast<int>(LedgerClass::kIdle);
  // Device-seconds booked since the last look, by class; all of queue research but idle.
  std::map<std::pair<std::string, int>, int64_t> last = s.state.ledger();
  const auto booked = [&](int64_t at_s) {
    s.Step(at_s);
    std::map<std::string, int64_t> seconds;
    for (const auto& [key, device_us] : s.state.ledger()) {
      const int64_t more = (device_us - last[key]) / 1'000'000;
      if (more == 0) continue;
      EXPECT_EQ(key.first, key.second == idle ? "" : "research");
      seconds[kLedgerClasses[key.second]] = more;
    }
    last = s.state.ledger();
    return seconds;
  };
  using Seconds = std::map<std::string, int64_t>;
  EXPECT_EQ(booked(11), (Seconds{{"idle", 80}})) << "eight devices for ten seconds";
  const uint64_t job = s.Placed(2);
  EXPECT_EQ(booked(21), (Seconds{{"idle", 60}, {"restart", 20}})) << "preparing";
  testing::StartAll(&s, job);
  EXPECT_EQ(booked(31), (Seconds{{"idle", 60}, {"productive", 20}}));
  s.Checkpoint(job, 10);
  EXPECT_EQ(booked(41), (Seconds{{"idle", 60}, {"productive", 20}}));
  s.Stop(job, pb::PREEMPTION);
  EXPECT_EQ(booked(51), (Seconds{{"idle", 60}, {"preemption", 20}})) << "being stopped";
  s.AllSay(job, pb::GONE, 143, true);
  s.Place(job);
  EXPECT_EQ(booked(61), (Seconds{{"idle", 60}, {"preemption", 40}, {"productive", -20}}))
      << "coming back costs the preemption; so do the ten seconds since the checkpoint, on two devices";
  EXPECT_EQ(s.state.ledger().count({"research", restart}), 1u);
  EXPECT_EQ(s.state.ledger().count({"research", productive}), 1u);
  EXPECT_EQ(s.state.ledger().count({"research", preemption}), 1u);
  EXPECT_EQ(BookedTotal(s.state), s.state.ledger_capacity_device_us());
}

// The oracle counts devices and milliseconds by itself.
TEST(Ledger, ClassesSumToCapacityTimesElapsedAfterEveryEvent) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    testing::RandomEvents events(seed);
    State state;
    int64_t until_ns = 0, expected_us = 0;
    for (int i = 0; i < 4000; ++i) {
      const pb::Event event = events.Next(state);
      int64_t capacity_milli = 0;
      for (const HostId id : state.hosts()) capacity_milli += 1000 * state.host(id).inventory.devices_size();
      Apply(&state, event);
      if (event.has_step()) {
        if (until_ns == 0) until_ns = state.now_ns();
        const int64_t elapsed_ms = (state.now_ns() - until_ns) / kMillisecond;
        until_ns += elapsed_ms * kMillisecond;
        expected_us += capacity_milli * elapsed_ms;
      }
      ASSERT_EQ(BookedTotal(state), expected_us) << "seed " << seed << ", event " << i << "\n" << event.DebugString();
      ASSERT_EQ(state.ledger_capacity_device_us(), expected_us);
      int64_t shares_milli = 0;
      for (const HostId id : state.hosts()) {
        for (const LedgerShare& share : state.host(id).shares) shares_milli += share.milli;
      }
      int64_t now_milli = 0;
      for (const HostId id : state.hosts()) now_milli += 1000 * state.host(id).inventory.devices_size();
      ASSERT_EQ(shares_milli, now_milli) << "every device is booked to something now";
    }
    EXPECT_GT(expected_us, 0);
  }
}

}  // namespace
}  // namespace muster
