// Sessions of a store that was restored, or is served twice: who says so, and who is believed
// (contract 19, decision 169).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "common/base/units.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/agents/testing/sessions_fixture.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCantShow[] = "can't show that musterd told it so";

TEST_F(SessionsTest, AnAgentThatHasSeenMoreEndsAllChanges) {
  const StreamPtr served = Connect("h1");
  const size_t told = served->sent.size();
  pb::Hello hello = HelloOf("h2", kStateB);
  Claim(kEpoch, commit_ + 100, &hello);
  const StreamPtr later = Open(hello);
  ASSERT_EQ(later->sent.size(), 1u);
  EXPECT_FALSE(later->sent[0].refused().final());
  absl::Status said;
  engine_->Call(
      [](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        return std::vector<pb::Event>();
      },
      [&](absl::Status s) { said = s; });
  EXPECT_FALSE(engine_->Step());
  EXPECT_EQ(said.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(said.message()), ::testing::HasSubstr("--adopt-restored"));
  EXPECT_EQ(engine_->WhyNotServing(), said.message());
  EXPECT_TRUE(served->ended.has_value()) << "whom it serves may be served elsewhere";
  Say(served, Beat());
  EXPECT_EQ(served->sent.size(), told);
  EXPECT_TRUE(Refused(Open(HelloOf("h1", kStateA))))
      << "also who has seen nothing of it: it is to wait before it asks again";
}

// Security: one host with a certificate could make musterd read-only.
TEST_F(SessionsTest, WhoCantShowWhatItHasSeenIsRefusedAlone) {
  const StreamPtr served = Connect("h1");
  const std::string other_key = "another store's";
  const struct {
    const char* what;
    std::function<void(pb::Hello*)> change;
  } cases[] = {
      {"no MAC", [](pb::Hello* h) { Claim(kEpoch + 1, 9, h, ""); }},
      {"another key's", [&](pb::Hello* h) { Claim(kEpoch + 1, 9, h, other_key); }},
      {"a shorter one",
       [](pb::Hello* h) {
         Claim(kEpoch + 1, 9, h);
         h->mutable_mac_seen()->pop_back();
       }},
      {"of an earlier epoch",
       [](pb::Hello* h) {
         Claim(kEpoch, 9, h);
         h->set_epoch_seen(kEpoch + 1);
       }},
      {"of an earlier commit",
       [](pb::Hello* h) {
         Claim(kEpoch, 1, h);
         h->set_commit_seen(1000);
       }},
      {"of another store",
       [](pb::Hello* h) {
         Claim(kEpoch + 1, 9, h);
         h->set_mac_seen(MacOfSeen(kMacKey, std::string(32, 'e'), kEpoch + 1, 9));
       }},
      {"as it was told, of more than that",
       [&](pb::Hello* h) {
         Claim(kEpoch + 1, 9, h);
         h->set_mac_seen(served->sent[0].mac());
       }},
  };
  uint64_t refused = 0;
  for (const auto& c : cases) {
    pb::Hello hello = HelloOf("h2", kStateB);
    c.change(&hello);
    const StreamPtr stream = Open(hello);
    ASSERT_TRUE(Refused(stream)) << c.what;
    EXPECT_THAT(stream->sent[0].refused().reason(), HasSubstr(kCantShow)) << c.what;
    EXPECT_FALSE(stream->sent[0].refused().final())
        << "it may be the store: who adopts it, mends it";
    EXPECT_EQ(sessions_->Unproved(), ++refused) << c.what;
  }
  EXPECT_THAT(unproved_, ElementsAre("h2")) << "a host is told of once";
  EXPECT_EQ(restored_, 0);
  EXPECT_EQ(engine_->WhyNotServing(), "");
  EXPECT_FALSE(served->ended.has_value());
  const size_t told = served->sent.size();
  Say(served, Beat());
  EXPECT_GT(served->sent.size(), told);
  EXPECT_FALSE(Refused(Open(HelloOf("h2", kStateB)))) << "who claims nothing is served";
}

TEST_F(SessionsTest, WhatAnAgentIsToldComesWithTheMacThatItIsBelievedBy) {
  const StreamPtr stream = Connect("h1");
  Submit();
  Say(stream, Beat());
  ASSERT_GT(stream->sent.size(), 2u);
  std::set<uint64_t> commits;
  for (const pb::SchedulerMessage& message : stream->sent) {
    commits.insert(message.commit());
    EXPECT_EQ(message.mac(), MacOfSeen(kMacKey, kStore, kEpoch, message.commit()));
    EXPECT_EQ(message.mac().size(), kSeenMacBytes);
  }
  EXPECT_GT(commits.size(), 1u);
  // The scheduler of an older copy of the store, with the same master key.
  const pb::SchedulerMessage newest = stream->sent.back();
  commit_ = 1;
  Start(State());
  pb::Hello hello = HelloOf("h1", kStateA);
  hello.set_store_id_seen(newest.session().store_id());
  hello.set_epoch_seen(newest.session().epoch());
  hello.set_commit_seen(newest.commit());
  hello.set_mac_seen(newest.mac());
  EXPECT_TRUE(Refused(Open(hello)));
  EXPECT_EQ(restored_, 1);
  EXPECT_NE(engine_->WhyNotServing(), "");
}

