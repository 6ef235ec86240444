#include "scheduler/agents/live_usage.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/agents/testing/sessions_fixture.h"

namespace muster {
namespace {

pb::AgentMessage Using(int64_t cpu_us, int32_t attempt = 1) {
  pb::AgentMessage message = Beat();
  pb::AttemptUsage* told = message.mutable_heartbeat()->add_usages();
  *told->mutable_key() = Key(attempt);
  told->mutable_usage()->set_ran_ns(kSecond);
  told->mutable_usage()->set_cpu_us(cpu_us);
  return message;
}

class LiveUsageTest : public SessionsTest {
 protected:
  int64_t CpuUs(int32_t attempt = 1) {
    const std::map<std::string, pb::HostUsage> usage = sessions_->UsageOf(Key(attempt));
    EXPECT_LE(usage.size(), 1u);
    return usage.empty() ? -1 : usage.at("h1").cpu_us();
  }
};

TEST_F(LiveUsageTest, TheNewestWordCountsAndNothingIsWritten) {
  const StreamPtr stream = Connect();
  Submit();
  EXPECT_EQ(CpuUs(), -1);
  Say(stream, Using(5));
  EXPECT_EQ(CpuUs(), 5);
  EXPECT_EQ(Commits(), 0u) << "a heartbeat is no event, with usage in it or not";
  Say(stream, Using(9));
  EXPECT_EQ(CpuUs(), 9);
  EXPECT_EQ(Commits(), 0u);
  Say(stream, Beat(3));
  EXPECT_EQ(CpuUs(), 9) << "no word is no news";
}

TEST_F(LiveUsageTest, WhatIsAbsurdOrOfNobodyIsDroppedAndTheHeartbeatCounts) {
  const StreamPtr stream = Connect();
  Submit();
  Say(stream, Using(5));
  const size_t before = stream->sent.size();
  Say(stream, Using(-1));
  Say(stream, Using(5, 77));
  EXPECT_EQ(CpuUs(), 5);
  EXPECT_EQ(CpuUs(77), -1);
  EXPECT_EQ(stream->sent.size(), before + 2) << "both were acknowledged";
  const StreamPtr other = Connect("h2", kStateB);
  Say(other, Using(100));
  EXPECT_EQ(CpuUs(), 5) << "it doesn't run there";
}

TEST_F(LiveUsageTest, ASchedulerThatIsStartedAnewKnowsNothingUntilItIsToldAgain) {
  const StreamPtr stream = Connect();
  Submit();
  Say(stream, Using(5));
  State kept = state();
  Start(std::move(kept));
  EXPECT_EQ(CpuUs(), -1);
  const StreamPtr again = Connect();
  Say(again, Using(6));
  EXPECT_EQ(CpuUs(), 6);
}

TEST_F(LiveUsageTest, IsForgottenSomeTimeAfterTheEnd) {
  LiveUsage usage;
  Connect();
  Submit();
  const pb::AgentMessage message = Using(5);
  usage.Told(state(), "lab", "h1", message.heartbeat().usages());
  EXPECT_EQ(usage.size(), 1u);
  usage.Forget(state(), kHour);
  EXPECT_EQ(usage.size(), 1u) << "it runs";
  usage.Forget(State(), kHour + kSecond);
  EXPECT_EQ(usage.size(), 1u) << "not at each look";
  usage.Forget(State(), kHour + kMinute);
  EXPECT_EQ(usage.size(), 0u);
}

}  // namespace
}  // namespace muster
