// How attempts start, are reported, end, move, are cancelled and lost; and what must have no effect
// (contracts 6-9, 13, 14 of docs/contracts.md).
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/state/testing/story.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using testing::Story;

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
  const pb::AttemptKey key = s.GangPreparedEvent(job).gang_prepared().key();
  EXPECT_FALSE(PreparedGang(s.state, key).has_value());
  s.Says(job, 0, pb::PREPARED);
  const std::optional<pb::Event> prepared = PreparedGang(s.state, key);
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(prepared->gang_prepared().key().SerializeAsString(), key.SerializeAsString());
  EXPECT_EQ(prepared->gang_prepared().master_address(),
            s.state.host(s.Newest(job).parts[0].host).inventory.address());
  EXPECT_EQ(s.State(job), pb::TASK_PREPARING) << "until GangPrepared is committed";
  s.Do(s.GangPreparedEvent(job));
  EXPECT_EQ(s.State(job), pb::TASK_STARTING);
  EXPECT_EQ(s.Newest(job).master_address, "10.0.0.1");
  EXPECT_EQ(s.Newest(job).master_port, 20'000);
  EXPECT_FALSE(PreparedGang(s.state, key).has_value()) << "it starts already";
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
      {"another attempt than the next",
       [](pb::AttemptPlaced* e) { e->mutable_key()->set_attempt(2); }},
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
      {"an earlier phase",
       [](pb::AttemptReported* e) { e->mutable_report()->set_phase(pb::STARTED); }},
      {"the first phase",
       [](pb::AttemptReported* e) { e->mutable_report()->set_phase(pb::PREPARED); }},
      {"no phase",
       [](pb::AttemptReported* e) {
         e->mutable_report()->set_phase(pb::ATTEMPT_PHASE_UNSPECIFIED);
       }},
      {"GONE of another attempt",
       [](pb::AttemptReported* e) {
         e->mutable_report()->mutable_key()->set_attempt(2),
             e->mutable_report()->set_phase(pb::GONE);
       }},
      {"GONE of another task",
       [](pb::AttemptReported* e) {
         e->mutable_report()->mutable_key()->set_task("other"),
             e->mutable_report()->set_phase(pb::GONE);
       }},
      {"GONE of another job",
       [](pb::AttemptReported* e) {
         e->mutable_report()->mutable_key()->set_job_uid("other"),
             e->mutable_report()->set_phase(pb::GONE);
       }},
      {"of a host that isn't in the gang", [](pb::AttemptReported* e) { e->set_host("h02"); }},
      {"of an unknown host", [](pb::AttemptReported* e) { e->set_host("nowhere"); }},
      {"of an unknown cluster", [](pb::AttemptReported* e) { e->set_cluster("nowhere"); }},
      {"GONE of a host that isn't in the gang",
       [](pb::AttemptReported* e) {
         e->set_host("h02"), e->mutable_report()->set_phase(pb::GONE);
       }},
  };
  for (const auto& c : kCases) {
    pb::Event event = exited;
    c.change(event.mutable_attempt_reported());
    s.ExpectNoEffect(event, c.what);
  }
  s.Says(job, 0, pb::GONE, 0);
  s.ExpectNoEffect(testing::Report(s.state, job, 0, 1, 0, pb::GONE, 1),
                   "GONE again, with another exit");
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
  EXPECT_EQ(s.Newest(job).parts[0].state_id, "s1")
      << "the attempt stays bound to the state that it was placed on";
  EXPECT_EQ(s.state.host(s.state.FindHost("lab", "h00")).state_id, "s2");
  EXPECT_EQ(s.UsedMilli("h00"), 1000) << "absence proves nothing";
  s.ExpectNoEffect(testing::Report(s.state, job, 0, 1, 0, pb::EXITED, 0),
                   "the new state knows nothing of its exits");
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
  pb::Cause told = pb::CAUSE_UNSPECIFIED;  // of the exit, from its log
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
      {"every worker exits 0",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0}, {1, pb::GONE, 0}},
       pb::TASK_SUCCEEDED,
       pb::DONE,
       0,
       ""},
      {"the first exit 0 ends nothing",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0}},
       pb::TASK_RUNNING,
       pb::CAUSE_UNSPECIFIED,
       0,
       ""},
      {"exited isn't gone",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::EXITED, 0}, {1, pb::EXITED, 0}},
       pb::TASK_RUNNING,
       pb::CAUSE_UNSPECIFIED,
       0,
       ""},
      {"one fails",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0}, {1, pb::GONE, 3}},
       pb::TASK_WAITING,
       pb::PROGRAM_ERROR,
       1,
       "rank 1: exit 3"},
      {"one dies of a signal",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0}, {1, pb::GONE, 0, false, pb::CAUSE_UNSPECIFIED, 11}},
       pb::TASK_WAITING,
       pb::KILLED,
       1,
       "rank 1: signal 11"},
      {"one runs out of memory",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0}, {1, pb::GONE, 0, false, pb::CAUSE_UNSPECIFIED, 9, true}},
       pb::TASK_WAITING,
       pb::OUT_OF_MEMORY,
       1,
       "rank 1"},
      {"its host says why",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0}, {1, pb::GONE, 9, false, pb::SETUP_FAILED}},
       pb::TASK_WAITING,
       pb::SETUP_FAILED,
       1,
       "rank 1: exit 9"},
      {"the first outcome wins: success",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::EXITED, 0}, {0, pb::GONE, 1}, {1, pb::GONE, 0}},
       pb::TASK_SUCCEEDED,
       pb::DONE,
       0,
       ""},
      {"the first outcome wins: failure",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::EXITED, 1}, {0, pb::GONE, 0}, {1, pb::GONE, 0}},
       pb::TASK_WAITING,
       pb::PROGRAM_ERROR,
       1,
       "rank 0: exit 1"},
      {"a failure stops the rest: it is the cause, not their end",
       pb::PROGRAM_ERROR,
       {{1, pb::GONE, 1}, {0, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::PROGRAM_ERROR,
       1,
       ""},
      {"exit 0 after a stop was sent is no success",
       pb::RESIZE,
       {{0, pb::GONE, 0, true}, {1, pb::GONE, 0, true}},
       pb::TASK_WAITING,
       pb::RESIZE,
       0,
       ""},
      {"exit 0 of one after a stop was sent is no success",
       pb::RESIZE,
       {{0, pb::GONE, 0}, {1, pb::GONE, 0, true}},
       pb::TASK_WAITING,
       pb::RESIZE,
       0,
       ""},
      {"done before the stop reached anybody",
       pb::RESIZE,
       {{0, pb::GONE, 0}, {1, pb::GONE, 0}},
       pb::TASK_SUCCEEDED,
       pb::DONE,
       0,
       ""},
      {"stopped, one host still to answer",
       pb::PREEMPTION,
       {{0, pb::GONE, 143, true}},
       pb::TASK_STOPPING,
       pb::PREEMPTION,
       0,
       ""},
      {"preempted",
       pb::PREEMPTION,
       {{0, pb::GONE, 143, true}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::PREEMPTION,
       0,
       ""},
      {"drained",
       pb::DRAIN,
       {{0, pb::GONE, 143, true}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::DRAIN,
       0,
       ""},
      {"hung",
       pb::HANG,
       {{0, pb::GONE, 137, true}, {1, pb::GONE, 137, true}},
       pb::TASK_WAITING,
       pb::HANG,
       1,
       ""},
      {"over its time limit, whatever the budget",
       pb::TIME_LIMIT,
       {{0, pb::GONE, 143, true}, {1, pb::GONE, 143, true}},
       pb::TASK_FAILED,
       pb::TIME_LIMIT,
       0,
       ""},
      {"a rendezvous port was taken: no budget",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, pb::RENDEZVOUS}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::RENDEZVOUS,
       0,
       ""},
      {"a host was restarted: no budget",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 0, false, pb::HOST_LOST, 9}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::HOST_LOST,
       0,
       ""},
      {"a host claims a cause that only the scheduler gives: its own doing",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, -1, false, pb::PREEMPTION}, {1, pb::GONE, -1, false, pb::CANCEL}},
       pb::TASK_WAITING,
       pb::HOST_LOST,
       0,
       ""},
      {"a host tells the cause of its stop back",
       pb::RESIZE,
       {{0, pb::GONE, -1, false, pb::RESIZE}, {1, pb::GONE, -1, false, pb::RESIZE}},
       pb::TASK_WAITING,
       pb::RESIZE,
       0,
       ""},
      {"a program that isn't there spends the budget",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 127, false, pb::PROGRAM_ERROR}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::PROGRAM_ERROR,
       1,
       "exit 127"},
      {"its log told of memory",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::OUT_OF_MEMORY}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::OUT_OF_MEMORY,
       1,
       ""},
      {"its log told of a full disk: no budget",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::STORAGE_FAILURE}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::STORAGE_FAILURE,
       0,
       ""},
      {"a device's fault: no budget",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::DEVICE_FAILURE}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::DEVICE_FAILURE,
       0,
       ""},
      {"its host's fault: no budget",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::HOST_FAILURE}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::HOST_FAILURE,
       0,
       ""},
      {"its port was taken, and the others couldn't reach it: no budget",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::RENDEZVOUS},
        {1, pb::GONE, 1, false, {}, 0, false, pb::NETWORK_FAILURE}},
       pb::TASK_WAITING,
       pb::RENDEZVOUS,
       0,
       "rank 0: exit 1"},
      {"its own watchdog ended it",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::HANG}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::HANG,
       1,
       ""},
      {"one lost its peer, the peer told its own end",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::NETWORK_FAILURE},
        {1, pb::GONE, 2, false, {}, 0, false, pb::PROGRAM_ERROR}},
       pb::TASK_WAITING,
       pb::PROGRAM_ERROR,
       1,
       "rank 1: exit 2"},
      {"stopped for a lost peer, which tells its own end after that",
       pb::NETWORK_FAILURE,
       {{0, pb::GONE, 143, true}, {1, pb::GONE, 2, false, {}, 0, false, pb::PROGRAM_ERROR}},
       pb::TASK_WAITING,
       pb::PROGRAM_ERROR,
       1,
       "rank 1: exit 2"},
      {"stopped for a lost peer, and nobody knows more: no budget",
       pb::NETWORK_FAILURE,
       {{0, pb::GONE, 143, true}, {1, pb::GONE, 143, true}},
       pb::TASK_WAITING,
       pb::NETWORK_FAILURE,
       0,
       ""},
      {"an exit can't claim what only the scheduler gives",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE, 1, false, {}, 0, false, pb::PREEMPTION}, {1, pb::GONE, 0}},
       pb::TASK_WAITING,
       pb::PROGRAM_ERROR,
       1,
       ""},
      {"both say gone without a word: no success",
       pb::CAUSE_UNSPECIFIED,
       {{0, pb::GONE}, {1, pb::GONE}},
       pb::TASK_WAITING,
       pb::HOST_LOST,
       0,
       ""},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    Story s;
    const uint64_t job = s.Running(2);
    s.Step(60);
    if (c.stop != pb::CAUSE_UNSPECIFIED) s.Stop(job, c.stop);
    for (const Say& say : c.says) {
      pb::Event event =
          testing::Report(s.state, job, 0, 1, say.part, say.phase, say.exit_code, say.stop_sent);
      pb::AttemptReport* report = event.mutable_attempt_reported()->mutable_report();
      report->set_cause(say.cause);
      for (pb::WorkerExit& exit : *report->mutable_exits()) {
        exit.set_signal(say.signal);
        exit.set_oom(say.oom);
        exit.set_cause(say.told);
      }
      s.Do(event);
    }
    EXPECT_EQ(s.State(job), c.task);
    EXPECT_EQ(s.Newest(job).cause, c.cause);
    EXPECT_EQ(s.Task(job).restarts_used, c.restarts_used);
    EXPECT_THAT(s.Newest(job).detail, HasSubstr(c.detail));
    const bool over =
        c.task == pb::TASK_WAITING || c.task == pb::TASK_SUCCEEDED || c.task == pb::TASK_FAILED;
    EXPECT_EQ(s.Newest(job).ended(), over);
    EXPECT_EQ(s.UsedMilli("h00") + s.UsedMilli("h01"), over ? 0 : 2000)
        << "devices are free when every host is gone, not before";
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

