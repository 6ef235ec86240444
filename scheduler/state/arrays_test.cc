// Arrays: members are jobs of their own; what binds them together.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/spec/members.h"
#include "scheduler/state/testing/story.h"

namespace muster {
namespace {

class Arrays : public ::testing::Test {
 protected:
  uint64_t Submit(const std::function<void(pb::JobSpec*)>& change,
                  const std::string& uid = "aaaaaaaaaaaaaaaaaaaaaaaaffffffff") {
    pb::Event event;
    pb::JobSubmitted* e = event.mutable_job_submitted();
    e->set_number(s.state.next_job_number());
    e->set_uid(uid);
    e->set_owner("ann");
    e->set_idempotency_key(uid.size() == 32 ? "key" : uid);
    e->mutable_spec()->set_queue("research");
    pb::TaskSpec* task = e->mutable_spec()->add_tasks();
    task->set_name("main");
    task->mutable_workers()->set_min(1);
    task->mutable_workers()->set_max(1);
    task->mutable_resources()->set_gpus_milli(1000);
    task->set_max_restarts(0);
    change(e->mutable_spec());
    e->set_members(MembersOf(e->spec()));
    s.Do(event);
    return e->number();
  }
  uint64_t Array(const std::string& indices) {
    return Submit([&](pb::JobSpec* spec) { spec->set_array(indices); });
  }
  uint64_t Workers(int32_t least, int32_t most, const std::vector<int32_t>& final_codes = {}) {
    return Submit([&](pb::JobSpec* spec) {
      for (const int32_t code : final_codes) {
        spec->mutable_tasks(0)->set_max_restarts(20);
        spec->mutable_tasks(0)->add_final_exit_codes(code);
      }
      spec->mutable_independent_workers()->set_min(least);
      spec->mutable_independent_workers()->set_max(most);
    });
  }
  uint64_t RayCluster(const std::string& uid) {
    return Submit(
        [](pb::JobSpec* spec) {
          spec->mutable_independent_workers()->set_min(1);
          spec->mutable_independent_workers()->set_max(4);
          spec->mutable_tasks(0)->mutable_ray();
        },
        uid);
  }
  void CancelAll(uint64_t array) {
    pb::Event event;
    event.mutable_job_cancel()->set_number(array);
    event.mutable_job_cancel()->set_by("ann");
    event.mutable_job_cancel()->set_array(true);
    s.Do(event);
  }
  void Run(uint64_t job, const std::string& host, int32_t device = 0) {
    s.PlaceOn(job, {{host, {device}}});
    testing::StartAll(&s, job);
    ASSERT_EQ(s.State(job), pb::TASK_RUNNING);
  }
  void Ends(uint64_t job, int exit_code) { s.AllSay(job, pb::GONE, exit_code); }
  // As its host says of a program that ended by itself.
  void EndsByItself(uint64_t job, int exit_code) {
    pb::Event event =
        testing::Report(s.state, job, 0, s.Newest(job).number, 0, pb::GONE, exit_code);
    for (pb::WorkerExit& exit :
         *event.mutable_attempt_reported()->mutable_report()->mutable_exits())
      exit.set_own(true);
    s.Do(event);
  }
  const JobRow& Job(uint64_t number) const { return *s.state.FindJob(number); }
  pb::ArrayStatus Status(uint64_t array) const { return ArrayStatusOf(s.state, Job(array)); }

