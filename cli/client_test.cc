// A command that outlasts its certificate: the real client, and a scripted server that asks for
// one, over TLS on loopback.
#include "cli/client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/login_lock.h"
#include "common/base/clock.h"
#include "common/base/testing/eventually.h"
#include "common/base/units.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "muster/v1/trust_service.grpc.pb.h"
#include "network/identity.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHourS = 3600;

Holder UserNamed(const std::string& trust_id, const std::string& name) {
  return {Holder::kUser, trust_id, "", name};
}

struct Authority {
  const std::string key = NewKey();
  const std::string certificate =
      *NewRoot(key, "Muster t1 1", {WallS() - 2 * kHourS, WallS() + 24 * kHourS});

  // Issued `age_s` ago, and good for `left_s` more.
  std::string Signs(const std::string& request, const Holder& holder, int64_t age_s,
                    int64_t left_s) const {
    const int64_t now_s = WallS();
    return *Issue(request, holder, {now_s - age_s - kCertificateSkewS, now_s + left_s}, certificate,
                  key);
  }
};

std::string SerialOf(const std::string& certificate) {
  const absl::StatusOr<Certificate> read = ReadCertificate(certificate);
  return read.ok() ? read->serial : "";
}

// Ends each stream as a server does whose clients are to come again, and keeps what they showed.
struct EndingJobs : pb::JobService::Service {
  std::mutex mutex;
  std::string shown;  // the newest stream's certificate, by its serial

  grpc::Status Watch(grpc::ServerContext* context, const pb::WatchJobRequest*,
                     grpc::ServerWriter<pb::WatchJobResponse>*) override {
    const auto found =
        context->auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    std::lock_guard lock(mutex);
    shown = found.empty() ? "" : SerialOf(std::string(found[0].data(), found[0].size()));
    return {grpc::UNAVAILABLE, "Socket closed"};
  }
};

struct RenewingTrust : pb::TrustService::Service {
  const Authority* authority = nullptr;
  std::string address;
  std::atomic<int> renewals{0};
  std::atomic<bool> answers{true};

  grpc::Status Renew(grpc::ServerContext*, const pb::RenewRequest* request,
                     pb::CertificateResponse* response) override {
    ++renewals;
    Eventually([&] { return answers.load(); });
    response->set_certificate(
        authority->Signs(request->request(), UserNamed("t1", "ann"), 0, 12 * kHourS));
    response->set_authorities(authority->certificate);
    response->add_addresses(address);
    return grpc::Status::OK;
  }
  grpc::Status GetNews(grpc::ServerContext*, const pb::GetNewsRequest*,
                       pb::GetNewsResponse*) override {
    return grpc::Status::OK;
  }
};

class LoginTest : public ::testing::Test {
 protected:
  LoginTest() {
    char folder[] = "/tmp/muster-login-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/default.identity";
    grpc::SslServerCredentialsOptions tls(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    const std::string key = NewKey();
    tls.pem_root_certs = authority_.certificate;
    tls.pem_key_cert_pairs.push_back(
        {key, authority_.Signs(*NewRequest(key), {Holder::kServer, "t1"}, 0, kHourS)});
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls), &port);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&trust_);
    server_ = builder.BuildAndStart();
    trust_.authority = &authority_;
    trust_.address = absl::StrCat("127.0.0.1:", port);
  }
  ~LoginTest() override {
    server_->Shutdown();
    std::filesystem::remove_all(folder_);
  }

  // Puts a login there as a command of its own would. Its certificate's serial.
  std::string Save(const Holder& holder, int64_t age_s, int64_t left_s) {
    Identity identity;
    identity.addresses = {trust_.address};
    identity.key = NewKey();
    identity.certificate = authority_.Signs(*NewRequest(identity.key), holder, age_s, left_s);
    identity.authorities = authority_.certificate;
    EXPECT_TRUE(SaveIdentity(path_, identity).ok());
    return SerialOf(identity.certificate);
  }
  std::string Saved() const {
    const absl::StatusOr<Identity> identity = LoadIdentity(path_);
    return identity.ok() ? SerialOf(identity->certificate) : identity.status().ToString();
  }
  absl::StatusOr<std::unique_ptr<Client>> Begin() const {
    return Client::Create(absl::StrCat(kLoginScheme, path_));
  }
  // What a try shows, by its serial.
  std::string Try(Client* client) {
    const absl::Status status =
        client->Watch("7", 20 * kSecond, nullptr, [](const pb::WatchJobResponse&) { return true; });
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    std::lock_guard lock(jobs_.mutex);
    return std::exchange(jobs_.shown, "");
  }

  // As at the end of a command. The limit is a slow machine's; a call's own is 20 s.
  static void ExpectEndsAtOnce(std::unique_ptr<Client>* client) {
    const auto began = std::chrono::steady_clock::now();
    client->reset();
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(2));
  }

  Authority authority_;
  EndingJobs jobs_;
  RenewingTrust trust_;
  std::string folder_, path_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(LoginTest, TheNextTryShowsTheCertificateThatAnotherCommandWrote) {
  struct Case {
    const char* what;
    Holder writes;
    bool taken;
  };
  for (const Case& c : {
           Case{"the same user", UserNamed("t1", "ann"), true},
           Case{"somebody else", UserNamed("t1", "bob"), false},
           Case{"of another scheduler", UserNamed("t2", "ann"), false},
       }) {
    SCOPED_TRACE(c.what);
    const std::string first = Save(UserNamed("t1", "ann"), 0, kHourS);
    const auto client = Begin();
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_EQ(Try(client->get()), first);
    const std::string second = Save(c.writes, 0, kHourS);
    EXPECT_EQ(Try(client->get()), c.taken ? second : first);
    std::filesystem::remove(path_);
    EXPECT_EQ(Try(client->get()), c.taken ? second : first) << "after muster logout";
  }
}

