#include "scheduler/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "scheduler/decide/decide.h"
#include "scheduler/engine/commands.h"
#include "scheduler/engine/reproducer.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

class EngineTest : public ::testing::Test, public AgentLink {
 protected:
  void Send(const std::string& cluster, const std::string& host,
            const pb::SchedulerMessage& message) override {
    log_.push_back(absl::StrCat("send ", host, " ", static_cast<int>(message.body_case())));
  }
  Engine::Done Noted(const std::string& what) {
    return [this, what](absl::Status status) {
      log_.push_back(absl::StrCat(what, status.ok() ? " ok" : " failed"));
    };
  }
  pb::Event Submitted(uint64_t number) {
    pb::Event event;
    event.mutable_job_submitted()->set_uid(std::string(31, '0') + std::to_string(number));
    event.mutable_job_submitted()->set_number(number);
    event.mutable_job_submitted()->set_owner("ada");
    *event.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
    return event;
  }
  void Start(const EngineOptions& options = {}) {
    engine_ = std::make_unique<Engine>(options, &clock_, &store_, this, State());
    engine_->Post(LabConfigured());
    engine_->Post(HostJoins("h1"));
    engine_->Step();
    log_.clear();
  }
  pb::AttemptKey Key() {
    pb::AttemptKey key;
    key.set_job_uid(std::string(31, '0') + "1");
    key.set_task("main");
    key.set_attempt(1);
    return key;
  }

  // The host's report of Key(); GONE comes with an exit 0.
  pb::Event Reported(pb::AttemptPhase phase) {
    pb::Event event;
    pb::AttemptReported* reported = event.mutable_attempt_reported();
    reported->set_cluster("lab");
    reported->set_host("h1");
    reported->set_state_id(std::string(32, 'a'));
    *reported->mutable_report()->mutable_key() = Key();
    reported->mutable_report()->set_phase(phase);
    if (phase == pb::GONE) reported->mutable_report()->add_exits();
    return event;
  }

  std::vector<std::string> log_;
  ManualClock clock_;
  RecordingStore store_{&log_};
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, CommitsBeforeItDispatchesAndAnswersOnceForAllThatWasQueued) {
  Start();
  engine_->Post(Submitted(1), Noted("one"));
  engine_->Post(Submitted(2), Noted("two"));
  EXPECT_TRUE(engine_->Step());
  const std::string prepare =
      absl::StrCat("send h1 ", static_cast<int>(pb::SchedulerMessage::kPrepare));
  EXPECT_THAT(log_, ElementsAre("commit 2", prepare, prepare, "one ok", "two ok"));
}

TEST_F(EngineTest, HasNothingToDoWhenNothingIsQueuedOrDue) {
  Start();
  while (engine_->Step())
    clock_.now_ns = std::max(clock_.now_ns + kMillisecond,
                             std::min(engine_->NextWakeNs(), clock_.now_ns + kHour));
  EXPECT_FALSE(engine_->Step());
}

TEST_F(EngineTest, TellsHowManyWaitedAndWhatStepsCost) {
  EngineOptions options;
  options.most_queued = 2;
  Start(options);
  const uint64_t before = engine_->Stats().step.count();
  engine_->Post(Submitted(1));
  EXPECT_FALSE(engine_->Full());
  engine_->Post(Submitted(2));
  EXPECT_TRUE(engine_->Full());
  engine_->Post(Submitted(3));  // what isn't asked is taken nevertheless
  store_.slow = [this] { clock_.now_ns += 5 * kMillisecond; };
  engine_->Step();
  EXPECT_FALSE(engine_->Full());
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.step.count(), before + 1);
  EXPECT_EQ(stats.most_queued, 3u);
  EXPECT_EQ(stats.submissions, 3u);
  EXPECT_EQ(stats.starts, 2u) << "there are two slots";
  EXPECT_EQ(stats.plans, before + 1);
  EXPECT_EQ(stats.commit.longest_ns(), 5 * kMillisecond);
  EXPECT_GE(stats.step.longest_ns(), 5 * kMillisecond);
}