// Root, or the user who runs musterd: they could stop it anyway, and need no certificate.
TEST_F(SessionsTest, WhoIsTrustedIsBelievedWithoutAMac) {
  for (const char* key : {kMacKey, ""}) {
    mac_key_ = key;
    Start(state());
    pb::Hello hello = HelloOf("h2", kStateB);
    Claim(kEpoch + 1, 0, &hello, "");
    EXPECT_TRUE(Refused(Open(hello, /*trusted=*/false)));
    EXPECT_EQ(engine_->WhyNotServing(), "") << key;
    EXPECT_TRUE(Refused(Open(hello, /*trusted=*/true)));
    EXPECT_NE(engine_->WhyNotServing(), "") << key;
  }
  EXPECT_EQ(restored_, 2);
}

TEST_F(SessionsTest, WithoutAKeyNoMacIsMadeAndNoneCounts) {
  mac_key_ = "";
  Start(state());
  const StreamPtr stream = Connect("h1");
  EXPECT_EQ(stream->sent[0].mac(), "");
  pb::Hello hello = HelloOf("h2", kStateB);
  Claim(kEpoch + 1, 0, &hello, "");
  EXPECT_TRUE(Refused(Open(hello)));
  EXPECT_EQ(engine_->WhyNotServing(), "");
}

TEST_F(SessionsTest, ARestoredStoreAwaitsItsHostsForALeaseAtMost) {
  Connect("h1");
  Connect("h2");
  const State before = state();
  Start(before);
  EXPECT_TRUE(sessions_->AwaitsHosts(state()));
  const StreamPtr h1 = Connect("h1"), h2 = Connect("h2");
  EXPECT_TRUE(sessions_->AwaitsHosts(state()))
      << "where the store was copied, they may not know yet that another one serves it";
  Say(h1, Beat());
  EXPECT_TRUE(sessions_->AwaitsHosts(state())) << "h2 has not answered";
  Say(h2, Beat());
  EXPECT_FALSE(sessions_->AwaitsHosts(state()));
  Start(before);
  clock_.now_ns += SessionOptions().lease_ns;
  EXPECT_FALSE(sessions_->AwaitsHosts(state()));
}

// One process that nobody can end held up all decisions, until its host was rebooted.
TEST_F(SessionsTest, ARestoredStoreAwaitsNoHostForWhatItStillRuns) {
  Connect("h1");
  Start(state());
  const StreamPtr h1 = Connect("h1");
  Say(h1, Reported(pb::STARTED));
  engine_->Step();
  ASSERT_EQ(state().host(state().FindHost("lab", "h1")).lost.size(), 1u);
  EXPECT_FALSE(sessions_->AwaitsHosts(state()));
}

// Else its job would wait for somebody's word that the host is off, although nothing runs there.
TEST_F(SessionsTest, AFenceIsKnownToHaveStoppedAStrayWhereNothingElseRuns) {
  pb::JobSpec spec = OneSlotSpec();
  spec.mutable_tasks(0)->mutable_resources()->set_gpus_milli(64'000);  // it fits nowhere
  spec.mutable_tasks(0)->set_when_unreachable(pb::FENCE);
  spec.mutable_tasks(0)->set_fence_after_ns(60 * kSecond);
  spec.mutable_tasks(0)->set_grace_ns(0);
  Submit(spec);
  Say(Connect("h1"), Reported(pb::STARTED));
  Settle();
  const auto host = [&]() -> const HostRow& { return state().host(state().FindHost("lab", "h1")); };
  ASSERT_TRUE(host().has_strays());
  ASSERT_TRUE(host().attempts.empty());
  const int64_t wait_ns = FenceWaitNs(spec.tasks(0)), heard_ns = clock_.now_ns;
  clock_.now_ns = heard_ns + wait_ns - 1;
  for (int i = 0; i < 2; ++i) {
    sessions_->Tick();
    Settle();
  }
  EXPECT_EQ(StateOf("h1"), pb::HOST_UNREACHABLE);
  EXPECT_FALSE(KnownOff(host(), spec.tasks(0)));
  clock_.now_ns = heard_ns + wait_ns;
  sessions_->Tick();
  Settle();
  EXPECT_EQ(host().quiet_ns, wait_ns);
  EXPECT_TRUE(KnownOff(host(), spec.tasks(0)));
}

}  // namespace
}  // namespace muster
