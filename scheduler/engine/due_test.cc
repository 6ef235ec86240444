// Times that jobs wait for, and schedules, as the engine carries them out.
#include "scheduler/engine/due.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "common/spec/members.h"
#include "common/spec/when.h"
#include "scheduler/engine/testing/fixture.h"
#include "scheduler/state/what_if.h"

namespace muster {
namespace {

class DueTest : public ::testing::Test {
 protected:
  DueTest() { lab_.clock.now_ns = *ParseInstantNs("2026-11-26T12:00:30Z"); }
  EngineOptions Options() {
    EngineOptions options;
    options.takes_submissions = [this] { return room_; };
    options.may_submit = [this](const State&, const std::string& owner, const std::string& queue) {
      ++asked_;
      asked_of_.insert(owner);
      return queue == "default" ? may_submit_ : std::nullopt;
    };
    return options;
  }

  uint64_t Submit(const std::string& cron, pb::Overlap overlap = pb::OVERLAP_UNSPECIFIED,
                  const std::string& array = "", const std::string& owner = "ada") {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_uid(std::string(32, owner.back()));
    e->set_number(state().next_job_number());
    e->set_owner(owner);
    e->set_umask(027);
    *e->mutable_spec() = OneSlotSpec();
    e->mutable_spec()->set_array(array);
    e->set_members(MembersOf(e->spec()));
    e->mutable_spec()->mutable_schedule()->set_cron(cron);
    e->mutable_spec()->mutable_schedule()->set_overlap(overlap);
    e->set_not_before_ns(*FirstTimeNs(e->spec(), lab_.clock.now_ns));
    const uint64_t number = e->number();
    lab_.engine.Post(std::move(event));
    lab_.engine.Step();
    return number;
  }
  // Whatever is due until then.
  void Until(const std::string& time) {
    const int64_t until_ns = *ParseInstantNs(time);
    for (int steps = 0; lab_.clock.now_ns < until_ns && steps < 10'000; ++steps) {
      lab_.clock.now_ns =
          std::min(until_ns, std::max(lab_.clock.now_ns + kMillisecond, lab_.engine.NextWakeNs()));
      lab_.engine.Step();
    }
  }
  void End(uint64_t number) {
    const JobRow& job = Job(number);
    const AttemptRow* attempt = job.tasks[0].current();
    ASSERT_NE(attempt, nullptr) << number;
    pb::Event event;
    pb::AttemptReported* reported = event.mutable_attempt_reported();
    reported->set_cluster("lab");
    reported->set_host("h1");
    reported->set_state_id(std::string(32, 'a'));
    *reported->mutable_report()->mutable_key() = KeyOf(job, 0, attempt->number);
    reported->mutable_report()->set_phase(pb::GONE);
    reported->mutable_report()->add_exits();
    lab_.engine.Post(std::move(event));
    lab_.engine.Step();
    EXPECT_NE(Job(number).end_ns, 0);
  }
  const State& state() {
    view_ = lab_.engine.Snapshot();
    return view_->state;
  }
  const JobRow& Job(uint64_t number) { return *state().FindJob(number); }
  bool Placed(uint64_t number) { return Job(number).tasks[0].current() != nullptr; }

