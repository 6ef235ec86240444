// Jobs that come after others.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/spec/members.h"
#include "scheduler/state/testing/story.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

using testing::JobBuilder;

class Successors : public ::testing::Test {
 protected:
  uint64_t After(const std::string& id) { return JobBuilder("research").After(id).SubmitTo(&s); }
  uint64_t After(uint64_t job) { return After(absl::StrCat(job)); }
  uint64_t AfterAny(uint64_t job) {
    return JobBuilder("research").AfterAny(absl::StrCat(job)).SubmitTo(&s);
  }
  // The job fails, once and for all.
  uint64_t RunsOnce() {
    JobBuilder builder("research");
    builder.task()->set_max_restarts(0);
    const uint64_t job = builder.SubmitTo(&s);
    s.Again(job);
    return job;
  }
  // `indices`, after the job, if one is given.
  uint64_t Array(const std::string& indices, uint64_t after = 0) {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid(absl::StrCat("array", e->number()));
    *e->mutable_spec() = JobBuilder("research").spec;
    e->mutable_spec()->mutable_tasks(0)->set_max_restarts(0);
    e->mutable_spec()->set_array(indices);
    if (after != 0) e->mutable_spec()->add_after(absl::StrCat(after));
    SetPredecessors(s.state, e);
    e->set_members(MembersOf(e->spec()));
    s.Do(event);
    return e->number();
  }
  void RunMember(uint64_t job, int exit_code) {
    s.Again(job);
    s.AllSay(job, pb::GONE, exit_code);
  }
  const JobRow& Job(uint64_t number) const { return *s.state.FindJob(number); }
  void ExpectSound() const { EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), ""); }

  testing::Story s;
};

TEST_F(Successors, WaitUntilTheOtherHasSucceeded) {
  const uint64_t first = RunsOnce(), second = After(first), third = AfterAny(first);
  for (const uint64_t job : {second, third}) {
    EXPECT_EQ(s.State(job), pb::TASK_BLOCKED);
    EXPECT_EQ(Job(job).state, pb::WAITING);
  }
  ExpectSound();
  s.AllSay(first, pb::GONE, 0);
  for (const uint64_t job : {second, third}) EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  EXPECT_TRUE(s.state.awaited().empty());
  ExpectSound();
}

TEST_F(Successors, EndWithWhatDidNotSucceedAndSayWhy) {
  const struct {
    const char* what;
    std::function<void(uint64_t)> end;
    const char* detail;
  } kCases[] = {
      {"failed", [&](uint64_t job) { s.AllSay(job, pb::GONE, 1); },
       " failed, and this one was to come after its success"},
      {"cancelled",
       [&](uint64_t job) {
         s.Cancel(job);
         s.AllSay(job, pb::GONE);
       },
       " was cancelled, and this one was to come after its success"},
  };
  for (const auto& c : kCases) {
    const uint64_t first = RunsOnce(), second = After(first), any = AfterAny(first),
                   third = After(second);
    c.end(first);
    EXPECT_EQ(Job(second).state, pb::CANCELLED) << c.what;
    EXPECT_EQ(Job(second).cause, pb::PREDECESSOR);
    EXPECT_EQ(Job(second).detail, absl::StrCat("cancelled: job ", first, c.detail));
    EXPECT_EQ(Job(third).cause, pb::PREDECESSOR) << "it came after that one";
    EXPECT_EQ(Job(third).detail,
              absl::StrCat("cancelled: job ", second,
                           " was cancelled, and this one was to come after its success"));
    EXPECT_EQ(s.State(any), pb::TASK_WAITING) << c.what;
    ExpectSound();
  }
}