  testing::Story s;
};

TEST_F(Arrays, MembersAreJobsThatShareTheirSpec) {
  const uint64_t array = Array("5-9:2");
  EXPECT_EQ(s.state.next_job_number(), array + 3);
  for (int32_t m = 0; m < 3; ++m) {
    const JobRow& job = Job(array + static_cast<uint64_t>(m));
    EXPECT_EQ(job.array, array);
    EXPECT_EQ(job.member, m);
    EXPECT_EQ(job.spec.get(), Job(array).spec.get());
    EXPECT_EQ(s.State(job.number), pb::TASK_WAITING);
  }
  EXPECT_EQ(Job(array + 1).uid, "aaaaaaaaaaaaaaaaaaaaaaaa00000000") << "all 32 digits";
  EXPECT_EQ(s.state.FindByIdempotencyKey("ann", "key"), array);
  EXPECT_EQ(s.state.FindJobByText(absl::StrCat(array, "_7")), &Job(array + 1));
  EXPECT_EQ(s.state.FindJobByText(absl::StrCat(array, "_6")), nullptr);
  EXPECT_EQ(s.state.FindJobByText("aaaaaaaaaaaaaaaaaaaaaaaaffffffff_7"), &Job(array + 1));
  for (const char* tail : {"_", "_ 7", "_+7", "_7_7", "__7", "_-1"})
    EXPECT_EQ(s.state.FindJobByText(absl::StrCat(array, tail)), nullptr) << tail;
  EXPECT_EQ(s.state.FindJobByText(absl::StrCat(array + 1, "_7")), nullptr) << "no array's number";
  EXPECT_EQ(Status(array).waiting(), 3);
  const State loaded = s.state.Rebuilt();
  EXPECT_EQ(loaded.FindJob(array + 2)->spec.get(), loaded.FindJob(array)->spec.get());
}

TEST_F(Arrays, AMembersFailureTouchesNoOther) {
  const uint64_t array = Array("0-2");
  Run(array, "h00");
  Run(array + 1, "h01");
  const uint64_t version = Job(array + 1).version;
  Ends(array, 1);
  EXPECT_EQ(Job(array).state, pb::FAILED);
  EXPECT_EQ(s.State(array + 1), pb::TASK_RUNNING);
  EXPECT_EQ(Job(array + 1).version, version);
  EXPECT_EQ(s.State(array + 2), pb::TASK_WAITING);
  EXPECT_EQ(StateOfArray(Status(array)), pb::RUNNING);
  EXPECT_EQ(s.state.queue_use().at({"research", "gpu"}), 1000) << "what runs";
  Ends(array + 1, 0);
  Run(array + 2, "h00");
  EXPECT_EQ(Job(array).ended, nullptr);
  Ends(array + 2, 0);
  ASSERT_NE(Job(array).ended, nullptr);
  EXPECT_EQ(Job(array).ended->succeeded(), 2);
  EXPECT_EQ(Job(array).ended->failed(), 1);
  EXPECT_EQ(StateOfArray(*Job(array).ended), pb::FAILED);
  EXPECT_TRUE(s.state.arrays().empty());
}

TEST_F(Arrays, TurnsComeAsOthersEnd) {
  const uint64_t array = Array("0-4%2");
  EXPECT_EQ(Status(array).waiting(), 2);
  EXPECT_EQ(Status(array).later(), 3);
  EXPECT_EQ(s.State(array + 2), pb::TASK_BLOCKED);
  Run(array, "h00");
  Ends(array, 0);
  EXPECT_EQ(s.State(array + 2), pb::TASK_WAITING);
  EXPECT_EQ(s.State(array + 3), pb::TASK_BLOCKED);
  s.Cancel(array + 3);
  EXPECT_EQ(Job(array + 3).state, pb::CANCELLED);
  EXPECT_EQ(s.State(array + 4), pb::TASK_BLOCKED) << "its turn hadn't come, so none became free";
  s.Cancel(array + 1);
  EXPECT_EQ(s.State(array + 4), pb::TASK_WAITING);
  EXPECT_EQ(s.state.arrays().at(array), (ArrayTally{2, 0}));
}

TEST_F(Arrays, ACancelEndsAllMembers) {
  const uint64_t array = Array("0-4%2");
  Run(array, "h00");
  CancelAll(array);
  EXPECT_TRUE(Job(array).cancel_requested);
  EXPECT_EQ(s.State(array), pb::TASK_RUNNING) << "until it is stopped";
  EXPECT_EQ(Status(array).cancelled(), 4);
  EXPECT_EQ(s.state.waiting_tasks().size(), 0u);
  s.Stop(array, pb::CANCEL);
  s.AllSay(array, pb::GONE, 143, true);
  EXPECT_EQ(StateOfArray(*Job(array).ended), pb::CANCELLED);
  const std::string before = testing::Facts(s.state);
  CancelAll(array);
  EXPECT_EQ(testing::Facts(s.state), before);
}

TEST_F(Arrays, WithOneIndependentWorkersSuccessNoneIsStartedAnyMore) {
  const uint64_t job = Workers(1, 4);
  Run(job, "h00");
  Run(job + 1, "h01");
  s.Stop(job + 1, pb::PREEMPTION);
  s.AllSay(job + 1, pb::GONE, 143, true);
  Ends(job, 0);
  EXPECT_EQ(s.State(job + 1), pb::TASK_WAITING) << "it has begun something";
  EXPECT_EQ(Job(job + 2).state, pb::CANCELLED);
  EXPECT_EQ(Job(job + 2).cause, pb::DONE);
  EXPECT_EQ(Status(job).unneeded(), 2);
  Run(job + 1, "h02");
  Ends(job + 1, 0);
  EXPECT_EQ(StateOfArray(*Job(job).ended), pb::SUCCEEDED);
}

TEST_F(Arrays, WithOneIndependentWorkersFinalFailureNoneIsStartedAnyMore) {
  const uint64_t job = Workers(1, 4, {2});
  Run(job, "h00");
  Run(job + 1, "h01");
  EndsByItself(job, 2);
  EXPECT_EQ(Job(job).state, pb::FAILED);
  EXPECT_EQ(s.State(job + 1), pb::TASK_RUNNING) << "it sees for itself";
  EXPECT_EQ(Job(job + 3).state, pb::CANCELLED);
  EXPECT_EQ(Job(job + 3).detail,
            absl::StrCat("never started: worker ", job, "_0 had failed for good"));
  EXPECT_EQ(Status(job).unneeded(), 2);
  Ends(job + 1, 0);
  EXPECT_EQ(StateOfArray(*Job(job).ended), pb::FAILED);
}

// Of a Ray cluster of four: one node runs, one was preempted, one never started.
TEST_F(Arrays, WithoutAHeadRaysNodesAreStopped) {
  const struct {
    const char* name;
    std::function<void(uint64_t)> head_ends;
    pb::JobState whole;
    const char* detail;
  } kCases[] = {
      {"its program fails", [&](uint64_t job) { Ends(job, 1); }, pb::FAILED,
       "cancelled: worker 0, which was Ray's head, has failed"},
      {"time_limit",
       [&](uint64_t job) {
         s.Stop(job, pb::TIME_LIMIT);
         s.AllSay(job, pb::GONE, 143, true);
       },
       pb::FAILED, "cancelled: worker 0, which was Ray's head, has failed"},
      {"it alone is cancelled",
       [&](uint64_t job) {
         s.Cancel(job);
         s.Stop(job, pb::CANCEL);
         s.AllSay(job, pb::GONE, 143, true);
       },
       pb::CANCELLED, "cancelled: worker 0, which was Ray's head, was cancelled"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    const uint64_t job = RayCluster(c.name);
    Run(job, "h00");
    Run(job + 1, "h01");
    Run(job + 2, "h02");
    s.Stop(job + 2, pb::PREEMPTION);
    s.AllSay(job + 2, pb::GONE, 143, true);
    c.head_ends(job);
    EXPECT_EQ(s.State(job + 1), pb::TASK_RUNNING) << "until it is stopped";
    for (const uint64_t member : {job + 1, job + 2, job + 3}) {
      EXPECT_TRUE(Job(member).cancel_requested);
      EXPECT_EQ(Job(member).detail, c.detail);
      EXPECT_EQ(Job(member).finished(), member != job + 1);
    }
    s.Stop(job + 1, pb::CANCEL);
    s.AllSay(job + 1, pb::GONE, 143, true);
    ASSERT_NE(Job(job).ended, nullptr);
    EXPECT_EQ(StateOfArray(*Job(job).ended), c.whole);
    EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  }
}

TEST_F(Arrays, RaysNodesEndByThemselvesAfterASuccessAndStayWhileAHeadMayCome) {
  const uint64_t job = RayCluster("a");
  Run(job, "h00");
  Run(job + 1, "h01");
  s.Stop(job, pb::PREEMPTION);
  s.AllSay(job, pb::GONE, 143, true);
  EXPECT_FALSE(Job(job + 1).cancel_requested);
  Run(job, "h02");
  Ends(job, 0);
  EXPECT_FALSE(Job(job + 1).cancel_requested);
  Ends(job + 1, 0);
  EXPECT_EQ(StateOfArray(*Job(job).ended), pb::SUCCEEDED);
}

TEST_F(Arrays, AreForgottenAsAWholeAfterTheLastMembersEnd) {
  const uint64_t array = Array("0-1");
  Run(array, "h00");
  Ends(array, 0);
  s.Step(8 * 86'400);
  ASSERT_NE(s.state.FindJob(array), nullptr) << "a member goes on";
  Run(array + 1, "h00");
  Ends(array + 1, 0);
  s.Step(14 * 86'400);
  EXPECT_NE(s.state.FindJob(array), nullptr);
  EXPECT_NE(s.state.FindJob(array + 1), nullptr);
  s.Step(16 * 86'400);
  EXPECT_EQ(s.state.FindJob(array), nullptr);
  EXPECT_EQ(s.state.FindJob(array + 1), nullptr);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
}

// The newest is the last that is forgotten: a member stays as long as its array goes on.
TEST_F(Arrays, TheNewestOfANameIsByTheEndOfTheWhole) {
  const auto named = [](pb::JobSpec* spec) { spec->set_name("train"); };
  const uint64_t array = Submit([&](pb::JobSpec* spec) {
    named(spec);
    spec->set_array("0-1");
  });
  Run(array, "h00");
  s.Step(86'400);
  Ends(array, 0);
  Run(array + 1, "h00");
  const uint64_t job = Submit(named, "b");
  Run(job, "h01");
  s.Step(2 * 86'400);
  Ends(job, 0);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  s.Step(20 * 86'400);
  ASSERT_EQ(s.state.FindJob(job), nullptr);
  ASSERT_NE(s.state.FindJob(array), nullptr);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
  Ends(array + 1, 0);
  EXPECT_EQ(State::Difference(s.state, s.state.Rebuilt()), "");
}

// One program on many hosts: it counts once, however many members run it.
TEST_F(Arrays, MembersBlameHostsAsOneJob) {
  const auto fails = [&](uint64_t member, const std::string& host) {
    Run(member, host);
    pb::Event event = testing::Report(s.state, member, 0, s.Newest(member).number, 0, pb::GONE, 1);
    event.mutable_attempt_reported()->mutable_report()->set_cause(pb::LAUNCH_FAILED);
    s.Do(event);
  };
  const auto blames = [&](const std::string& host) {
    return s.state.host(s.state.FindHost("lab", host)).blames.size();
  };
  const uint64_t array = Array("0-4");
  fails(array, "h00");
  fails(array + 1, "h00");
  EXPECT_EQ(blames("h00"), 1u);
  fails(array + 3, "h01");
  EXPECT_EQ(blames("h00"), 0u) << "it blames itself";
  fails(array + 4, "h02");
  EXPECT_EQ(blames("h01"), 0u);
  EXPECT_EQ(blames("h02"), 0u);
}

TEST_F(Arrays, ExplainIsAboutAMemberThatWaitsAndListsTellOfOneThatFailed) {
  const uint64_t array = Array("0-2");
  Run(array, "h00");
  EXPECT_EQ(TellingMember(s.state, Job(array)).member, 1);
  Ends(array, 1);
  Run(array + 1, "h00");
  EXPECT_EQ(TellingMember(s.state, Job(array)).member, 0);
  EXPECT_EQ(ExplainedMember(s.state, Job(array)).member, 2);
  Run(array + 2, "h01");
  EXPECT_EQ(ExplainedMember(s.state, Job(array)).member, 1);
}

TEST_F(Arrays, AnEventWhoseMembersAreNotItsSpecsHasNoEffect) {
  pb::Event event;
  event.mutable_job_submitted()->set_number(1);
  event.mutable_job_submitted()->set_uid("x");
  event.mutable_job_submitted()->mutable_spec()->set_array("0-3");
  event.mutable_job_submitted()->set_members(3);
  s.ExpectNoEffect(event, "three of four");
}

}  // namespace
}  // namespace muster
