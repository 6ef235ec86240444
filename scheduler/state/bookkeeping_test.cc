// What State keeps beside attempts: checkpoints, exports, jobs of several tasks, indexes, hosts,
// drains, the ledger.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/state/testing/random_events.h"
#include "scheduler/state/testing/story.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Story;

// ---- history ----

TEST(History, ChangesAtTicksOnlyAndHalvesInADay) {
  Story s;
  const auto decayed = [&] {
    const auto it = s.state.history().find("research");
    return it == s.state.history().end() ? 0 : it->second.decayed_device_us;
  };
  const uint64_t job = s.Running(1);
  s.Step(300);
  EXPECT_EQ(decayed(), 0) << "the first tick is the first step's";
  s.Step(900);
  const int64_t used = decayed();
  EXPECT_NEAR(static_cast<double>(used), 899e6, 1e6);
  s.Step(950);
  EXPECT_EQ(decayed(), used);
  s.AllSay(job, pb::GONE, 0);
  s.Step(900 + 86'400);
  EXPECT_NEAR(static_cast<double>(decayed()), 899e6 / 2 + 50e6, 5e6)
      << "what ran since the last tick is new";
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
  EXPECT_THAT(s.Steps(job), ElementsAre(10, 20, 30))
      << "told after its end, but still the newest attempt";
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
  EXPECT_THAT(s.Newest(job).resume_from,
              ElementsAre("/disk/2/35", "/disk/2/25", "/disk/1/20", "/disk/1/10"));
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

TEST(Checkpoints, OfAnEarlierJobAreThereUntilItsOwnSayThatTheyWereNotTaken) {
  for (const int64_t loaded : {int64_t{40}, int64_t{-1}}) {
    SCOPED_TRACE(loaded);
    Story s;
    testing::JobBuilder builder("research");
    builder.task()->mutable_checkpoint()->add_resume_from("/disk/old/40");
    builder.task()->mutable_checkpoint()->add_resume_from("/disk/old/30");
    const uint64_t job = builder.SubmitTo(&s);
    EXPECT_THAT(ResumeFrom(s.state, s.Task(job), "lab"),
                ElementsAre("/disk/old/40", "/disk/old/30"));
    s.Place(job);
    StartAll(&s, job);
    EXPECT_THAT(s.Newest(job).resume_from, ElementsAre("/disk/old/40", "/disk/old/30"));
    s.Stop(job, pb::DRAIN);
    s.AllSay(job, pb::GONE, 0, true);
    EXPECT_EQ(ResumeFrom(s.state, s.Task(job), "lab").size(), 2u) << "it told nothing";
    s.Again(job);
    s.Checkpoint(job, 50, loaded);
    EXPECT_EQ(ResumeFrom(s.state, s.Task(job), "lab").size(), loaded == 40 ? 3u : 1u);
    EXPECT_EQ(ResumeFrom(s.state, s.Task(job), "lab").front(), "/disk/2/50");
  }
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

TEST(Export, IsNoTimeOfTheProgramsWhileItWaits) {
  for (const bool cancelled : {false, true}) {
    Story s;
    const uint64_t job = s.Running(1);
    s.Do(s.StagedEvent(job, 1));
    s.Step(100);
    s.Says(job, 0, pb::GONE, 0);
    EXPECT_EQ(s.Task(job).ran_ns, 99 * kSecond) << "it was started in second 1";
    s.Step(500);
    cancelled ? s.Cancel(job) : s.Do(s.PublishedEvent(job, 1));
    EXPECT_TRUE(s.Task(job).finished());
    EXPECT_EQ(s.Task(job).ran_ns, 99 * kSecond);
    EXPECT_EQ(s.Task(job).used_gpu_ms, 99'000);
  }
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

TEST(Export, ThatCantBePublishedIsTriedAgainAndThenFailsTheTaskWithTheReason) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Do(s.StagedEvent(job, 1));
  s.Says(job, 0, pb::GONE, 0);
  for (int tries = 1; tries < kExportTries; ++tries) {
    s.Do(s.PublishedEvent(job, 1, "disk full"));
    EXPECT_EQ(s.Task(job).export_state, "staged");
    EXPECT_EQ(s.Task(job).export_failures, tries);
    EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
  }
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  s.Do(s.PublishedEvent(job, 1, "disk full"));
  EXPECT_EQ(s.Task(job).export_state, "failed");
  EXPECT_EQ(s.State(job), pb::TASK_FAILED);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::FAILED);
  EXPECT_EQ(s.state.FindJob(job)->cause, pb::EXPORT_FAILED);
  EXPECT_EQ(s.state.FindJob(job)->detail, "5 times: disk full; the export stays at /disk/staged-1");
  s.ExpectNoEffect(s.PublishedEvent(job, 1), "too late");
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
}

TEST(Export, ThatFailedWhileTheProgramRanFailsTheTaskAtItsEnd) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Do(s.StagedEvent(job, 1));
  for (int tries = 0; tries < kExportTries; ++tries) s.Do(s.PublishedEvent(job, 1, "disk full"));
  EXPECT_EQ(s.State(job), pb::TASK_RUNNING);
  s.Says(job, 0, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_FAILED);
  EXPECT_EQ(s.Newest(job).cause, pb::EXPORT_FAILED);
}

TEST(Export, IsWaitedForNoLongerThanUntilACancel) {
  Story s;
  const uint64_t job = s.Running(1);
  s.Do(s.StagedEvent(job, 1));
  s.Says(job, 0, pb::GONE, 0);
  ASSERT_EQ(s.State(job), pb::TASK_RUNNING);
  s.Cancel(job);
  EXPECT_EQ(s.State(job), pb::TASK_CANCELLED);
  EXPECT_EQ(s.state.FindJob(job)->state, pb::CANCELLED);
  EXPECT_EQ(s.Newest(job).detail,
            "before its export was published; the export stays at /disk/staged-1");
  s.ExpectNoEffect(s.PublishedEvent(job, 1), "too late");
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");

  // A success that was first, told after the cancel: nothing is left to wait for either.
  const uint64_t racing = s.Running(1);
  s.Do(s.StagedEvent(racing, 1));
  s.Cancel(racing);
  s.Says(racing, 0, pb::GONE, 0);
  EXPECT_EQ(s.state.FindJob(racing)->state, pb::CANCELLED);

  // One task waits for its export, another still runs: that one is stopped, the job ends with it.
  testing::JobBuilder builder("research");
  builder.Task("a").Task("b");
  const uint64_t two = builder.SubmitTo(&s);
  s.PlaceOn(two, {{"h01", {0}}}, 0);
  s.PlaceOn(two, {{"h02", {0}}}, 1);
  for (const int task : {0, 1}) testing::StartAll(&s, two, task);
  pb::Event staged = s.StagedEvent(two, 1);
  s.Do(staged);
  s.Says(two, 0, pb::GONE, 0, false, 0);
  s.Cancel(two);
  EXPECT_EQ(s.State(two, 0), pb::TASK_CANCELLED);
  EXPECT_EQ(s.State(two, 1), pb::TASK_RUNNING);
  EXPECT_FALSE(s.state.FindJob(two)->finished());
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
  s.ExpectNoEffect(testing::Placed(s.state, job, "lab", {{"h00", {0}}}, 1),
                   "placing a blocked task");
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
    if (task < 2) {
      EXPECT_EQ(s.Task(job, task + 1).waiting_since_ns, s.now_ns)
          << "its wait begins when it could start";
    }
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
  for (const RowChange& row : s.state.RowsOf(s.state.TakeChanges()))
    deleted += row.kind == "job" && !row.bytes.has_value();
  EXPECT_EQ(deleted, 1);
}

TEST(Jobs, AreBoundToTheClusterOfTheirFirstPlacement) {
  testing::SystemBuilder system;
  system.Cluster("lab", "disk").Cluster("annex", "disk").Cluster("cloud", "bucket");
  system.Hosts("lab", 1, 2).Hosts("annex", 1, 2).Hosts("cloud", 1, 2).Queue("research", 8);
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&system);
  const auto allowed = [&] {
    std::vector<std::string> names;
    for (const int32_t c : AllowedClusters(system.state, *system.state.FindJob(job)))
      names.push_back(system.state.clusters()[c].name);
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

TEST(Jobs, ForgetWithTheAttemptWhichClusterCameToTheFront) {
  Story s;
  const uint64_t job = s.Job();
  const auto open = [&](const char* cluster) {
    pb::Event opened;
    opened.mutable_cluster_opened()->set_job_uid(s.state.FindJob(job)->uid);
    opened.mutable_cluster_opened()->set_task("main");
    opened.mutable_cluster_opened()->set_cluster(cluster);
    opened.mutable_cluster_opened()->set_to_front(true);
    s.Do(opened);
  };
  open("cloud");
  s.Again(job);
  s.Stop(job, pb::DRAIN);
  s.AllSay(job, pb::GONE, 143, true);
  open("annex");
  EXPECT_THAT(s.Task(job).fronted, ElementsAre("annex"));
  EXPECT_THAT(s.Task(job).opened, ElementsAre("cloud", "annex")) << "that stays open";
}

TEST(Restarts, OfATryThatNeverStartedItsTimeFromThePlacementOnCounts) {
  Story s;
  const uint64_t job = s.Job();
  for (const int64_t tried_s : {1, 1 + 7 + 2}) {  // pauses of 1 and 2 s; the second try took 7 s
    s.Place(job);
    s.Step((s.now_ns - Story::kStart) / kSecond + 7);
    pb::Event event = testing::Report(s.state, job, 0, s.Newest(job).number, 0, pb::GONE);
    event.mutable_attempt_reported()->mutable_report()->set_cause(pb::LAUNCH_FAILED);
    s.Do(event);
    ASSERT_EQ(s.Newest(job).cause, pb::LAUNCH_FAILED);
    EXPECT_EQ(s.Task(job).faults_tried_ns, tried_s * kSecond);
  }
}

// ---- hosts ----

TEST(Hosts, SpeakFallSilentAndComeBack) {
  Story s;
  const auto host = [&]() -> const HostRow& {
    return s.state.host(s.state.FindHost("lab", "h00"));
  };
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
  EXPECT_EQ(s.Booked("h00", LedgerClass::kProductive), 1000)
      << "what runs is stopped by a plan, not by the drain";
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
  const int productive = static_cast<int>(LedgerClass::kProductive),
            restart = static_cast<int>(LedgerClass::kRestart),
            preemption = static_cast<int>(LedgerClass::kPreemption),
            idle = static_cast<int>(LedgerClass::kIdle);
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
      << "coming back costs the preemption; so do the ten seconds since the checkpoint, on two "
         "devices";
  EXPECT_EQ(s.state.ledger().count({"research", restart}), 1u);
  EXPECT_EQ(s.state.ledger().count({"research", productive}), 1u);
  EXPECT_EQ(s.state.ledger().count({"research", preemption}), 1u);
  EXPECT_EQ(BookedTotal(s.state), s.state.ledger_capacity_device_us());
}

// None of the three is heard from.
TEST(Ledger, OnlyARemovedHostOnWhichNothingMayRunIsBookedToNothing) {
  testing::SystemBuilder s;
  s.Cluster("lab").Hosts("lab", 1, 2, "gpu", "r1").Hosts("lab", 2, 2).Queue("research");
  const uint64_t job = testing::JobBuilder("research").SubmitTo(&s);
  s.Do(testing::Placed(s.state, job, "lab", {{"h01", {0}}}));
  for (const char* host : {"h00", "h01", "h02"}) s.HostState("lab", host, pb::HOST_UNREACHABLE);
  s.Close("lab");
  const struct {
    const char* host;
    int64_t milli;
    const char* why;
  } kCases[] = {{"h00", 2000, "it is listed"},
                {"h01", 2000, "an attempt may run there"},
                {"h02", 0, "nobody expects it any more"}};
  for (const auto& c : kCases) {
    int64_t milli = 0;
    for (const LedgerShare& share : s.state.host(s.state.FindHost("lab", c.host)).shares)
      milli += share.milli;
    EXPECT_EQ(milli, c.milli) << c.host << ": " << c.why;
  }
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
}

int64_t CapacityMilli(const State& state, HostId id) {
  const HostRow& host = state.host(id);
  return IsRemoved(state, host) ? 0 : 1000 * int64_t{host.inventory.devices_size()};
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
      for (const HostId id : state.hosts()) capacity_milli += CapacityMilli(state, id);
      Apply(&state, event);
      if (event.has_step()) {
        if (until_ns == 0) until_ns = state.now_ns();
        const int64_t elapsed_ms = (state.now_ns() - until_ns) / kMillisecond;
        until_ns += elapsed_ms * kMillisecond;
        expected_us += capacity_milli * elapsed_ms;
      }
      ASSERT_EQ(BookedTotal(state), expected_us) << "seed " << seed << ", event " << i << "\n"
                                                 << event.DebugString();
      ASSERT_EQ(state.ledger_capacity_device_us(), expected_us);
      int64_t shares_milli = 0;
      for (const HostId id : state.hosts()) {
        for (const LedgerShare& share : state.host(id).shares) shares_milli += share.milli;
      }
      int64_t now_milli = 0;
      for (const HostId id : state.hosts()) now_milli += CapacityMilli(state, id);
      ASSERT_EQ(shares_milli, now_milli) << "every device is booked to something now";
    }
    EXPECT_GT(expected_us, 0);
  }
}

}  // namespace
}  // namespace muster