TEST_F(Successors, ALongChainEndsAtOnce) {
  uint64_t last = RunsOnce();
  const uint64_t first = last;
  for (int i = 0; i < 20'000; ++i) last = After(last);
  s.AllSay(first, pb::GONE, 1);
  EXPECT_EQ(Job(last).cause, pb::PREDECESSOR);
  EXPECT_TRUE(s.state.awaited().empty());
}

TEST_F(Successors, OfSeveralAllCount) {
  const uint64_t a = RunsOnce();
  const uint64_t b = s.Job();
  const uint64_t job =
      JobBuilder("research").After(absl::StrCat(a)).AfterAny(absl::StrCat(b)).SubmitTo(&s);
  s.AllSay(a, pb::GONE, 0);
  EXPECT_EQ(s.State(job), pb::TASK_BLOCKED);
  s.Cancel(b);
  EXPECT_EQ(s.State(job), pb::TASK_WAITING);
  ExpectSound();
}

TEST_F(Successors, ByItsNumberAllOfAnArrayByItsIndexOneMember) {
  const uint64_t array = Array("0-1");
  const uint64_t whole = After(array), first = After(absl::StrCat(array, "_0"));
  RunMember(array, 0);
  EXPECT_EQ(s.State(first), pb::TASK_WAITING);
  EXPECT_EQ(s.State(whole), pb::TASK_BLOCKED);
  RunMember(array + 1, 1);
  EXPECT_EQ(Job(whole).detail, absl::StrCat("cancelled: array ", array,
                                            " failed, and this one was to come after its success"));
  ExpectSound();
}

TEST_F(Successors, AnArrayWaitsWithAllItsMembersAndThenTheirTurnsCome) {
  const uint64_t before = RunsOnce(), array = Array("0-4%2", before);
  for (uint64_t m = 0; m < 5; ++m) EXPECT_EQ(s.State(array + m), pb::TASK_BLOCKED);
  s.Cancel(array + 1);
  EXPECT_EQ(s.State(array + 2), pb::TASK_BLOCKED) << "its turn has come, and it still waits";
  s.AllSay(before, pb::GONE, 0);
  EXPECT_EQ(s.State(array), pb::TASK_WAITING);
  EXPECT_EQ(s.State(array + 2), pb::TASK_WAITING);
  EXPECT_EQ(s.State(array + 3), pb::TASK_BLOCKED) << "its turn comes later";
  ExpectSound();
}

TEST_F(Successors, AnArrayEndsAsAWhole) {
  const uint64_t before = RunsOnce(), array = Array("0-4%2", before), last = After(array);
  s.AllSay(before, pb::GONE, 1);
  ASSERT_NE(Job(array).ended, nullptr);
  EXPECT_EQ(Job(array).ended->cancelled(), 5);
  EXPECT_EQ(Job(last).cause, pb::PREDECESSOR);
  ExpectSound();
}

// What a submission names is there already, so it has a lower number. An event that names another
// all the same starts nothing, and waits for nothing.
TEST_F(Successors, NobodyWaitsForALaterOneOrForItself) {
  for (const uint64_t ahead : {0, 1, 7}) {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid(absl::StrCat("uid", e->number()));
    *e->mutable_spec() = JobBuilder("research").spec;
    e->add_predecessors()->set_number(e->number() + ahead);
    s.Do(event);
    EXPECT_EQ(Job(e->number()).cause, pb::PREDECESSOR) << ahead;
    EXPECT_TRUE(s.state.awaited().empty());
    ExpectSound();
  }
}

TEST_F(Successors, WhoEndedBeforeTheSubmissionIsAppliedCountsAsItEnded) {
  const uint64_t good = RunsOnce();
  s.AllSay(good, pb::GONE, 0);
  const uint64_t bad = RunsOnce();
  s.AllSay(bad, pb::GONE, 1);
  for (const bool failed : {false, true}) {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid(absl::StrCat("uid", e->number()));
    *e->mutable_spec() = JobBuilder("research").spec;
    e->add_predecessors()->set_number(failed ? bad : good);
    s.Do(event);
    EXPECT_EQ(s.State(e->number()), failed ? pb::TASK_CANCELLED : pb::TASK_WAITING);
  }
}

TEST_F(Successors, ACancelledOneWaitsForNobody) {
  const uint64_t first = RunsOnce(), second = After(first), third = After(second);
  s.Cancel(second);
  EXPECT_EQ(Job(second).cause, pb::CANCEL);
  EXPECT_EQ(Job(third).cause, pb::PREDECESSOR);
  EXPECT_TRUE(s.state.awaited().empty());
  s.AllSay(first, pb::GONE, 0);
  EXPECT_EQ(Job(second).state, pb::CANCELLED);
  ExpectSound();
}

TEST_F(Successors, APlanThatStartsOneTooEarlyIsRefused) {
  const uint64_t first = RunsOnce(), array = Array("0-1");
  for (const std::string& id : {absl::StrCat(first), absl::StrCat(array)}) {
    for (const bool any : {false, true}) {
      JobBuilder builder("research");
      (any ? builder.spec.add_after_any() : builder.spec.add_after())->assign(id);
      pb::Event event;  // as if its predecessors had been forgotten
      pb::JobSubmitted* e = event.mutable_job_submitted();
      e->set_number(s.state.next_job_number());
      e->set_uid(absl::StrCat("uid", e->number()));
      *e->mutable_spec() = builder.spec;
      s.Do(event);
      ASSERT_EQ(s.State(e->number()), pb::TASK_WAITING);
      Plan plan;
      plan.events.push_back(testing::Placed(s.state, e->number(), "lab", {{"h02", {0}}}));
      const absl::Status status = Validate(s.state, plan);
      EXPECT_NE(std::string(status.message()).find(absl::StrCat("before job ", id)),
                std::string::npos)
          << status;
    }
  }
}

}  // namespace
}  // namespace muster
