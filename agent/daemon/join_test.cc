#include "agent/daemon/join.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/units.h"
#include "common/pki/certificates.h"
#include "muster/v1/trust_service.grpc.pb.h"
#include "network/identity.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNow = 1'800'000'000 * kSecond;  // 2027-01-15T08:00:00Z

TEST(WhyClocksDiffer, FiveMinutesAreTakenAndNoMore) {
  const struct {
    const char* name;
    int64_t ahead_ns;
    const char* why;  // empty: it may join
  } cases[] = {
      {"the same", 0, ""},
      {"ahead by as much as is taken", 5 * kMinute, ""},
      {"behind by as much as is taken", -5 * kMinute, ""},
      {"ahead by a second more", 5 * kMinute + kSecond, ": it is 5m1s ahead"},
      {"behind by a second more", -5 * kMinute - kSecond, ": it is 5m1s behind"},
      {"a year behind", -365 * kDay, ": it is 365d behind"},
  };
  for (const auto& test : cases) {
    const std::string why = WhyClocksDiffer(kNow + test.ahead_ns, kNow);
    if (*test.why == '\0') {
      EXPECT_THAT(why, IsEmpty()) << test.name;
      continue;
    }
    EXPECT_THAT(why, HasSubstr(test.why)) << test.name;
    EXPECT_THAT(why, HasSubstr("the scheduler's 2027-01-15T08:00:00Z")) << test.name;
    EXPECT_THAT(why, HasSubstr("run the same line again")) << test.name;
  }
}

// A scheduler's join door that issues to whoever asks, and whose clock may be set.
class JoinDoorWithAClock : public v1::JoinService::Service {
 public:
  JoinDoorWithAClock() {
    const std::string key = NewKey();
    const std::string certificate =
        *Issue(*NewRequest(key), Holder{Holder::kServer, "t1"}, OneHour(), root_, root_key_);
    grpc::SslServerCredentialsOptions tls(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    tls.pem_key_cert_pairs.push_back({key, certificate + root_});
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    line_ = {absl::StrCat("127.0.0.1:", port), "mst_1_2", ReadCertificate(root_)->fingerprint};
  }
  ~JoinDoorWithAClock() override { server_->Shutdown(); }

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request,
                    v1::CertificateResponse* response) override {
    keys_.push_back(*ReadRequest(request->request()));
    response->set_certificate(*Issue(request->request(), Holder{Holder::kHost, "t1", "lab", "h7"},
                                     OneHour(), root_, root_key_));
    response->set_authorities(root_);
    response->add_addresses(line_.address);
    response->set_now_ns(RealClock()->WallNs() + ahead_ns);
    return grpc::Status::OK;
  }

  const JoinLine& line() const { return line_; }
  // Whose certificates were asked for, by their public parts' hashes.
  const std::vector<std::string>& keys() const { return keys_; }

  int64_t ahead_ns = 0;

 private:
  static Validity OneHour() { return {WallS() - kCertificateSkewS, WallS() + 3600}; }

  const std::string root_key_ = NewKey();
  const std::string root_ = *NewRoot(root_key_, "Muster t1 1", OneHour());
  JoinLine line_;
  std::vector<std::string> keys_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(JoinHost, KeepsNothingThatItBoughtWhileTheClocksDiffer) {
  for (const int64_t ahead_ns : {6 * kMinute, -6 * kMinute}) {
    SCOPED_TRACE(ahead_ns);
    char name[] = "/tmp/muster-join-test-XXXXXX";
    const std::string directory = ::mkdtemp(name);
    const std::string path = absl::StrCat(directory, "/", kIdentityFile);
    JoinDoorWithAClock door;
    door.ahead_ns = ahead_ns;
    bool joined = true;
    const absl::Status refused = JoinHost(directory, door.line(), false, &joined).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("may be 5m off at most"));
    EXPECT_FALSE(joined);
    EXPECT_FALSE(std::filesystem::exists(path));
    door.ahead_ns = 0;
    const absl::StatusOr<Identity> identity = JoinHost(directory, door.line(), false, &joined);
    ASSERT_TRUE(identity.ok()) << identity.status();
    EXPECT_TRUE(joined);
    EXPECT_TRUE(std::filesystem::exists(path));
    ASSERT_EQ(door.keys().size(), 2u);
    EXPECT_EQ(door.keys()[0], door.keys()[1]) << "the token is for the key that it bought for";
    std::filesystem::remove_all(directory);
  }
}

TEST(JoinHost, SaysThatAHostHasJoinedAlready) {
  char name[] = "/tmp/muster-join-test-XXXXXX";
  const std::string directory = ::mkdtemp(name);
  JoinDoorWithAClock door;
  bool joined = false;
  ASSERT_TRUE(JoinHost(directory, door.line(), false, &joined).ok());
  EXPECT_TRUE(joined);
  ::testing::internal::CaptureStderr();
  const absl::StatusOr<Identity> again = JoinHost(directory, door.line(), false, &joined);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(joined);
  EXPECT_THAT(said, HasSubstr("this host has joined already"));
  EXPECT_THAT(said, HasSubstr("lab/h7"));
  EXPECT_EQ(door.keys().size(), 1u) << "nothing was bought";
  std::filesystem::remove_all(directory);
}

TEST(WhyNoCommand, NamesWhatWasMistyped) {
  for (const char* good : {"", "join", "--server", "-h"})
    EXPECT_THAT(WhyNoCommand(good), IsEmpty()) << good;
  EXPECT_THAT(WhyNoCommand("jion"),
              HasSubstr("there is no command \"jion\"; the only one is join"));
}

TEST(WhyNotAsMe, TheCertificateHasToSayWhoseJobsItIsFor) {
  Identity identity;
  identity.holder = {Holder::kHost, "t1", "anns", "ws", "", "ann"};
  EXPECT_THAT(WhyNotAsMe(identity), IsEmpty());
  identity.holder = {Holder::kHost, "t1", "lab", "h7"};
  EXPECT_THAT(WhyNotAsMe(identity), HasSubstr("lab/h7 is a host for everybody's jobs"));
}

}  // namespace
}  // namespace muster::agent
