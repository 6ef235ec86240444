// The doors on the network as hosts and users meet them: the real server, the real engine, real TLS
// on loopback.
#include "scheduler/api/network_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "common/base/protocol.h"
#include "common/pki/seal.h"
#include "common/pki/tokens.h"
#include "muster/v1/access_service.grpc.pb.h"
#include "muster/v1/agent_service.grpc.pb.h"
#include "muster/v1/cluster_service.grpc.pb.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "muster/v1/pack_service.grpc.pb.h"
#include "muster/v1/secret_service.grpc.pb.h"
#include "muster/v1/trust_service.grpc.pb.h"
#include "network/client.h"
#include "network/peek.h"
#include "network/testing/hostile_connection.h"
#include "scheduler/access/audit.h"
#include "scheduler/agents/seen_mac.h"
#include "scheduler/api/guard.h"
#include "scheduler/api/jobs_of_users.h"
#include "scheduler/engine/testing/fixture.h"
#include "scheduler/store/packs.h"
#include "scheduler/store/secrets.h"
#include "scheduler/trust/office.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using enum absl::StatusCode;

constexpr auto kPatience = std::chrono::seconds(20);
constexpr int64_t kLook = 50 * kMillisecond;

bool Eventually(const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// The machine's clock, which somebody sets.
class SteppedClock : public Clock {
 public:
  int64_t WallNs() override { return RealClock()->WallNs() + step_ns; }
  int64_t MonotonicNs() override { return RealClock()->MonotonicNs(); }
  int64_t BootNs() override { return RealClock()->BootNs(); }
  std::atomic<int64_t> step_ns = 0;
};

class NetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES256-GCM-SHA384", 1);  // as musterd does
    Start(CertificateLives(), NetworkLimits());
  }
  void Start(const CertificateLives& lives, NetworkLimits limits) {
    Stop();
    office_ = std::make_unique<Office>(std::string(kSealKeyBytes, 'k'), lives);
    SessionOptions session_options;
    session_options.store_id = std::string(32, '5');
    session_options.epoch = 1;
    session_options.mac_key = office_->KeyFor(kSeenMacPurpose);
    sessions_ = std::make_unique<Sessions>(session_options, RealClock());
    engine_ =
        std::make_unique<Engine>(EngineOptions(), RealClock(), &store_, sessions_.get(), State());
    sessions_->Attach(engine_.get());
    engine_->Post(LabConfigured());
    engine_->Post(office_->Make(RealClock()->WallNs()));
    engine_->Step();
    hub_ = std::make_unique<WatchHub>(engine_.get());
    engine_->Observe(hub_->observer());
    guard_ = std::make_unique<Guard>(
        GuardParts{engine_.get(), nullptr, &users_, audit_.get(), RealClock()});
    context_.engine = engine_.get();
    context_.sessions = sessions_.get();
    context_.clock = &clock_;
    context_.guard = guard_.get();
    context_.office = office_.get();
    limits.sweep_ns = kLook;
    server_ = std::make_unique<NetworkServer>(&context_, hub_.get(), limits);
    context_.in_use = [this](const std::string& serial) { return server_->InUse(serial); };
    ASSERT_TRUE(server_->Listen("127.0.0.1:0", "127.0.0.1:0").ok());
    context_.addresses = {absl::StrCat("127.0.0.1:", server_->port())};
    context_.join_address = absl::StrCat("127.0.0.1:", server_->join_port());
    stepping_ = std::thread([this] { engine_->Run(); });
  }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown();
    engine_->Stop();
    stepping_.join();
    hub_->Stop();
    server_.reset();
  }
  void TearDown() override { Stop(); }

  void Do(pb::Event event) {
    std::atomic<bool> done = false;
    engine_->Call(
        [&](const State&) -> absl::StatusOr<std::vector<pb::Event>> {
          return std::vector<pb::Event>{event};
        },
        [&](const absl::Status&) { done = true; });
    ASSERT_TRUE(Eventually([&] { return done.load(); }));
  }
  Trust trust() const { return engine_->Snapshot()->state.trust(); }
  JoinLine LineFor(const std::string& rest) {
    const Token token = NewToken();
    pb::Event event;
    pb::JoinToken* row = event.mutable_join_token()->mutable_token();
    row->set_id(token.id);
    row->set_secret_hash(SecretHash(token));
    row->set_uri("muster://" + trust().trust_id + rest);
    row->set_expires_ns(RealClock()->WallNs() + kHour);
    Do(event);
    return {context_.join_address, token.Text(),
            ReadCertificate(trust().authorities.at(trust().signer).certificate())->fingerprint};
  }
  Identity Joined(const std::string& rest) {
    absl::StatusOr<Identity> identity = Join(LineFor(rest), "", nullptr);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return *identity;
  }
  Identity JoinedUser(const std::string& name, pb::Role role = pb::ROLE_UNSPECIFIED) {
    pb::Event user;
    user.mutable_network_user()->mutable_user()->set_name(name);
    Do(user);
    if (role != pb::ROLE_UNSPECIFIED) {
      pb::Event bound;
      bound.mutable_binding_changed()->mutable_binding()->set_user(name);
      bound.mutable_binding_changed()->mutable_binding()->set_role(role);
      Do(bound);
    }
    return Joined("/user/" + name);
  }
  void Revoke(const Identity& identity) {
    pb::Event event;
    event.mutable_certificates_revoked()->set_uri(UriOf(identity.holder));
    Do(event);
  }
  void Turn(pb::AuthorityChanged::Step step) {
    const auto event = office_->Turn(engine_->Snapshot()->state, step, true, RealClock()->WallNs(),
                                     [](const std::string&) { return true; });
    ASSERT_TRUE(event.ok()) << event.status();
    Do(*event);
  }
  static std::shared_ptr<grpc::Channel> Dial(const Identity& identity) {
    return DialWith(identity, grpc::ChannelArguments());
  }
  static grpc::Status Ping(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    pb::PingResponse response;
    return pb::ClusterService::NewStub(channel)->Ping(&context, pb::PingRequest(), &response);
  }
  static pb::AgentMessage HelloOf(const std::string& host) {
    pb::AgentMessage message;
    pb::Hello* hello = message.mutable_hello();
    hello->set_protocol_version(kAgentProtocolVersion);
    hello->set_cluster("lab");
    hello->set_host(host);
    hello->set_state_id(std::string(32, 'a'));
    hello->set_boot_id("boot");
    *hello->mutable_inventory() = TwoSlots();
    return message;
  }
  // As its agent, until the server ends the stream.
  static void StayUntilItEnds(const Identity& host) {
    grpc::ClientContext context;
    const auto stream = pb::AgentService::NewStub(Dial(host))->Connect(&context);
    pb::SchedulerMessage message;
    ASSERT_TRUE(stream->Write(HelloOf(host.holder.name)));
    while (stream->Read(&message)) {
    }
  }

  SteppedClock clock_;
  RecordingStore store_{nullptr};
  Users users_{{}, geteuid(), false, RealClock()};
  std::unique_ptr<Office> office_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WatchHub> hub_;
  std::unique_ptr<Audit> audit_;  // null, unless the test opens it
  std::unique_ptr<Guard> guard_;
  ApiContext context_;
  std::unique_ptr<NetworkServer> server_;
  std::thread stepping_;
};

