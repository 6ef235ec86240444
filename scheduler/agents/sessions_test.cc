// Sessions, leases and acknowledgements, with the real engine and streams that write down what they
// were told.
#include "scheduler/agents/sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <set>
#include <string_view>

#include "common/base/protocol.h"
#include "common/base/units.h"
#include "scheduler/agents/check_message.h"
#include "scheduler/agents/testing/sessions_fixture.h"
#include "scheduler/engine/testing/fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- who may join ----

struct RefusalCase {
  const char* name;
  void (*change)(pb::Hello*);
  const char* why;
  bool final;
};

constexpr char kLater[] = "agents have seen a later state of this store: it was restored";
constexpr char kUnproved[] = "can't show that musterd told it so";

class HelloRefused : public SessionsTest, public ::testing::WithParamInterface<RefusalCase> {};

TEST_P(HelloRefused, WithTheReason) {
  const StreamPtr holder = Connect("h1", kStateA);
  pb::Hello hello = HelloOf("h2", kStateB);
  GetParam().change(&hello);
  const StreamPtr stream = Open(hello);
  ASSERT_TRUE(Refused(stream));
  EXPECT_THAT(stream->sent[0].refused().reason(), HasSubstr(GetParam().why));
  EXPECT_EQ(stream->sent[0].refused().final(), GetParam().final);
  EXPECT_EQ(stream->ended->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Commits(), 0u) << "it has no effect";
  EXPECT_EQ(holder->ended.has_value(), std::string_view(GetParam().why) == kLater)
      << "all are ended where this store is the older one";
  EXPECT_FALSE(sessions_->Receive(stream, Beat()).ok()) << "it is no session";
}

INSTANTIATE_TEST_SUITE_P(
    Rules, HelloRefused,
    ::testing::Values(
        RefusalCase{"NewerProtocol",
                    [](pb::Hello* h) { h->set_protocol_version(kAgentProtocolVersion + 1); },
                    "install that release of musterd first", true},
        RefusalCase{"NoProtocol", [](pb::Hello* h) { h->clear_protocol_version(); },
                    "install musterd's release on its host, too", true},
        RefusalCase{"UnknownCluster", [](pb::Hello* h) { h->set_cluster("moon"); },
                    "there is no cluster \"moon\"", true},
        RefusalCase{"UnknownHostOfAClosedCluster", [](pb::Hello* h) { h->set_cluster("shut"); },
                    "cluster shut has no host \"h2\"", true},
        RefusalCase{"AnotherStore",
                    [](pb::Hello* h) { h->set_store_id_seen(std::string(32, 'e')); },
                    "has served another store", true},
        RefusalCase{"LaterEpoch", [](pb::Hello* h) { Claim(kEpoch + 1, 0, h); }, kLater, false},
        RefusalCase{"LaterCommit", [](pb::Hello* h) { Claim(kEpoch, 1000, h); }, kLater, false},
        RefusalCase{"LaterEpochWithoutItsMac", [](pb::Hello* h) { Claim(kEpoch + 1, 0, h, ""); },
                    kUnproved, false},
        RefusalCase{"LaterCommitOfNoStoreWithoutItsMac",
                    [](pb::Hello* h) { h->set_commit_seen(1000); }, kUnproved, false},
        RefusalCase{"NameOfALiveAgent", [](pb::Hello* h) { h->set_host("h1"); },
                    "another agent serves as lab/h1 (state id aaaaaaaa)", false}),
    [](const auto& info) { return info.param.name; });

TEST_F(SessionsTest, WhereSeveralUsersAreServedAnAgentRunsJobsAsTheirOwners) {
  several_users_ = true;
  Start(state());
  pb::Hello hello = HelloOf("h1", kStateA);
  StreamPtr stream = Open(hello);
  ASSERT_TRUE(Refused(stream));
  EXPECT_THAT(stream->sent[0].refused().reason(),
              HasSubstr("Start the agent as root without --single-user"));
  hello.set_runs_as_owner(true);
  stream = Open(hello);
  EXPECT_FALSE(Refused(stream));
  EXPECT_TRUE(sessions_->Receive(stream, Beat()).ok());
}

TEST_F(SessionsTest, AHostForOneUsersJobsIsServedInTheirClusterAlone) {
  several_users_ = true;
  pb::Event clusters = LabConfigured();
  pb::ClusterSpec* anns = clusters.mutable_clusters_configured()->mutable_file()->add_clusters();
  anns->set_name("anns");
  anns->set_open(true);
  anns->set_only_user("ann");
  engine_->Post(clusters);
  Settle();
  Start(state());
  const struct {
    const char* name;
    const char *cluster, *certificate;  // whose jobs alone
    bool runs_as_owner;
    const char* why;  // empty: it is served
  } cases[] = {
      {"without root", "anns", "ann", false, ""},
      {"one that runs as owners", "anns", "", true, ""},
      {"without root and without a word of it in the certificate", "anns", "", false,
       "Start the agent as root without --single-user"},
      {"another user's", "anns", "bob", false, "is for those of ann"},
      {"in everybody's cluster", "lab", "ann", false, "is for everybody's"},
      {"in everybody's cluster, as root", "lab", "ann", true, "is for everybody's"},
  };
  int hosts = 0;
  for (const auto& test : cases) {
    pb::Hello hello = HelloOf(absl::StrCat("h", ++hosts), kStateA);
    hello.set_cluster(test.cluster);
    hello.set_runs_as_owner(test.runs_as_owner);
    const StreamPtr stream = Open(hello, /*trusted=*/false, test.certificate);
    if (*test.why == '\0') {
      EXPECT_FALSE(Refused(stream)) << test.name;
      continue;
    }
    ASSERT_TRUE(Refused(stream)) << test.name;
    EXPECT_THAT(stream->sent[0].refused().reason(), HasSubstr(test.why)) << test.name;
    if (*test.certificate != '\0') {
      EXPECT_THAT(stream->sent[0].refused().reason(), HasSubstr("Remove the file `identity`"))
          << "it still counts, so that a line alone buys nothing";
    }
  }
}

