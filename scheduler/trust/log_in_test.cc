// Whose name an identity provider's user may have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pki/seal.h"
#include "scheduler/trust/office.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum absl::StatusCode;

constexpr int64_t kBeginning = int64_t{1'800'000'000} * kSecond;

class LogInTest : public ::testing::Test {
 protected:
  LogInTest() : office_(std::string(kSealKeyBytes, 'k'), CertificateLives()) {
    Step(0);
    Do(office_.Make(now_ns_));
  }
  void Step(int64_t ns) {
    now_ns_ += ns;
    pb::Event event;
    event.mutable_step()->set_now_ns(now_ns_);
    Do(event);
  }
  void Do(const pb::Event& event) { Apply(&state_, event); }
  const Trust& trust() const { return state_.trust(); }
  Vouched Ann() {
    Vouched vouched;
    vouched.issuer = "https://id.example.org";
    vouched.subject = "4711";
    vouched.name = "ann";
    vouched.token_hash = std::to_string(++tokens_);
    vouched.ends_ns = now_ns_ + 5 * kMinute;
    vouched.log_in_again_ns = now_ns_ + kDay;
    return vouched;
  }
  absl::StatusOr<Office::Issued> LogIn(const Vouched& vouched) {
    absl::StatusOr<Office::Issued> issued =
        office_.LogIn(trust(), vouched, *NewRequest(key_), now_ns_, &why_);
    if (!issued.ok()) return issued;
    for (const pb::Event& event : issued->before) Do(event);
    Do(issued->event);
    return issued;
  }
  void Invite(const std::string& name) {
    pb::Event event;
    event.mutable_network_user()->mutable_user()->set_name(name);
    Do(event);
  }
  std::string Uri(const std::string& name) const {
    return UriOf(Holder{Holder::kUser, trust().trust_id, "", name});
  }

  const Office office_;
  const std::string key_ = NewKey();
  State state_;
  int64_t now_ns_ = kBeginning;
  int tokens_ = 0;
  std::string why_;
};

TEST_F(LogInTest, ACertificateIsGivenAndTheNameIsTheirs) {
  Vouched ann = Ann();
  ann.groups = std::vector<std::string>{"nlp"};
  const absl::StatusOr<Office::Issued> issued = LogIn(ann);
  ASSERT_TRUE(issued.ok()) << issued.status();
  EXPECT_EQ(ReadPresented(trust(), issued->certificate)->uri, Uri("ann"));
  const pb::NetworkUser& user = trust().users.at("ann");
  EXPECT_EQ(user.issuer(), "https://id.example.org");
  EXPECT_EQ(user.subject(), "4711");
  EXPECT_THAT(user.groups(), ElementsAre("nlp"));
  // Groups follow the provider's word at each login.
  ann = Ann();
  ann.groups = std::vector<std::string>();
  ASSERT_TRUE(LogIn(ann).ok());
  EXPECT_THAT(trust().users.at("ann").groups(), ElementsAre());
}

TEST_F(LogInTest, ATokenCountsOnce) {
  const Vouched ann = Ann();
  ASSERT_TRUE(LogIn(ann).ok());
  EXPECT_THAT(std::string(LogIn(ann).status().message()), HasSubstr("used already"));
  // A revocation doesn't make it good again, nor does the end of all that State keeps of it.
  pb::Event revoked;
  revoked.mutable_certificates_revoked()->set_uri(Uri("ann"));
  Do(revoked);
  EXPECT_EQ(LogIn(ann).status().code(), kUnauthenticated);
  Step(5 * kMinute);
  EXPECT_EQ(trust().tokens.size(), 0u) << "it is remembered until it ends";
  EXPECT_THAT(std::string(LogIn(ann).status().message()), HasSubstr("has expired"));
}

TEST_F(LogInTest, ANameThatIsNotTheirsIsRefusedWithOneSentence) {
  const auto other = [this](auto change) {
    Vouched vouched = Ann();
    change(&vouched);
    return vouched;
  };
  ASSERT_TRUE(LogIn(Ann()).ok());
  Invite("bob");
  pb::Event revoked;
  *revoked.mutable_network_user()->mutable_user() = trust().users.at("ann");
  revoked.mutable_network_user()->mutable_user()->set_name("cleo");
  revoked.mutable_network_user()->mutable_user()->set_subject("4713");
  revoked.mutable_network_user()->mutable_user()->set_revoked(true);
  Do(revoked);
  const struct {
    const char* why;
    Vouched vouched;
  } kCases[] = {
      {"another of its subjects", other([](Vouched* v) { v->subject = "4712"; })},
      {"another provider's", other([](Vouched* v) { v->issuer = "https://evil.example"; })},
      {"somebody invited", other([](Vouched* v) { v->name = "bob", v->subject = "4714"; })},
      {"revoked", other([](Vouched* v) { v->name = "cleo", v->subject = "4713"; })},
      {"is revoked", other([](Vouched* v) { v->name = "cleo2", v->subject = "4713"; })},
      {"reserved", other([](Vouched* v) { v->name = "sys", v->kind = NameKind::kReserved; })},
      {"reserved", other([](Vouched* v) {
         v->name = "sys", v->kind = NameKind::kReserved, v->existing_users = true;
       })},
      {"an account", other([](Vouched* v) { v->name = "lea", v->kind = NameKind::kAccount; })},
      {"no name", other([](Vouched* v) { v->name = "Ann Lee"; })},
      {"no name", other([](Vouched* v) { v->name = "../ann"; })},
      {"no name", other([](Vouched* v) { v->name = "1001"; })},  // a uid on hosts
      {"roles already",
       other([](Vouched* v) { v->name = "dan", v->subject = "4714", v->has_roles = true; })},
      {"its subject is ann", other([](Vouched* v) { v->name = "dan"; })},
      {"no name", other([](Vouched* v) { v->name = std::string(33, 'a'); })},
  };
  std::string said;
  for (const auto& [why, vouched] : kCases) {
    const absl::Status status = LogIn(vouched).status();
    EXPECT_EQ(status.code(), kPermissionDenied) << why;
    EXPECT_THAT(why_, HasSubstr(why));
    if (said.empty()) said = std::string(status.message());
    EXPECT_EQ(said, status.message()) << "it tells nothing of others";
  }
}

TEST_F(LogInTest, WhereItIsSaidAProviderVouchesForWhoIsKnownAlready) {
  Invite("ann");
  Vouched ann = Ann();
  ann.existing_users = true;
  ann.kind = NameKind::kAccount;
  ASSERT_TRUE(LogIn(ann).ok());
  ann.token_hash = "other";
  ann.subject = "4712";
  EXPECT_EQ(LogIn(ann).status().code(), kPermissionDenied) << "the first subject has the name";
}

TEST_F(LogInTest, CertificatesRenewUntilTheProviderHasToVouchAgain) {
  ASSERT_TRUE(LogIn(Ann()).ok());
  const Holder holder{Holder::kUser, trust().trust_id, "", "ann"};
  Step(kDay - kHour);
  const absl::StatusOr<Office::Issued> renewed =
      office_.Renew(trust(), holder, *NewRequest(key_), now_ns_);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(ReadCertificate(renewed->certificate)->validity.end_s, (now_ns_ + kHour) / kSecond);
  Step(kHour);
  EXPECT_THAT(
      std::string(office_.Renew(trust(), holder, *NewRequest(key_), now_ns_).status().message()),
      HasSubstr("muster login --oidc"));
}

TEST_F(LogInTest, WhatIsKeptOfATokenBuysNothing) {
  ASSERT_TRUE(LogIn(Ann()).ok());
  const std::string id = trust().tokens.begin()->first;
  for (const std::string& text : {id, "mst_" + id + "_", "mst_" + id + "_" + std::string(43, 'A')})
    EXPECT_FALSE(office_.Join(trust(), text, *NewRequest(key_), now_ns_).ok()) << text;
}

}  // namespace
}  // namespace muster
