// Every transition that Apply makes, with late and repeated events.
#include <gtest/gtest.h>

#include <functional>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::On;
using testing::Placed;
using testing::Report;
using testing::ReportAll;
using testing::StartAll;
using testing::Stopping;
using testing::SystemBuilder;
using testing::TaskOf;

// Two hosts of two devices; job 1 is a gang of two over both, job 2 one worker.
SystemBuilder Two() {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 2).Queue("q");
  JobBuilder gang("q");
  gang.Workers(2, 4).task()->set_max_restarts(2);
  gang.SubmitTo(&system);
  JobBuilder("q").SubmitTo(&system, "key");
  return system;
}
void PlaceGang(SystemBuilder* system) {
  system->Do(Placed(system->state, 1, "c", {{"h00", {0}}, {"h01", {0}}}));
}

struct EndCase {
  const char* name;
  std::function<void(SystemBuilder*)> ends;  // from Running
  pb::TaskState task;
  pb::Cause cause;  // of the attempt
  int32_t restarts_used;
};

TEST(Apply, AttemptsEndAsContractsSay) {
  const auto stop = [](pb::Cause cause, int32_t next = 0) {
    return [cause, next](SystemBuilder* s) {
      s->Do(Stopping(s->state, 1, cause, next));
      ReportAll(s, 1, pb::GONE, 0, true);
    };
  };
  const EndCase cases[] = {
      {"all exit 0", [](SystemBuilder* s) { ReportAll(s, 1, pb::GONE, 0); }, pb::TASK_SUCCEEDED,
       pb::DONE, 0},
      {"exit 0 before the stop arrived",
       [](SystemBuilder* s) {
         s->Do(Stopping(s->state, 1, pb::RESIZE, 4));
         ReportAll(s, 1, pb::GONE, 0, false);
       },
       pb::TASK_SUCCEEDED, pb::DONE, 0},
      {"exit 0 after SIGTERM is no success", stop(pb::RESIZE, 4), pb::TASK_WAITING, pb::RESIZE, 0},
      {"preempted", stop(pb::PREEMPTION), pb::TASK_WAITING, pb::PREEMPTION, 0},
      {"drained", stop(pb::DRAIN), pb::TASK_WAITING, pb::DRAIN, 0},
      {"time limit", stop(pb::TIME_LIMIT), pb::TASK_FAILED, pb::TIME_LIMIT, 0},
      {"hang", stop(pb::HANG), pb::TASK_WAITING, pb::HANG, 1},
      {"exit 3", [](SystemBuilder* s) { ReportAll(s, 1, pb::GONE, 3); }, pb::TASK_WAITING,
       pb::PROGRAM_ERROR, 1},
      {"gone without exits", [](SystemBuilder* s) { ReportAll(s, 1, pb::GONE); }, pb::TASK_WAITING,
       pb::HOST_LOST, 0},
      {"rendezvous",
       [](SystemBuilder* s) {
         for (size_t part = 0; part < 2; ++part) {
           pb::Event event = Report(s->state, 1, 0, 1, part, pb::GONE);
           event.mutable_attempt_reported()->mutable_report()->set_cause(pb::RENDEZVOUS);
           s->Do(event);
         }
       },
       pb::TASK_WAITING, pb::RENDEZVOUS, 0},
      {"killed by a signal of somebody else's",
       [](SystemBuilder* s) {
         pb::Event event = Report(s->state, 1, 0, 1, 0, pb::GONE, 0);
         event.mutable_attempt_reported()->mutable_report()->mutable_exits(0)->set_signal(9);
         s->Do(event);
         s->Do(Report(s->state, 1, 0, 1, 1, pb::GONE, 0));
       },
       pb::TASK_WAITING, pb::KILLED, 1},
      {"cancelled",
       [](SystemBuilder* s) {
         s->Cancel(1);
         s->Do(Stopping(s->state, 1, pb::CANCEL));
         ReportAll(s, 1, pb::GONE, 143, true);
       },
       pb::TASK_CANCELLED, pb::CANCEL, 0},
  };
  for (const EndCase& c : cases) {
    SystemBuilder system = Two();
    PlaceGang(&system);
    StartAll(&system, 1);
    ASSERT_EQ(TaskOf(system.state, 1).state, pb::TASK_RUNNING) << c.name;
    system.Step(10);
    c.ends(&system);
    const TaskRow& task = TaskOf(system.state, 1);
    EXPECT_EQ(task.state, c.task) << c.name;
    EXPECT_EQ(task.attempts.back().cause, c.cause) << c.name;
    EXPECT_EQ(task.restarts_used, c.restarts_used) << c.name;
    for (const HostId id : system.state.hosts())
      EXPECT_EQ(system.state.host(id).device_used_milli[0], 0) << c.name;
    EXPECT_EQ(State::Difference(system.state, system.state.Rebuilt()), "") << c.name;
  }
}