TEST_F(NetworkTest, WhoJoinedCallsAndIsWhoItsCertificateNames) {
  const Identity ann = JoinedUser("ann");
  EXPECT_TRUE(Ping(Dial(ann)).ok());
  grpc::ClientContext context;
  pb::CheckAccessResponse response;
  pb::CheckAccessRequest request;
  const auto stub = pb::AccessService::NewStub(Dial(ann));
  ASSERT_TRUE(stub->Check(&context, request, &response).ok());
  EXPECT_EQ(response.user(), "ann");
  EXPECT_EQ(response.role(), pb::ROLE_UNSPECIFIED) << "a certificate gives no role";
}

TEST_F(NetworkTest, WithoutACertificateNothingButJoiningIsServed) {
  const Identity ann = JoinedUser("ann");
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(ServerName(ann.holder.trust_id));
  const auto without = grpc::CreateCustomChannel(
      ann.addresses[0], grpc::SslCredentials({ann.authorities, "", ""}), arguments);
  EXPECT_EQ(Ping(without).error_code(), grpc::StatusCode::UNAVAILABLE) << "no handshake";
  EXPECT_EQ(
      Ping(grpc::CreateChannel(ann.addresses[0], grpc::InsecureChannelCredentials())).error_code(),
      grpc::StatusCode::UNAVAILABLE);
  const auto at_join = grpc::CreateCustomChannel(
      ann.join_address, grpc::SslCredentials({ann.authorities, "", ""}), arguments);
  EXPECT_EQ(Ping(at_join).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(Eventually([&] { return server_->Counts().without_call >= 2; }));
}

TEST_F(NetworkTest, ACertificateOfAnotherAuthorityGetsNoHandshake) {
  Identity ann = JoinedUser("ann");
  const std::string key = NewKey();
  const Validity day{RealClock()->WallNs() / kSecond - 60, RealClock()->WallNs() / kSecond + 9999};
  const std::string root = *NewRoot(key, "Muster", day);
  ann.certificate = *Issue(*NewRequest(ann.key), ann.holder, day, root, key);
  EXPECT_EQ(Ping(Dial(ann)).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(NetworkTest, TlsBefore13IsRefused) {
  for (const int port : {server_->port(), server_->join_port()}) {
    std::string why;
    const int fd = ConnectTo(absl::StrCat("127.0.0.1:", port), kSecond, &why);
    ASSERT_GE(fd, 0) << why;
    const timeval limit{5, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    SSL* tls = SSL_new(context);
    SSL_set_fd(tls, fd);
    EXPECT_NE(SSL_connect(tls), 1);
    SSL_free(tls);
    SSL_CTX_free(context);
    close(fd);
  }
}

TEST_F(NetworkTest, AJoinIsForTheAuthorityThatTheLinePins) {
  JoinLine line = LineFor("/host/lab/h1");
  const JoinLine good = line;
  line.fingerprint[10] = line.fingerprint[10] == '0' ? '1' : '0';
  const absl::Status another = Join(line, "", nullptr).status();
  EXPECT_EQ(another.code(), kUnauthenticated);
  EXPECT_THAT(another.message(), HasSubstr("its token still counts: give --ca the fingerprint"));
  EXPECT_TRUE(trust().certificates.empty()) << "the token was not shown to who answered";
  line.fingerprint = "sha256:00";
  EXPECT_THAT(Join(line, "", nullptr).status().message(), HasSubstr("64 digits"));
  line = good;
  line.address = "127.0.0.1";
  EXPECT_THAT(Join(line, "", nullptr).status().message(), HasSubstr("such as m1.example:7421"));
  line.address = "127.0.0.1:1";
  EXPECT_THAT(Join(line, "", nullptr).status().message(),
              HasSubstr("Connection refused. `muster ca show` on musterd's machine"));
  EXPECT_TRUE(Join(good, "", nullptr).ok());
  EXPECT_EQ(Join(good, "", nullptr).status().code(), kUnauthenticated) << "it is spent";
}

TEST_F(NetworkTest, AHostsCertificateIsItsAgentsAlone) {
  const Identity h1 = Joined("/host/lab/h1");
  EXPECT_EQ(Ping(Dial(h1)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const auto stub = pb::AgentService::NewStub(Dial(h1));
  {
    grpc::ClientContext context;
    const auto stream = stub->Connect(&context);
    pb::SchedulerMessage message;
    ASSERT_TRUE(stream->Write(HelloOf("h1")) && stream->Read(&message));
    EXPECT_TRUE(message.has_welcome());
    context.TryCancel();
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto stream = stub->Connect(&context);
  pb::SchedulerMessage message;
  stream->Write(HelloOf("h2"));
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const State& state = engine_->Snapshot()->state;
  EXPECT_EQ(state.hosts().size(), 1u) << "h2 was never there";
}

// A host's certificate alone could make musterd read-only: its agent says what it likes.
TEST_F(NetworkTest, AHostIsBelievedWhatItHasSeenByItsMacAlone) {
  const auto stub = pb::AgentService::NewStub(Dial(Joined("/host/lab/h1")));
  const auto answer = [&](const pb::AgentMessage& hello) {
    grpc::ClientContext context;
    const auto stream = stub->Connect(&context);
    pb::SchedulerMessage message;
    EXPECT_TRUE(stream->Write(hello) && stream->Read(&message));
    context.TryCancel();
    return message;
  };
  const pb::SchedulerMessage welcome = answer(HelloOf("h1"));
  ASSERT_TRUE(welcome.has_welcome());
  const std::string key = office_->KeyFor(kSeenMacPurpose);
  const std::string store(32, '5');
  EXPECT_EQ(welcome.mac(), MacOfSeen(key, store, 1, welcome.commit()));
  pb::AgentMessage claim = HelloOf("h1");
  claim.mutable_hello()->set_store_id_seen(store);
  claim.mutable_hello()->set_epoch_seen(1'800'000'000'000);
  claim.mutable_hello()->set_mac_seen(welcome.mac());
  EXPECT_THAT(answer(claim).refused().reason(), HasSubstr("it has no MAC of it"));
  EXPECT_EQ(engine_->WhyNotServing(), "");
  EXPECT_EQ(sessions_->Unproved(), 1u);
  EXPECT_TRUE(answer(HelloOf("h1")).has_welcome()) << "without the claim it is served";
  claim.mutable_hello()->set_mac_seen(MacOfSeen(key, store, 1'800'000'000'000, 0));
  EXPECT_THAT(answer(claim).refused().reason(), HasSubstr("it was restored from a backup"));
  EXPECT_THAT(engine_->WhyNotServing(), HasSubstr("--adopt-restored"));
}

TEST_F(NetworkTest, AHostThatSaysTooMuchIsReadOnLaterAndNothingOfItIsLost) {
  constexpr uint64_t kBeats = 4600;  // more than may come at once
  const Identity h1 = Joined("/host/lab/h1");
  grpc::ClientContext context;
  const auto stream = pb::AgentService::NewStub(Dial(h1))->Connect(&context);
  pb::SchedulerMessage message;
  ASSERT_TRUE(stream->Write(HelloOf("h1")) && stream->Read(&message));
  pb::AgentMessage beat;
  *beat.mutable_session() = message.session();
  std::thread writing([&] {
    for (uint64_t i = 1; i <= kBeats; ++i) {
      beat.mutable_heartbeat()->set_sequence(i);
      if (!stream->Write(beat)) return;
    }
  });
  for (uint64_t i = 1; i <= kBeats; ++i) {
    const bool read = stream->Read(&message);
    EXPECT_TRUE(read && message.heartbeat_ack().sequence() == i) << i;
    if (!read) break;
  }
  writing.join();
  EXPECT_GT(sessions_->Rests(), 0u);
  context.TryCancel();
}

TEST_F(NetworkTest, WhoseJobsAHostIsForStandsInItsCertificateAndStaysThereWhenItIsRenewed) {
  const Identity h1 = Joined("/host/lab/h1/only/ann");
  EXPECT_EQ(h1.holder.only_user, "ann");
  const absl::StatusOr<Identity> renewed = Renew(h1);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->holder, h1.holder);
  grpc::ClientContext context;
  const auto stream = pb::AgentService::NewStub(Dial(*renewed))->Connect(&context);
  pb::SchedulerMessage message;
  ASSERT_TRUE(stream->Write(HelloOf("h1")) && stream->Read(&message));
  EXPECT_THAT(message.refused().reason(), HasSubstr("is for everybody's"));
  context.TryCancel();
}

TEST_F(NetworkTest, AUsersCertificateIsNoAgents) {
  const Identity ann = JoinedUser("ann", pb::ROLE_ADMIN);
  grpc::ClientContext context;
  const auto stream = pb::AgentService::NewStub(Dial(ann))->Connect(&context);
  pb::SchedulerMessage message;
  stream->Write(HelloOf("h1"));
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

// The stream is open and silent: nothing but the denylist can end it.
TEST_F(NetworkTest, ARevocationEndsCallsAndLiveStreamsWithinFiveSeconds) {
  const Identity h1 = Joined("/host/lab/h1"), h2 = Joined("/host/lab/h2");
  const auto channel = Dial(h1), other = Dial(h2);
  grpc::ClientContext context, other_context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto stream = pb::AgentService::NewStub(channel)->Connect(&context);
  const auto other_stream = pb::AgentService::NewStub(other)->Connect(&other_context);
  pb::SchedulerMessage message;
  ASSERT_TRUE(stream->Write(HelloOf("h1")) && stream->Read(&message));
  ASSERT_TRUE(other_stream->Write(HelloOf("h2")) && other_stream->Read(&message));
  const auto revoked = std::chrono::steady_clock::now();
  Revoke(h1);
  while (stream->Read(&message)) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - revoked, std::chrono::seconds(5));
  EXPECT_NE(AskNews(Dial(h1)).status().code(), kOk);
  EXPECT_TRUE(AskNews(other).ok()) << "it is of another host";
  EXPECT_EQ(Renew(h1).status().code(), kUnauthenticated);
  EXPECT_EQ(RenewExpired(h1).status().code(), kUnauthenticated);
  EXPECT_TRUE(Eventually([&] { return server_->Counts().untrusted >= 1; }));
  other_context.TryCancel();
}

TEST_F(NetworkTest, AHostIsRevokedThoughNoCertificateOfItIsKnown) {
  CertificateLives lives;
  lives.host_ns = 2 * kSecond;
  Start(lives, NetworkLimits());
  const Identity h1 = Joined("/host/lab/h1");
  const auto admin = pb::TrustService::NewStub(Dial(JoinedUser("amy", pb::ROLE_ADMIN)));
  const auto revoke = [&](const std::string& host, pb::RevokeHolderResponse* response) {
    grpc::ClientContext context;
    pb::RevokeHolderRequest request;
    request.set_host(host);
    return admin->RevokeHolder(&context, request, response).error_code();
  };
  ASSERT_TRUE(Eventually([&] {
    pb::Event user;  // any: what has ended is forgotten in a step
    user.mutable_network_user()->mutable_user()->set_name("bob");
    Do(user);
    const Trust now = trust();
    return std::none_of(now.certificates.begin(), now.certificates.end(), [](const auto& c) {
      return c.second.uri().find("/host/") != std::string::npos;
    });
  }));
  pb::RevokeHolderResponse response;
  EXPECT_EQ(revoke("lab/h1", &response), grpc::StatusCode::OK);
  EXPECT_EQ(response.certificates(), 0);
  const absl::Status refused = RenewExpired(h1).status();
  EXPECT_EQ(refused.code(), kUnauthenticated);
  EXPECT_NE(refused.message().find("join again"), std::string::npos) << refused;
  EXPECT_EQ(revoke("lba/h1", &response), grpc::StatusCode::NOT_FOUND) << "there is no such cluster";
}

TEST_F(NetworkTest, WhatAUserOfTheNetworkMayIsToldThoughTheMachineKnowsNone) {
  JoinedUser("ann", pb::ROLE_OPERATOR);
  const auto admin = pb::AccessService::NewStub(Dial(JoinedUser("amy", pb::ROLE_ADMIN)));
  const auto check = [&](const std::string& user, pb::CheckAccessResponse* response) {
    grpc::ClientContext context;
    pb::CheckAccessRequest request;
    request.set_user(user);
    return admin->Check(&context, request, response).error_code();
  };
  pb::CheckAccessResponse response;
  EXPECT_EQ(check("ann", &response), grpc::StatusCode::OK);
  EXPECT_EQ(response.user(), "ann");
  EXPECT_EQ(response.role(), pb::ROLE_OPERATOR);
  EXPECT_EQ(check("bob", &response), grpc::StatusCode::NOT_FOUND);
}

TEST_F(NetworkTest, AConnectionEndsWithItsCertificate) {
  CertificateLives lives;
  lives.host_ns = 2 * kSecond;
  Start(lives, NetworkLimits());
  const Identity h1 = Joined("/host/lab/h1");
  StayUntilItEnds(h1);
  EXPECT_LT(RealClock()->WallNs() / kSecond, h1.validity.end_s + 5);
  // It renews by the key that it has, and nobody else can.
  absl::StatusOr<Identity> renewed = RenewExpired(h1);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->holder, h1.holder);
  Identity thief = h1;
  thief.key = NewKey();
  EXPECT_EQ(RenewExpired(thief).status().code(), kUnauthenticated);
}

TEST_F(NetworkTest, ConnectionsThatComeToNothingAreInTheAudit) {
  char name[] = "/tmp/muster-network-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  audit_ = *Audit::Open(folder + "/audit");
  CertificateLives lives;
  lives.host_ns = 2 * kSecond;
  Start(lives, NetworkLimits());
  for (const bool says : {false, true, true, true, false}) {
    std::string why;
    const int fd = ConnectTo(absl::StrCat("127.0.0.1:", server_->port()), kSecond, &why);
    ASSERT_GE(fd, 0) << why;
    if (says) ASSERT_EQ(write(fd, "hello", 5), 5);
    close(fd);
  }
  EXPECT_TRUE(Eventually([&] {
    return server_->Counts().without_call == 3 && server_->connections() == 0;
  })) << "who says nothing, as commands do before they call, is none";
  const int malformed = Begin(context_.join_address, "127.0.0.9");
  ASSERT_TRUE(Eventually([&] { return write(malformed, "hello", 5) == 5; }));
  EXPECT_TRUE(Eventually([&] { return server_->Counts().without_call == 4; }));
  close(malformed);
  const Identity h1 = Joined("/host/lab/h1");
  StayUntilItEnds(h1);
  const auto told = [&](const std::string& user) {
    std::vector<std::string> lines;
    const auto records = audit_->Newest(100, [&](const pb::AuditRecord& record) {
      return record.user() == user && record.method() == "Network/Connect";
    });
    EXPECT_TRUE(records.ok()) << records.status();
    for (const pb::AuditRecord& record : *records)
      lines.push_back(absl::StrCat(record.outcome(), " ", record.object(), " ", record.detail()));
    return lines;
  };
  EXPECT_TRUE(Eventually([&] { return !told("host lab/h1").empty(); }));
  EXPECT_THAT(told("host lab/h1")[0], HasSubstr("its certificate has expired"));
  const std::vector<std::string> of_address = told("address ipv4:127.0.0.1");
  ASSERT_EQ(of_address.size(), 1u) << "the others are counted, and told at the minute's end";
  EXPECT_THAT(of_address[0], HasSubstr("UNAUTHENTICATED ipv4:127.0.0.1:"));
  EXPECT_THAT(of_address[0], HasSubstr("it ended before a call"));
  const std::vector<std::string> of_other = told("address ipv4:127.0.0.9");
  ASSERT_EQ(of_other.size(), 1u);
  EXPECT_THAT(of_other[0], HasSubstr("UNAUTHENTICATED join ipv4:127.0.0.9:"));
  EXPECT_THAT(of_other[0], HasSubstr("it ended before a call"));
  EXPECT_EQ(server_->Counts().without_call, 4u)
      << "who joins looks first whose certificate is shown at that door";
  Stop();
  audit_.reset();
  std::filesystem::remove_all(folder);
}

// Of a connection to `there`'s join door on which a call was answered; null: none was.
std::unique_ptr<pb::JoinService::Stub> CalledAtTheJoinDoor(const Identity& there) {
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(ServerName(there.holder.trust_id));
  auto stub = pb::JoinService::NewStub(grpc::CreateCustomChannel(
      there.join_address, grpc::SslCredentials({there.authorities, "", ""}), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  pb::ListProvidersResponse response;
  const grpc::Status status = stub->ListProviders(&context, pb::ListProvidersRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return status.ok() ? std::move(stub) : nullptr;
}

// As where somebody types at a login by a provider, between two calls.
TEST_F(NetworkTest, WhoCalledAtTheJoinDoorIsNotEndedForItsSilence) {
  NetworkLimits limits;
  limits.silent_ns = 2 * kSecond;
  Start(CertificateLives(), limits);
  const Identity ann = JoinedUser("ann");
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 0; }));
  const auto stranger = CalledAtTheJoinDoor(ann);
  ASSERT_NE(stranger, nullptr);
  std::string why;
  const int silent = ConnectTo(context_.join_address, kSecond, &why);
  ASSERT_GE(silent, 0) << why;
  EXPECT_TRUE(Eventually([&] {
    return server_->Counts().silent >= 1 && server_->connections() == 1;
  })) << "it began after the one that called";
  EXPECT_EQ(server_->Counts().silent, 1u);
  close(silent);
}

TEST_F(NetworkTest, WhoCalledAtTheJoinDoorIsEndedInTime) {
  NetworkLimits limits;
  limits.stranger_ns = 2 * kSecond;
  Start(CertificateLives(), limits);
  const Identity ann = JoinedUser("ann");
  const auto stranger = CalledAtTheJoinDoor(ann);
  ASSERT_NE(stranger, nullptr);
  EXPECT_TRUE(Eventually([&] { return server_->connections() == 0; }));
  EXPECT_GE(server_->Counts().silent, 1u);
}

TEST_F(NetworkTest, AClockThatIsSetBackMakesItsCertificateAnew) {
  clock_.step_ns = 5 * kHour;
  Start(CertificateLives(), NetworkLimits());
  clock_.step_ns = 0;
  ASSERT_TRUE(Eventually([&] {
    const auto chain = PeekChain(context_.addresses[0], kSecond);
    return chain.ok() && ReadCertificate(*chain)->validity.begin_s <= WallS();
  }));
}

TEST_F(NetworkTest, ARotationShakesNoConnection) {
  const Identity before = Joined("/host/lab/h1");
  const auto channel = Dial(before);
  EXPECT_FALSE(*AskNews(channel));
  Turn(pb::AuthorityChanged::PREPARED);
  EXPECT_TRUE(*AskNews(channel));
  absl::StatusOr<Identity> told = Renew(before);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(ReadCertificates(told->authorities)->size(), 2u);
  EXPECT_FALSE(*AskNews(Dial(*told)));
  Turn(pb::AuthorityChanged::SIGNS);
  EXPECT_TRUE(*AskNews(channel)) << "the connection of before goes on";
  // New connections meet the server under its new authority: who was told of it comes in.
  ASSERT_TRUE(Eventually([&] {
    const auto chain = PeekChain(context_.addresses[0], kSecond);
    return chain.ok() && VerifyHolder(*chain, trust().authorities.at(2).certificate(),
                                      RealClock()->WallNs() / kSecond)
                             .ok();
  }));
  absl::StatusOr<Identity> newest = Renew(*told);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_FALSE(AskNews(Dial(before)).ok()) << "it doesn't know the new authority";
  Turn(pb::AuthorityChanged::DROPPED);
  ASSERT_TRUE(Eventually([&] { return !AskNews(Dial(*told)).ok(); })) << "its signer is gone";
  EXPECT_FALSE(*AskNews(Dial(*newest)));
}

TEST_F(NetworkTest, OneAddressHasOnlySoManyConnections) {
  NetworkLimits limits;
  limits.connections_of_address = 4;
  limits.handshake_ms = 500;
  Start(CertificateLives(), limits);
  const JoinLine line = LineFor("/host/lab/h1");
  std::vector<int> silent;
  for (int i = 0; i < 4; ++i) {
    std::string why;
    silent.push_back(ConnectTo(context_.join_address, kSecond, &why));
    ASSERT_GE(silent.back(), 0) << why;
  }
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 4; }));
  EXPECT_FALSE(Join(line, "", nullptr).ok());
  EXPECT_GE(server_->Counts().refused, 1u);
  // Those that never begin a handshake are ended, and make room.
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(Join(line, "", nullptr).ok());
  for (const int fd : silent) close(fd);
}

// Frames that come to no call: here pings of HTTP/2, which gRPC answers one by one.
TEST_F(NetworkTest, WhoSendsWhatNoCallExplainsIsEndedAndWaits) {
  NetworkLimits limits;
  limits.allowance.bytes_at_once = 100 << 10;
  limits.allowance.bytes_per_s = 50 << 10;
  limits.allowance.wait_s = 5;  // so long that a busy machine gets to the next line in time
  Start(CertificateLives(), limits);
  const Identity ann = JoinedUser("ann");
  const auto channel = Dial(ann);
  ASSERT_TRUE(Ping(channel).ok());
  HostileConnection hostile{TlsClient(&ann), ann.addresses[0], ""};
  ASSERT_TRUE(hostile.open());
  hostile.Send(Preface());
  int64_t sent = 0;
  while (hostile.Send(Frame(kWindowUpdate, 0, 0, BigEndian(1)))) sent += 13;
  EXPECT_LT(sent, 2 << 20);
  EXPECT_EQ(server_->Counts().unexplained, 1u);
  EXPECT_FALSE((HostileConnection{TlsClient(&ann), ann.addresses[0], ""}).open())
      << "its address waits";
  EXPECT_TRUE(Ping(channel).ok()) << "who was connected and did nothing of the kind goes on";
  EXPECT_TRUE(Eventually(
      [&] { return (HostileConnection{TlsClient(&ann), ann.addresses[0], ""}).open(); }));
}

TEST_F(NetworkTest, LongMessagesAreExplainedByTheirCalls) {
  NetworkLimits limits;
  limits.allowance.bytes_at_once = 700 << 10;
  limits.allowance.bytes_per_s = 1;
  Start(CertificateLives(), limits);
  const Identity h1 = Joined("/host/lab/h1");
  grpc::ClientContext context;
  const auto stream = pb::AgentService::NewStub(Dial(h1))->Connect(&context);
  pb::SchedulerMessage message;
  ASSERT_TRUE(stream->Write(HelloOf("h1")) && stream->Read(&message));
  pb::AgentMessage log;
  *log.mutable_session() = message.session();
  log.mutable_log_chunk()->set_data(std::string(256 << 10, 'x'));
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(stream->Write(log)) << i;
  pb::AgentMessage heartbeat;
  *heartbeat.mutable_session() = message.session();
  heartbeat.mutable_heartbeat()->set_sequence(1);
  ASSERT_TRUE(stream->Write(heartbeat));
  EXPECT_TRUE(stream->Read(&message)) << "an answer: the stream goes on";
  context.TryCancel();
}

TEST_F(NetworkTest, OneHolderHasOnlySoManyConnections) {
  NetworkLimits limits;
  limits.connections_of_holder = 3;
  Start(CertificateLives(), limits);
  const Identity ann = JoinedUser("ann"), bob = JoinedUser("bob");
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 3; ++i) {
    channels.push_back(Dial(ann));
    ASSERT_TRUE(Ping(channels.back()).ok()) << i;
  }
  const auto fourth = Dial(ann);
  (void)Ping(fourth);  // may be answered before its end
  EXPECT_TRUE(Eventually([&] { return server_->connections() == 3; }));
  EXPECT_GE(server_->Counts().holders, 1u);
  EXPECT_TRUE(Ping(Dial(bob)).ok());
  for (const auto& channel : channels) EXPECT_TRUE(Ping(channel).ok());
  channels.clear();
  EXPECT_TRUE(Eventually([&] { return Ping(Dial(ann)).ok(); }));
}

TEST_F(NetworkTest, WhoSaysNothingMakesRoomForOtherAddresses) {
  NetworkLimits limits;
  limits.silent = 8;
  limits.silent_of_address = 8;
  Start(CertificateLives(), limits);
  const Identity ann = JoinedUser("ann");
  std::vector<int> silent;
  const std::string at = absl::StrCat("127.0.0.1:", server_->port());
  for (int i = 0; i < 20; ++i) silent.push_back(Begin(at, "127.0.0.9"));
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 8; }));
  EXPECT_TRUE(Ping(Dial(ann)).ok());
  for (const int fd : silent) close(fd);
}

