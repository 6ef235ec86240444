#include "scheduler/api/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// An engine with job 1, which nobody decides to place, and a hub that follows it.
class WatchTest : public ::testing::Test {
 protected:
  WatchTest() : engine_(Options(), &clock_, &store_, nullptr, State()), hub_(&engine_) {
    engine_.Observe(hub_.observer());
    engine_.Observe([this](const StepRecord& step) { views_.push_back(step.view); });
    engine_.Post(LabConfigured());
    pb::Event submitted;
    submitted.mutable_job_submitted()->set_number(1);
    submitted.mutable_job_submitted()->set_uid("u1");
    *submitted.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
    engine_.Post(submitted);
    engine_.Step();
  }
  ~WatchTest() override { hub_.Stop(); }
  void Step() {
    engine_.Call(
        [](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
          return std::vector<pb::Event>();
        },
        nullptr);
    engine_.Step();
  }
  void Cancel() {
    pb::Event cancel;
    cancel.mutable_job_cancel()->set_number(1);
    engine_.Post(cancel);
    engine_.Step();
  }

  // As FindJob finds it: it keeps its view alive.
  std::shared_ptr<const JobRow> Job() {
    const std::shared_ptr<const View> view = engine_.Snapshot();
    return {view, view->state.FindJob(1)};
  }

  Verdict verdict_{{1, 0}, pb::V_CAPACITY};
  std::vector<std::weak_ptr<const View>> views_;

 private:
  EngineOptions Options() {
    EngineOptions options;
    options.check_plans = false;
    options.decide = [this](const State& state, int64_t, const SchedulingOptions&) {
      Plan plan;
      if (!state.waiting_tasks().empty()) plan.verdicts.Set(verdict_);
      return plan;
    };
    return options;
  }

  RecordingStore store_{nullptr};

 protected:
  ManualClock clock_;
  Engine engine_;
  WatchHub hub_;
};

TEST_F(WatchTest, AHubThatFallsBehindHoldsAFewHundredSnapshotsAndStillTellsTheEnd) {
  std::promise<void> called, go_on, ended;
  hub_.Add(Job(), [&, first = true](const WatchHub::News& news) mutable {
    if (first) {
      called.set_value();
      go_on.get_future().wait();
    }
    first = false;
    if (news.job->finished()) ended.set_value();
  });
  called.get_future().wait();
  for (int i = 0; i < 1000; ++i) Step();
  Cancel();
  EXPECT_LT(
      std::count_if(views_.begin(), views_.end(), [](const auto& view) { return !view.expired(); }),
      300);
  go_on.set_value();
  EXPECT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
  hub_.Stop();
}

TEST_F(WatchTest, AFollowerHearsOfAnotherVerdictButNotOfAnotherExpectedStart) {
  std::promise<void> began, ended;
  std::vector<pb::VerdictCode> told;
  hub_.Add(Job(), [&](const WatchHub::News& news) {
    const Verdict* verdict = news.view.plan->verdicts.Find({1, 0});
    told.push_back(verdict == nullptr ? pb::VERDICT_UNSPECIFIED : verdict->code);
    if (told.size() == 1) began.set_value();
    if (news.job->finished()) ended.set_value();
  });
  began.get_future().wait();
  Step();
  verdict_.expected_start_ns = kSecond;
  Step();
  verdict_.code = pb::V_LIMIT;
  Step();
  Step();
  Cancel();
  EXPECT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
  hub_.Stop();
  EXPECT_THAT(told, ::testing::ElementsAre(pb::V_CAPACITY, pb::V_LIMIT, pb::VERDICT_UNSPECIFIED));
}

TEST_F(WatchTest, WhoAsksAgainMissesNothingOfWhatHappensMeanwhile) {
  std::promise<void> called, go_on, ended;
  std::vector<std::string> told;
  const uint64_t id = hub_.Add(Job(), [&, first = true](const WatchHub::News& news) mutable {
    if (std::exchange(first, false)) {
      called.set_value();
      go_on.get_future().wait();
    }
    told.insert(told.end(), news.events.begin(), news.events.end());
    if (news.job->finished()) ended.set_value();
  });
  called.get_future().wait();
  hub_.Poke(id);
  Cancel();
  go_on.set_value();
  EXPECT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
  hub_.Stop();
  EXPECT_THAT(told, ::testing::ElementsAre("its cancellation was asked for", "cancelled"));
}

TEST_F(WatchTest, AFollowerKeepsNoSnapshotAndIsToldOfAJobThatWasForgottenAsItEnded) {
  const std::weak_ptr<const View> found = engine_.Snapshot();
  std::promise<void> ended;
  std::promise<pb::JobState> again, anew;
  std::atomic<bool> forgotten = false;
  const auto state = [](const JobRow* job) {
    return job == nullptr ? pb::JOB_STATE_UNSPECIFIED : job->state;
  };
  const uint64_t id = hub_.Add(Job(), [&](const WatchHub::News& news) {
    if (forgotten) {
      again.set_value(state(news.job));
    } else if (news.job->finished()) {
      ended.set_value();
    }
  });
  Step();
  Cancel();
  ASSERT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(found.expired());

  std::shared_ptr<const JobRow> job = Job();
  clock_.now_ns += kFinishedKeptNs + kDay;
  Step();
  ASSERT_EQ(engine_.Snapshot()->state.FindJob(1), nullptr);
  forgotten = true;
  hub_.Poke(id);
  EXPECT_EQ(again.get_future().get(), pb::CANCELLED);
  hub_.Add(job, [&](const WatchHub::News& news) { anew.set_value(state(news.job)); });
  EXPECT_EQ(anew.get_future().get(), pb::CANCELLED);
  hub_.Stop();
}

// Who has seen a job's end must not be told afterwards that it runs.
TEST_F(WatchTest, WhoComesIsToldNothingOlderThanWhatThereIsThen) {
  std::promise<void> called, go_on;
  hub_.Add(Job(), [&, first = true](const WatchHub::News&) mutable {
    if (!std::exchange(first, false)) return;
    called.set_value();
    go_on.get_future().wait();
  });
  called.get_future().wait();
  Step();
  Cancel();
  std::promise<pb::JobState> told;
  hub_.Add(Job(), [&, first = true](const WatchHub::News& news) mutable {
    if (std::exchange(first, false)) told.set_value(news.job->state);
  });
  go_on.set_value();
  EXPECT_EQ(told.get_future().get(), pb::CANCELLED);
  hub_.Stop();
}

}  // namespace
}  // namespace muster
