// What people are told of each change, sentence by sentence.
#include "scheduler/ask/words/narrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::JobBuilder;
using testing::Placed;
using testing::Report;
using testing::Stopping;
using testing::TaskOf;

// Cluster lab with six hosts of two GPUs each; queues research and class.
class NarrateTest : public ::testing::Test {
 protected:
  NarrateTest() {
    s_.Cluster("lab", "disk").Hosts("lab", 6, 2).Queue("research", 8).Queue("class", 4);
    s_.Step(1);
    before_ = s_.state;
  }

  uint64_t Submit(int workers = 1) { return JobBuilder("research").Workers(workers).SubmitTo(&s_); }
  uint64_t Running(int workers = 1) {
    const uint64_t job = Submit(workers);
    Place(job);
    testing::StartAll(&s_, job);
    before_ = s_.state;
    return job;
  }
  void Place(uint64_t job, int task = 0) {
    std::vector<testing::On> parts;
    for (int w = 0; w < s_.state.FindJob(job)->task_spec(task).workers().min(); ++w)
      parts.push_back({absl::StrCat("h0", w), {0}});
    s_.Do(Placed(s_.state, job, "lab", parts, task));
  }
  void Says(uint64_t job, size_t part, pb::AttemptPhase phase, int exit_code = -1) {
    s_.Do(Report(s_.state, job, 0, TaskOf(s_.state, job).attempts.back().number, part, phase,
                 exit_code));
  }
  pb::AttemptKey Key(uint64_t job, int32_t attempt = 1) {
    return KeyOf(*s_.state.FindJob(job), 0, attempt);
  }
  pb::Event Checkpoint(uint64_t job, int64_t step, int64_t at_ns) {
    pb::Event event;
    *event.mutable_checkpoint_seen()->mutable_key() = Key(job);
    event.mutable_checkpoint_seen()->mutable_checkpoint()->set_step(step);
    event.mutable_checkpoint_seen()->mutable_checkpoint()->set_path(absl::StrCat("/disk/", step));
    event.mutable_checkpoint_seen()->mutable_checkpoint()->set_at_ns(at_ns);
    event.mutable_checkpoint_seen()->set_loaded_step(-1);
    return event;
  }
  pb::Event Staged(uint64_t job) {
    pb::Event event;
    *event.mutable_export_staged()->mutable_key() = Key(job);
    event.mutable_export_staged()->set_staged("/disk/staged");
    event.mutable_export_staged()->set_target("/disk/model");
    return event;
  }
  pb::Event Published(uint64_t job, const std::string& error = "") {
    pb::Event event;
    *event.mutable_export_published()->mutable_key() = Key(job);
    event.mutable_export_published()->set_detail(error);
    return event;
  }
  // Since the last call.
  std::vector<std::string> Told(uint64_t job, const std::vector<pb::Event>& events = {}) {
    for (const pb::Event& event : events) s_.Do(event);
    std::vector<std::string> said =
        Narrate(before_, before_.FindJob(job), s_.state, *s_.state.FindJob(job), events);
    before_ = s_.state;
    return said;
  }

  testing::SystemBuilder s_;
  State before_;
};

TEST_F(NarrateTest, TheLifeOfAJobThatSucceeds) {
  const uint64_t job = Submit();
  EXPECT_THAT(Told(job), ElementsAre("submitted by ann to queue research"));
  Place(job);
  EXPECT_THAT(Told(job), ElementsAre("attempt 1 is placed on lab/h00 with 1 worker"));
  Says(job, 0, pb::STARTED);
  EXPECT_THAT(Told(job), ElementsAre("attempt 1 runs on lab/h00 with 1 worker"));
  EXPECT_THAT(Told(job), IsEmpty()) << "nothing has happened since";
  Says(job, 0, pb::GONE, 0);
  EXPECT_THAT(Told(job), ElementsAre("attempt 1 ended: every worker is done", "succeeded"));
}

TEST_F(NarrateTest, HostsOfAGangAreNamedOrCounted) {
  const uint64_t pair = Submit(2);
  Told(pair);
  Place(pair);
  EXPECT_THAT(Told(pair), ElementsAre("attempt 1 is placed on lab/h00,h01 with 2 workers"));
  const uint64_t many = Submit(5);
  Told(many);
  Place(many);
  EXPECT_THAT(Told(many),
              ElementsAre("attempt 1 is placed on lab/h00 and 4 more hosts with 5 workers"));
}

TEST_F(NarrateTest, AFailureSaysWhatFailedAndHowManyAreAllowed) {
  const uint64_t job = Running();
  Says(job, 0, pb::GONE, 3);
  EXPECT_THAT(Told(job), ElementsAre("rank 0: exit 3", "attempt 1 ended: the program failed",
                                     "restarts: failure 1 of 3 allowed"));
}

TEST_F(NarrateTest, TheLastFailureIsTheJobs) {
  const uint64_t job = Running();
  for (int attempt = 1; attempt <= 3; ++attempt) {
    Says(job, 0, pb::GONE, 3);
    Place(job);
    Says(job, 0, pb::STARTED);
  }
  Told(job);
  Says(job, 0, pb::GONE, 3);
  EXPECT_THAT(Told(job), ElementsAre("rank 0: exit 3", "attempt 4 ended: the program failed",
                                     "failed: the program failed: rank 0: exit 3"));
}