TEST_F(NetworkTest, WhoTriesTokensIsSlowedDown) {
  JoinLine line = LineFor("/host/lab/h1");
  grpc::ChannelArguments arguments;
  const Identity ann = JoinedUser("ann");
  arguments.SetSslTargetNameOverride(ServerName(ann.holder.trust_id));
  const auto channel = grpc::CreateCustomChannel(
      ann.join_address, grpc::SslCredentials({ann.authorities, "", ""}), arguments);
  const auto stub = pb::JoinService::NewStub(channel);
  int refused = 0, slowed = 0;
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    pb::JoinRequest request;
    request.set_token(NewToken().Text());
    pb::CertificateResponse response;
    const grpc::Status status = stub->Join(&context, request, &response);
    refused += status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    slowed += status.error_code() == grpc::StatusCode::UNAVAILABLE;
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(slowed, 20);
  EXPECT_EQ(refused + slowed, 100);
}

// ---- directories that come along ----

class PackNetworkTest : public NetworkTest {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-packs-XXXXXX";
    folder_ = mkdtemp(name);
    packs_ = *PackStore::Open(folder_, PackLimits(), RealClock());
    context_.packs = packs_.get();
    secrets_ = *SecretStore::Open(folder_ + "/secrets",
                                  [](bool) { return std::string(kSealKeyBytes, 'k'); });
    context_.secrets = secrets_.get();
    NetworkTest::SetUp();
    ann_ = JoinedUser("ann", pb::ROLE_SUBMITTER);
    bob_ = JoinedUser("bob", pb::ROLE_SUBMITTER);
    text_ = std::string(300'000, 'a');
    digest_ = Sha256Hex(text_);
  }
  void TearDown() override {
    NetworkTest::TearDown();
    std::filesystem::remove_all(folder_);
  }
  // In pieces, as `muster` sends it; the last answer.
  grpc::Status Send(const Identity& who, const std::string& text, size_t piece = 48 << 10) {
    const auto stub = pb::PackService::NewStub(Dial(who));
    const auto size = static_cast<int64_t>(text.size());
    for (int64_t at = 0; at < size;) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kPatience);
      pb::PutPackRequest request;
      request.set_digest(Sha256Hex(text));
      request.set_size_bytes(size);
      request.set_offset(at);
      request.set_data(text.substr(static_cast<size_t>(at), piece));
      pb::PutPackResponse response;
      if (grpc::Status status = stub->Put(&context, request, &response); !status.ok())
        return status;
      if (response.next_offset() <= at) return grpc::Status(grpc::StatusCode::INTERNAL, "stuck");
      at = response.next_offset();
    }
    return grpc::Status::OK;
  }
  grpc::Status Submit(const Identity& who, const std::string& workdir, const std::string& digest) {
    pb::SubmitRequest request;
    *request.mutable_spec() = OneSlotSpec();
    request.mutable_spec()->mutable_tasks(0)->set_workdir(workdir);
    request.mutable_spec()->mutable_tasks(0)->set_workdir_digest(digest);
    if (!secret_.empty()) request.mutable_spec()->add_secrets(secret_);
    request.set_idempotency_key(absl::StrCat(UriOf(who.holder), ++submissions_));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    pb::SubmitResponse response;
    const grpc::Status status =
        pb::JobService::NewStub(Dial(who))->Submit(&context, request, &response);
    uid_ = response.job().uid();
    return status;
  }
  grpc::Status Read(const Identity& who, std::string* data) {
    pb::ReadPackRequest request;
    request.mutable_key()->set_job_uid(uid_);
    request.mutable_key()->set_task("main");
    request.mutable_key()->set_attempt(1);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    pb::ReadPackResponse response;
    const grpc::Status status =
        pb::AgentService::NewStub(Dial(who))->ReadPack(&context, request, &response);
    *data = response.data();
    return status;
  }

  std::string folder_, text_, digest_, uid_, secret_;
  std::unique_ptr<PackStore> packs_;
  std::unique_ptr<SecretStore> secrets_;
  Identity ann_, bob_;
  int submissions_ = 0;
};