  bool room_ = true;
  std::optional<bool> may_submit_ = true;  // of the owner to the queue; nullopt: not known yet
  int asked_ = 0;
  std::set<std::string> asked_of_;
  LabWithOneHost lab_{Options()};
  std::shared_ptr<const View> view_;
};

TEST_F(DueTest, AtEachTimeItStartsAndTheJobOfTheNextTimeIsThere) {
  const uint64_t first = Submit("0 * * * *");
  Until("2026-11-26T12:59:59Z");
  EXPECT_FALSE(Placed(first));
  Until("2026-11-26T13:00:00Z");
  ASSERT_TRUE(Placed(first));
  EXPECT_EQ(Job(first).tasks[0].current()->place_ns, *ParseInstantNs("2026-11-26T13:00:00Z"));
  const uint64_t second = Job(first).next;
  ASSERT_EQ(second, first + 1);
  EXPECT_EQ(Job(second).previous, first);
  EXPECT_EQ(Job(second).not_before_ns, *ParseInstantNs("2026-11-26T14:00:00Z"));
  EXPECT_EQ(Job(second).owner, "ada");
  EXPECT_EQ(Job(second).umask, 027u);
  EXPECT_EQ(*Job(second).spec_bytes, *Job(first).spec_bytes);
  EXPECT_EQ(Job(second).uid.size(), 32u);
  EXPECT_NE(Job(second).uid, Job(first).uid);
  End(first);
  Until("2026-11-26T14:00:00Z");
  EXPECT_TRUE(Placed(second));
  EXPECT_NE(Job(second).next, 0u);
  EXPECT_EQ(State::Difference(state(), state().Rebuilt()), "");
}

TEST_F(DueTest, ATimeIsSkippedWhileTheJobBeforeGoesOn) {
  const uint64_t first = Submit("0 * * * *");
  Until("2026-11-26T15:30:00Z");
  const uint64_t second = Job(first).next;
  EXPECT_FALSE(Placed(second));
  EXPECT_EQ(Job(second).skipped, 2);
  EXPECT_EQ(Job(second).not_before_ns, *ParseInstantNs("2026-11-26T16:00:00Z"));
  End(first);
  Until("2026-11-26T16:00:00Z");
  EXPECT_TRUE(Placed(second));
  EXPECT_EQ(state().active_jobs().size(), 2u) << "and the one of 17:00";
}

TEST_F(DueTest, WithAllowTheyRunBesideEachOther) {
  const uint64_t first = Submit("0 * * * *", pb::ALLOW);
  Until("2026-11-26T14:00:00Z");
  EXPECT_TRUE(Placed(first));
  EXPECT_TRUE(Placed(Job(first).next));
}

TEST_F(DueTest, TimesThatWereMissedAreMadeUpForOnce) {
  const uint64_t first = Submit("0 * * * *");
  lab_.clock.now_ns = *ParseInstantNs("2026-11-27T09:20:00Z");  // it stood still
  lab_.engine.Step();
  EXPECT_TRUE(Placed(first));
  EXPECT_EQ(Job(Job(first).next).not_before_ns, *ParseInstantNs("2026-11-27T10:00:00Z"));
  EXPECT_EQ(state().active_jobs().size(), 2u);
}

TEST_F(DueTest, ACancelOfTheOneThatWaitsEndsTheSchedule) {
  const uint64_t first = Submit("0 * * * *");
  Until("2026-11-26T13:00:00Z");
  const uint64_t second = Job(first).next;
  End(first);
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(second);
  lab_.engine.Post(std::move(cancel));
  lab_.engine.Step();
  Until("2026-11-26T20:00:00Z");
  EXPECT_TRUE(state().active_jobs().empty());
  EXPECT_EQ(state().next_job_number(), second + 1);
}

TEST_F(DueTest, ACancelOfTheOneThatRunsDoesNotEndIt) {
  const uint64_t first = Submit("0 * * * *");
  Until("2026-11-26T13:00:00Z");
  const uint64_t second = Job(first).next;
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(first);
  lab_.engine.Post(std::move(cancel));
  lab_.engine.Step();
  End(first);
  Until("2026-11-26T14:00:00Z");
  EXPECT_TRUE(Placed(second));
  EXPECT_NE(Job(second).next, 0u);
}

TEST_F(DueTest, BesideEachOtherAreTenAtMost) {
  Submit("0 * * * *", pb::ALLOW);
  Until("2026-11-27T12:00:00Z");
  EXPECT_EQ(state().active_jobs().size(), 11u) << "and one that waits for its time";
}

TEST_F(DueTest, OneThatHasEndedHidesNoneBeforeItFromTheTen) {
  const uint64_t first = Submit("0 * * * *", pb::ALLOW);
  Until("2026-11-26T14:30:00Z");
  const uint64_t second = Job(first).next;
  ASSERT_TRUE(Placed(second));
  End(second);
  Until("2026-11-28T12:00:00Z");
  EXPECT_EQ(Job(first).end_ns, 0);
  EXPECT_EQ(state().active_jobs().size(), 11u) << "ten and one that waits for its time";
}

TEST_F(DueTest, TimesWaitWhileNoJobsAreTaken) {
  const uint64_t first = Submit("0 * * * *");
  room_ = false;
  Until("2026-11-26T13:00:10Z");
  EXPECT_FALSE(Placed(first));
  EXPECT_EQ(lab_.engine.NextWakeNs(), lab_.clock.now_ns + kSecond)
      << "and it isn't asked all the time";
  room_ = true;
  Until("2026-11-26T13:00:12Z");
  EXPECT_TRUE(Placed(first));
  EXPECT_NE(Job(first).next, 0u);
}

// The owner's right is looked at again at each time, and what was taken away may come back.
TEST_F(DueTest, ATimeIsLeftOutWhileItsOwnerMayNotSubmit) {
  const uint64_t first = Submit("0 * * * *");
  EXPECT_EQ(asked_, 0) << "who submits is asked by the API";
  may_submit_ = false;
  Until("2026-11-26T14:30:00Z");
  EXPECT_EQ(asked_, 2);
  EXPECT_FALSE(Placed(first));
  EXPECT_EQ(Job(first).skipped, 2);
  EXPECT_TRUE(Job(first).no_right);
  EXPECT_EQ(Job(first).next, 0u);
  EXPECT_EQ(state().active_jobs().size(), 1u);
  EXPECT_EQ(State::Difference(state(), state().Rebuilt()), "");
  may_submit_ = true;
  Until("2026-11-26T15:00:00Z");
  ASSERT_TRUE(Placed(first));
  may_submit_ = false;
  End(first);
  Until("2026-11-26T16:30:00Z");
  EXPECT_FALSE(Placed(Job(first).next)) << "nor does a later one start";
}

TEST_F(DueTest, ATimeWaitsUntilItIsKnownWhetherItsOwnerMaySubmit) {
  const uint64_t first = Submit("0 * * * *");
  may_submit_ = std::nullopt;
  Until("2026-11-26T13:00:01Z");
  EXPECT_FALSE(Placed(first));
  EXPECT_EQ(Job(first).skipped, 0);
  EXPECT_LE(lab_.engine.NextWakeNs(), lab_.clock.now_ns + kSecond);
  may_submit_ = true;
  Until("2026-11-26T13:00:02Z");
  EXPECT_TRUE(Placed(first));
}

TEST_F(DueTest, OwnersAreAskedAboutTogetherAndSeldomerWhileNobodyAnswers) {
  Submit("0 * * * *");
  const uint64_t other = Submit("0 * * * *", pb::OVERLAP_UNSPECIFIED, "", "bob");
  Submit("30 13 * * *", pb::OVERLAP_UNSPECIFIED, "", "eve");
  may_submit_ = std::nullopt;
  Until("2026-11-26T13:00:00Z");
  EXPECT_EQ(asked_of_, (std::set<std::string>{"ada", "bob"})) << "none waits for the other";
  const uint64_t commit = lab_.engine.Snapshot()->commit;
  Until("2026-11-26T13:01:00Z");
  EXPECT_LT(lab_.engine.Snapshot()->commit, commit + 100) << "each look is a commit";
  EXPECT_EQ(Job(other).skipped, 0);
  may_submit_ = true;
  Until("2026-11-26T13:01:01Z");
  EXPECT_NE(Job(other).next, 0u);
}

TEST_F(DueTest, AStoreThatIsServedAgainGivesTheNextJobAnotherUid) {
  Submit("0 * * * *");
  std::set<std::string> uids;
  for (const uint64_t epoch : {7u, 8u}) {
    State backup = state();
    pb::Event step;
    step.mutable_step()->set_now_ns(*ParseInstantNs("2026-11-26T13:00:00Z"));
    step.mutable_step()->set_epoch(epoch);
    Apply(&backup, step);
    const std::vector<pb::Event> events = NextDue(backup);
    ASSERT_EQ(events.size(), 2u);
    uids.insert(events[1].job_submitted().uid());
  }
  EXPECT_EQ(uids.size(), 2u);
}

TEST_F(DueTest, AScheduleThatCannotBeReadAnyMoreIsTriedAgain) {
  const uint64_t first = Submit("0 * * * *");
  State gone = state();
  pb::JobSpec spec = *Job(first).spec;
  spec.mutable_schedule()->set_zone("Nowhere/City");
  ReplaceSpec(&gone, first, spec);
  pb::Event step;
  step.mutable_step()->set_now_ns(*ParseInstantNs("2026-11-26T13:00:00Z"));
  Apply(&gone, step);
  const std::vector<pb::Event> events = NextDue(gone);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].job_due().skip_to_ns(), *ParseInstantNs("2026-11-26T14:00:00Z"));
}

TEST_F(DueTest, AnArrayComesAgainAsAWhole) {
  const uint64_t first = Submit("0 * * * *", pb::OVERLAP_UNSPECIFIED, "0-1");
  Until("2026-11-26T13:00:00Z");
  EXPECT_TRUE(Placed(first));
  EXPECT_TRUE(Placed(first + 1));
  const uint64_t second = Job(first).next;
  ASSERT_EQ(second, first + 2);
  EXPECT_EQ(Job(second + 1).array, second);
  End(first);
  Until("2026-11-26T14:00:00Z");
  EXPECT_EQ(Job(second).skipped, 1) << "a member of the array before goes on";
  EXPECT_EQ(Job(second + 1).skipped, 1);
  End(first + 1);
  Until("2026-11-26T15:00:00Z");
  EXPECT_TRUE(Placed(second));
  EXPECT_TRUE(Placed(second + 1));
  EXPECT_EQ(state().active_jobs().size(), 4u) << "two that run, and two of the next time";
}

}  // namespace
}  // namespace muster