TEST(WhyNotSpoken, AgentsOneReleaseOlderWork) {
  const struct {
    int32_t theirs, ours;
    const char* why;  // empty: served
  } cases[] = {
      {1, 1, ""},
      {3, 3, ""},
      {2, 3, ""},
      {1, 2, ""},
      {0, 1,
       "protocol version 0 is not spoken here; this musterd speaks 1. The agent is more than one "
       "release older: install musterd's release on its host, too"},
      {0, 2, "speaks 1 and 2. The agent is more than one release older"},
      {1, 3,
       "protocol version 1 is not spoken here; this musterd speaks 2 and 3. The agent is more than "
       "one release older: install musterd's release on its host, too"},
      {4, 3,
       "protocol version 4 is not spoken here; this musterd speaks 2 and 3. The agent is of a "
       "newer release: install that release of musterd first"},
      {2, 1, "this musterd speaks 1. The agent is of a newer release"},
      {-1, 1, "more than one release older"},
  };
  for (const auto& c : cases) {
    const std::string why = WhyNotSpoken(c.theirs, c.ours);
    if (*c.why == '\0') {
      EXPECT_EQ(why, "") << c.theirs << " at " << c.ours;
    } else {
      EXPECT_THAT(why, HasSubstr(c.why)) << c.theirs << " at " << c.ours;
    }
  }
}

TEST_F(SessionsTest, WelcomesOnceTheHelloIsDurableAndNamesTheSession) {
  pb::Hello hello = HelloOf("n1", kStateA);
  hello.set_cluster("shut");
  hello.set_store_id_seen(kStore);
  hello.set_epoch_seen(kEpoch);
  hello.set_commit_seen(engine_->Snapshot()->commit);
  const StreamPtr stream = Open(hello);
  EXPECT_THAT(log_, IsEmpty());
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre("commit 2", "welcome"));
  EXPECT_EQ(StateOf("n1", "shut"), pb::HOST_UP);
  const pb::SchedulerMessage& welcome = stream->sent[0];
  EXPECT_EQ(welcome.session().store_id(), kStore);
  EXPECT_EQ(welcome.session().epoch(), kEpoch);
  EXPECT_EQ(welcome.session().state_id(), kStateA);
  EXPECT_THAT(welcome.session().session(), SizeIs(32));
  EXPECT_EQ(welcome.commit(), 2u);
  EXPECT_EQ(welcome.welcome().lease_ns(), 45 * kSecond);
}

// Two threads read two streams of one agent: the older Hello's events may be posted last.
TEST_F(SessionsTest, AnOlderHelloThatIsPostedAfterANewerOneChangesNothing) {
  StreamPtr newer;
  keep_to_sku_ = [&](const std::string&, const std::string&, pb::Inventory*) {
    if (newer != nullptr) return "";
    pb::Hello hello = HelloOf("h1", kStateA);  // it comes before the older one is posted
    pb::Device* device = hello.mutable_inventory()->add_devices();
    device->set_index(2);
    device->set_healthy(true);
    newer = std::make_shared<FakeStream>(&log_);
    pb::AgentMessage message;
    *message.mutable_hello() = hello;
    EXPECT_TRUE(sessions_->Receive(newer, message).ok());
    return "";
  };
  Start(state());
  const StreamPtr older = Open(HelloOf("h1", kStateA));
  Settle();
  EXPECT_EQ(state().host(state().FindHost("lab", "h1")).inventory.devices_size(), 3);
  ASSERT_TRUE(older->ended.has_value());
  EXPECT_TRUE(absl::IsAborted(*older->ended));
  EXPECT_THAT(older->sent, IsEmpty());
  ASSERT_FALSE(newer->sent.empty());
  EXPECT_TRUE(newer->sent[0].has_welcome());
  EXPECT_FALSE(newer->ended.has_value());
}

TEST_F(SessionsTest, AHostThatContradictsItsSkuIsWelcomeToldSoAndCountsItsSku) {
  keep_to_sku_ = [](const std::string& cluster, const std::string& host,
                    pb::Inventory* inventory) -> std::string {
    if (host != "h1") return "";
    const std::string how = absl::StrCat(cluster, " has ", inventory->devices_size());
    inventory->mutable_devices()->RemoveLast();
    return how;
  };
  Start(state());
  EXPECT_EQ(Connect("h1", kStateA)->sent.at(0).welcome().differs(), "lab has 2");
  pb::Hello hello = HelloOf("h2", kStateB);
  hello.mutable_inventory()->set_differs("an agent's own word");
  const StreamPtr other = Open(hello);
  Settle();
  EXPECT_EQ(other->sent.at(0).welcome().differs(), "");
  EXPECT_EQ(StateOf("h1"), pb::HOST_UP);
  const auto inventory = [&](const std::string& host) {
    return state().host(state().FindHost("lab", host)).inventory;
  };
  EXPECT_EQ(inventory("h1").devices_size(), 1);
  EXPECT_EQ(inventory("h1").differs(), "lab has 2");
  EXPECT_EQ(inventory("h2").devices_size(), 2);
  EXPECT_EQ(inventory("h2").differs(), "");
}

