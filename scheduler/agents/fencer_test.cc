// When fence_command is run, with what words, and what comes of it.
#include "scheduler/agents/fencer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "absl/strings/str_join.h"
#include "common/base/testing/eventually.h"
#include "scheduler/engine/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job runs on lab/h1, whose host can't be reached; three other hosts can.
class FencerTest : public ::testing::Test {
 protected:
  FencerTest() {
    EngineOptions options;
    engine_ = std::make_unique<Engine>(options, &clock_, &store_, &link_, State());
    sessions_ = std::make_unique<Sessions>(SessionOptions(), &clock_);
    sessions_->Attach(engine_.get());
    pb::Event clusters = LabConfigured();
    pb::ClusterSpec* lab =
        clusters.mutable_clusters_configured()->mutable_file()->mutable_clusters(0);
    for (const char* word : {"/sbin/power", "off", "{host}.mgmt.{cluster}"})
      lab->add_fence_command(word);
    engine_->Post(clusters);
    engine_->Post(HostJoins("h1"));
    Submit();
    Settle();
    for (const char* host : {"h2", "h3", "h4"}) engine_->Post(HostJoins(host));
    Settle();
    fencer_ = std::make_unique<Fencer>(
        engine_.get(), sessions_.get(), &clock_, 45 * kSecond,
        [this](const ProgramOptions& options) -> absl::StatusOr<ProgramEnd> {
          std::unique_lock lock(mutex_);
          runs_.push_back(absl::StrJoin(options.argv, " "));
          changed_.wait(lock, [&] { return !answers_.empty(); });
          ProgramEnd end;
          end.why = answers_.front();
          answers_.erase(answers_.begin());
          return end;
        });
  }
  ~FencerTest() override {
    Answer("");
    fencer_->Stop();
  }

  void Submit(pb::WhenUnreachable rule = pb::WAIT) {
    pb::Event event;
    pb::JobSubmitted& job = *event.mutable_job_submitted();
    job.set_number(1);
    job.set_uid(std::string(32, '1'));
    *job.mutable_spec() = OneSlotSpec();
    job.mutable_spec()->mutable_tasks(0)->set_when_unreachable(rule);
    engine_->Post(event);
  }
  void Settle() {
    clock_.now_ns += kSecond;
    while (engine_->Step()) {
    }
  }
  void Tell(const std::string& host, pb::HostState state) {
    pb::Event event;
    event.mutable_host_state()->set_cluster("lab");
    event.mutable_host_state()->set_host(host);
    event.mutable_host_state()->set_state(state);
    engine_->Post(event);
    Settle();
  }
  void Answer(const std::string& why) {
    std::lock_guard lock(mutex_);
    answers_.push_back(why);
    changed_.notify_all();
  }
  std::vector<std::string> Runs() {
    std::lock_guard lock(mutex_);
    return runs_;
  }
  // As the daemon does: asks, has the engine answer, starts.
  void Look(int times = 1) {
    for (int i = 0; i < times; ++i) {
      clock_.now_ns += kSecond;
      fencer_->Look();
      while (engine_->Step()) {
      }
    }
  }
  // Looks until the command was run so often.
  void AwaitRuns(size_t count) {
    EXPECT_TRUE(Eventually([&] {
      Look();
      return Runs().size() >= count;
    }));
    EXPECT_EQ(fencer_->started(), static_cast<int64_t>(count));
  }
  HostRow Host() {
    while (engine_->Step()) {
    }
    const std::shared_ptr<const View> view = engine_->Snapshot();
    return view->state.host(view->state.FindHost("lab", "h1"));
  }

  ManualClock clock_;
  RecordingStore store_{nullptr};
  DeafLink link_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sessions> sessions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> runs_, answers_;
  std::unique_ptr<Fencer> fencer_;
};

TEST_F(FencerTest, SwitchesOffWhatCannotBeReachedAndSaysSoOnce) {
  Look(3);
  Tell("h1", pb::HOST_SILENT);
  Look(3);
  EXPECT_EQ(fencer_->started(), 0) << "a lease has not passed";
  Tell("h1", pb::HOST_UNREACHABLE);
  AwaitRuns(1);
  clock_.now_ns += kHour;
  Look(3);
  EXPECT_EQ(fencer_->started(), 1) << "one at a time";
  EXPECT_THAT(Runs(), ElementsAre("/sbin/power off h1.mgmt.lab"));
  EXPECT_EQ(Host().confirmed_off_by, "") << "it has not ended";
  Answer("");
  EXPECT_TRUE(Eventually([&] { return Host().confirmed_off_by == "fence_command"; }));
  clock_.now_ns += kHour;
  Look(3);
  EXPECT_EQ(fencer_->started(), 1);
}

TEST_F(FencerTest, TriesAgainLaterEachTimeAndTellsWhy) {
  Tell("h1", pb::HOST_UNREACHABLE);
  AwaitRuns(1);
  Answer("exit 1: no chassis");
  EXPECT_TRUE(Eventually([&] { return Host().fence_detail == "exit 1: no chassis"; }));
  Look(2);
  EXPECT_EQ(fencer_->started(), 1) << "not at once";
  AwaitRuns(2);
  Answer("exit 1: no chassis");
  AwaitRuns(3);
  Answer("");
  EXPECT_TRUE(Eventually([&] { return Host().confirmed_off_by == "fence_command"; }));
  EXPECT_EQ(Host().fence_detail, "");
}