TEST(Ends, ALaunchThatTookTooLongIsPutDownToWhomItWaitedFor) {
  for (const bool starting : {false, true}) {
    SCOPED_TRACE(starting);
    Story s;
    const uint64_t job = s.Placed(3);
    for (const size_t part : {0, 2}) s.Says(job, part, pb::PREPARED);
    if (starting) {
      s.Says(job, 1, pb::PREPARED);
      s.Do(s.GangPreparedEvent(job));
      for (const size_t part : {0, 2}) s.Says(job, part, pb::STARTED);
    }
    s.Stop(job, pb::LAUNCH_FAILED);
    EXPECT_FALSE(s.Newest(job).parts[0].lags);
    EXPECT_TRUE(s.Newest(job).parts[1].lags);
    EXPECT_FALSE(s.Newest(job).parts[2].lags);
    for (const size_t part : {0, 1, 2})
      s.Says(job, part, pb::GONE, starting && part != 1 ? 143 : -1, starting);
    EXPECT_EQ(s.State(job), pb::TASK_WAITING);
    EXPECT_EQ(s.Newest(job).cause, pb::LAUNCH_FAILED);
    EXPECT_EQ(s.Task(job).infra_failures, 1);
    EXPECT_EQ(s.Task(job).restarts_used, 0);
    for (const auto& [host, blames] :
         {std::pair{"h00", 0u}, std::pair{"h01", 1u}, std::pair{"h02", 0u}}) {
      EXPECT_EQ(s.state.host(s.state.FindHost("lab", host)).blames.size(), blames) << host;
    }
    EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  }
}

