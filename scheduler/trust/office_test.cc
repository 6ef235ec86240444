// Who gets a certificate, and how the authority changes.
#include "scheduler/trust/office.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/pki/seal.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum absl::StatusCode;
using Change = pb::AuthorityChanged;

constexpr int64_t kStart = int64_t{1'800'000'000} * kSecond;
constexpr char kHostUri[] = "/host/lab/h1";

class OfficeTest : public ::testing::Test {
 protected:
  OfficeTest() : office_(std::string(kSealKeyBytes, 'k'), CertificateLives()) {
    Step();
    Do(office_.Make(now_ns_));
  }

  void Step() {
    pb::Event event;
    event.mutable_step()->set_now_ns(now_ns_);
    Do(event);
  }
  void Later(int64_t ns) {
    now_ns_ += ns;
    Step();
  }
  void Do(const pb::Event& event) { Apply(&state_, event); }
  const Trust& trust() const { return state_.trust(); }
  std::string Uri(const std::string& rest) const { return "muster://" + trust().trust_id + rest; }
  Token GiveToken(const std::string& rest, int64_t ttl_ns = kHour) {
    const Token token = NewToken();
    pb::Event event;
    pb::JoinToken* row = event.mutable_join_token()->mutable_token();
    row->set_id(token.id);
    row->set_secret_hash(SecretHash(token));
    row->set_uri(Uri(rest));
    row->set_expires_ns(now_ns_ + ttl_ns);
    Do(event);
    return token;
  }
  // Joins; what it got.
  absl::StatusOr<std::string> Join(const Token& token, const std::string& key) {
    absl::StatusOr<Office::Issued> issued =
        office_.Join(trust(), token.Text(), *NewRequest(key), now_ns_);
    if (!issued.ok()) return issued.status();
    Do(issued->event);
    return issued->certificate;
  }
  void ClustersAre(const std::vector<std::string>& hosts_of_lab) {
    pb::Event event;
    pb::ClusterSpec* lab = event.mutable_clusters_configured()->mutable_file()->add_clusters();
    lab->set_name("lab");
    for (const std::string& host : hosts_of_lab) lab->add_hosts()->set_name(host);
    Do(event);
  }
  std::string JoinedHost(const std::string& key = NewKey()) {
    return *Join(GiveToken(kHostUri), key);
  }
  absl::Status Turn(Change::Step step, bool force = false) {
    absl::StatusOr<pb::Event> event =
        office_.Turn(state_, step, force, now_ns_, [](const std::string&) { return true; });
    if (!event.ok()) return event.status();
    Do(*event);
    return absl::OkStatus();
  }
  std::string WhyNot(const std::string& certificate) const {
    const absl::StatusOr<Presented> presented = ReadPresented(trust(), certificate);
    if (!presented.ok()) return std::string(presented.status().message());
    return WhyNotTrusted(trust(), presented->holder, presented->certificate.serial,
                         presented->authority);
  }
  std::vector<std::string> Behind(bool in_use = true) const {
    return Office::Behind(state_, now_ns_, [in_use](const std::string&) { return in_use; });
  }

  int64_t now_ns_ = kStart;
  State state_;
  const Office office_;
};

TEST_F(OfficeTest, ATokenBuysACertificateForItsHolderAlone) {
  const std::string certificate = JoinedHost();
  const absl::StatusOr<Presented> presented = ReadPresented(trust(), certificate);
  ASSERT_TRUE(presented.ok()) << presented.status();
  EXPECT_EQ(presented->uri, Uri(kHostUri));
  EXPECT_EQ(presented->authority, 1u);
  EXPECT_EQ(presented->certificate.validity.end_s, (now_ns_ + 7 * kDay) / kSecond);
  EXPECT_EQ(WhyNot(certificate), "");
  EXPECT_EQ(trust().certificates.size(), 1u);
}

TEST_F(OfficeTest, ACertificateOfATokenWithScopesNamesTheTokenAndCountsNoLongerThanThat) {
  pb::Event user;
  user.mutable_network_user()->mutable_user()->set_name("ann");
  Do(user);
  const Token token = NewToken();
  pb::Event event;
  pb::JoinToken* row = event.mutable_join_token()->mutable_token();
  row->set_id(token.id);
  row->set_secret_hash(SecretHash(token));
  row->set_uri(Uri("/user/ann/token/" + token.id));
  row->set_expires_ns(now_ns_ + 2 * kHour);
  row->set_reusable(true);
  row->add_scopes()->set_role(pb::ROLE_VIEWER);
  Do(event);
  const absl::StatusOr<std::string> certificate = Join(token, NewKey());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_TRUE(Join(token, NewKey()).ok()) << "a program logs in as often as it needs to";
  const absl::StatusOr<Presented> presented = ReadPresented(trust(), *certificate);
  ASSERT_TRUE(presented.ok()) << presented.status();
  EXPECT_EQ(presented->holder.name, "ann");
  EXPECT_EQ(presented->holder.token, token.id);
  EXPECT_EQ(presented->certificate.validity.end_s, (now_ns_ + 2 * kHour) / kSecond)
      << "not twelve hours, as a user's own";
  EXPECT_EQ(WhyNot(*certificate), "");
  Later(kHour);
  const absl::StatusOr<Office::Issued> renewed =
      office_.Renew(trust(), presented->holder, *NewRequest(NewKey()), now_ns_);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(ReadCertificate(renewed->certificate)->validity.end_s, (now_ns_ + kHour) / kSecond)
      << "a renewal doesn't outlive the token";
  pb::Event revoked;
  revoked.mutable_join_token()->mutable_token()->set_id(token.id);
  revoked.mutable_join_token()->set_revoked(true);
  Do(revoked);
  EXPECT_THAT(WhyNot(*certificate), HasSubstr("your token was revoked, or has expired"));
  EXPECT_EQ(
      office_.Renew(trust(), presented->holder, *NewRequest(NewKey()), now_ns_).status().code(),
      kUnauthenticated);
}

TEST_F(OfficeTest, ATokenServesOneKeyOnceAndOnlyItsSecretOpensIt) {
  const Token token = GiveToken(kHostUri);
  Token guessed = token;
  guessed.secret = NewToken().secret;
  const std::string key = NewKey();
  EXPECT_EQ(Join(guessed, key).status().code(), kUnauthenticated);
  EXPECT_EQ(Join(NewToken(), key).status().code(), kUnauthenticated);
  EXPECT_TRUE(Join(token, key).ok());
  EXPECT_TRUE(Join(token, key).ok()) << "its reply was lost";
  EXPECT_EQ(Join(token, NewKey()).status().code(), kUnauthenticated);
  const Token old = GiveToken("/host/lab/h2", kHour);
  now_ns_ += kHour;  // State forgets it with the next step only
  EXPECT_EQ(Join(old, NewKey()).status().code(), kUnauthenticated);
}

TEST_F(OfficeTest, WhatOthersSignedOrIsTheServersOwnCountsForNothing) {
  const std::string key = NewKey(), other_key = NewKey();
  const Validity year{now_ns_ / kSecond - 10, now_ns_ / kSecond + 1000};
  const std::string other = *NewRoot(other_key, "Muster", year);
  const Holder h1{Holder::kHost, trust().trust_id, "lab", "h1"};
  EXPECT_NE(WhyNot(*Issue(*NewRequest(key), h1, year, other, other_key)), "");
  EXPECT_THAT(WhyNot(*office_.ServerIdentity(trust(), now_ns_)), HasSubstr("no user and no host"));
  EXPECT_NE(WhyNot("x"), "");
}

TEST_F(OfficeTest, ARevokedHolderIsOutAndItsExpiredCertificateRenewsNothing) {
  const std::string key = NewKey();
  const std::string certificate = JoinedHost(key);
  pb::Event revoked;
  revoked.mutable_certificates_revoked()->set_uri(Uri(kHostUri));
  Do(revoked);
  EXPECT_THAT(WhyNot(certificate), HasSubstr("revoked"));
  Later(30 * kDay);
  EXPECT_EQ(office_.RenewExpired(trust(), certificate, *NewRequest(key), now_ns_).status().code(),
            kUnauthenticated);
}

// A host that was off, or a copy of last week's key: no row knows the certificate any more.
TEST_F(OfficeTest, ARevocationReachesCertificatesThatHadEndedAndNoneOfLater) {
  const std::string key = NewKey(), other_key = NewKey();
  const std::string before = JoinedHost(key);
  Later(30 * kDay);
  EXPECT_TRUE(trust().certificates.empty());
  const auto renewed = [&](const std::string& certificate, const std::string& by) {
    return office_.RenewExpired(trust(), certificate, *NewRequest(by), now_ns_).status();
  };
  EXPECT_TRUE(renewed(before, key).ok());
  pb::Event revoked;
  revoked.mutable_certificates_revoked()->set_uri(Uri(kHostUri));
  Do(revoked);
  EXPECT_EQ(renewed(before, key).code(), kUnauthenticated);
  EXPECT_THAT(renewed(before, key).message(), HasSubstr("join again"));
  Later(2 * kSecond);
  const std::string after = JoinedHost(other_key);
  EXPECT_EQ(WhyNot(after), "");
  Later(30 * kDay);
  EXPECT_TRUE(renewed(after, other_key).ok()) << "it joined again";
  EXPECT_EQ(renewed(before, key).code(), kUnauthenticated);
}

// As after a restored backup: the certificate was issued, and no row tells it.
TEST_F(OfficeTest, ARevocationReachesACertificateThatIsNotKnown) {
  const auto unknown = office_.Renew(trust(), {Holder::kHost, trust().trust_id, "lab", "h1"},
                                     *NewRequest(NewKey()), now_ns_);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  const auto was_revoked = [&](const std::string& certificate) {
    const absl::StatusOr<Presented> presented = ReadPresented(trust(), certificate);
    return WasRevoked(trust(), presented->holder, presented->certificate);
  };
  EXPECT_FALSE(was_revoked(unknown->certificate));
  pb::Event revoked;
  revoked.mutable_certificates_revoked()->set_uri(Uri(kHostUri));
  Do(revoked);
  EXPECT_TRUE(was_revoked(unknown->certificate));
  EXPECT_FALSE(was_revoked(JoinedHost())) << "it has joined again, in the same second";
}

TEST_F(OfficeTest, AHostThatWasOffRenewsWithItsOwnKeyFor90Days) {
  const std::string key = NewKey();
  const std::string certificate = JoinedHost(key);
  Later(50 * kDay);
  EXPECT_EQ(
      office_.RenewExpired(trust(), certificate, *NewRequest(NewKey()), now_ns_).status().code(),
      kUnauthenticated);
  const auto renewed = office_.RenewExpired(trust(), certificate, *NewRequest(key), now_ns_);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(WhyNot(renewed->certificate), "");
  Later(48 * kDay);
  EXPECT_EQ(office_.RenewExpired(trust(), certificate, *NewRequest(key), now_ns_).status().code(),
            kUnauthenticated);
}

// Each certificate is a row of State until it ends.
TEST_F(OfficeTest, WhoRenewsWithoutEndIsRefusedAndNobodyElseIs) {
  const auto renew = [&](const Holder& holder) {
    return office_.Renew(trust(), holder, *NewRequest(NewKey()), now_ns_).status();
  };
  const auto holds = [&](const std::string& rest, int count) {
    pb::Event event;
    pb::IssuedCertificate* row = event.mutable_certificate_issued()->mutable_certificate();
    row->set_uri(Uri(rest));
    row->set_end_s((now_ns_ + kDay) / kSecond);
    for (int i = 0; i < count; ++i) {
      row->set_serial(rest + "#" + std::to_string(i));
      Do(event);
    }
  };
  const Holder h1{Holder::kHost, trust().trust_id, "lab", "h1"},
      h2{Holder::kHost, trust().trust_id, "lab", "h2"},
      ann{Holder::kUser, trust().trust_id, "", "ann"};
  holds(kHostUri, 499);
  EXPECT_TRUE(renew(h1).ok());
  holds("/host/lab/h1/only/ann", 1);
  EXPECT_EQ(renew(h1).code(), kResourceExhausted) << "it is the same host's";
  EXPECT_THAT(renew(h1).message(), HasSubstr("host lab/h1 has 500 certificates"));
  EXPECT_TRUE(renew(h2).ok());
  holds("/user/ann", 5'000);
  EXPECT_TRUE(renew(ann).ok());
  const Token token = GiveToken("/user/ann", 3 * kDay);
  const Holder program{Holder::kUser, trust().trust_id, "", "ann", token.id};
  holds("/user/ann/token/0123456789abcdef", 3'999);
  EXPECT_TRUE(renew(program).ok());
  holds("/user/ann/token/fedcba9876543210", 1);
  EXPECT_EQ(renew(program).code(), kResourceExhausted) << "her tokens' are hers";
  EXPECT_TRUE(renew(ann).ok()) << "programs leave some for herself";
  holds("/user/ann/token/0011223344556677", 1'000);
  EXPECT_EQ(renew(ann).code(), kResourceExhausted);
  Later(2 * kDay);
  EXPECT_TRUE(renew(h1).ok()) << "they have ended";
  EXPECT_TRUE(renew(ann).ok());
}

TEST_F(OfficeTest, AUsersExpiredCertificateRenewsNothing) {
  const std::string key = NewKey();
  pb::Event user;
  user.mutable_network_user()->mutable_user()->set_name("ann");
  Do(user);
  const std::string certificate = *Join(GiveToken("/user/ann"), key);
  EXPECT_EQ(WhyNot(certificate), "");
  Later(2 * kDay);
  EXPECT_EQ(office_.RenewExpired(trust(), certificate, *NewRequest(key), now_ns_).status().code(),
            kUnauthenticated);
  user.mutable_network_user()->set_removed(true);
  Do(user);
  EXPECT_THAT(WhyNot(certificate), HasSubstr("no user ann"));
}

TEST_F(OfficeTest, ARotationWaitsForWhoeverIsBehind) {
  const std::string old = JoinedHost();
  EXPECT_THAT(Behind(), IsEmpty());
  EXPECT_EQ(Turn(Change::SIGNS).code(), kFailedPrecondition);
  ASSERT_TRUE(Turn(Change::PREPARED).ok());
  EXPECT_EQ(Turn(Change::PREPARED).code(), kFailedPrecondition) << "one at a time";
  EXPECT_TRUE(Office::Outdated(trust(), ReadCertificate(old)->serial));
  EXPECT_THAT(Behind(), ElementsAre("host lab/h1"));
  EXPECT_THAT(Turn(Change::SIGNS).message(), HasSubstr("host lab/h1"));

  const auto renew = [&] {
    const auto issued = office_.Renew(trust(), {Holder::kHost, trust().trust_id, "lab", "h1"},
                                      *NewRequest(NewKey()), now_ns_);
    Do(issued->event);
    return issued->certificate;
  };
  const std::string told = renew();
  EXPECT_FALSE(Office::Outdated(trust(), ReadCertificate(told)->serial));
  EXPECT_THAT(Behind(/*in_use=*/false), ElementsAre("host lab/h1")) << "it may not have arrived";
  EXPECT_THAT(Behind(), IsEmpty());
  ASSERT_TRUE(Turn(Change::SIGNS).ok());
  EXPECT_EQ(WhyNot(told), "") << "the authority before is trusted still";

  EXPECT_THAT(Behind(), ElementsAre("host lab/h1"));
  EXPECT_EQ(Turn(Change::DROPPED).code(), kFailedPrecondition);
  const std::string newest = renew();
  ASSERT_TRUE(Turn(Change::DROPPED).ok());
  EXPECT_EQ(WhyNot(newest), "");
  EXPECT_NE(WhyNot(told), "");
  EXPECT_NE(WhyNot(old), "");
  EXPECT_EQ(trust().signer, 2u);
}

TEST_F(OfficeTest, AHostThatJoinedAnewForOneUsersJobsIsNotBehindAsTheOneItWas) {
  JoinedHost();
  ASSERT_TRUE(Turn(Change::PREPARED).ok());
  EXPECT_THAT(Behind(), ElementsAre("host lab/h1"));
  const auto certificate = Join(GiveToken(std::string(kHostUri) + "/only/ann"), NewKey());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_THAT(Behind(), IsEmpty());
}

// As docs/hosts.md promises: it renews with its own key for 90 days.
TEST_F(OfficeTest, ARotationWaitsForAHostThatIsOffAsLongAsItMayRenew) {
  ClustersAre({"h1", "h2", "h3"});
  for (const char* name : {"h1", "h2", "h3", "gone"})
    ASSERT_TRUE(Join(GiveToken(std::string("/host/lab/") + name), NewKey()).ok());
  pb::Event user;
  user.mutable_network_user()->mutable_user()->set_name("ann");
  Do(user);
  ASSERT_TRUE(Join(GiveToken("/user/ann"), NewKey()).ok());
  const std::string key = NewKey();
  const std::string asleep = JoinedHost(key);
  now_ns_ += 8 * kDay;  // State forgets them with the next step only
  EXPECT_THAT(Behind(), IsEmpty()) << "there is no rotation";
  ASSERT_TRUE(Turn(Change::PREPARED).ok());
  EXPECT_THAT(Behind(), ElementsAre("host lab/h1", "host lab/h2", "host lab/h3"))
      << "no user, and no host that was removed";
  Step();
  EXPECT_TRUE(trust().certificates.empty());
  EXPECT_THAT(Behind(), ElementsAre("host lab/h1", "host lab/h2", "host lab/h3"));
  pb::Event revoked;
  revoked.mutable_certificates_revoked()->set_uri(Uri("/host/lab/h2"));
  Do(revoked);
  ClustersAre({"h1", "h2"});
  EXPECT_THAT(Behind(), ElementsAre("host lab/h1")) << "one is revoked, one was removed";
  EXPECT_THAT(Turn(Change::SIGNS).message(), HasSubstr("1 holder hasn't renewed yet: host lab/h1"));

  Later(60 * kDay);
  const auto awake = office_.RenewExpired(trust(), asleep, *NewRequest(key), now_ns_);
  ASSERT_TRUE(awake.ok()) << awake.status();
  Do(awake->event);
  EXPECT_THAT(Behind(), IsEmpty());
  ASSERT_TRUE(Turn(Change::SIGNS).ok());
  Later(8 * kDay);
  EXPECT_THAT(Turn(Change::DROPPED).message(), HasSubstr("host lab/h1")) << "it sleeps again";
  Later(90 * kDay);
  EXPECT_THAT(Behind(), IsEmpty()) << "it joins again in any case";
  EXPECT_TRUE(Turn(Change::DROPPED).ok());
}

TEST_F(OfficeTest, AForcedRotationLeavesBehindWhoDidNotFollow) {
  ClustersAre({"h1"});
  const std::string old = JoinedHost();
  ASSERT_TRUE(Turn(Change::PREPARED).ok());
  ASSERT_TRUE(Turn(Change::SIGNS, /*force=*/true).ok());
  ASSERT_TRUE(Turn(Change::DROPPED, /*force=*/true).ok());
  EXPECT_NE(WhyNot(old), "");
  ASSERT_TRUE(Turn(Change::PREPARED).ok());
  EXPECT_THAT(Behind(), IsEmpty()) << "the next one waits for nobody who joins again in any case";
  Later(8 * kDay);
  EXPECT_EQ(trust().ended_of_hosts.size(), 1u);
  EXPECT_THAT(Behind(), IsEmpty()) << "nor once its certificate has ended";
}

TEST_F(OfficeTest, TheServersIdentityLeadsToTheAuthorityThatSigns) {
  ASSERT_TRUE(Turn(Change::PREPARED).ok());
  ASSERT_TRUE(Turn(Change::SIGNS).ok());
  const std::string identity = *office_.ServerIdentity(trust(), now_ns_);
  EXPECT_TRUE(CheckIdentity(identity).ok());
  const auto holder =
      VerifyHolder(identity, trust().authorities.at(2).certificate(), now_ns_ / kSecond);
  ASSERT_TRUE(holder.ok()) << holder.status();
  EXPECT_EQ(holder->kind, Holder::kServer);
}

TEST_F(OfficeTest, AnotherMasterKeyOpensNothing) {
  EXPECT_TRUE(office_.CheckKey(trust()).ok());
  const Office other(std::string(kSealKeyBytes, 'x'), CertificateLives());
  EXPECT_EQ(other.CheckKey(trust()).code(), kFailedPrecondition);
  EXPECT_FALSE(other.ServerIdentity(trust(), now_ns_).ok());
}

TEST_F(OfficeTest, ItsMasterKeyGivesAKeyForEachPurpose) {
  const Office same(std::string(kSealKeyBytes, 'k'), CertificateLives());
  const Office again(std::string(kSealKeyBytes, 'k'), CertificateLives());
  const Office other(std::string(kSealKeyBytes, 'x'), CertificateLives());
  EXPECT_EQ(same.KeyFor("a").size(), 32u);
  EXPECT_EQ(same.KeyFor("a"), again.KeyFor("a"));
  EXPECT_NE(same.KeyFor("a"), same.KeyFor("b"));
  EXPECT_NE(same.KeyFor("a"), other.KeyFor("a"));
}

TEST(MasterKey, IsMadeOnceReadableByItsOwnerAloneAndNotBesideTheStore) {
  char folder[] = "/tmp/muster-key-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/key", data = std::string(folder) + "/store";
  EXPECT_EQ(ReadMasterKey(path, data, false).status().code(), kFailedPrecondition);
  const auto made = ReadMasterKey(path, data, true);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->size(), kSealKeyBytes);
  EXPECT_EQ(*ReadMasterKey(path, data, false), *made);
  EXPECT_EQ(*ReadMasterKey(path, data, true), *made);
  chmod(path.c_str(), 0440);
  EXPECT_THAT(ReadMasterKey(path, data, false).status().message(), HasSubstr("chmod 0400"));
  chmod(path.c_str(), 0600);
  std::ofstream(path) << "short";
  EXPECT_THAT(ReadMasterKey(path, data, false).status().message(), HasSubstr("64 hexadecimal"));
  EXPECT_THAT(ReadMasterKey(data + "/../store/key", data, true).status().message(),
              HasSubstr("lies in data_dir"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace muster