TEST_F(PackNetworkTest, EachThatIsStoredIsInTheAuditOnce) {
  audit_ = *Audit::Open(folder_ + "/audit");
  Start(CertificateLives(), NetworkLimits());
  const Identity ann = JoinedUser("ann", pb::ROLE_SUBMITTER);
  const Identity bob = JoinedUser("bob", pb::ROLE_SUBMITTER);
  ASSERT_TRUE(Send(ann, text_).ok());
  ASSERT_TRUE(Send(ann, text_).ok()) << "it is there already";
  ASSERT_TRUE(Send(bob, text_).ok());
  const auto told = [&](const std::string& user) {
    std::vector<std::string> details;
    const auto records = audit_->Newest(100, [&](const pb::AuditRecord& record) {
      return record.user() == user && record.method() == "PackService/Put";
    });
    EXPECT_TRUE(records.ok()) << records.status();
    for (const pb::AuditRecord& record : *records)
      details.push_back(absl::StrCat(record.outcome(), " ", record.detail()));
    return details;
  };
  EXPECT_TRUE(Eventually([&] { return !told("bob").empty(); }));
  EXPECT_THAT(told("ann"), ::testing::ElementsAre(absl::StrCat("OK ", digest_, ", 300000 bytes")));
  Stop();
  audit_.reset();
}