TEST(Ends, AStartThatWasOnlyHeardTooLateIsASuccessAllTheSame) {
  Story s;
  const uint64_t job = s.Placed(1);
  s.Stop(job, pb::LAUNCH_FAILED);
  s.Says(job, 0, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_SUCCEEDED);
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
    EXPECT_EQ(s.Task(job).last_resize_ns, cause == pb::RESIZE ? s.now_ns : 0)
        << "when it last grew";
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
  s.ExpectNoEffect(s.CheckpointEvent(job, 1, 20),
                   "a checkpoint of a lost attempt, before its successor is placed");
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

// ---- a restored store ----

TEST(Adopted, NumbersGoOnAboveAllThatMayHaveRunAndWhatWasStartingIsStopped) {
  Story s;
  const uint64_t runs = s.Running(1), waits = s.Job();
  const uint64_t starts = s.Job();
  s.PlaceOn(starts, {{"h02", {0}}});
  pb::Event adopted;
  adopted.mutable_store_adopted()->set_epoch(static_cast<uint64_t>(kAttemptsSinceS + 5000) * 1000);
  s.Do(adopted);
  EXPECT_TRUE(s.state.restoring());
  EXPECT_EQ(s.state.adopted_epoch(), static_cast<uint64_t>(kAttemptsSinceS + 5000) * 1000);
  EXPECT_EQ(s.Task(waits).next_attempt, 5000);
  EXPECT_EQ(s.State(runs), pb::TASK_RUNNING);
  EXPECT_EQ(s.State(starts), pb::TASK_STOPPING);
  s.Says(runs, 0, pb::GONE, 0);
  EXPECT_EQ(s.State(runs), pb::TASK_SUCCEEDED)
      << "the attempt that the backup shows as running still counts";
  s.Says(starts, 0, pb::GONE);
  EXPECT_EQ(s.State(starts), pb::TASK_WAITING);
  pb::Event settled;
  settled.mutable_store_adopted()->set_settled(true);
  s.Do(settled);
  EXPECT_FALSE(s.state.restoring());
}

TEST(Strays, AreKeptUntilTheirHostSaysGoneAndTheHostTakesNothingMeanwhile) {
  Story s;
  pb::Event stray;
  pb::AttemptReported* e = stray.mutable_attempt_reported();
  e->set_cluster("lab");
  e->set_host("h00");
  e->set_state_id(s.state.host(s.state.FindHost("lab", "h00")).state_id);
  e->mutable_report()->mutable_key()->set_job_uid(std::string(32, '9'));
  e->mutable_report()->mutable_key()->set_task("main");
  e->mutable_report()->mutable_key()->set_attempt(4);
  e->mutable_report()->set_phase(pb::STARTED);
  const auto host = [&]() -> const HostRow& {
    return s.state.host(s.state.FindHost("lab", "h00"));
  };
  s.Do(stray);
  s.Do(stray);
  ASSERT_EQ(host().lost.size(), 1u);
  EXPECT_TRUE(host().lost[0].stray());
  EXPECT_FALSE(host().usable());
  e->mutable_report()->set_phase(pb::GONE);
  s.Do(stray);
  EXPECT_TRUE(host().lost.empty());
  EXPECT_TRUE(host().usable());
}

TEST(Ends, WithoutTheExitOfEachProcessAreNoSuccess) {
  Story s;
  testing::JobBuilder builder("research");
  builder.task()->set_processes_per_worker(2);
  const uint64_t job = builder.SubmitTo(&s);
  s.Place(job);
  StartAll(&s, job);
  s.Says(job, 0, pb::STARTED, 0);  // one of the two has exited 0
  s.Says(job, 0, pb::GONE);        // then the host lost its records
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(s.Newest(job).cause, pb::HOST_LOST);
}

}  // namespace
}  // namespace muster
