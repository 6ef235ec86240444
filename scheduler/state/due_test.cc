// Jobs that wait for a time.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/spec/members.h"
#include "scheduler/state/testing/story.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

using testing::JobBuilder;

class Due : public ::testing::Test {
 protected:
  // Waits for that second; of an array with these indices, if there are any.
  uint64_t At(int64_t second, const std::string& indices = "", uint64_t previous = 0) {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid(absl::StrCat("timed", e->number()));
    *e->mutable_spec() = JobBuilder("research").spec;
    e->mutable_spec()->set_array(indices);
    e->set_members(MembersOf(e->spec()));
    e->set_not_before_ns(NsOf(second));
    e->set_previous(previous);
    s.Do(event);
    return e->number();
  }
  void Comes(uint64_t job, int64_t skip_to = 0, const std::string& end_reason = "") {
    pb::Event event;
    event.mutable_job_due()->set_number(job);
    if (skip_to != 0) event.mutable_job_due()->set_skip_to_ns(NsOf(skip_to));
    event.mutable_job_due()->set_end_reason(end_reason);
    s.Do(event);
  }
  static int64_t NsOf(int64_t second) {
    testing::SystemBuilder other;
    other.Step(second);
    return other.now_ns;
  }
  const JobRow& Job(uint64_t number) const { return *s.state.FindJob(number); }
  void ExpectSound() const { EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), ""); }

  testing::Story s;
};

TEST_F(Due, NothingOfItIsPlacedBeforeItsTime) {
  const uint64_t job = At(100), later = At(200);
  EXPECT_EQ(s.State(job), pb::TASK_BLOCKED);
  EXPECT_EQ(BlockedCode(Job(job), 0), pb::V_TIME);
  EXPECT_EQ(s.state.due().begin()->second, job);
  Plan early;
  early.events.push_back(testing::Placed(s.state, job, "lab", {{"h00", {0}}}));
  EXPECT_EQ(Validate(s.state, early).message().find("places a task before the job's time"), 9u)
      << Validate(s.state, early);  // "event 0: ..."
  ExpectSound();
  s.Step(100);
  const uint64_t round = s.state.round();
  Comes(job);
  EXPECT_GT(s.state.round(), round) << "somebody wants devices now";
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_EQ(s.state.FindJob(job)->tasks[0].waiting_since_ns, s.now_ns) << "it didn't wait before";
  EXPECT_EQ(s.State(later), pb::TASK_BLOCKED);
  EXPECT_EQ(s.state.due().size(), 1u);
  ExpectSound();
  const std::string facts = testing::Facts(s.state);
  Comes(job);
  Comes(12345);
  EXPECT_EQ(testing::Facts(s.state), facts) << "told twice, or of nobody";
}

TEST_F(Due, TheEarliestTimeComesFirstWhoeverWasSubmittedFirst) {
  const uint64_t later = At(200), sooner = At(100);
  EXPECT_EQ(FirstDue(s.state), nullptr);
  s.Step(300);
  ASSERT_NE(FirstDue(s.state), nullptr);
  EXPECT_EQ(FirstDue(s.state)->number, sooner);
  Comes(sooner);
  ASSERT_NE(FirstDue(s.state), nullptr);
  EXPECT_EQ(FirstDue(s.state)->number, later);
}

TEST_F(Due, ATimeThatHasPassedIsNone) {
  s.Step(100);
  EXPECT_EQ(s.State(At(100)), pb::TASK_WAITING);
  EXPECT_TRUE(s.state.due().empty());
}

TEST_F(Due, ACancelledJobWaitsForNothing) {
  const uint64_t job = At(100);
  s.Cancel(job);
  EXPECT_EQ(Job(job).state, pb::CANCELLED);
  EXPECT_TRUE(s.state.due().empty());
  s.Step(100);
  Comes(job);
  EXPECT_EQ(Job(job).state, pb::CANCELLED);
  ExpectSound();
}

TEST_F(Due, ASkippedTimeIsCountedAndTheNextWaitedFor) {
  const uint64_t job = At(100);
  s.Step(100);
  Comes(job, 200);
  EXPECT_EQ(s.State(job), pb::TASK_BLOCKED);
  EXPECT_EQ(Job(job).not_before_ns, NsOf(200));
  EXPECT_EQ(Job(job).skipped, 1);
  ExpectSound();
  s.Step(200);
  Comes(job, 0, "no further time");
  EXPECT_EQ(Job(job).state, pb::CANCELLED);
  EXPECT_EQ(Job(job).detail, "no further time");
  EXPECT_TRUE(s.state.due().empty());
  ExpectSound();
}

TEST_F(Due, AllMembersOfAnArrayMayStartThenButForThoseWhoseTurnHasNotCome) {
  const uint64_t array = At(100, "0-3%2");
  s.Cancel(array);  // its first member alone
  for (uint64_t m = 1; m < 4; ++m) {
    EXPECT_EQ(s.State(array + m), pb::TASK_BLOCKED) << m;
    EXPECT_EQ(BlockedCode(Job(array + m), 0), m < 3 ? pb::V_TIME : pb::V_AFTER) << m;
  }
  EXPECT_EQ(s.state.due().size(), 3u);
  ExpectSound();
  s.Step(100);
  Comes(array);
  EXPECT_EQ(s.State(array + 1), pb::TASK_WAITING);
  EXPECT_EQ(s.State(array + 2), pb::TASK_WAITING) << "the turn of the one that was cancelled";
  EXPECT_EQ(s.State(array + 3), pb::TASK_BLOCKED);
  EXPECT_EQ(BlockedCode(Job(array + 3), 0), pb::V_AFTER);
  EXPECT_TRUE(s.state.due().empty());
  ExpectSound();
}

TEST_F(Due, BothItsTimeAndTheJobBeforeItCount) {
  for (const bool time_first : {true, false}) {
    const uint64_t before = s.Running(1);
    JobBuilder builder("research");
    builder.After(absl::StrCat(before));
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid(absl::StrCat("both", e->number()));
    *e->mutable_spec() = builder.spec;
    SetPredecessors(s.state, e);
    e->set_not_before_ns(s.now_ns + kSecond);
    s.Do(event);
    const uint64_t job = e->number();
    EXPECT_EQ(BlockedCode(Job(job), 0), pb::V_AFTER);
    if (time_first) Comes(job);
    if (!time_first) s.AllSay(before, pb::GONE, 0);
    EXPECT_EQ(s.State(job), pb::TASK_BLOCKED) << time_first;
    EXPECT_EQ(BlockedCode(Job(job), 0), time_first ? pb::V_AFTER : pb::V_TIME);
    if (!time_first) Comes(job);
    if (time_first) s.AllSay(before, pb::GONE, 0);
    EXPECT_EQ(s.State(job), pb::TASK_WAITING) << time_first;
    ExpectSound();
    s.Cancel(job);
  }
}

TEST_F(Due, TheJobBeforeKnowsTheNextOfItsSchedule) {
  const uint64_t first = At(100);
  s.Step(100);
  Comes(first);
  const uint64_t next = At(200, "", first);
  EXPECT_EQ(Job(first).next, next);
  EXPECT_EQ(Job(next).previous, first);
  At(300, "", 12345);  // it is forgotten
  ExpectSound();
}

}  // namespace
}  // namespace muster