TEST_F(SessionsTest, TheNewestStreamOfTheSameStateIdReplacesTheOther) {
  const StreamPtr first = Connect();
  const StreamPtr second = Connect();
  ASSERT_TRUE(first->ended.has_value());
  EXPECT_EQ(first->ended->code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(second->ended.has_value());
  EXPECT_NE(first->session(), second->session());
  sessions_->Closed(first.get());
  Say(second, Beat());
  EXPECT_THAT(log_, ElementsAre("heartbeat_ack"))
      << "the end of the old stream doesn't end the new session";
}

TEST_F(SessionsTest, AnotherStateIdWaitsUntilTheLeaseIsOver) {
  const StreamPtr a = Connect("h1", kStateA);
  sessions_->Closed(a.get());
  clock_.now_ns += 45 * kSecond - 1;
  EXPECT_TRUE(Refused(Connect("h1", kStateB))) << "a closed stream is no end of a lease";
  clock_.now_ns += 1;
  const StreamPtr b = Connect("h1", kStateB);
  EXPECT_EQ(b->sent.at(0).body_case(), pb::SchedulerMessage::kWelcome)
      << "a refused Hello renews nothing";
  EXPECT_EQ(state().host(state().FindHost("lab", "h1")).state_id, kStateB);
  EXPECT_TRUE(Refused(Connect("h1", kStateA))) << "the first one is the other now";
}

TEST_F(SessionsTest, AfterARestartTheKnownAgentHasAFullLeaseToComeBack) {
  Connect("h1", kStateA);
  Settle();
  Start(state());
  clock_.now_ns += 45 * kSecond - 1;
  EXPECT_TRUE(Refused(Connect("h1", kStateB)));
  EXPECT_FALSE(Refused(Connect("h1", kStateA)));
  Start(state());
  clock_.now_ns += 45 * kSecond;
  EXPECT_FALSE(Refused(Connect("h1", kStateB)));
}

// ---- messages ----

TEST_F(SessionsTest, DropsWhatAnOldSessionSays) {
  const StreamPtr old = Connect();
  Submit();
  const StreamPtr now = Connect();
  log_.clear();
  const struct {
    const char* what;
    StreamPtr stream;
    std::string session;
  } kCases[] = {{"the old stream", old, old->session()},
                {"the old stream with the new session", old, now->session()},
                {"the new stream with the old session", now, old->session()},
                {"the new stream without a session", now, ""}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    for (const pb::AgentMessage& message : {Beat(), Reported(pb::GONE), Checkpointed(1)})
      Say(c.stream, message, c.session);
    EXPECT_EQ(Commits(), 0u);
    EXPECT_THAT(log_, IsEmpty());
  }
  Say(now, Reported(pb::GONE));
  EXPECT_EQ(Commits(), 1u);
  EXPECT_EQ(state().FindJob(1)->state, pb::SUCCEEDED);
}

struct MalformedCase {
  const char* field;
  void (*change)(pb::AgentMessage*);
};

TEST_F(SessionsTest, RefusesMalformedMessagesBeforeAnythingElse) {
  const StreamPtr stream = Connect();
  Submit();
  const auto hello = [](pb::AgentMessage* m) {
    *m->mutable_hello() = HelloOf("h2", kStateB);
    return m->mutable_hello();
  };
  static const auto kHello = hello;
  const MalformedCase kCases[] = {
      {"body", [](pb::AgentMessage* m) {}},
      {"hello.cluster", [](pb::AgentMessage* m) { kHello(m)->set_cluster("a/b"); }},
      {"hello.host", [](pb::AgentMessage* m) { kHello(m)->set_host(std::string(64, 'h')); }},
      {"hello.state_id", [](pb::AgentMessage* m) { kHello(m)->set_state_id("s1"); }},
      {"hello.boot_id", [](pb::AgentMessage* m) { kHello(m)->clear_boot_id(); }},
      {"hello.store_id_seen", [](pb::AgentMessage* m) { kHello(m)->set_store_id_seen("x"); }},
      {"inventory",
       [](pb::AgentMessage* m) { kHello(m)->mutable_inventory()->set_cpus_milli(-1); }},
      {"inventory",
       [](pb::AgentMessage* m) { kHello(m)->mutable_inventory()->set_memory_bytes(-1); }},
      {"inventory.flavour",
       [](pb::AgentMessage* m) { kHello(m)->mutable_inventory()->clear_flavour(); }},
      {"inventory.devices",
       [](pb::AgentMessage* m) {
         kHello(m)->mutable_inventory()->mutable_devices(1)->set_index(0);
       }},
      {"inventory.devices",
       [](pb::AgentMessage* m) {
         kHello(m)->mutable_inventory()->mutable_devices(1)->set_index(1024);
       }},
      {"inventory.devices",
       [](pb::AgentMessage* m) {
         kHello(m)->mutable_inventory()->mutable_devices(1)->set_index(-1);
       }},
      {"inventory.address",
       [](pb::AgentMessage* m) {
         kHello(m)->mutable_inventory()->set_address(std::string(256, '1'));
       }},
      {"key.job_uid", [](pb::AgentMessage* m) { kHello(m)->add_attempts()->set_phase(pb::GONE); }},
      {"key.job_uid",
       [](pb::AgentMessage* m) { m->mutable_report()->mutable_key()->set_job_uid("1"); }},
      {"key.task",
       [](pb::AgentMessage* m) { m->mutable_report()->mutable_key()->set_task("../x"); }},
      {"key.attempt",
       [](pb::AgentMessage* m) { m->mutable_report()->mutable_key()->set_attempt(0); }},
      {"report.usage.gpus.busy_permille",
       [](pb::AgentMessage* m) {
         auto* slots =
             m->mutable_report()->mutable_usage()->mutable_gpus()->mutable_busy_permille();
         slots->Resize(1025, 0);
       }},
      {"key.job_uid", [](pb::AgentMessage* m) { m->mutable_heartbeat()->add_usages(); }},
      {"heartbeat.usages",
       [](pb::AgentMessage* m) {
         for (int i = 0; i < 4097; ++i)
           *m->mutable_heartbeat()->add_usages()->mutable_key() = Key();
       }},
      {"heartbeat.usages.usage.gpus.busy_permille",
       [](pb::AgentMessage* m) {
         pb::AttemptUsage* told = m->mutable_heartbeat()->add_usages();
         *told->mutable_key() = Key();
         told->mutable_usage()->mutable_gpus()->mutable_busy_permille()->Resize(1025, 0);
       }},
      {"report.phase", [](pb::AgentMessage* m) { m->mutable_report()->clear_phase(); }},
      {"report.phase",
       [](pb::AgentMessage* m) {
         m->mutable_report()->set_phase(static_cast<pb::AttemptPhase>(5));
       }},
      {"report.rendezvous_port",
       [](pb::AgentMessage* m) { m->mutable_report()->set_rendezvous_port(65'536); }},
      {"report.rendezvous_port",
       [](pb::AgentMessage* m) { m->mutable_report()->set_rendezvous_port(-1); }},
      {"report.detail",
       [](pb::AgentMessage* m) {
         m->mutable_report()->set_detail(std::string((16 << 10) + 1, 'x'));
       }},
      {"report.cause",
       [](pb::AgentMessage* m) { m->mutable_report()->set_cause(static_cast<pb::Cause>(99)); }},
      {"report.cause",
       [](pb::AgentMessage* m) { m->mutable_report()->set_cause(static_cast<pb::Cause>(-1)); }},
      {"report.exits",
       [](pb::AgentMessage* m) { m->mutable_report()->mutable_exits(0)->set_rank(-1); }},
      {"report.exits",
       [](pb::AgentMessage* m) { m->mutable_report()->mutable_exits(0)->set_exit_code(256); }},
      {"report.exits",
       [](pb::AgentMessage* m) { m->mutable_report()->mutable_exits(0)->set_signal(65); }},
      {"progress.step",
       [](pb::AgentMessage* m) {
         *m->mutable_progress()->mutable_key() = Key();
         m->mutable_progress()->mutable_progress()->set_step(-1);
       }},
      {"key.job_uid",
       [](pb::AgentMessage* m) { m->mutable_progress()->mutable_progress()->set_step(1); }},
      {"checkpoint.step",
       [](pb::AgentMessage* m) {
         *m = Checkpointed(1);
         m->mutable_checkpoint()->mutable_checkpoint()->set_step(-1);
       }},
      {"checkpoint.path",
       [](pb::AgentMessage* m) {
         *m = Checkpointed(1);
         m->mutable_checkpoint()->mutable_checkpoint()->set_path(std::string(4097, 'x'));
       }},
      {"export_report",
       [](pb::AgentMessage* m) {
         *m->mutable_export_report()->mutable_key() = Key();
         m->mutable_export_report()->set_target(std::string(4097, 'x'));
       }},
      {"checkpoint.storage",
       [](pb::AgentMessage* m) {
         *m = Checkpointed(1);
         m->mutable_checkpoint()->mutable_checkpoint()->set_storage(std::string(256, 'x'));
       }},
      {"checkpoint.loaded_step",
       [](pb::AgentMessage* m) {
         *m = Checkpointed(1);
         m->mutable_checkpoint()->set_loaded_step(-2);
       }},
      {"checkpoint.loaded_path",
       [](pb::AgentMessage* m) {
         *m = Checkpointed(1);
         m->mutable_checkpoint()->set_loaded_path(std::string(4097, 'x'));
       }},
      {"loaded.step",
       [](pb::AgentMessage* m) {
         *m->mutable_loaded()->mutable_key() = Key();
         m->mutable_loaded()->set_step(-2);
       }},
      {"loaded.path",
       [](pb::AgentMessage* m) {
         *m->mutable_loaded()->mutable_key() = Key();
         m->mutable_loaded()->set_path(std::string(4097, 'x'));
       }},
      {"loaded.refused",
       [](pb::AgentMessage* m) {
         *m->mutable_loaded()->mutable_key() = Key();
         for (int i = 0; i < 3; ++i) m->mutable_loaded()->add_refused(std::string(100 << 10, 'x'));
       }},
      {"log_chunk.data",
       [](pb::AgentMessage* m) {
         m->mutable_log_chunk()->set_data(std::string((1 << 20) + 1, 'x'));
       }},
      {"log_chunk.from_stderr",
       [](pb::AgentMessage* m) {
         m->mutable_log_chunk()->set_data("12345");
         m->mutable_log_chunk()->add_from_stderr()->set_end(6);
       }},
      {"log_chunk.from_stderr",
       [](pb::AgentMessage* m) {
         m->mutable_log_chunk()->set_data("12345");
         m->mutable_log_chunk()->add_from_stderr()->set_end(3);
         m->mutable_log_chunk()->add_from_stderr()->set_begin(2);
         m->mutable_log_chunk()->mutable_from_stderr(1)->set_end(5);
       }},
      {"log_chunk.error",
       [](pb::AgentMessage* m) {
         m->mutable_log_chunk()->set_error(std::string((16 << 10) + 1, 'x'));
       }},
      {"loaded.refused",
       [](pb::AgentMessage* m) {
         *m->mutable_loaded()->mutable_key() = Key();
         for (int i = 0; i < 1001; ++i) m->mutable_loaded()->add_refused();
       }},
  };
  for (const MalformedCase& c : kCases) {
    // What isn't built anew is a change of a report that is right.
    pb::AgentMessage message = Reported(pb::GONE);
    if (std::string(c.field) == "body") message.Clear();
    c.change(&message);
    message.mutable_session()->set_session(stream->session());
    const absl::Status status = sessions_->Receive(stream, message);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(std::string(c.field) + ":"));
    EXPECT_EQ(Commits(), 0u) << c.field;
  }
  for (const pb::AgentMessage& right : {Reported(pb::GONE), Checkpointed(1), Beat()})
    EXPECT_TRUE(CheckAgentMessage(right).ok());
  EXPECT_TRUE(CheckHello(HelloOf("h2", kStateB)).ok());
}

TEST_F(SessionsTest, AStreamBeginsWithOneHello) {
  const auto early = std::make_shared<FakeStream>(&log_);
  EXPECT_EQ(sessions_->Receive(early, Beat()).code(), absl::StatusCode::kInvalidArgument);
  const StreamPtr stream = Connect();
  pb::AgentMessage again;
  *again.mutable_hello() = HelloOf("h1", kStateA);
  EXPECT_EQ(sessions_->Receive(stream, again).code(), absl::StatusCode::kInvalidArgument);
}

// ---- leases ----

TEST_F(SessionsTest, AHostFallsSilentAfterTwoMissedHeartbeatsAndIsUnreachableAfterTheLease) {
  const StreamPtr stream = Connect();
  Settle();
  const int64_t heard_ns = clock_.now_ns;
  const auto after = [&](int64_t quiet_ns) {
    clock_.now_ns = heard_ns + quiet_ns;
    sessions_->Tick();
    engine_->Step();
    return StateOf("h1");
  };
  EXPECT_EQ(after(0), pb::HOST_UP);
  EXPECT_EQ(after(12'500 * kMillisecond - 1), pb::HOST_UP);
  EXPECT_EQ(after(12'500 * kMillisecond), pb::HOST_SILENT);
  EXPECT_EQ(after(45 * kSecond - 1), pb::HOST_SILENT);
  EXPECT_EQ(after(45 * kSecond), pb::HOST_UNREACHABLE);
  EXPECT_EQ(StateOf("n1", "shut"), pb::HOST_NEVER_SEEN)
      << "nobody has served it, so nobody is missed";
  Say(stream, Beat());
  engine_->Step();
  EXPECT_EQ(StateOf("h1"), pb::HOST_UP);
  sessions_->Tick();
  EXPECT_EQ(Commits(), 0u) << "nothing has changed";
}

TEST_F(SessionsTest, AfterARestartAHostIsSilentUntilItSpeaksAndUnreachableAfterAFullLease) {
  Connect("h1");
  Connect("h2", kStateB);
  clock_.now_ns += 30 * kSecond;
  Settle();
  Start(state());
  sessions_->Tick();
  engine_->Step();
  EXPECT_EQ(StateOf("h1"), pb::HOST_SILENT);
  EXPECT_EQ(StateOf("h2"), pb::HOST_SILENT);
  clock_.now_ns += 45 * kSecond - 1;
  Connect("h2", kStateB);
  sessions_->Tick();
  engine_->Step();
  EXPECT_EQ(StateOf("h1"), pb::HOST_SILENT) << "the lease counts from the start";
  EXPECT_EQ(StateOf("h2"), pb::HOST_UP);
  clock_.now_ns += 1;
  sessions_->Tick();
  engine_->Step();
  EXPECT_EQ(StateOf("h1"), pb::HOST_UNREACHABLE);
  EXPECT_EQ(StateOf("h2"), pb::HOST_UP);
}

TEST_F(SessionsTest, AfterTheSchedulerStoodStillAHostHasAFullLeaseAgain) {
  const StreamPtr stream = Connect();
  Settle();
  const auto after = [&](int64_t more_ns) {
    clock_.now_ns += more_ns;
    sessions_->Tick();
    engine_->Step();
    return StateOf("h1");
  };
  clock_.now_ns += 10 * kMinute;
  sessions_->StoodStill();
  EXPECT_EQ(after(0), pb::HOST_SILENT) << "it counts as such until it speaks";
  EXPECT_EQ(after(45 * kSecond - 1), pb::HOST_SILENT);
  EXPECT_EQ(after(1), pb::HOST_UNREACHABLE);
  clock_.now_ns += 10 * kMinute;
  sessions_->StoodStill();
  EXPECT_EQ(after(0), pb::HOST_UNREACHABLE) << "it was so before";
}

// Else its fence command would be broken off, and an operator's word that it is off forgotten.
TEST_F(SessionsTest, AHostThatNeverSpokeToThisProcessStaysUnreachableWhenTheSchedulerStoodStill) {
  Connect("h1");
  Settle();
  Start(state());
  const auto after = [&](int64_t more_ns) {
    clock_.now_ns += more_ns;
    sessions_->Tick();
    engine_->Step();
    return StateOf("h1");
  };
  EXPECT_EQ(after(45 * kSecond), pb::HOST_UNREACHABLE);
  clock_.now_ns += 10 * kMinute;
  sessions_->StoodStill();
  EXPECT_EQ(after(0), pb::HOST_UNREACHABLE);
}

TEST_F(SessionsTest, AHeartbeatIsEchoedAndRenewsWhatIsNotLost) {
  const StreamPtr stream = Connect();
  Submit();
  const auto renewed = [&](uint64_t sequence) {
    const size_t before = stream->sent.size();
    Say(stream, Beat(sequence));
    const pb::HeartbeatAck ack = stream->sent.at(before).heartbeat_ack();
    EXPECT_EQ(ack.sequence(), sequence);
    EXPECT_EQ(ack.sent_boottime_ns(), 1000 + static_cast<int64_t>(sequence));
    std::vector<int32_t> attempts;
    for (const pb::AttemptKey& key : ack.renews()) attempts.push_back(key.attempt());
    return attempts;
  };
  EXPECT_THAT(renewed(3), ElementsAre(1));
  pb::Event lost;
  *lost.mutable_attempt_lost()->mutable_key() = Key();
  lost.mutable_attempt_lost()->set_cluster("lab");
  lost.mutable_attempt_lost()->set_host("h1");
  engine_->Post(lost);
  engine_->Step();
  EXPECT_THAT(renewed(4), ElementsAre(2)) << "the next attempt has found room on the other slot";
}

TEST_F(SessionsTest, ACommandIsRepeatedWithHeartbeatsWhileItHolds) {
  const StreamPtr stream = Connect();
  Submit(/*environment=*/40);
  ASSERT_EQ(stream->sent.back().body_case(), pb::SchedulerMessage::kPrepare);
  const auto said = [&] {
    log_.clear();
    Say(stream, Beat());
    return log_;
  };
  EXPECT_THAT(said(), ElementsAre("heartbeat_ack")) << "it was said a moment ago";
  clock_.now_ns += 5 * kSecond;
  EXPECT_THAT(said(), ElementsAre("heartbeat_ack", "prepare"));
  EXPECT_THAT(said(), ElementsAre("heartbeat_ack"));
  Say(stream, Reported(pb::STARTED));
  engine_->Step();
  clock_.now_ns += 5 * kSecond;
  EXPECT_THAT(said(), ElementsAre("heartbeat_ack")) << "it has been followed";
}

TEST_F(SessionsTest, ANewSessionIsToldEverythingAgain) {
  const StreamPtr first = Connect();
  Submit();
  const StreamPtr second = Open(HelloOf("h1", kStateA));
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre(::testing::StartsWith("commit "), "welcome", "prepare"));
}

// ---- acknowledgements ----

TEST_F(SessionsTest, ACheckpointIsAcknowledgedOnlyAfterItsCommit) {
  const StreamPtr stream = Connect();
  Submit();
  Say(stream, Reported(pb::STARTED));
  Settle();
  Say(stream, Checkpointed(5));
  Say(stream, Checkpointed(5));
  EXPECT_THAT(log_, IsEmpty());
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre(::testing::StartsWith("commit "), "checkpoint_ack"))
      << "its repetition is the same";
  EXPECT_EQ(stream->sent.back().checkpoint_ack().sequence(), 5u);
  EXPECT_EQ(stream->sent.back().commit(), engine_->Snapshot()->commit);
  EXPECT_THAT(state().FindJob(1)->tasks[0].checkpoints, SizeIs(1));
  log_.clear();
  Say(stream, Checkpointed(5));
  EXPECT_THAT(log_, ElementsAre("checkpoint_ack")) << "it is durable already";
  EXPECT_EQ(Commits(), 0u);
}

// A session forgets what it was told where that becomes too much; then each repetition is an event
// once more, and has its answer.
TEST_F(SessionsTest, ACheckpointIsAcknowledgedHoweverManyCameBefore) {
  constexpr uint64_t kMany = 20'001;
  const StreamPtr stream = Connect();
  const std::string session = stream->session();
  Submit();
  Say(stream, Reported(pb::STARTED));
  pb::AgentMessage loaded;
  *loaded.mutable_loaded()->mutable_key() = Key();
  loaded.mutable_loaded()->set_step(-1);
  Say(stream, loaded);
  Settle();
  for (uint64_t sequence = 1; sequence <= kMany; ++sequence) Say(stream, Checkpointed(sequence));
  Settle();
  for (const uint64_t sequence : {uint64_t{1}, kMany / 2, kMany - 2, kMany - 1, kMany}) {
    stream->sent.clear();
    Say(stream, Checkpointed(sequence), session);
    Settle();
    ASSERT_FALSE(stream->sent.empty()) << sequence;
    EXPECT_EQ(stream->sent.back().checkpoint_ack().sequence(), sequence);
  }
}

TEST_F(SessionsTest, ACheckpointOfNobodyIsAcknowledgedWithoutEffect) {
  const StreamPtr stream = Connect();
  Say(stream, Checkpointed(1));
  EXPECT_THAT(log_, ElementsAre("checkpoint_ack"));
  EXPECT_EQ(Commits(), 0u);
}

TEST_F(SessionsTest, AHostForgetsOnlyAfterTheEndIsCommitted) {
  const StreamPtr stream = Connect();
  Submit();
  Say(stream, Reported(pb::STARTED));
  engine_->Step();
  log_.clear();
  Say(stream, Reported(pb::GONE));
  EXPECT_THAT(log_, IsEmpty());
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre(::testing::StartsWith("commit "), "forget"));
  log_.clear();
  Say(stream, Reported(pb::GONE));
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre(::testing::StartsWith("commit "), "forget"))
      << "the first Forget may have been lost";
}

TEST_F(SessionsTest, WhatAnAttemptToldIsRememberedOnlyUntilItIsForgotten) {
  const StreamPtr stream = Connect();
  Submit();
  Say(stream, Reported(pb::STARTED));
  Say(stream, Checkpointed(1));
  pb::AgentMessage loaded;
  *loaded.mutable_loaded()->mutable_key() = Key();
  loaded.mutable_loaded()->set_step(10);
  loaded.mutable_loaded()->set_path("/shared/0");
  Say(stream, loaded);
  Settle();
  Say(stream, Checkpointed(1));
  Say(stream, loaded);
  EXPECT_EQ(Commits(), 0u);
  Say(stream, Reported(pb::GONE));
  Settle();
  Say(stream, loaded);
  EXPECT_EQ(Commits(), 1u)
      << "nothing is known of it any more; State keeps a repetition without effect";
  Say(stream, Checkpointed(1));
  EXPECT_EQ(Commits(), 1u);
  EXPECT_EQ(stream->sent.back().body_case(), pb::SchedulerMessage::kCheckpointAck);
  EXPECT_EQ(state().FindJob(1)->state, pb::SUCCEEDED);
  EXPECT_THAT(state().FindJob(1)->tasks[0].checkpoints, SizeIs(1));
}

TEST_F(SessionsTest, AFaultIsOneEventForAsLongAsItsHostRepeatsIt) {
  const StreamPtr stream = Connect();
  pb::AgentMessage fault;
  fault.mutable_fault()->set_device(0);
  fault.mutable_fault()->set_code(79);
  fault.mutable_fault()->set_detail("Xid 79: GPU has fallen off the bus");
  fault.mutable_fault()->set_at_ns(clock_.now_ns);
  Say(stream, fault);
  EXPECT_EQ(Commits(), 1u);
  for (int i = 0; i < 20; ++i) {
    clock_.now_ns += 5 * kSecond;
    Say(stream, fault);
  }
  EXPECT_EQ(Commits(), 0u);
  clock_.now_ns += 45 * kSecond;
  Say(stream, fault);
  EXPECT_EQ(Commits(), 1u) << "it was not kept in mind; State counts it once";
  EXPECT_THAT(state().host(state().FindHost("lab", "h1")).blames, SizeIs(1));
}

// A program may call itself any rank, and a host say anything: each such rank was remembered, and
// could speak against the host of another one.
TEST_F(SessionsTest, OfRanksThatItDoesntHaveAHostsWordSaysNothing) {
  const StreamPtr stream = Connect();
  Submit();
  Say(stream, Reported(pb::STARTED));
  Settle();
  ASSERT_EQ(state().FindJob(1)->tasks[0].state, pb::TASK_RUNNING);
  pb::AgentMessage message;
  *message.mutable_progress()->mutable_key() = Key();
  for (int rank = 1; rank <= 4; ++rank) {
    pb::RankTime* time = message.mutable_progress()->add_times();
    time->set_rank(rank);
    time->set_steps(32);
    time->set_own_us(rank == 4 ? 9000 : 1000);
  }
  Say(stream, message);
  EXPECT_EQ(Commits(), 0u);
}

// Device 1 of h1 is in quarantine, for an hour.
class SessionsWithQuarantine : public SessionsTest {
 protected:
  SessionsWithQuarantine() {
    pb::Event clusters = LabConfigured();
    pb::QuarantineRule* rule = clusters.mutable_clusters_configured()
                                   ->mutable_file()
                                   ->mutable_clusters(0)
                                   ->mutable_quarantine();
    rule->set_device_blames(1);
    rule->set_max_percent(100);
    rule->set_release_after_ns(kHour);
    engine_->Post(clusters);
    const StreamPtr stream = Connect();
    pb::AgentMessage fault;
    fault.mutable_fault()->set_device(1);
    fault.mutable_fault()->set_code(79);
    fault.mutable_fault()->set_detail("Xid 79: GPU has fallen off the bus");
    fault.mutable_fault()->set_at_ns(clock_.now_ns);
    Say(stream, fault);
    Settle();
  }
  bool OutAfter(int64_t more_ns) {
    clock_.now_ns += more_ns;
    sessions_->Tick();
    Settle();
    const HostRow& host = state().host(state().FindHost("lab", "h1"));
    EXPECT_EQ(host.quarantines.empty(), host.inventory.devices(1).healthy());
    return !host.quarantines.empty();
  }
};

TEST_F(SessionsWithQuarantine, IsLiftedOnceItsTimeIsOver) {
  EXPECT_TRUE(OutAfter(0));
  EXPECT_TRUE(OutAfter(kHour - 1));
  EXPECT_FALSE(OutAfter(1));
  sessions_->Tick();
  EXPECT_EQ(Commits(), 0u) << "said once";
}

// State's time never goes back: while the clock is behind, it goes at half its speed.
TEST_F(SessionsWithQuarantine, IsLiftedAlthoughTheWallClockWasSetBack) {
  clock_.behind_ns = 10 * kHour;
  int64_t hours = 0;
  while (hours < 9 && OutAfter(kHour)) ++hours;
  EXPECT_LE(hours, 3);
}

TEST_F(SessionsTest, EachFailedTryToPublishCountsAndNothingIsForgottenMeanwhile) {
  const StreamPtr stream = Connect();
  Submit();
  Say(stream, Reported(pb::STARTED));
  pb::AgentMessage staged;
  *staged.mutable_export_report()->mutable_key() = Key();
  staged.mutable_export_report()->set_staged("/s");
  staged.mutable_export_report()->set_target("/t");
  Say(stream, staged);
  Say(stream, Reported(pb::GONE));
  Settle();
  ASSERT_FALSE(state().FindJob(1)->finished());
  pb::AgentMessage failed = staged;
  failed.mutable_export_report()->set_detail("disk full");
  for (int tries = 1; tries <= kExportTries; ++tries) {
    EXPECT_THAT(log_, ::testing::Not(::testing::Contains("forget")));
    log_.clear();
    Say(stream, failed);
    engine_->Step();
    EXPECT_EQ(state().FindJob(1)->tasks[0].export_failures, tries);
  }
  EXPECT_EQ(state().FindJob(1)->state, pb::FAILED);
  EXPECT_EQ(state().FindJob(1)->cause, pb::EXPORT_FAILED);
  EXPECT_THAT(log_, ::testing::Contains("forget"));
  Say(stream, failed);
  EXPECT_EQ(Commits(), 0u) << "nobody waits for it any more";
}

TEST_F(SessionsTest, AnEndToldInAHelloIsForgottenAfterItsCommit) {
  Connect();
  Submit();
  pb::Hello hello = HelloOf("h1", kStateA);
  *hello.add_attempts() = Reported(pb::GONE).report();
  Open(hello);
  EXPECT_THAT(log_, IsEmpty());
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre(::testing::StartsWith("commit "), "welcome", "forget"));
  EXPECT_EQ(state().FindJob(1)->state, pb::SUCCEEDED);
}

TEST_F(SessionsTest, AnAttemptThatAHelloLeavesOutIsAskedAbout) {
  const StreamPtr first = Connect();
  Submit();
  Say(first, Reported(pb::STARTED));
  engine_->Step();
  log_.clear();
  const StreamPtr second = Open(HelloOf("h1", kStateA));
  engine_->Step();
  EXPECT_THAT(log_, ElementsAre(::testing::StartsWith("commit "), "welcome", "query"))
      << "absence proves nothing";
  EXPECT_EQ(state().FindJob(1)->state, pb::RUNNING);
  log_.clear();
  Say(second, Beat());
  EXPECT_THAT(log_, ElementsAre("heartbeat_ack", "query")) << "its disk may have been full";
  Say(second, Reported(pb::STARTED));
  log_.clear();
  Say(second, Beat(2));
  EXPECT_THAT(log_, ElementsAre("heartbeat_ack"));
}

// ---- output ----

TEST_F(SessionsTest, OutputEndsWithItsStreamAlsoWhenANewerOneReplacesIt) {
  const StreamPtr first = Connect();
  std::vector<std::string> heard;
  const auto sink = [&](const pb::LogChunk& chunk) {
    heard.push_back(chunk.end() ? "end: " + chunk.error() : chunk.data());
  };
  const uint64_t request = sessions_->RequestLogs("lab", "h1", pb::LogRequest(), sink, kSecond);
  EXPECT_THAT(log_, ElementsAre("log_request"));
  pb::AgentMessage chunk;
  chunk.mutable_log_chunk()->set_request(request);
  chunk.mutable_log_chunk()->set_data("hello");
  const StreamPtr other = Connect("h2", kStateB);
  Say(other, chunk);
  EXPECT_THAT(heard, IsEmpty()) << "another host's";
  Say(first, chunk);
  EXPECT_THAT(heard, ElementsAre("hello"));
  const StreamPtr second = Connect();
  EXPECT_THAT(heard,
              ElementsAre("hello", "end: has disconnected: what followed can't be read now"));
  heard.clear();
  sessions_->RequestLogs("lab", "h1", pb::LogRequest(), sink, kSecond);
  sessions_->Closed(first.get());
  EXPECT_THAT(heard, IsEmpty()) << "the old stream's end is not the new one's";
  sessions_->Closed(second.get());
  EXPECT_THAT(heard, ElementsAre("end: has disconnected: what followed can't be read now"));
}

TEST_F(SessionsTest, OutputOfAHostThatIsAwayWaitsForItForAWhile) {
  std::vector<std::string> heard;
  const auto sink = [&](const pb::LogChunk& chunk) {
    heard.push_back(absl::StrCat(chunk.request(), chunk.end() ? " end: " : " ", chunk.error(),
                                 chunk.more() ? ", perhaps more" : ""));
  };
  pb::LogRequest asked;
  asked.set_tail_lines(77);
  const uint64_t first = sessions_->RequestLogs("lab", "h1", asked, sink, kSecond);
  const uint64_t second = sessions_->RequestLogs("lab", "h2", asked, sink, kSecond);
  ASSERT_NE(first, 0u);
  const StreamPtr stream = Connect();
  ASSERT_TRUE(stream->sent.back().has_log_request());
  EXPECT_EQ(stream->sent.back().log_request().request(), first);
  EXPECT_EQ(stream->sent.back().log_request().tail_lines(), 77);
  sessions_->Tick();
  EXPECT_THAT(heard, IsEmpty());
  clock_.now_ns += 2 * kSecond;
  sessions_->Tick();
  EXPECT_THAT(heard,
              ElementsAre(absl::StrCat(
                  second, " end: is not connected; its output can't be read now, perhaps more")));
  log_.clear();
  Connect("h2", kStateB);
  EXPECT_THAT(log_, ::testing::Not(::testing::Contains("log_request")))
      << "nobody waits for it any more";
}

// Contract 17: a scheduler that another has replaced must not put off the fence of what the other
// may have started again.
TEST_F(SessionsTest, WithAFenceAHeartbeatIsAcknowledgedOnlyAfterACommit) {
  const StreamPtr stream = Connect();
  pb::JobSpec spec = OneSlotSpec();
  spec.mutable_tasks(0)->set_when_unreachable(pb::FENCE);
  spec.mutable_tasks(0)->set_fence_after_ns(60 * kSecond);
  Submit(spec);
  Settle();
  const std::string session = stream->session();
  stream->sent.clear();
  Say(stream, Beat(), session);
  EXPECT_TRUE(stream->sent.empty());
  ASSERT_TRUE(engine_->Step());
  ASSERT_FALSE(stream->sent.empty());
  ASSERT_TRUE(stream->sent[0].has_heartbeat_ack());
  EXPECT_EQ(stream->sent[0].heartbeat_ack().renews_size(), 1);
}

TEST_F(SessionsTest, TellsThatAHostWasQuietForAsLongAsItsFencesNeed) {
  Connect();
  pb::JobSpec spec = OneSlotSpec();
  spec.mutable_tasks(0)->set_when_unreachable(pb::FENCE);
  spec.mutable_tasks(0)->set_fence_after_ns(60 * kSecond);
  spec.mutable_tasks(0)->set_grace_ns(0);
  Submit(spec);
  Settle();
  const int64_t wait_ns = FenceWaitNs(spec.tasks(0)), heard_ns = clock_.now_ns;
  const auto quiet_ns = [&] { return state().host(state().FindHost("lab", "h1")).quiet_ns; };
  clock_.now_ns = heard_ns + wait_ns - 1;
  sessions_->Tick();
  Settle();
  sessions_->Tick();
  Settle();
  EXPECT_EQ(StateOf("h1"), pb::HOST_UNREACHABLE);
  EXPECT_EQ(quiet_ns(), 0);
  clock_.now_ns = heard_ns + wait_ns;
  sessions_->Tick();
  Settle();
  EXPECT_EQ(quiet_ns(), wait_ns);
  // Back for a moment, in which it says no more than its Hello, and quiet for as long once more.
  Connect();
  EXPECT_EQ(quiet_ns(), 0);
  clock_.now_ns += wait_ns;
  for (int i = 0; i < 2; ++i) {
    sessions_->Tick();
    Settle();
  }
  EXPECT_EQ(quiet_ns(), wait_ns);
  // A restart waits anew: by which clock the old one waited is not known.
  const State before = state();
  Start(before);
  sessions_->Tick();
  Settle();
  EXPECT_EQ(StateOf("h1"), pb::HOST_SILENT);
}

}  // namespace
}  // namespace muster