TEST_F(EngineTest, TimeGoesOnAtHalfSpeedWhenTheWallClockWasSetBack) {
  Start();
  const int64_t began_ns = engine_->Snapshot()->now_ns;
  clock_.behind_ns = kHour;
  clock_.now_ns += kMinute;
  EXPECT_EQ(engine_->NowNs(), began_ns + kMinute / 2);
  engine_->Post(Submitted(1));
  engine_->Step();
  EXPECT_EQ(engine_->Snapshot()->now_ns, began_ns + kMinute / 2);
  clock_.now_ns += 2 * kHour;
  EXPECT_EQ(engine_->NowNs(), clock_.WallNs()) << "it has caught up";
}

TEST_F(EngineTest, ListensAgainFromItsFirstStepAndAfterItStoodStill) {
  Start();
  const auto listens_since = [&] { return engine_->Snapshot()->state.listens_since_ns(); };
  const int64_t began_ns = listens_since(), lease_ns = EngineOptions().scheduling.lease_ns;
  EXPECT_EQ(began_ns, engine_->Snapshot()->now_ns);
  const auto step_after = [&](int64_t ns) {
    clock_.now_ns += ns;
    engine_->Call(
        [](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
          return std::vector<pb::Event>();
        },
        nullptr);
    engine_->Step();
  };
  step_after(2 * lease_ns);
  EXPECT_EQ(listens_since(), began_ns);
  step_after(2 * lease_ns + 1);
  EXPECT_EQ(listens_since(), engine_->Snapshot()->now_ns);
  EXPECT_GT(listens_since(), began_ns);

  // The next process, a second later: whatever was said in it reached nobody.
  const State stored = engine_->Snapshot()->state;
  clock_.now_ns += kSecond;
  engine_ = std::make_unique<Engine>(EngineOptions(), &clock_, &store_, this, stored);
  step_after(0);
  EXPECT_EQ(listens_since(), stored.now_ns() + kSecond);
}

TEST_F(EngineTest, AnOperationThatFailsChangesNothing) {
  Start();
  engine_->Call(
      [](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        return absl::NotFoundError("no");
      },
      Noted("call"));
  engine_->Step();
  EXPECT_EQ(log_.back(), "call failed");
  EXPECT_TRUE(engine_->Snapshot()->state.AllJobs().empty());
}

TEST_F(EngineTest, EndsTheProcessWithoutRepliesWhenACommitFails) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  Start();
  store_.fail = true;
  engine_->Post(Submitted(1), [](absl::Status) { std::fprintf(stderr, "ANSWERED"); });
  EXPECT_EXIT(engine_->Step(), ::testing::ExitedWithCode(EXIT_FAILURE),
              ::testing::AllOf(::testing::HasSubstr("commit failed"),
                               ::testing::Not(::testing::HasSubstr("ANSWERED"))));
}

TEST_F(EngineTest, DropsAPlanThatValidateRefusesButKeepsTheEvents) {
  char directory[] = "/tmp/muster-engine-XXXXXX";
  EngineOptions options;
  options.refused_plans_directory = mkdtemp(directory);
  bool wrong = false;
  options.decide = [&](const State& state, int64_t, const SchedulingOptions&) {
    Plan plan;
    if (wrong)
      plan.events.emplace_back().mutable_attempt_lost()->mutable_key()->set_job_uid("nobody");
    return plan;
  };
  Start(options);
  wrong = true;
  engine_->Post(Submitted(1), Noted("submit"));
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre("commit 2", "submit ok"));
  EXPECT_EQ(engine_->Snapshot()->state.AllJobs().size(), 1u);
  EXPECT_EQ(engine_->Stats().plans, 2u) << "what is left without the offender counts";
  EXPECT_EQ(engine_->Stats().refused_plans, 1u);
  EXPECT_FALSE(engine_->Step()) << "it looks again later, not at once";
  const absl::StatusOr<std::vector<RowChange>> rows =
      LoadRows(options.refused_plans_directory + "/1-2/rows");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(State::Difference(*State::Load(*rows), engine_->Snapshot()->state), "");

  const auto replay = [&](const auto&... decide) {
    return ReplayRefusedPlan(options.refused_plans_directory + "/1-2", options.scheduling,
                             decide...);
  };
  const absl::StatusOr<RefusedAgain> again = replay(options.decide);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(again->now, ::testing::HasSubstr("event 0"));
  EXPECT_EQ(again->then, again->now);
  EXPECT_EQ(again->events, 1u);
  const absl::StatusOr<RefusedAgain> right = replay();
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(right->now, "") << "Decide's plan for the same is good";
  EXPECT_GT(right->events, 0u);
  std::filesystem::resize_file(options.refused_plans_directory + "/1-2/rows", 10);
  EXPECT_EQ(replay().status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove_all(directory);
}

