// What the agent tells of what attempts use: how often, to whom, and after restarts.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "agent/reconcile/reconciler.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

const AttemptId kUsing{std::string(32, 'a'), "main", 1};

struct Kept final : Files, Processes, Sender {
  absl::Status PersistPrepared(const AttemptRecord&, bool) override { return absl::OkStatus(); }
  absl::StatusOr<Claim> ClaimStopped(const AttemptRecord&) override { return Claim::kStarted; }
  absl::Status PersistStop(const AttemptRecord&) override { return absl::OkStatus(); }
  absl::Status Renew(const AttemptRecord&) override { return absl::OkStatus(); }
  absl::Status PersistOutcome(const AttemptRecord&) override { return absl::OkStatus(); }
  absl::Status KeepGpus(const AttemptRecord& record) override {
    ++kept;
    gpus = record.gpus;
    return absl::OkStatus();
  }
  absl::Status PersistSeen(const Seen&, bool) override { return absl::OkStatus(); }
  absl::Status Forget(const AttemptId&) override { return absl::OkStatus(); }
  absl::Status Publish(const AttemptRecord&, const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<int32_t> Prepare(const v1::Prepare&) override { return 20001; }
  absl::Status SpawnShim(const AttemptRecord&) override { return absl::OkStatus(); }
  void SignalShim(const AttemptId&) override {}
  bool ShimLives(const AttemptId&) override { return true; }
  void Send(v1::AgentMessage message) override { sent.push_back(std::move(message)); }

  int kept = 0;
  GpuRecord gpus;
  std::vector<v1::AgentMessage> sent;
};

class UsagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    record_.id = kUsing;
    record_.prepared = true;
    record_.claim = Claim::kStarted;
    record_.boot_id = "boot";
    record_.prepare.mutable_here()->add_devices(0);
    record_.prepare.mutable_here()->add_devices(2);
    Begin();
  }
  // An agent that is started anew finds this record.
  void Begin() {
    agent_ = std::make_unique<Reconciler>(HostIds{"lab", "a", std::string(32, 'e'), "boot"},
                                          std::vector<AttemptRecord>{record_}, Seen{}, &kept_,
                                          &kept_, &kept_);
    Welcome("s1");
  }
  void Welcome(const std::string& session) {
    v1::SchedulerMessage message;
    message.mutable_session()->set_store_id("store");
    message.mutable_session()->set_epoch(3);
    message.mutable_session()->set_session(session);
    message.mutable_session()->set_state_id(std::string(32, 'e'));
    message.mutable_welcome();
    ASSERT_TRUE(agent_->OnMessage(message, 1000));
  }
  ShimNews Ran(int64_t seconds) {
    ShimNews news;
    news.claim = Claim::kStarted;
    news.alive = true;
    news.usage.set_ran_ns(seconds * kSecond);
    news.usage.set_cpu_us(seconds * 1'000'000);
    return news;
  }
  std::vector<v1::AttemptUsage> Beat(int64_t at_s) {
    v1::Heartbeat heartbeat;
    agent_->AddUsages(at_s * kSecond, &heartbeat);
    return {heartbeat.usages().begin(), heartbeat.usages().end()};
  }
  const v1::AttemptReport& LastReport() { return kept_.sent.back().report(); }

  Kept kept_;
  AttemptRecord record_;
  std::unique_ptr<Reconciler> agent_;
};

TEST_F(UsagesTest, HeartbeatsTellWhatIsNewOnceAMinuteAndToEachSession) {
  EXPECT_TRUE(Beat(1).empty()) << "nothing is known yet";
  agent_->OnShim(kUsing, Ran(1), 0);
  ASSERT_EQ(Beat(2).size(), 1u);
  agent_->OnShim(kUsing, Ran(9), 0);
  EXPECT_TRUE(Beat(10).empty()) << "within the minute";
  const std::vector<v1::AttemptUsage> told = Beat(70);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].usage().cpu_us(), 9'000'000);
  EXPECT_FALSE(told[0].usage().has_gpus());
  EXPECT_TRUE(Beat(200).empty()) << "it is no news";
  Welcome("s2");
  EXPECT_EQ(Beat(201).size(), 1u) << "nobody has heard of it there";
}

TEST_F(UsagesTest, TheEndTellsAllOnceAndForAllThatRepeatIt) {
  agent_->OnShim(kUsing, Ran(5), 0);
  ShimNews news = Ran(8);
  news.final = true;
  agent_->OnShim(kUsing, news, 0);
  EXPECT_EQ(LastReport().phase(), v1::GONE);
  EXPECT_EQ(LastReport().usage().cpu_us(), 8'000'000);
  EXPECT_TRUE(Beat(100).empty()) << "what has ended is no news";
  Begin();  // its exit records are read again
  agent_->OnShim(kUsing, news, 0);
  EXPECT_EQ(LastReport().usage().cpu_us(), 8'000'000) << "neither lost nor doubled";
  EXPECT_EQ(LastReport().usage().ran_ns(), 8 * kSecond);
}