TEST_F(PackNetworkTest, OneOfAnotherUserCanNotBeNamed) {
  ASSERT_TRUE(Send(ann_, text_).ok());
  pb::Event queues;
  queues.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("default");
  queues.mutable_queues_applied()->set_version(1);
  Do(queues);
  const grpc::Status named = Submit(bob_, ".", digest_),
                     nowhere = Submit(bob_, ".", std::string(64, 'd'));
  EXPECT_EQ(named.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(named.error_message(), nowhere.error_message()) << "as what nobody has";
  EXPECT_EQ(Submit(ann_, ".", "").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(Submit(ann_, ".", digest_).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(PackNetworkTest, AHostReadsThoseOfItsOwnAttemptsAlone) {
  const Identity h1 = Joined("/host/lab/h1"), h2 = Joined("/host/lab/h2");
  pb::Event queues;
  queues.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("default");
  queues.mutable_queues_applied()->set_version(1);
  Do(queues);
  ASSERT_TRUE(Send(ann_, text_).ok());
  grpc::ClientContext context;
  const auto stream = pb::AgentService::NewStub(Dial(h1))->Connect(&context);
  pb::SchedulerMessage message;
  ASSERT_TRUE(stream->Write(HelloOf("h1")) && stream->Read(&message));
  const grpc::Status submitted = Submit(ann_, ".", digest_);
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  while (!message.has_prepare()) ASSERT_TRUE(stream->Read(&message));
  std::string data;
  EXPECT_TRUE(Read(h1, &data).ok());
  EXPECT_EQ(data, text_);
  EXPECT_EQ(Read(h2, &data).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Read(Joined("/host/lab/h1/only/bob"), &data).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Read(ann_, &data).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(data, "");
  context.TryCancel();
}

TEST_F(PackNetworkTest, AHostReadsSecretsOfWhatStartsThereAlone) {
  const Identity h1 = Joined("/host/lab/h1"), h2 = Joined("/host/lab/h2");
  const Identity bobs = Joined("/host/lab/h1/only/bob"), anns = Joined("/host/lab/h1/only/ann");
  pb::Event queues;
  queues.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("default");
  queues.mutable_queues_applied()->set_version(1);
  Do(queues);
  pb::SetSecretRequest set;
  set.set_name("TOKEN");
  set.set_value("sesame");
  pb::SetSecretResponse nothing;
  grpc::ClientContext setting, stranger;
  ASSERT_TRUE(pb::SecretService::NewStub(Dial(ann_))->Set(&setting, set, &nothing).ok());
  EXPECT_EQ(pb::SecretService::NewStub(Dial(JoinedUser("eve")))
                ->Set(&stranger, set, &nothing)
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  grpc::ClientContext context;
  const auto stream = pb::AgentService::NewStub(Dial(h1))->Connect(&context);
  pb::SchedulerMessage message;
  ASSERT_TRUE(stream->Write(HelloOf("h1")) && stream->Read(&message));
  const pb::SessionKey session = message.session();
  secret_ = "TOKEN=VARIABLE";
  EXPECT_EQ(Submit(bob_, "", "").error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << "he has none of that name";
  ASSERT_TRUE(Submit(ann_, "", "").ok());
  while (!message.has_prepare()) ASSERT_TRUE(stream->Read(&message));
  ASSERT_THAT(message.prepare().secrets(), ::testing::ElementsAre("TOKEN=VARIABLE"));
  EXPECT_THAT(message.DebugString(), ::testing::Not(HasSubstr("sesame")));
  const auto read = [&](const Identity& who, pb::ReadSecretsResponse* response) {
    pb::ReadSecretsRequest request;
    *request.mutable_key() = message.prepare().key();
    grpc::ClientContext call;
    call.set_deadline(std::chrono::system_clock::now() + kPatience);
    response->Clear();
    return pb::AgentService::NewStub(Dial(who))->ReadSecrets(&call, request, response).error_code();
  };
  pb::ReadSecretsResponse response;
  EXPECT_EQ(read(h2, &response), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(read(Joined("/host/lab/h1/only/bob"), &response), grpc::StatusCode::NOT_FOUND)
      << "of this host, and for bob's jobs alone";
  EXPECT_EQ(read(Joined("/host/lab/h1/only/ann"), &response), grpc::StatusCode::OK);
  response.Clear();
  EXPECT_EQ(read(ann_, &response), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(read(bobs, &response), grpc::StatusCode::NOT_FOUND) << "it is for bob's jobs alone";
  EXPECT_EQ(response.secrets_size(), 0);
  EXPECT_EQ(read(anns, &response), grpc::StatusCode::OK);
  ASSERT_EQ(read(h1, &response), grpc::StatusCode::OK);
  ASSERT_EQ(response.secrets_size(), 1);
  EXPECT_EQ(response.secrets(0).variable(), "VARIABLE");
  EXPECT_EQ(response.secrets(0).value(), "sesame");
  pb::AgentMessage started;
  *started.mutable_session() = session;
  *started.mutable_report()->mutable_key() = message.prepare().key();
  started.mutable_report()->set_phase(pb::STARTED);
  ASSERT_TRUE(stream->Write(started));
  EXPECT_TRUE(Eventually([&] { return read(h1, &response) == grpc::StatusCode::NOT_FOUND; }))
      << "it has started, and needs none any more";
  EXPECT_EQ(response.secrets_size(), 0);
  context.TryCancel();
}

TEST_F(PackNetworkTest, AUserHasOnlySoManyUnfinishedJobs) {
  pb::Event queues;
  queues.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("default");
  queues.mutable_queues_applied()->set_version(1);
  Do(queues);
  Do(HostJoins("h1"));
  JobsOfUsers jobs_of_users(2);
  context_.jobs_of_users = &jobs_of_users;
  const auto before = submissions_;
  EXPECT_TRUE(Submit(ann_, "", "").ok());
  EXPECT_TRUE(Submit(ann_, "", "").ok());
  // For a second what she submitted might still be refused for another reason.
  grpc::Status third;
  EXPECT_TRUE(Eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    third = Submit(ann_, "", "");
    return third.error_code() != grpc::StatusCode::UNAVAILABLE;
  }));
  EXPECT_EQ(third.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(third.error_message(), HasSubstr("you have 2 unfinished jobs"));
  EXPECT_TRUE(Submit(bob_, "", "").ok()) << "another user";
  submissions_ = before;
  EXPECT_TRUE(Submit(ann_, "", "").ok()) << "it is known already";
  context_.jobs_of_users = nullptr;
}

TEST_F(PackNetworkTest, WhoMaySubmitNowhereSendsNone) {
  EXPECT_EQ(Send(JoinedUser("eve"), text_).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

// An address may have little that no call explains, and ten users may come from one.
TEST_F(PackNetworkTest, LargeOnesOfManyAtOnceEndNoConnection) {
  EXPECT_EQ(Send(ann_, text_, 49'153).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<std::thread> senders;
  std::atomic<int> sent = 0;
  for (int i = 0; i < 10; ++i) {
    const std::string text(2'000'000, static_cast<char>('a' + i));
    senders.emplace_back([&, text, who = i % 2 == 0 ? ann_ : bob_] {
      const grpc::Status status = Send(who, text);
      EXPECT_TRUE(status.ok()) << status.error_message();
      sent += status.ok() ? 1 : 0;
    });
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(sent, 10);
}

}  // namespace
}  // namespace muster
