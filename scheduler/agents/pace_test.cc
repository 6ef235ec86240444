#include "scheduler/agents/pace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/units.h"
#include "scheduler/agents/testing/sessions_fixture.h"

namespace muster {
namespace {

TEST(Pace, RestsOnlyAboveWhatMayComeAtOnceAndThenInTheMean) {
  int64_t now_ns = 1'000'000 * kSecond;
  Pace pace;
  for (int i = 0; i < 4000; ++i) pace.Take(Pace::kMessageNs, now_ns);
  EXPECT_EQ(pace.RestNs(now_ns), 0);
  int read = 0;
  for (const int64_t end_ns = now_ns + 10 * kSecond; now_ns < end_ns; ++read) {
    pace.Take(Pace::kMessageNs, now_ns);
    now_ns += pace.RestNs(now_ns);
  }
  EXPECT_NEAR(read, 2000, 20) << "200 a second for ten seconds";
  now_ns += 20 * kSecond;
  for (int i = 0; i < 3900; ++i) pace.Take(Pace::kMessageNs, now_ns);
  EXPECT_EQ(pace.RestNs(now_ns), 0) << "it has rested";
}

TEST(Pace, OneMessageHasARestOfASecondAtMost) {
  Pace pace;
  pace.Take(int64_t{1'000'000} * Pace::kMessageNs, kSecond);
  EXPECT_EQ(pace.RestNs(kSecond), Pace::kMostRestNs + Pace::kLeastRestNs);
  EXPECT_EQ(pace.RestNs(kSecond + Pace::kMostRestNs), 0);
}

TEST(Pace, WhatIsLongCostsAsMuchAsSeveral) {
  const struct {
    size_t bytes;
    int64_t messages;
  } cases[] = {{0, 1}, {4095, 1}, {4096, 2}, {320 << 10, 81}};
  for (const auto& test : cases)
    EXPECT_EQ(Pace::CostOf(test.bytes), test.messages * Pace::kMessageNs) << test.bytes;
}

TEST(Pace, HellosHaveABucketOfTheirOwnThatLongOnesEmptySooner) {
  int64_t now_ns = 1'000'000 * kSecond;
  Pace pace;
  const auto taken = [&](size_t bytes) {
    int count = 0;
    while (pace.TakeHello(bytes, now_ns)) ++count;
    return count;
  };
  EXPECT_EQ(taken(100), 100);
  EXPECT_EQ(pace.RestNs(now_ns), 0) << "a bucket of their own";
  now_ns += kSecond;
  EXPECT_EQ(taken(100), 4);
  now_ns += kHour;
  EXPECT_EQ(taken(320 << 10), 16) << "each as six";
}

class PaceOfSessions : public SessionsTest {
 protected:
  // Each another one than those before.
  static pb::AgentMessage NewFault(int64_t number) {
    pb::AgentMessage message;
    message.mutable_fault()->set_device(0);
    message.mutable_fault()->set_detail("Xid 31");
    message.mutable_fault()->set_at_ns(number);
    return message;
  }
  void SayFaults(const StreamPtr& stream, int64_t first, int64_t end) {
    for (int64_t number = first; number < end; ++number) Say(stream, NewFault(number));
  }
};

TEST_F(PaceOfSessions, WhoSaysTooMuchThatIsNewIsReadOnLaterAndTheOthersAreNot) {
  const StreamPtr busy = Connect("h1", kStateA), quiet = Connect("h2", kStateB);
  SayFaults(busy, 1, 3000);
  EXPECT_EQ(sessions_->RestNs(busy.get()), 0);
  SayFaults(busy, 3000, 4500);
  EXPECT_GT(sessions_->RestNs(busy.get()), 0);
  EXPECT_LE(sessions_->RestNs(busy.get()), 2 * kSecond);
  EXPECT_EQ(sessions_->RestNs(quiet.get()), 0);
  EXPECT_EQ(sessions_->Rests(), 2u) << "as often as it was asked and had to rest";
  const StreamPtr again = Connect("h1", kStateA);
  EXPECT_GT(sessions_->RestNs(again.get()), 0) << "a new stream is the same host's";
  clock_.now_ns += 30 * kSecond;
  EXPECT_EQ(sessions_->RestNs(again.get()), 0);
  EXPECT_EQ(sessions_->RestNs(busy.get()), 0) << "it was replaced";
}

// Each report is repeated at each heartbeat; 1,000 attempts on a host aren't too many.
TEST_F(PaceOfSessions, RepetitionsProgressAndOutputAreLight) {
  Submit();
  const StreamPtr stream = Connect();
  engine_->Step();
  Say(stream, NewFault(1));
  pb::AgentMessage progress, output;
  *progress.mutable_progress()->mutable_key() = Key();
  progress.mutable_progress()->mutable_progress()->set_step(5);
  output.mutable_log_chunk()->set_request(1);
  for (int i = 0; i < 20'000; ++i) {
    Say(stream, NewFault(1));
    Say(stream, i % 2 == 0 ? progress : output);
  }
  EXPECT_EQ(sessions_->RestNs(stream.get()), 0);
  for (int i = 0; i < 40'000; ++i) Say(stream, output);
  EXPECT_GT(sessions_->RestNs(stream.get()), 0) << "but not for nothing";
}

TEST_F(PaceOfSessions, WhatIsOfNoSessionThatLivesIsLight) {
  const StreamPtr stream = Connect();
  for (int i = 0; i < 60'000; ++i) Say(stream, Beat(), "another");
  EXPECT_EQ(sessions_->RestNs(stream.get()), 0);
  for (int i = 0; i < 10'000; ++i) Say(stream, Beat(), "another");
  EXPECT_GT(sessions_->RestNs(stream.get()), 0) << "but not for nothing";
}

TEST_F(PaceOfSessions, WhoHasSaidTooMuchIsNotServedOnANewStreamEither) {
  const auto from_network = [&](const std::string& host, const std::string& state_id) {
    const auto stream = std::make_shared<FakeStream>(&log_);
    stream->from_network = true;
    pb::AgentMessage message;
    *message.mutable_hello() = HelloOf(host, state_id);
    EXPECT_TRUE(sessions_->Receive(stream, message).ok());
    return stream;
  };
  const StreamPtr first = from_network("h1", kStateA);
  engine_->Step();
  SayFaults(first, 1, 4500);
  const StreamPtr next = from_network("h1", kStateA);
  ASSERT_TRUE(Refused(next));
  EXPECT_THAT(next->sent[0].refused().reason(), ::testing::HasSubstr("said too much"));
  EXPECT_FALSE(next->sent[0].refused().final());
  EXPECT_FALSE(first->ended.has_value()) << "it goes on";
  EXPECT_FALSE(Refused(from_network("h2", kStateB))) << "another host";
  clock_.now_ns += 2 * kSecond;
  EXPECT_FALSE(Refused(from_network("h1", kStateA)));
  EXPECT_TRUE(first->ended.has_value()) << "it was replaced";
}

// Each is of a new stream, on which nothing was read before.
TEST_F(PaceOfSessions, WhoBeginsTooManySessionsIsRefusedForNow) {
  for (int i = 0; i < 100; ++i) Connect("h1", kStateA);
  const StreamPtr refused = Open(HelloOf("h1", kStateA));
  ASSERT_TRUE(Refused(refused));
  EXPECT_THAT(refused->sent[0].refused().reason(), ::testing::HasSubstr("oftener than it may"));
  EXPECT_FALSE(refused->sent[0].refused().final());
  EXPECT_FALSE(Refused(Open(HelloOf("h1", kStateA), /*trusted=*/true))) << "this machine's own";
  EXPECT_FALSE(Refused(Open(HelloOf("h2", kStateB)))) << "another host";
  clock_.now_ns += kSecond;
  EXPECT_FALSE(Refused(Open(HelloOf("h1", kStateA))));
}

TEST_F(PaceOfSessions, LongMessagesCostAsMuchAsTheyAreLong) {
  const StreamPtr stream = Connect();
  pb::AgentMessage message = Reported(pb::GONE);
  message.mutable_report()->set_detail(std::string(16 << 10, 'x'));
  for (int attempt = 1; attempt <= 900; ++attempt) {
    message.mutable_report()->mutable_key()->set_attempt(attempt);
    Say(stream, message);
  }
  EXPECT_GT(sessions_->RestNs(stream.get()), 0) << "900 messages, as long as 4,500";
}

TEST_F(PaceOfSessions, AHelloCostsWhatItSays) {
  pb::Hello hello = HelloOf("h1", kStateA);
  const StreamPtr few = Open(hello);
  EXPECT_EQ(sessions_->RestNs(few.get()), 0);
  for (int i = 0; i < 5000; ++i) {
    pb::AttemptReport* report = hello.add_attempts();
    *report->mutable_key() = Key(i + 1);
    report->set_phase(pb::GONE);
  }
  const StreamPtr many = Open(hello);
  EXPECT_GT(sessions_->RestNs(many.get()), 0);
}

}  // namespace
}  // namespace muster
