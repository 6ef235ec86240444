// When a task that ended is started again, how long it waits until then, and when it isn't
// (contract 13 of docs/contracts.md).
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/state/testing/story.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using testing::HelloAgain;
using ::testing::IsEmpty;
using testing::Story;

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

TEST(Restarts, WaitNoLongerThanTheFirstTimeAfterARunOfTenMinutes) {
  Story s;
  testing::JobBuilder builder("research");
  builder.task()->set_max_restarts(100);
  const uint64_t job = builder.SubmitTo(&s);
  for (int i = 0; i < 5; ++i) {
    s.Again(job);
    s.AllSay(job, pb::GONE, 1);
  }
  EXPECT_EQ(s.Task(job).backoff_until_ns, s.state.now_ns() + 16 * kSecond);
  s.Again(job);
  s.Step(1200);
  s.AllSay(job, pb::GONE, 1);
  EXPECT_EQ(s.Task(job).backoff_until_ns, s.state.now_ns() + kSecond);
}

// An attempt whose program runs for `ran_s` and ends by a fault of the infrastructure.
void EndsByFault(Story* s, uint64_t job, int64_t ran_s, pb::Cause cause = pb::STORAGE_FAILURE) {
  s->Again(job);
  s->Step((s->now_ns - Story::kStart) / kSecond + ran_s);
  pb::Event event = testing::Report(s->state, job, 0, s->Newest(job).number, 0, pb::GONE, 1);
  for (pb::WorkerExit& exit :
       *event.mutable_attempt_reported()->mutable_report()->mutable_exits()) {
    exit.set_cause(cause);
    exit.set_detail("exit 1: OSError: [Errno 116] Stale file handle");
  }
  s->Do(event);
  EXPECT_EQ(State::Difference(s->state, s->state.Rebuilt()), "");
}

int64_t PauseS(const Story& s, uint64_t job) {
  return (s.Task(job).backoff_until_ns - s.state.now_ns()) / kSecond;
}

TEST(Restarts, AFaultOfTheInfrastructureIsTriedAgainWithGrowingPausesForHalfAnHour) {
  Story s;
  const uint64_t job = s.Job();
  // 1 + 2 + … + 256 s, then 300 s each, and what is left of 1,800.
  for (const int64_t pause_s : {1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300, 89}) {
    EndsByFault(&s, job, 0);
    ASSERT_EQ(s.State(job), pb::TASK_WAITING);
    EXPECT_EQ(PauseS(s, job), pause_s);
  }
  EndsByFault(&s, job, 0);
  EXPECT_EQ(s.State(job), pb::TASK_FAILED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::STORAGE_FAILURE);
  EXPECT_EQ(s.state.FindJob(job)->detail,
            "15 times in a row, tried again for 30m: rank 0: exit 1: OSError: [Errno 116] Stale "
            "file handle");
  EXPECT_EQ(s.Task(job).restarts_used, 0);
}

TEST(Restarts, NoneAfterAnExitCodeThatTheProgramSaysIsFinal) {
  struct Case {
    int code;
    pb::Cause cause;
    bool own;  // as the host knows
    pb::TaskState state;
    const char* why;
  };
  for (const Case& c :
       {Case{2, pb::CAUSE_UNSPECIFIED, true, pb::TASK_FAILED, "it says so"},
        Case{127, pb::CAUSE_UNSPECIFIED, false, pb::TASK_FAILED, "there is no such program"},
        Case{75, pb::CAUSE_UNSPECIFIED, true, pb::TASK_WAITING, "another code"},
        Case{2, pb::CAUSE_UNSPECIFIED, false, pb::TASK_WAITING, "its setup said so"},
        Case{2, pb::STORAGE_FAILURE, true, pb::TASK_FAILED, "it knows better than its log"},
        Case{127, pb::RENDEZVOUS, false, pb::TASK_WAITING, "no program spoke"}}) {
    SCOPED_TRACE(c.why);
    Story s;
    testing::JobBuilder builder("research");
    builder.task()->set_max_restarts(20);
    builder.task()->add_final_exit_codes(2);
    builder.task()->add_final_exit_codes(127);
    const uint64_t job = builder.SubmitTo(&s);
    s.Again(job);
    pb::Event event = testing::Report(s.state, job, 0, s.Newest(job).number, 0, pb::GONE, c.code);
    for (pb::WorkerExit& exit :
         *event.mutable_attempt_reported()->mutable_report()->mutable_exits()) {
      exit.set_cause(c.cause);
      exit.set_own(c.own);
    }
    s.Do(event);
    EXPECT_EQ(s.State(job), c.state);
    EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  }
}

// Two ranks on h00, of which the first has told its end; then the host tells that all is over.
struct ToldEnd {
  int code = 0;
  std::optional<pb::Cause> stop;  // of the gang, after that end
  bool stop_sent = false, rebooted = false;
  pb::Cause fault = pb::CAUSE_UNSPECIFIED;  // that the log names
};