TEST_F(EngineTest, ConfinesARefusalToTheJobThatItIsAbout) {
  char directory[] = "/tmp/muster-engine-XXXXXX";
  EngineOptions options;
  options.refused_plans_directory = mkdtemp(directory);
  bool wrong = false;
  options.decide = [&](const State& state, int64_t now_ns, const SchedulingOptions& scheduling) {
    Plan plan = Decide(state, now_ns, scheduling);
    for (pb::Event& event : plan.events) {
      if (wrong && event.has_attempt_placed() &&
          event.attempt_placed().key().job_uid().back() == '1')
        event.mutable_attempt_placed()->set_workers(7);
    }
    return plan;
  };
  Start(options);
  wrong = true;
  engine_->Post(Submitted(1));
  engine_->Post(Submitted(2));
  engine_->Step();
  const std::shared_ptr<const View> view = engine_->Snapshot();
  EXPECT_EQ(view->state.FindJob(2)->state, pb::RUNNING);
  EXPECT_EQ(view->state.FindJob(1)->state, pb::WAITING);
  const Verdict* verdict = view->plan->verdicts.Find({1, 0});
  ASSERT_NE(verdict, nullptr);
  EXPECT_EQ(verdict->code, pb::V_REFUSED);
  EXPECT_TRUE(std::filesystem::exists(options.refused_plans_directory + "/1-2/plan.txt"));
  EXPECT_EQ(engine_->Stats().refused_plans, 1u);
  wrong = false;
  clock_.now_ns = engine_->NextWakeNs();
  EXPECT_LE(clock_.now_ns, view->now_ns + 10 * kSecond);
  EXPECT_TRUE(engine_->Step());
  EXPECT_EQ(engine_->Snapshot()->state.FindJob(1)->state, pb::RUNNING);
  std::filesystem::remove_all(directory);
}

TEST_F(EngineTest, ConfinesAMissingVerdictToTheJobThatLacksIt) {
  bool wrong = false;
  EngineOptions options;
  options.decide = [&](const State& state, int64_t now_ns, const SchedulingOptions& scheduling) {
    Plan plan = Decide(state, now_ns, scheduling);
    if (wrong) plan.verdicts.Erase({3, 0});
    return plan;
  };
  Start(options);
  wrong = true;
  for (const uint64_t number : {1, 2, 3}) engine_->Post(Submitted(number));  // for two slots
  engine_->Step();
  EXPECT_EQ(engine_->Snapshot()->state.FindJob(1)->state, pb::RUNNING);
  EXPECT_EQ(engine_->Snapshot()->plan->verdicts.Find({3, 0})->code, pb::V_REFUSED);
}

TEST_F(EngineTest, KeepsNoProgressOfAnAttemptThatHasEnded) {
  Start();
  engine_->Post(Submitted(1));
  engine_->Step();
  pb::ProgressSeen seen;
  *seen.mutable_key() = Key();
  seen.mutable_progress()->set_step(1);
  engine_->PostProgress(seen);
  engine_->Step();
  seen.mutable_progress()->set_step(2);
  engine_->PostProgress(seen);  // waits for its interval
  engine_->Post(Reported(pb::STARTED));
  engine_->Post(Reported(pb::GONE));
  engine_->Step();
  EXPECT_EQ(engine_->Snapshot()->state.FindJob(1)->tasks[0].progress.step(), 2)
      << "the last line goes with the end";
  engine_->PostProgress(seen);  // was still under way
  EXPECT_FALSE(engine_->LiveProgress(Key()).has_value());
  EXPECT_GT(engine_->NextWakeNs(), clock_.now_ns + kSecond)
      << "nothing of it waits to be journalled";
}