TEST(Apply, AnAttemptEndsOnlyWhenEveryHostIsGone) {
  SystemBuilder system = Two();
  PlaceGang(&system);
  StartAll(&system, 1);
  system.Do(Stopping(system.state, 1, pb::PREEMPTION));
  system.Do(Report(system.state, 1, 0, 1, 0, pb::GONE, 0, true));
  system.Do(Report(system.state, 1, 0, 1, 0, pb::GONE, 0, true));
  EXPECT_EQ(TaskOf(system.state, 1).state, pb::TASK_STOPPING);
  EXPECT_EQ(system.state.host(system.state.FindHost("c", "h00")).device_used_milli[0], 1000);
}

TEST(Apply, EventsThatMakeNoSenseHaveNoEffect) {
  SystemBuilder system = Two();
  PlaceGang(&system);
  StartAll(&system, 1);
  system.state.TakeChanges();
  const pb::Event placed_again = Placed(system.state, 1, "c", {{"h00", {1}}});
  pb::Event late = Report(system.state, 1, 0, 1, 0, pb::PREPARED);
  pb::Event foreign = Report(system.state, 1, 0, 1, 0, pb::EXITED, 1);
  foreign.mutable_attempt_reported()->set_state_id("another");
  pb::Event unknown = Report(system.state, 1, 0, 1, 0, pb::GONE, 0);
  unknown.mutable_attempt_reported()->mutable_report()->mutable_key()->set_attempt(7);
  pb::Event no_host = Report(system.state, 1, 0, 1, 0, pb::GONE, 0);
  no_host.mutable_attempt_reported()->set_host("nobody");
  pb::Event lost = Placed(system.state, 2, "nowhere", {{"h00", {1}}});
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(99);
  pb::Event same_job;
  same_job.mutable_job_submitted()->set_number(1);
  same_job.mutable_job_submitted()->set_uid("uid1");
  const State before = system.state;
  for (const pb::Event& event :
       {placed_again, late, foreign, unknown, no_host, lost, cancel, same_job, pb::Event()}) {
    system.Do(event);
    EXPECT_EQ(State::Difference(before, system.state), "") << event.ShortDebugString();
  }
}

TEST(Apply, TheFirstOutcomeWins) {
  SystemBuilder system = Two();
  system.Do(Placed(system.state, 2, "c", {{"h00", {0}}}));
  system.Do(Report(system.state, 2, 0, 1, 0, pb::STARTED));
  system.Do(Report(system.state, 2, 0, 1, 0, pb::EXITED, 0));
  system.Do(Report(system.state, 2, 0, 1, 0, pb::GONE, 5));
  EXPECT_EQ(system.state.FindJob(2)->state, pb::SUCCEEDED);
  system.Do(Report(system.state, 2, 0, 1, 0, pb::GONE, 5));
  EXPECT_EQ(system.state.FindJob(2)->state, pb::SUCCEEDED);
}