// A change of its mode alone leaves the file's inode and time as they were.
TEST_F(LoginTest, AFileThatOthersMightReadIsTakenOnceItsModeIsRight) {
  const std::string first = Save(UserNamed("t1", "ann"), 0, kHourS);
  const auto client = Begin();
  ASSERT_TRUE(client.ok()) << client.status();
  const std::string second = Save(UserNamed("t1", "ann"), 0, kHourS);
  std::filesystem::permissions(path_, std::filesystem::perms(0644));
  EXPECT_EQ(Try(client->get()), first);
  std::filesystem::permissions(path_, std::filesystem::perms(0600));
  EXPECT_EQ(Try(client->get()), second);
}

TEST_F(LoginTest, IsRenewedWhileACommandLasts) {
  const std::string first = Save(UserNamed("t1", "ann"), 0, 6);
  const auto client = Begin();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(Try(client->get()), first);
  EXPECT_TRUE(Eventually([&] { return Saved() != first; }));
  EXPECT_EQ(Try(client->get()), Saved());
  EXPECT_EQ(trust_.renewals.load(), 1);
}

TEST_F(LoginTest, OneCommandRenewsAndTheOthersGoOnMeanwhile) {
  const std::string first = Save(UserNamed("t1", "ann"), 60, 40);
  trust_.answers = false;
  absl::StatusOr<std::unique_ptr<Client>> renewing = absl::UnknownError("it hasn't begun");
  std::thread other([&] { renewing = Begin(); });
  EXPECT_TRUE(Eventually([&] { return trust_.renewals == 1; }));
  const auto client = Begin();
  EXPECT_EQ(trust_.renewals.load(), 1);
  trust_.answers = true;
  other.join();
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(renewing.ok()) << renewing.status();
  EXPECT_NE(Saved(), first);
  EXPECT_EQ(Try(client->get()), Saved());
  EXPECT_EQ(Try(renewing->get()), Saved());
}

TEST_F(LoginTest, ARenewalLeavesALoginThatCameMeanwhile) {
  Save(UserNamed("t1", "ann"), 60, 40);
  trust_.answers = false;
  std::thread renewing([&] { EXPECT_TRUE(Begin().ok()); });
  EXPECT_TRUE(Eventually([&] { return trust_.renewals == 1; }));
  const std::string anew = Save(UserNamed("t1", "bob"), 0, kHourS);
  trust_.answers = true;
  renewing.join();
  EXPECT_EQ(Saved(), anew);
}

TEST_F(LoginTest, ACommandDoesntWaitAtItsEndForARenewalThatGetsNoAnswer) {
  const std::string first = Save(UserNamed("t1", "ann"), 0, 6);
  trust_.answers = false;
  auto client = Begin();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(Eventually([&] { return trust_.renewals == 1; }));
  ExpectEndsAtOnce(&*client);
  trust_.answers = true;
  EXPECT_EQ(Saved(), first);
}

TEST_F(LoginTest, ACommandDoesntWaitAtItsEndForOneThatAcceptsAndSaysNothing) {
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(silent, 8), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  trust_.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  Save(UserNamed("t1", "ann"), 0, 6);
  auto client = Begin();
  ASSERT_TRUE(client.ok()) << client.status();
  pollfd called{silent, POLLIN, 0};
  EXPECT_EQ(::poll(&called, 1, 20'000), 1);
  ExpectEndsAtOnce(&*client);
  ::close(silent);
}

TEST_F(LoginTest, OneThatIsReadOnlyIsRenewed) {
  const std::string first = Save(UserNamed("t1", "ann"), 60, 40);
  std::filesystem::permissions(path_, std::filesystem::perms(0400));
  const auto client = Begin();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_NE(Saved(), first);
}

TEST_F(LoginTest, WhoReplacesOrRemovesALoginWaitsForItsRenewal) {
  EXPECT_TRUE(LoginLock::Wait(path_, 0).ok()) << "there is none yet";
  Save(UserNamed("t1", "ann"), 60, 40);
  trust_.answers = false;
  std::thread renewing([&] { EXPECT_TRUE(Begin().ok()); });
  EXPECT_TRUE(Eventually([&] { return trust_.renewals == 1; }));
  EXPECT_THAT(std::string(LoginLock::Wait(path_, 0).status().message()), HasSubstr(path_));
  trust_.answers = true;
  {
    const auto lock = LoginLock::Wait(path_, 20 * kSecond);
    EXPECT_TRUE(lock.ok()) << lock.status();
    std::filesystem::remove(path_);
  }
  renewing.join();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace muster