TEST_F(NarrateTest, ACancellation) {
  const uint64_t job = Running();
  s_.Cancel(job);
  EXPECT_THAT(Told(job), ElementsAre("its cancellation was asked for"));
  s_.Do(Stopping(s_.state, job, pb::CANCEL));
  EXPECT_THAT(Told(job), ElementsAre("attempt 1 is being stopped: cancelled"));
  Says(job, 0, pb::GONE, 143);
  EXPECT_EQ(Told(job).back(), "cancelled");
}

TEST_F(NarrateTest, APreemptionNamesWhoNeedsIt) {
  const uint64_t job = Running(2);
  const uint64_t claimant = JobBuilder("class").SubmitTo(&s_);
  pb::Event shrink = Stopping(s_.state, job, pb::PREEMPTION, 1);
  *shrink.mutable_attempt_stopping()->mutable_claimant() = Key(claimant);
  EXPECT_THAT(Told(job, {shrink}),
              ElementsAre("shrinks 2 → 1 worker: class needs its share (job 2)"));
}

TEST_F(NarrateTest, AMoveToOtherDevicesNamesForWhom) {
  const uint64_t job = Running(2);
  const uint64_t claimant = JobBuilder("class").SubmitTo(&s_);
  pb::Event move = Stopping(s_.state, job, pb::PREEMPTION, 2);
  *move.mutable_attempt_stopping()->mutable_claimant() = Key(claimant);
  EXPECT_THAT(Told(job, {move}),
              ElementsAre("goes on with other devices: class needs its share (job 2)"));
}

TEST_F(NarrateTest, AResizeAndADrain) {
  const uint64_t job = Running();
  EXPECT_THAT(Told(job, {Stopping(s_.state, job, pb::RESIZE, 2)}),
              ElementsAre("grows 1 → 2 workers"));
  const uint64_t drained = Running();
  EXPECT_THAT(Told(drained, {Stopping(s_.state, drained, pb::DRAIN)}),
              ElementsAre("attempt 1 is being stopped: its host is drained"));
}

TEST_F(NarrateTest, EachCheckpointOnceWhateverTheHostsClocksSay) {
  const uint64_t job = Running();
  EXPECT_THAT(Told(job, {Checkpoint(job, 100, 5000)}), ElementsAre("checkpoint at step 100"));
  EXPECT_THAT(Told(job, {Checkpoint(job, 100, 9000)}), IsEmpty());
  EXPECT_THAT(Told(job, {Checkpoint(job, 200, 10)}), ElementsAre("checkpoint at step 200"));
}

TEST_F(NarrateTest, WhatAnAttemptGoesOnFrom) {
  const uint64_t job = Running();
  pb::Event loaded;
  *loaded.mutable_loaded_seen()->mutable_key() = Key(job);
  loaded.mutable_loaded_seen()->set_step(70);
  loaded.mutable_loaded_seen()->add_refused("/disk/80: its hash is wrong");
  EXPECT_THAT(Told(job, {loaded}),
              ElementsAre("a checkpoint was refused: /disk/80: its hash is wrong",
                          "attempt 1 goes on from step 70"));
}

TEST_F(NarrateTest, AnExportIsAtItsTargetOnlyIfItWasPublished) {
  const uint64_t job = Running();
  EXPECT_THAT(Told(job, {Staged(job)}), IsEmpty());
  EXPECT_THAT(Told(job, {Published(job)}), ElementsAre("the export is at /disk/model"));
  const uint64_t unlucky = Running();
  Told(unlucky, {Staged(unlucky)});
  EXPECT_THAT(Told(unlucky, {Published(unlucky, "disk full")}),
              ElementsAre("the export could not be published (try 1 of 5): disk full"));
  EXPECT_THAT(Told(unlucky, {Published(unlucky)}), ElementsAre("the export is at /disk/model"));
}

TEST_F(NarrateTest, TheExportOfAnEarlierAttemptIsNamedToo) {
  const uint64_t job = Running();
  s_.Do(Staged(job));
  Says(job, 0, pb::GONE, 1);
  Place(job);
  Told(job);
  EXPECT_THAT(Told(job, {Published(job)}), ElementsAre("the export is at /disk/model"));
}

TEST_F(NarrateTest, AHostThatCantBeReached) {
  const uint64_t job = Running();
  pb::Event event;
  event.mutable_host_state()->set_cluster("lab");
  event.mutable_host_state()->set_host("h00");
  event.mutable_host_state()->set_state(pb::HOST_UNREACHABLE);
  EXPECT_THAT(Told(job, {event}),
              ElementsAre("lab/h00 can't be reached; what runs there may go on"));
}

TEST_F(NarrateTest, TasksAreNamedOnlyIfThereAreSeveral) {
  JobBuilder builder("research");
  builder.Task("prepare").Task("train", {"prepare"});
  const uint64_t job = builder.SubmitTo(&s_);
  EXPECT_THAT(Told(job), ElementsAre("submitted by ann to queue research"));
  Place(job);
  EXPECT_THAT(Told(job), ElementsAre("prepare: attempt 1 is placed on lab/h00 with 1 worker"));
  Says(job, 0, pb::GONE, 0);
  EXPECT_THAT(Told(job),
              ElementsAre("prepare: attempt 1 runs on lab/h00 with 1 worker",
                          "prepare: attempt 1 ended: every worker is done", "prepare: succeeded"));
}

}  // namespace
}  // namespace muster