TEST(Apply, AbandonedBranchesOfCheckpointsAreStruck) {
  SystemBuilder system = Two();
  const auto seen = [&](int32_t attempt, int64_t step, int64_t loaded) {
    pb::Event event;
    pb::CheckpointSeen* e = event.mutable_checkpoint_seen();
    *e->mutable_key() = KeyOf(*system.state.FindJob(1), 0, attempt);
    e->mutable_checkpoint()->set_step(step);
    e->mutable_checkpoint()->set_path(absl::StrCat("a", attempt, "-", step));
    e->set_loaded_step(loaded);
    system.Do(event);
  };
  PlaceGang(&system);
  StartAll(&system, 1);
  for (const int64_t step : {10, 20, 30}) seen(1, step, -1);
  system.Do(Stopping(system.state, 1, pb::PREEMPTION));
  ReportAll(&system, 1, pb::GONE, 0, true);
  EXPECT_EQ(ResumeFrom(system.state, TaskOf(system.state, 1), "c"),
            (std::vector<std::string>{"a1-30", "a1-20", "a1-10"}));
  PlaceGang(&system);
  seen(1, 40, -1);  // late: sealed by the placement
  StartAll(&system, 1);
  seen(2, 25, 20);  // 30 was damaged: it went on from 20
  EXPECT_EQ(ResumeFrom(system.state, TaskOf(system.state, 1), "c"),
            (std::vector<std::string>{"a2-25", "a1-20", "a1-10"}));
}

TEST(Apply, SuccessWaitsForTheExportToBePublished) {
  SystemBuilder system = Two();
  PlaceGang(&system);
  StartAll(&system, 1);
  pb::Event staged;
  *staged.mutable_export_staged()->mutable_key() = KeyOf(*system.state.FindJob(1), 0, 1);
  staged.mutable_export_staged()->set_staged("/s");
  staged.mutable_export_staged()->set_target("/t");
  system.Do(staged);
  ReportAll(&system, 1, pb::GONE, 0);
  EXPECT_EQ(TaskOf(system.state, 1).state, pb::TASK_RUNNING);
  EXPECT_EQ(system.state.host(system.state.FindHost("c", "h00")).device_used_milli[0], 0)
      << "its devices are free";
  pb::Event published;
  *published.mutable_export_published()->mutable_key() = KeyOf(*system.state.FindJob(1), 0, 1);
  system.Do(published);
  system.Do(published);
  EXPECT_EQ(system.state.FindJob(1)->state, pb::SUCCEEDED);
}

TEST(Apply, EverySlotsTimeIsBookedOnceAndLostTimeMoves) {
  SystemBuilder system = Two();
  const auto booked = [&](LedgerClass c) {
    int64_t sum = 0;
    for (const auto& [key, device_us] : system.state.ledger())
      sum += key.second == static_cast<int>(c) ? device_us : 0;
    return sum / 1'000'000;
  };
  PlaceGang(&system);
  StartAll(&system, 1);
  system.Step(100);
  EXPECT_EQ(booked(LedgerClass::kProductive), 200);
  EXPECT_EQ(booked(LedgerClass::kIdle), 200);
  pb::Event checkpoint;
  *checkpoint.mutable_checkpoint_seen()->mutable_key() = KeyOf(*system.state.FindJob(1), 0, 1);
  checkpoint.mutable_checkpoint_seen()->mutable_checkpoint()->set_path("p");
  system.Do(checkpoint);
  system.Step(130);
  ReportAll(&system, 1, pb::GONE, 1);
  EXPECT_EQ(booked(LedgerClass::kProductive), 200) << "what came after the checkpoint is lost";
  EXPECT_EQ(booked(LedgerClass::kRestart), 60);
  int64_t sum = 0;
  for (const auto& [key, device_us] : system.state.ledger()) sum += device_us;
  EXPECT_EQ(sum, system.state.ledger_capacity_device_us());
  EXPECT_EQ(sum, 4 * 130 * int64_t{1'000'000});
}

TEST(Apply, ACopyIsASnapshot) {
  SystemBuilder system = Two();
  const State snapshot = system.state;
  const std::vector<RowChange> before = snapshot.AllRows();
  PlaceGang(&system);
  StartAll(&system, 1);
  system.Cancel(2);
  const std::vector<RowChange> after = snapshot.AllRows();
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(before[i].bytes, after[i].bytes) << before[i].kind;
  EXPECT_NE(State::Difference(snapshot, system.state), "");
}

}  // namespace
}  // namespace muster