TEST_F(UsagesTest, OfAShimThatDiedTheLastWordCounts) {
  agent_->OnShim(kUsing, Ran(5), 0);
  ShimNews news = Ran(5);
  news.alive = false;
  agent_->OnShim(kUsing, news, 0);
  EXPECT_EQ(LastReport().phase(), v1::GONE);
  EXPECT_EQ(LastReport().usage().cpu_us(), 5'000'000);
}

TEST_F(UsagesTest, OlderShimsTellNothingAndSoDoesTheAgent) {
  ShimNews news;
  news.claim = Claim::kStarted;
  news.alive = true;
  agent_->OnShim(kUsing, news, 0);
  agent_->OnGpus({{0, 500, 10, 100}}, kSecond, kSecond);
  EXPECT_TRUE(Beat(100).empty());
  news.final = true;
  agent_->OnShim(kUsing, news, 0);
  EXPECT_EQ(LastReport().phase(), v1::GONE);
  EXPECT_FALSE(LastReport().has_usage());
}

TEST_F(UsagesTest, ItsOwnGpusAreWatchedAndWhatTheyDidOutlivesTheAgent) {
  const std::vector<GpuLook> looks = {{0, 1000, 30, 100}, {1, 1000, 99, 100}, {2, 0, 10, 100}};
  agent_->OnShim(kUsing, Ran(5), 0);
  agent_->OnGpus(looks, 100 * kSecond, 5 * kSecond);
  EXPECT_EQ(kept_.kept, 1);
  agent_->OnShim(kUsing, Ran(10), 0);
  agent_->OnGpus(looks, 105 * kSecond, 5 * kSecond);
  EXPECT_EQ(kept_.kept, 1) << "not at each look";
  agent_->OnShim(kUsing, Ran(70), 0);
  agent_->OnGpus({{0, 500, 80, 100}, {2, 100, 10, 100}}, 165 * kSecond, 5 * kSecond);
  EXPECT_EQ(kept_.kept, 2);
  record_.gpus = kept_.gpus;
  Begin();
  ShimNews news = Ran(90);
  news.final = true;
  agent_->OnShim(kUsing, news, 0);
  EXPECT_EQ(kept_.kept, 3) << "a restart finds what it told";
  const v1::GpuUsage& gpus = LastReport().usage().gpus();
  EXPECT_EQ(gpus.watched_ns(), 30 * kSecond) << "device 1 is another's";
  EXPECT_EQ(gpus.busy_ns(), 13 * kSecond);
  EXPECT_EQ(gpus.memory_peak_bytes(), 80);
  EXPECT_EQ(gpus.memory_bytes(), 100);
  ASSERT_EQ(gpus.busy_permille_size(), 2);
  EXPECT_EQ(gpus.busy_permille(0), 500);
  EXPECT_EQ(gpus.busy_permille(1), 300);
}

TEST_F(UsagesTest, OfAPartOfAGpuNobodyCanTell) {
  record_.prepare.mutable_here()->add_device_milli(500);
  Begin();
  agent_->OnShim(kUsing, Ran(5), 0);
  agent_->OnGpus({{0, 1000, 30, 100}}, 100 * kSecond, 5 * kSecond);
  ASSERT_EQ(Beat(101).size(), 1u);
  agent_->OnShim(kUsing, Ran(65), 0);
  EXPECT_FALSE(Beat(165).at(0).usage().has_gpus());
}

TEST(GpuRecord, ALongRunKeepsAsManySlotsAsAShortOneAndItsSums) {
  GpuRecord record;
  for (int64_t minute = 0; minute < 1000; ++minute)
    AddLooks({{0, minute % 2 == 0 ? 1000 : 0, minute, 2000}}, minute * kMinute + kSecond, kSecond,
             &record);
  const v1::GpuUsage usage = UsageOf(record);
  EXPECT_LE(usage.busy_permille_size(), static_cast<int>(kGpuSlots));
  EXPECT_EQ(usage.slot_ns(), 16 * kMinute);
  EXPECT_EQ(usage.busy_permille(0), 500);
  EXPECT_EQ(usage.watched_ns(), 1000 * kSecond);
  EXPECT_EQ(usage.busy_ns(), 500 * kSecond);
  EXPECT_EQ(usage.memory_peak_bytes(), 999);
}

TEST(GpuRecord, WhereNobodyWatchedItSaysSo) {
  GpuRecord record;
  AddLooks({{0, 700, 1, 10}}, kSecond, kSecond, &record);
  AddLooks({{0, 700, 1, 10}}, 3 * kMinute, kSecond, &record);
  AddLooks({{0, 5000, 1, 10}}, 0, kSecond, &record);
  const v1::GpuUsage usage = UsageOf(record);
  ASSERT_EQ(usage.busy_permille_size(), 3);
  EXPECT_EQ(usage.busy_permille(0), 700);
  EXPECT_EQ(usage.busy_permille(1), -1);
}

}  // namespace
}  // namespace muster::agent