TEST_F(EngineTest, JournalsProgressOnceASecondAndShowsTheNewestAtOnce) {
  Start();
  engine_->Post(Submitted(1));
  engine_->Step();
  pb::ProgressSeen seen;
  *seen.mutable_key() = Key();
  seen.mutable_progress()->set_step(1);
  engine_->PostProgress(seen);
  EXPECT_TRUE(engine_->Step());
  seen.mutable_progress()->set_step(2);
  engine_->PostProgress(seen);
  EXPECT_EQ(engine_->LiveProgress(Key())->step(), 2);
  EXPECT_EQ(engine_->NextWakeNs(), clock_.now_ns + kSecond);
}

// Each host of a gang is told once what holds, however many reports of the others come one by one:
// the link repeats it.
TEST_F(EngineTest, TellsTheHostsOfAGangNothingAgainBecauseOneOfThemReports) {
  Start();
  const std::vector<std::string> hosts = {"h1", "h2", "h3", "h4"};
  for (const std::string& host : hosts) engine_->Post(HostJoins(host));
  engine_->Step();
  pb::Event gang = Submitted(1);
  pb::TaskSpec* task = gang.mutable_job_submitted()->mutable_spec()->mutable_tasks(0);
  task->mutable_workers()->set_min(8);
  task->mutable_workers()->set_max(8);
  engine_->Post(gang);
  log_.clear();
  engine_->Step();
  const auto sends = [&](pb::SchedulerMessage::BodyCase body) {
    std::vector<std::string> told;
    for (const std::string& host : hosts)
      told.push_back(absl::StrCat("send ", host, " ", static_cast<int>(body)));
    return told;
  };
  const auto told = [&] {
    std::vector<std::string> sent;
    std::copy_if(log_.begin(), log_.end(), std::back_inserter(sent),
                 [](const std::string& line) { return line.starts_with("send"); });
    log_.clear();
    return sent;
  };
  const auto report_all_but_the_last = [&](pb::AttemptPhase phase) {
    for (size_t h = 0; h < hosts.size(); ++h) {
      pb::Event event = Reported(phase);
      event.mutable_attempt_reported()->set_host(hosts[h]);
      if (phase == pb::PREPARED)
        event.mutable_attempt_reported()->mutable_report()->set_rendezvous_port(20'000);
      if (phase == pb::GONE)
        event.mutable_attempt_reported()->mutable_report()->set_stop_sent(true);
      engine_->Post(event);
      if (h + 1 == hosts.size()) return;
      engine_->Step();
    }
  };
  using ::testing::UnorderedElementsAreArray;
  EXPECT_THAT(told(), UnorderedElementsAreArray(sends(pb::SchedulerMessage::kPrepare)));
  report_all_but_the_last(pb::PREPARED);
  EXPECT_THAT(told(), ::testing::IsEmpty());
  engine_->Step();
  EXPECT_THAT(told(), UnorderedElementsAreArray(sends(pb::SchedulerMessage::kStart)));
  report_all_but_the_last(pb::STARTED);
  EXPECT_THAT(told(), ::testing::IsEmpty());
  engine_->Step();
  EXPECT_EQ(engine_->Snapshot()->state.FindJob(1)->tasks[0].state, pb::TASK_RUNNING);
  pb::Event cancel;
  cancel.mutable_job_cancel()->set_number(1);
  engine_->Post(cancel);
  engine_->Step();
  EXPECT_THAT(told(), UnorderedElementsAreArray(sends(pb::SchedulerMessage::kStop)));
  report_all_but_the_last(pb::GONE);
  std::vector<std::string> forgets = sends(pb::SchedulerMessage::kForget);
  forgets.pop_back();
  EXPECT_THAT(told(), ::testing::ElementsAreArray(forgets));
}

TEST_F(EngineTest, TellsAHostToForgetOnlyWhatItHasCommittedAsGone) {
  Start();
  engine_->Post(Submitted(1));
  engine_->Step();
  log_.clear();
  engine_->Post(Reported(pb::STARTED));
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre("commit 3"));
  engine_->Post(Reported(pb::GONE));
  engine_->Step();
  EXPECT_THAT(
      log_, ElementsAre("commit 3", "commit 4",
                        absl::StrCat("send h1 ", static_cast<int>(pb::SchedulerMessage::kForget))));
  EXPECT_EQ(engine_->Snapshot()->state.FindJob(1)->state, pb::SUCCEEDED);
}

}  // namespace
}  // namespace muster