TEST_F(FencerTest, DoesNothingWhileMostOfTheClusterIsSilent) {
  for (const char* host : {"h1", "h2", "h3"}) Tell(host, pb::HOST_UNREACHABLE);
  Look(5);
  EXPECT_EQ(fencer_->started(), 0);
}

// The host speaks while the command runs, and is unreachable anew before it ends: what it switched
// off has been on since.
class FencerOfAHostThatSpeaks : public FencerTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Looked, FencerOfAHostThatSpeaks, ::testing::Bool());

TEST_P(FencerOfAHostThatSpeaks, CountsItsSuccessForNoLaterTimeOfBeingUnreachable) {
  Tell("h1", pb::HOST_UNREACHABLE);
  AwaitRuns(1);
  Tell("h1", pb::HOST_UP);
  if (GetParam()) Look();  // it sees the host speak, or it doesn't
  Tell("h1", pb::HOST_UNREACHABLE);
  Answer("");
  EXPECT_TRUE(Eventually([&] {  // its thread has ended: the next begins
    Look();
    return fencer_->started() == 2;
  }));
  EXPECT_EQ(Host().confirmed_off_by, "");
  EXPECT_EQ(Host().fence_detail, "") << "given up is not failed";
  Answer("");  // of the run for the second time
  EXPECT_TRUE(Eventually([&] { return Host().confirmed_off_by == "fence_command"; }));
}

// An agent has seen more than this store has: another scheduler may serve it, and its hosts run.
TEST_F(FencerTest, RunsNothingOnceNothingIsServed) {
  Tell("h1", pb::HOST_UNREACHABLE);
  engine_->StopServing("an agent has seen more");
  Look(10);
  EXPECT_EQ(fencer_->started(), 0);
}

TEST_F(FencerTest, RunsNothingForAHostThatNothingWaitsFor) {
  Tell("h2", pb::HOST_UNREACHABLE);
  Look(5);
  EXPECT_EQ(fencer_->started(), 0) << "nothing runs there";
}

TEST(AwaitsFence, AHostWhosePartIsNotOverYet) {
  testing::SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  testing::JobBuilder builder("q");
  builder.Workers(2);
  builder.task()->set_when_unreachable(pb::WAIT);
  const uint64_t job = builder.SubmitTo(&system);
  const auto awaits = [&](const char* host) {
    return AwaitsFence(system.state, system.state.host(system.state.FindHost("c", host)));
  };
  EXPECT_FALSE(awaits("h00"));
  system.Do(testing::Placed(system.state, job, "c", {{"h00", {0}}, {"h01", {0}}}));
  testing::StartAll(&system, job);
  EXPECT_TRUE(awaits("h00"));
  system.Do(testing::Report(system.state, job, 0, 1, 0, pb::GONE, 0));
  EXPECT_FALSE(awaits("h00")) << "its devices are free already";
  EXPECT_TRUE(awaits("h01"));
}

TEST(AwaitsFence, AHostThatMayRunAStrayThatItsJobWaitsFor) {
  for (const bool known : {true, false}) {
    testing::SystemBuilder system;
    system.Cluster("c").Hosts("c", 1, 1).Queue("q");
    const uint64_t job = testing::JobBuilder("q").SubmitTo(&system);
    pb::Event adopted;
    adopted.mutable_store_adopted()->set_epoch(static_cast<uint64_t>(kAttemptsSinceS + 5000) *
                                               1000);
    system.Do(adopted);
    adopted.mutable_store_adopted()->set_settled(true);
    system.Do(adopted);
    const auto host = [&]() -> const HostRow& {
      return system.state.host(system.state.FindHost("c", "h00"));
    };
    EXPECT_FALSE(AwaitsFence(system.state, host()));
    pb::Event stray;
    pb::AttemptReported* e = stray.mutable_attempt_reported();
    e->set_cluster("c");
    e->set_host("h00");
    e->set_state_id(host().state_id);
    *e->mutable_report()->mutable_key() = KeyOf(*system.state.FindJob(job), 0, 40);
    if (!known) e->mutable_report()->mutable_key()->set_job_uid(std::string(32, '9'));
    e->mutable_report()->set_phase(pb::STARTED);
    system.Do(stray);
    ASSERT_TRUE(host().has_strays());
    EXPECT_EQ(AwaitsFence(system.state, host()), known) << "of no job: nobody waits";
    system.HostState("c", "h00", pb::HOST_UNREACHABLE);
    pb::Event off;
    off.mutable_host_confirmed_off()->set_cluster("c");
    off.mutable_host_confirmed_off()->set_host("h00");
    system.Do(off);
    EXPECT_FALSE(AwaitsFence(system.state, host()));
  }
}

}  // namespace
}  // namespace muster
