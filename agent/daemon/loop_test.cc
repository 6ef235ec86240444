// The agent's loop over a stream, shims and a clock that are values, with a real state directory.
#include "agent/daemon/loop.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/log_writer.h"
#include "common/base/quiet_log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

class AgentLoopTest : public ::testing::Test,
                      public AgentClock,
                      public Link,
                      public Shims,
                      public Processes {
 protected:
  void SetUp() override {
    SilenceLog();
    char name[] = "/tmp/muster-loop-test-XXXXXX";
    directory_ = ::mkdtemp(name);
    auto state = StateDirectory::Open(directory_ + "/state");
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    StartAgent();
  }
  void TearDown() override {
    loop_ = nullptr;
    state_ = nullptr;
    std::filesystem::remove_all(directory_);
  }

  // With what the state directory holds.
  void StartAgent() {
    AgentLoop::Options options;
    options.server = "m1:7420";
    options.identity = {"lab", "a", state_->state_id(), "boot"};
    options.sweep_ns = kSecond;
    absl::StatusOr<std::vector<AttemptRecord>> records = state_->Load();
    ASSERT_TRUE(records.ok()) << records.status();
    loop_ = std::make_unique<AgentLoop>(
        std::move(options),
        AgentLoop::Ports{this, this, this, state_.get(), this, state_.get(), nullptr, nullptr,
                         nullptr, [this](const std::string& status) { status_ = status; }},
        *std::move(records));
    loop_->Begin();
  }

  int64_t WallNs() override { return 1'800'000'000 * kSecond + now_ns_; }
  int64_t BootNs() override { return now_ns_; }
  void Send(uint64_t generation, v1::AgentMessage message) override {
    sent_.emplace_back(generation, std::move(message));
  }
  void Restart(const std::string& why) override {
    ++restarts_;
    why_ = why;
  }
  size_t queued_bytes() override { return 0; }
  void Watch(const AttemptId&) override {}
  void Unwatch(const AttemptId&) override {}
  bool Lives(const AttemptId&) override { return lives_; }
  bool KillStrays(const AttemptId&, bool) override { return strays_; }
  void Ended(const AttemptId&) override {}
  void RemoveCgroup(const AttemptId&) override {}
  void ReleasePort(const AttemptId&) override {}
  absl::StatusOr<int32_t> Prepare(const v1::Prepare&) override { return 20000; }
  absl::Status SpawnShim(const AttemptRecord& record) override {
    spawned_.push_back(record.id);
    lives_ = true;
    return absl::OkStatus();
  }
  void SignalShim(const AttemptId&) override {}
  bool ShimLives(const AttemptId&) override { return lives_; }

  v1::SchedulerMessage InSession(const std::string& session) {
    v1::SchedulerMessage message;
    message.mutable_session()->set_store_id("store");
    message.mutable_session()->set_epoch(1);
    message.mutable_session()->set_session(session);
    message.mutable_session()->set_state_id(state_->state_id());
    message.set_commit(++commit_);
    return message;
  }
  void Welcome(uint64_t generation, const std::string& session) {
    loop_->OnOpened(generation);
    v1::SchedulerMessage message = InSession(session);
    message.mutable_welcome()->set_lease_ns(10 * kSecond);
    message.mutable_welcome()->set_heartbeat_ns(3 * kSecond);
    loop_->OnMessage(generation, message);
    loop_->Turn();
  }
  v1::SchedulerMessage Launch(const std::string& session) {
    v1::SchedulerMessage message = InSession(session);
    v1::Prepare* prepare = message.mutable_prepare();
    prepare->mutable_key()->set_job_uid(std::string(32, 'b'));
    prepare->mutable_key()->set_task("main");
    prepare->mutable_key()->set_attempt(1);
    prepare->mutable_here()->set_workers(1);
    prepare->set_start_at_once(true);
    return message;
  }
  int Heartbeats() const {
    return static_cast<int>(std::count_if(
        sent_.begin(), sent_.end(), [](const auto& sent) { return sent.second.has_heartbeat(); }));
  }

  int64_t now_ns_ = 1000 * kSecond;
  uint64_t commit_ = 0;
  int restarts_ = 0;
  std::string why_;  // of the last one
  std::string status_;
  bool lives_ = false, strays_ = false;
  std::vector<AttemptId> spawned_;
  std::vector<std::pair<uint64_t, v1::AgentMessage>> sent_;
  std::string directory_;
  std::unique_ptr<StateDirectory> state_;
  std::unique_ptr<AgentLoop> loop_;
};

TEST_F(AgentLoopTest, ASilentSchedulersSessionEndsWithItsLease) {
  Welcome(1, "one");
  EXPECT_TRUE(loop_->attempts().has_session());
  now_ns_ += 10 * kSecond - 1;
  loop_->Turn();
  EXPECT_TRUE(loop_->attempts().has_session());
  ++now_ns_;
  loop_->Turn();
  EXPECT_FALSE(loop_->attempts().has_session());
  EXPECT_EQ(restarts_, 1);
  loop_->Turn();
  EXPECT_EQ(restarts_, 1) << "once";
}

TEST_F(AgentLoopTest, AnInventoryThatChangedIsReportedAnewAndTheSameIsNot) {
  Welcome(1, "one");
  v1::Inventory found;
  loop_->OnInventory(found);
  EXPECT_EQ(restarts_, 0);
  found.set_cpus_milli(8000);
  loop_->OnInventory(found);
  EXPECT_EQ(restarts_, 1);
  EXPECT_EQ(why_, "the inventory changed: reporting anew");
}

// `muster-agent join` waits for it where it has started the agent's unit.
TEST_F(AgentLoopTest, ItsStatusSaysWhatTheHostHasOnceItIsUpAndElseWhyItIsNot) {
  v1::Inventory inventory;
  inventory.set_cpus_milli(8000);
  inventory.set_memory_bytes(int64_t{4} << 30);
  inventory.set_disk_bytes(int64_t{3} << 29);
  loop_->OnInventory(inventory);
  loop_->OnClosed("no route to host");
  EXPECT_EQ(status_, "not connected to m1:7420: no route to host");
  loop_->OnOpened(1);
  v1::SchedulerMessage refused;
  refused.mutable_refused()->set_reason("this host's clock is wrong");
  loop_->OnMessage(1, refused);
  EXPECT_EQ(status_, "refused by m1:7420: this host's clock is wrong");
  Welcome(2, "one");
  EXPECT_EQ(status_, "up as lab/a: no GPUs, 8 CPUs, 4GiB of memory, 1.5GiB of disk");
  for (const bool healthy : {true, false}) inventory.add_devices()->set_healthy(healthy);
  inventory.set_flavour("cpu-slot");
  inventory.set_declared(true);
  loop_->OnInventory(inventory);
  loop_->OnClosed("the inventory changed", /*ours=*/true);
  loop_->OnOpened(3);
  v1::SchedulerMessage welcome = InSession("two");
  welcome.mutable_welcome()->set_differs("2 devices, not 4");
  loop_->OnMessage(3, welcome);
  EXPECT_EQ(status_,
            "up as lab/a: 2 cpu-slot (1 not healthy), 8 CPUs, 4GiB of memory, 1.5GiB of disk, "
            "declared; contradicts its SKU: 2 devices, not 4");
}

TEST_F(AgentLoopTest, AHelloThatNobodyAnswersIsGivenUpAfterALease) {
  loop_->OnOpened(1);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(sent_[0].second.has_hello());
  now_ns_ += 45 * kSecond;
  loop_->Turn();
  EXPECT_EQ(restarts_, 1);
}

// The disk was full at the Welcome. A scheduler that goes on asking on that stream doesn't keep it.
TEST_F(AgentLoopTest, AWelcomeThatCouldNotBeKeptIsAskedForAnewWhateverIsSaidMeanwhile) {
  std::filesystem::rename(directory_, directory_ + ".away");
  loop_->OnOpened(1);
  const auto later_epoch = [&](const char* session) {
    v1::SchedulerMessage message = InSession(session);
    message.mutable_session()->set_epoch(7);
    return message;
  };
  v1::SchedulerMessage welcome = later_epoch("one");
  welcome.mutable_welcome()->set_lease_ns(10 * kSecond);
  loop_->OnMessage(1, welcome);
  EXPECT_FALSE(loop_->attempts().has_session());
  for (int i = 0; i < 10 && restarts_ == 0; ++i) {
    now_ns_ += 10 * kSecond;
    v1::SchedulerMessage check = later_epoch("one");
    check.mutable_check_host()->set_request(1);
    loop_->OnMessage(1, check);
    loop_->Turn();
  }
  EXPECT_EQ(restarts_, 1);
  std::filesystem::rename(directory_ + ".away", directory_);
  loop_->OnClosed("restarted", /*ours=*/true);
  loop_->OnOpened(2);
  welcome = later_epoch("two");
  welcome.mutable_welcome()->set_lease_ns(10 * kSecond);
  loop_->OnMessage(2, welcome);
  EXPECT_TRUE(loop_->attempts().has_session());
}

TEST_F(AgentLoopTest, HeartbeatsComeAtTheirIntervalWhileThereIsASession) {
  Welcome(1, "one");
  for (int i = 0; i < 9; ++i) {
    now_ns_ += kSecond;
    EXPECT_LE(loop_->Turn(), now_ns_ + kSecond);
    loop_->OnMessage(1, InSession("one"));  // not understood, and heard
  }
  EXPECT_EQ(Heartbeats(), 3);
  loop_->OnClosed("gone");
  now_ns_ += 30 * kSecond;
  loop_->Turn();
  EXPECT_EQ(Heartbeats(), 3);
}

TEST_F(AgentLoopTest, WhatAnEarlierStreamStillBringsIsNotHeardAndStartsNothing) {
  Welcome(1, "one");
  loop_->OnClosed("gone");
  loop_->OnMessage(1, Launch("one"));
  EXPECT_TRUE(spawned_.empty()) << "no session";
  Welcome(2, "two");
  now_ns_ += 9 * kSecond;
  loop_->OnMessage(1, Launch("one"));
  v1::SchedulerMessage welcome = InSession("one");
  welcome.mutable_welcome();
  loop_->OnMessage(1, welcome);
  EXPECT_TRUE(spawned_.empty());
  EXPECT_EQ(loop_->attempts().session().session(), "two");
  now_ns_ += kSecond;
  loop_->Turn();
  EXPECT_FALSE(loop_->attempts().has_session()) << "its words put the lease off";
}

TEST_F(AgentLoopTest, ReportsAreSentToWhoAsksForThemAndAreNoOutput) {
  Welcome(1, "one");
  loop_->OnMessage(1, Launch("one"));
  ASSERT_EQ(spawned_.size(), 1u);
  const std::string logs = state_->LogDirectory(spawned_[0]);
  std::filesystem::create_directories(logs);
  std::ofstream(logs + "/" + shim::LogFileName(0, 0)) << "output\n";
  std::ofstream(logs + "/" + shim::LogFileName(shim::kReports, 0)) << "{\"step\":1}\n{}\n";
  const auto read = [&](int32_t rank, int64_t from) {
    sent_.clear();
    v1::SchedulerMessage request = InSession("one");
    *request.mutable_log_request()->mutable_key() = KeyOf(spawned_[0]);
    request.mutable_log_request()->set_request(7);
    request.mutable_log_request()->set_rank(rank);
    if (from > 0) (*request.mutable_log_request()->mutable_from())[rank] = from;
    loop_->OnMessage(1, request);
    now_ns_ += kSecond;
    loop_->Turn();
    std::string data;
    for (const auto& [stream, message] : sent_) data += message.log_chunk().data();
    return data;
  };
  EXPECT_EQ(read(-1, 0), "output\n");
  EXPECT_EQ(read(0, 0), "output\n");
  EXPECT_EQ(read(shim::kReports, 0), "{\"step\":1}\n{}\n");
  EXPECT_EQ(read(shim::kReports, 11), "{}\n");
}

// However fast the stream takes it: heartbeats and commands come between.
TEST_F(AgentLoopTest, MuchOutputIsReadInTurnsAndHoldsUpNobodyElses) {
  Welcome(1, "one");
  loop_->OnMessage(1, Launch("one"));
  ASSERT_EQ(spawned_.size(), 1u);
  const std::string logs = state_->LogDirectory(spawned_[0]);
  std::filesystem::create_directories(logs);
  constexpr size_t kLines = 1'500'000;
  {
    std::ofstream much(logs + "/" + shim::LogFileName(0, 0));
    for (size_t i = 0; i < kLines; ++i) much << (1'000'000 + i) << "\n";
    std::ofstream(logs + "/" + shim::LogFileName(1, 0)) << "little\n";
  }
  for (int32_t rank = 0; rank < 2; ++rank) {
    v1::SchedulerMessage request = InSession("one");
    *request.mutable_log_request()->mutable_key() = KeyOf(spawned_[0]);
    request.mutable_log_request()->set_request(static_cast<uint64_t>(7 + rank));
    request.mutable_log_request()->set_rank(rank);
    request.mutable_log_request()->set_tail_lines(kLines - 1);
    loop_->OnMessage(1, request);
  }
  std::map<uint64_t, std::string> data;
  std::vector<uint64_t> ended;
  int turns = 0;
  for (; ended.size() < 2; ++turns) {
    ASSERT_LT(turns, 100);
    sent_.clear();
    const int64_t next_ns = loop_->Turn();
    size_t bytes = 0;
    for (const auto& [stream, message] : sent_) {
      bytes += message.log_chunk().data().size();
      data[message.log_chunk().request()] += message.log_chunk().data();
      if (message.log_chunk().end()) ended.push_back(message.log_chunk().request());
    }
    EXPECT_LE(bytes, size_t{5} << 20);
    if (ended.size() < 2) {
      EXPECT_EQ(next_ns, now_ns_) << "goes on at once";
    }
  }
  EXPECT_GE(turns, 5) << "twelve megabytes, looked through and sent";
  EXPECT_EQ(ended, (std::vector<uint64_t>{8, 7})) << "the short answer doesn't wait for the long";
  EXPECT_EQ(data[8], "little\n");
  EXPECT_EQ(data[7].size(), 8 * (kLines - 1));
  EXPECT_EQ(data[7].substr(0, 8), "1000001\n");
}

TEST_F(AgentLoopTest, OutputThatWasAskedForEndsWithTheStream) {
  Welcome(1, "one");
  loop_->OnMessage(1, Launch("one"));
  ASSERT_EQ(spawned_.size(), 1u);
  const std::string logs = state_->LogDirectory(spawned_[0]);
  std::filesystem::create_directories(logs);
  const auto write = [&](const char* line) {
    std::ofstream(logs + "/" + shim::LogFileName(0, 0), std::ios::app) << line;
  };
  write("one\n");
  v1::SchedulerMessage request = InSession("one");
  *request.mutable_log_request()->mutable_key() = KeyOf(spawned_[0]);
  request.mutable_log_request()->set_request(7);
  request.mutable_log_request()->set_rank(-1);
  request.mutable_log_request()->set_follow(true);
  loop_->OnMessage(1, request);
  loop_->Turn();
  const auto chunks = [&] {
    return std::count_if(sent_.begin(), sent_.end(),
                         [](const auto& sent) { return sent.second.has_log_chunk(); });
  };
  EXPECT_EQ(chunks(), 1);
  loop_->OnClosed("gone");
  write("two\n");
  Welcome(2, "two");
  now_ns_ += kSecond;
  loop_->Turn();
  EXPECT_EQ(chunks(), 1) << "numbers of requests are of the session that asked";
}

TEST_F(AgentLoopTest, AnAttemptWhoseShimDiedIsGoneOnceNothingOfItIsLeft) {
  Welcome(1, "one");
  loop_->OnMessage(1, Launch("one"));
  ASSERT_EQ(spawned_.size(), 1u);
  const AttemptId id = spawned_[0];
  shim::Claim winner = shim::Claim::kNone;
  ASSERT_EQ(shim::MakeClaim(state_->AttemptDirectory(id), shim::Claim::kStarted, &winner), 0);
  loop_->OnFiles(id);
  lives_ = false;
  strays_ = true;
  loop_->OnShimEnded(id);
  EXPECT_FALSE(loop_->attempts().Find(id)->gone());
  EXPECT_LE(loop_->Turn(), now_ns_ + 20 * kMillisecond) << "looked at again soon";
  strays_ = false;
  loop_->Turn();
  EXPECT_TRUE(loop_->attempts().Find(id)->gone());
}

TEST_F(AgentLoopTest, WhoseClaimCannotBeReadStartsNothingAndIsGoneOnceNothingOfItRuns) {
  Welcome(1, "one");
  loop_->OnMessage(1, Launch("one"));
  ASSERT_EQ(spawned_.size(), 1u);
  const AttemptId id = spawned_[0];
  const std::string claim = state_->AttemptDirectory(id) + "/" + shim::kClaimFile;
  std::ofstream(claim) << "damaged";
  StartAgent();
  Welcome(2, "two");
  loop_->OnMessage(2, Launch("two"));
  EXPECT_EQ(spawned_.size(), 1u);
  EXPECT_FALSE(loop_->attempts().Find(id)->gone()) << "its shim lives";
  lives_ = false;
  strays_ = true;
  loop_->OnShimEnded(id);
  EXPECT_FALSE(loop_->attempts().Find(id)->gone());
  strays_ = false;
  loop_->Turn();
  EXPECT_TRUE(loop_->attempts().Find(id)->gone());
  EXPECT_EQ(sent_.back().second.report().phase(), v1::GONE);
}

// As after a restart, though no word of its start was heard before.
TEST_F(AgentLoopTest, WhoseClaimIsDamagedMeanwhileStartsNothingMoreAndIsGoneOnceNothingOfItRuns) {
  Welcome(1, "one");
  loop_->OnMessage(1, Launch("one"));
  ASSERT_EQ(spawned_.size(), 1u);
  const AttemptId id = spawned_[0];
  std::ofstream(state_->AttemptDirectory(id) + "/" + shim::kClaimFile) << "damaged";
  loop_->OnFiles(id);
  EXPECT_FALSE(loop_->attempts().Find(id)->gone()) << "its shim lives";
  lives_ = false;
  strays_ = true;
  loop_->OnShimEnded(id);
  loop_->OnMessage(1, Launch("one"));
  EXPECT_EQ(spawned_.size(), 1u);
  EXPECT_FALSE(loop_->attempts().Find(id)->gone());
  strays_ = false;
  loop_->Turn();
  EXPECT_TRUE(loop_->attempts().Find(id)->gone());
  EXPECT_EQ(sent_.back().second.report().phase(), v1::GONE);
  loop_->OnMessage(1, Launch("one"));
  EXPECT_EQ(spawned_.size(), 1u);
}

TEST_F(AgentLoopTest, WhatAShimAddsToItsEventsIsToldOnceAndKeptUntilItIsAcknowledged) {
  Welcome(1, "one");
  loop_->OnMessage(1, Launch("one"));
  ASSERT_EQ(spawned_.size(), 1u);
  const AttemptId id = spawned_[0];
  const std::string directory = state_->AttemptDirectory(id);
  shim::Claim winner = shim::Claim::kNone;
  ASSERT_EQ(shim::MakeClaim(directory, shim::Claim::kStarted, &winner), 0);
  for (int step = 1; step <= 3; ++step) {
    const std::string json = "{\"checkpoint\":{\"step\":" + std::to_string(step) +
                             ",\"path\":\"/c/" + std::to_string(step) + "\"}}";
    std::ofstream(directory + "/" + shim::kEventsFile, std::ios::app)
        << shim::FormatLine(shim::Line{"line"}.Add("at_ns", int64_t{step}).Add("json", json));
    sent_.clear();
    for (int again = 0; again < 2; ++again) loop_->OnFiles(id);
    std::vector<uint64_t> told;
    for (const auto& [stream, message] : sent_) {
      if (message.has_checkpoint()) told.push_back(message.checkpoint().sequence());
    }
    EXPECT_EQ(told, std::vector<uint64_t>{static_cast<uint64_t>(step)});
  }
  EXPECT_EQ(loop_->attempts().Find(id)->checkpoints.size(), 3u);
  v1::SchedulerMessage ack = InSession("one");
  *ack.mutable_checkpoint_ack()->mutable_key() = KeyOf(id);
  ack.mutable_checkpoint_ack()->set_sequence(2);
  loop_->OnMessage(1, ack);
  ASSERT_EQ(loop_->attempts().Find(id)->checkpoints.size(), 1u);
  EXPECT_EQ(loop_->attempts().Find(id)->checkpoints[0].sequence(), 3u);
}

// What its shim wrote, and looks at its GPU, reach the scheduler with a heartbeat.
TEST_F(AgentLoopTest, AHeartbeatTellsWhatAnAttemptUses) {
  Welcome(1, "one");
  v1::SchedulerMessage launch = Launch("one");
  launch.mutable_prepare()->mutable_here()->add_devices(0);
  loop_->OnMessage(1, launch);
  ASSERT_EQ(spawned_.size(), 1u);
  const std::string directory = state_->AttemptDirectory(spawned_[0]);
  shim::Claim winner = shim::Claim::kNone;
  ASSERT_EQ(shim::MakeClaim(directory, shim::Claim::kStarted, &winner), 0);
  shim::ReplaceFile(directory, shim::kUsageFile,
                    shim::FormatUsage({10 * kSecond, 4096, 7'000'000, 900}), false);
  loop_->OnFiles(spawned_[0]);
  loop_->OnGpus({{0, 1000, 10, 100}});  // nobody knows what was before the first look
  now_ns_ += 5 * kSecond;
  loop_->OnGpus({{0, 400, 20, 100}});
  loop_->Turn();
  ASSERT_TRUE(sent_.back().second.has_report());  // repeated behind the heartbeat
  const auto beat = std::find_if(sent_.rbegin(), sent_.rend(),
                                 [](const auto& sent) { return sent.second.has_heartbeat(); });
  ASSERT_NE(beat, sent_.rend());
  ASSERT_EQ(beat->second.heartbeat().usages_size(), 1);
  const v1::HostUsage& usage = beat->second.heartbeat().usages(0).usage();
  EXPECT_EQ(usage.cpu_us(), 7'000'000);
  EXPECT_EQ(usage.memory_peak_bytes(), 4096);
  EXPECT_EQ(usage.gpus().watched_ns(), 5 * kSecond);
  EXPECT_EQ(usage.gpus().busy_ns(), 2 * kSecond);
  EXPECT_EQ(usage.gpus().memory_peak_bytes(), 20);
}

}  // namespace
}  // namespace muster::agent