uint64_t TellsOneEnd(Story* s, const ToldEnd& told) {
  testing::JobBuilder builder("research");
  builder.Workers(2).task()->add_final_exit_codes(2);
  const uint64_t job = builder.SubmitTo(s);
  s->PlaceOn(job, {{"h00", {0, 1}, 2}});
  testing::StartAll(s, job);
  pb::Event event =
      testing::Report(s->state, job, 0, s->Newest(job).number, 0, pb::STARTED, told.code);
  auto* const exits = event.mutable_attempt_reported()->mutable_report()->mutable_exits();
  EXPECT_EQ(exits->size(), 2);
  exits->RemoveLast();
  exits->Mutable(0)->set_own(true);
  exits->Mutable(0)->set_cause(told.fault);
  s->Do(event);
  if (told.stop.has_value()) s->Stop(job, *told.stop);
  pb::Event gone = testing::Report(s->state, job, 0, s->Newest(job).number, 0, pb::GONE,
                                   told.stop_sent || told.rebooted ? 0 : -1, told.stop_sent);
  pb::AttemptReport* report = gone.mutable_attempt_reported()->mutable_report();
  if (report->exits_size() > 1) {
    *report->mutable_exits(0) = event.attempt_reported().report().exits(0);
    report->mutable_exits(1)->set_signal(9);
  }
  if (told.rebooted) report->set_cause(pb::HOST_LOST);
  s->Do(gone);
  EXPECT_EQ(State::Difference(s->state, s->state.Rebuilt()), "");
  return job;
}

TEST(Restarts, AnEndThatWasToldDecidesWhateverItsHostSaysOfTheOthers) {
  struct Case {
    ToldEnd told;
    pb::TaskState state;
    pb::Cause cause;
    const char* why;
  };
  const pb::Cause error = pb::PROGRAM_ERROR;
  for (const Case& c :
       {Case{{2, error}, pb::TASK_FAILED, error, "final, and the others are forgotten"},
        Case{{2, {}}, pb::TASK_FAILED, error, "final, and nobody had stopped it yet"},
        Case{{1, {}}, pb::TASK_WAITING, error, "another code"},
        Case{{0, {}}, pb::TASK_WAITING, pb::HOST_LOST, "the other may have been any"},
        Case{{2, error, true}, pb::TASK_FAILED, error, "final, and the others were stopped"},
        Case{{1, error, true}, pb::TASK_WAITING, error, "another code"},
        Case{{2, error, false, true}, pb::TASK_FAILED, error, "final, and then a reboot"},
        Case{{2, pb::PREEMPTION, true}, pb::TASK_FAILED, error, "final, before it was to move"},
        Case{{1, pb::PREEMPTION, true}, pb::TASK_WAITING, pb::PREEMPTION, "it moves"}}) {
    SCOPED_TRACE(c.why);
    Story s;
    const uint64_t job = TellsOneEnd(&s, c.told);
    EXPECT_EQ(s.State(job), c.state);
    EXPECT_EQ(s.Newest(job).cause, c.cause);
  }
}

TEST(Restarts, AFaultIsRememberedWithItsHostThoughTheOthersThereWereStoppedForIt) {
  Story s;
  const uint64_t job = TellsOneEnd(&s, {1, pb::DEVICE_FAILURE, true, false, pb::DEVICE_FAILURE});
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(s.Newest(job).cause, pb::DEVICE_FAILURE);
  EXPECT_EQ(s.Newest(job).failed_host, s.Newest(job).parts[0].host);
  EXPECT_EQ(s.state.Rebuilt().FindJob(job)->tasks[0].attempts.back().failed_host,
            s.Newest(job).failed_host);
}

TEST(Restarts, OfAFaultStopAfterTheTimeThatTheJobSays) {
  struct Case {
    int64_t retry_s;
    int64_t ran_s;  // each try
    int tries;
    const char* why;
  };
  for (const Case& c :
       {Case{0, 0, 1, "it isn't tried again"}, Case{10, 0, 5, "1, 2, 4 and the rest of 10 s"},
        Case{12, 9, 3, "9 s of the second try count, of the first none"},
        Case{1800, 7200, 7, "five minutes of each try count"}}) {
    SCOPED_TRACE(c.why);
    Story s;
    testing::JobBuilder builder("research");
    builder.task()->set_retry_faults_for_ns(c.retry_s * kSecond);
    const uint64_t job = builder.SubmitTo(&s);
    int tries = 0;
    while (s.State(job) != pb::TASK_FAILED && tries < 100) {
      EndsByFault(&s, job, c.ran_s);
      ++tries;
    }
    EXPECT_EQ(tries, c.tries);
  }
}

TEST(Restarts, WaitingForAPlaceIsNoTryingAndProgressForgivesFaults) {
  Story s;
  const uint64_t job = s.Job();
  for (int i = 0; i < 3; ++i) EndsByFault(&s, job, 0);
  s.Step((s.now_ns - Story::kStart) / kSecond + 86'400);  // its queue was full
  EndsByFault(&s, job, 0);
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(PauseS(s, job), 8);
  s.Again(job);
  s.Checkpoint(job, 10);
  EXPECT_EQ(s.Task(job).infra_failures, 0);
  EXPECT_EQ(s.Task(job).faults_tried_ns, 0);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  EndsByFault(&s, job, 0);
  EXPECT_EQ(PauseS(s, job), 1) << "counted anew after the checkpoint";
}

TEST(Restarts, AFaultIsRememberedWithTheHostThatToldIt) {
  for (const auto& [cause, remembered] :
       {std::pair{pb::STORAGE_FAILURE, true}, std::pair{pb::DEVICE_FAILURE, true},
        std::pair{pb::HOST_FAILURE, true}, std::pair{pb::NETWORK_FAILURE, true},
        std::pair{pb::PROGRAM_ERROR, false}, std::pair{pb::OUT_OF_MEMORY, false}}) {
    Story s;
    const uint64_t job = s.Job();
    EndsByFault(&s, job, 1, cause);
    const HostId host = s.Newest(job).parts[0].host;
    EXPECT_EQ(s.Newest(job).failed_host, remembered ? host : kNoHost) << pb::Cause_Name(cause);
    const State rebuilt = s.state.Rebuilt();
    EXPECT_EQ(rebuilt.FindJob(job)->tasks[0].attempts.back().failed_host,
              s.Newest(job).failed_host);
  }
}

// An attempt of one worker on h00 whose host says, `ran_s` after its start, that it lost track of
// it.
void LoseTrack(Story* s, uint64_t job, int64_t ran_s) {
  s->Again(job);
  s->Step((s->now_ns - Story::kStart) / kSecond + ran_s);
  s->AllSay(job, pb::GONE);
}

TEST(Restarts, LostHostsInARowWaitLongerEachTimeAndEndTheTaskButProgressAndSoundRunsForgiveThem) {
  Story s;
  const uint64_t job = s.Job();
  const auto backoff_s = [&] {
    return std::max<int64_t>(0, s.Task(job).backoff_until_ns - s.now_ns) / kSecond;
  };
  for (const int64_t wait_s : {0, 1, 2, 4, 8, 16, 32, 64, 128}) {
    LoseTrack(&s, job, 60);
    EXPECT_EQ(s.State(job), pb::TASK_WAITING);
    EXPECT_EQ(s.Newest(job).cause, pb::HOST_LOST);
    EXPECT_EQ(backoff_s(), wait_s);
  }
  EXPECT_EQ(s.Task(job).hosts_lost, kHostsLostInRow - 1);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");

  LoseTrack(&s, job, 600);
  EXPECT_EQ(s.Task(job).hosts_lost, 0) << "it ran for ten minutes";
  EXPECT_EQ(backoff_s(), 0);
  LoseTrack(&s, job, 599);
  EXPECT_EQ(s.Task(job).hosts_lost, 1);
  s.Again(job);
  s.Checkpoint(job, 10);
  EXPECT_EQ(s.Task(job).hosts_lost, 0) << "it wrote a checkpoint";
  s.AllSay(job, pb::GONE);

  for (int i = 1; i < kHostsLostInRow; ++i) LoseTrack(&s, job, 60);
  EXPECT_EQ(s.State(job), pb::TASK_FAILED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::HOST_LOST);
  EXPECT_EQ(s.state.FindJob(job)->detail,
            "10 attempts in a row lost a host before they made progress: its host stopped it or "
            "lost track of it");
  EXPECT_EQ(s.Task(job).restarts_used, 0);
}

TEST(Restarts, WhatWasLostRanUntilItsHostFellSilentAlsoWhereItWasOnlyRestarted) {
  for (const bool restarted : {false, true}) {
    for (const int64_t silent_after_s : {300, 600}) {
      SCOPED_TRACE(absl::StrCat(restarted, " ", silent_after_s));
      Story s;
      const uint64_t job = s.Running(1);
      s.Step(1 + silent_after_s);
      s.HostState("lab", "h00", pb::HOST_SILENT);
      s.Step(1 + silent_after_s + 900);
      if (restarted) {
        pb::Event hello = HelloAgain(s.state, "lab", "h00");
        hello.mutable_host_hello()->set_boot_id("b2");
        s.Do(hello);
        s.Step(1 + silent_after_s + 1000);
        s.AllSay(job, pb::GONE);
      } else {
        s.HostState("lab", "h00", pb::HOST_UNREACHABLE);
        s.Lose(job, "h00");
      }
      EXPECT_EQ(s.Newest(job).cause, pb::HOST_LOST);
      EXPECT_EQ(s.Task(job).hosts_lost, silent_after_s == 600 ? 0 : 1);
      EXPECT_EQ(s.Task(job).backoff_until_ns, 0);
      EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
    }
  }
}

TEST(Restarts, LostHostsInARowAreForgivenByASoundRunHoweverItEndsAndMovesArentCounted) {
  Story s;
  const uint64_t job = s.Job();
  for (int i = 1; i < kHostsLostInRow; ++i) LoseTrack(&s, job, 60);
  s.Again(job);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE);
  EXPECT_EQ(s.Task(job).hosts_lost, kHostsLostInRow - 1) << "it was moved";
  s.Again(job);
  s.Step((s.now_ns - Story::kStart) / kSecond + 600);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  EXPECT_EQ(s.Task(job).hosts_lost, 0);
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

}  // namespace
}  // namespace muster
