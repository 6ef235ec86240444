// Authorities, tokens, users and certificates, as State keeps them.
#include <gtest/gtest.h>

#include "common/base/units.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::SystemBuilder;
using Change = pb::AuthorityChanged;

constexpr char kHost[] = "muster://t1/host/lab/h1", kOther[] = "muster://t1/host/lab/h10";

class TrustTest : public ::testing::Test {
 protected:
  TrustTest() { Turn(Change::MADE, 1); }

  void Turn(Change::Step step, uint64_t version = 0, const std::string& trust_id = "t1") {
    pb::Event event;
    Change* change = event.mutable_authority_changed();
    change->set_step(step);
    if (step == Change::MADE) change->set_trust_id(trust_id);
    if (version != 0) change->mutable_authority()->set_version(version);
    system_.Do(event);
  }
  void Token(const std::string& id, int64_t expires_ns, const std::string& uri = kHost,
             bool reusable = false) {
    pb::Event event;
    pb::JoinToken* token = event.mutable_join_token()->mutable_token();
    token->set_id(id);
    token->set_expires_ns(expires_ns);
    token->set_uri(uri);
    token->set_reusable(reusable);
    system_.Do(event);
  }
  void DropToken(const std::string& id) {
    pb::Event event;
    event.mutable_join_token()->mutable_token()->set_id(id);
    event.mutable_join_token()->set_revoked(true);
    system_.Do(event);
  }
  void Issue(const std::string& serial, const std::string& uri, const std::string& key,
             const std::string& token, int64_t end_s) {
    pb::Event event;
    pb::IssuedCertificate* c = event.mutable_certificate_issued()->mutable_certificate();
    c->set_serial(serial);
    c->set_uri(uri);
    c->set_key_hash(key);
    c->set_end_s(end_s);
    event.mutable_certificate_issued()->set_token(token);
    system_.Do(event);
  }
  void Revoke(const std::string& uri) {
    pb::Event event;
    event.mutable_certificates_revoked()->set_uri(uri);
    system_.Do(event);
  }
  void User(const std::string& name, const std::string& group, bool removed = false) {
    pb::Event event;
    event.mutable_network_user()->mutable_user()->set_name(name);
    event.mutable_network_user()->mutable_user()->add_groups(group);
    event.mutable_network_user()->set_removed(removed);
    system_.Do(event);
  }
  const Trust& trust() const { return system_.state.trust(); }
  std::vector<uint64_t> Trusted() const {
    std::vector<uint64_t> versions;
    for (const auto& [version, authority] : trust().authorities) versions.push_back(version);
    return versions;
  }
  int64_t now_s() const { return system_.state.now_ns() / kSecond; }
  int64_t InAnHour() const { return system_.state.now_ns() + kHour; }

  SystemBuilder system_;
};

using Versions = std::vector<uint64_t>;

TEST_F(TrustTest, AnAuthorityIsMadeOnce) {
  Turn(Change::MADE, 2, "t2");
  EXPECT_EQ(trust().trust_id, "t1");
  EXPECT_EQ(Trusted(), Versions{1});
  EXPECT_EQ(trust().signer, 1u);
}

TEST_F(TrustTest, NothingIsKeptBeforeThereIsAnAuthority) {
  system_ = SystemBuilder();
  Turn(Change::PREPARED, 1);
  Token("a", InAnHour());
  User("ann", "nlp");
  Issue("01", kHost, "key1", "", now_s() + 100);
  EXPECT_TRUE(trust().authorities.empty());
  EXPECT_TRUE(trust().tokens.empty());
  EXPECT_TRUE(trust().users.empty());
  EXPECT_TRUE(trust().certificates.empty());
}

TEST_F(TrustTest, ARotationGoesStepByStepAndNoStepOutOfItsTurn) {
  Turn(Change::SIGNS);
  Turn(Change::DROPPED);
  EXPECT_EQ(Trusted(), Versions{1});
  Turn(Change::PREPARED, 1);  // no newer one
  EXPECT_EQ(Trusted(), Versions{1});
  Turn(Change::PREPARED, 2);
  EXPECT_EQ(Trusted(), (Versions{1, 2}));
  EXPECT_EQ(trust().signer, 1u);
  Turn(Change::PREPARED, 3);
  Turn(Change::DROPPED);  // the one that signs
  EXPECT_EQ(Trusted(), (Versions{1, 2}));
  Turn(Change::SIGNS);
  EXPECT_EQ(trust().signer, 2u);
  EXPECT_EQ(Trusted(), (Versions{1, 2}));
  Turn(Change::DROPPED);
  EXPECT_EQ(Trusted(), Versions{2});
}

TEST_F(TrustTest, ATokenIsSpentForOneKey) {
  Token("a", InAnHour());
  Issue("01", kHost, "key1", "a", now_s() + 100);
  Issue("02", kHost, "key2", "a", now_s() + 100);
  Issue("03", kHost, "key1", "a", now_s() + 100);   // its reply was lost
  Issue("04", kHost, "key1", "b", now_s() + 100);   // there is no such token
  Issue("05", kOther, "key1", "a", now_s() + 100);  // it is another's
  ASSERT_EQ(trust().certificates.size(), 2u);
  EXPECT_EQ(trust().certificates.count("01"), 1u);
  EXPECT_EQ(trust().certificates.count("03"), 1u);
  EXPECT_EQ(trust().tokens.at("a").key_hash(), "key1");
  // Made again under its number, it would be unspent.
  Token("a", InAnHour());
  EXPECT_EQ(trust().tokens.at("a").key_hash(), "key1");
}

TEST_F(TrustTest, AReusableTokenIsNeverSpent) {
  Token("a", InAnHour(), kHost, /*reusable=*/true);
  Issue("01", kHost, "key1", "a", now_s() + 100);
  Issue("02", kHost, "key2", "a", now_s() + 100);
  EXPECT_EQ(trust().certificates.size(), 2u);
  EXPECT_EQ(trust().tokens.at("a").key_hash(), "");
}

TEST_F(TrustTest, ARevokedTokenIsGone) {
  Token("a", InAnHour());
  DropToken("a");
  EXPECT_TRUE(trust().tokens.empty());
}

TEST_F(TrustTest, RevokesAllThatNameAHolderAndNobodyElse) {
  Issue("01", kHost, "key1", "", now_s() + 100);
  Issue("02", kHost, "key2", "", now_s() + 100);
  Issue("03", kOther, "key3", "", now_s() + 100);
  Token("a", InAnHour(), kHost);
  Token("b", InAnHour(), kOther);
  Revoke(kHost);
  EXPECT_NE(trust().certificates.at("01").revoked_ns(), 0);
  EXPECT_NE(trust().certificates.at("02").revoked_ns(), 0);
  EXPECT_EQ(trust().certificates.at("03").revoked_ns(), 0);
  EXPECT_EQ(trust().tokens.count("a"), 0u) << "it would buy another";
  EXPECT_EQ(trust().tokens.count("b"), 1u);
  // What is revoked stays so: a serial is issued once.
  Issue("01", kHost, "key1", "", now_s() + 100);
  EXPECT_NE(trust().certificates.at("01").revoked_ns(), 0);
}

TEST_F(TrustTest, RevokesWhatTokensOfAUserBought) {
  constexpr char kAnn[] = "muster://t/user/ann", kAnnsToken[] = "muster://t/user/ann/token/a";
  constexpr char kAnnas[] = "muster://t/user/anna/token/b";
  Issue("01", kAnnsToken, "key1", "", now_s() + 100);
  Issue("02", kAnnas, "key2", "", now_s() + 100);
  Token("a", InAnHour(), kAnnsToken, /*reusable=*/true);
  Token("b", InAnHour(), kAnnas, /*reusable=*/true);
  Revoke(kAnn);
  EXPECT_NE(trust().certificates.at("01").revoked_ns(), 0);
  EXPECT_EQ(trust().certificates.at("02").revoked_ns(), 0) << "her name only begins alike";
  EXPECT_EQ(trust().tokens.count("a"), 0u);
  EXPECT_EQ(trust().tokens.count("b"), 1u);
}

TEST_F(TrustTest, UsersComeAndGo) {
  User("ann", "nlp");
  User("bob", "vision");
  User("ann", "speech");
  EXPECT_EQ(trust().users.at("ann").groups(0), "speech");
  User("ann", "", /*removed=*/true);
  EXPECT_EQ(trust().users.count("ann"), 0u);
  EXPECT_EQ(trust().users.count("bob"), 1u);
}

TEST_F(TrustTest, WhatHasExpiredIsForgottenAndNothingElse) {
  Issue("01", kHost, "key1", "", now_s() + 100);
  Issue("02", kOther, "key2", "", now_s() + 200);
  Token("a", system_.state.now_ns() + 150 * kSecond);
  system_.state.TakeChanges();
  system_.Step(120);
  EXPECT_EQ(trust().certificates.size(), 1u);
  EXPECT_EQ(trust().certificates.count("02"), 1u);
  EXPECT_EQ(trust().tokens.size(), 1u);
  const ChangedRows changed = system_.state.TakeChanges();
  EXPECT_EQ(changed.certificates, std::vector<std::string>{"01"});
  int gone = 0;
  for (const RowChange& row : system_.state.RowsOf(changed)) gone += row.bytes.has_value() ? 0 : 1;
  EXPECT_EQ(gone, 1) << "the certificate's row";
  system_.Step(240);
  EXPECT_TRUE(trust().certificates.empty());
  EXPECT_TRUE(trust().tokens.empty());
}

TEST_F(TrustTest, ARevokedHostIsKnownAsLongAsACertificateOfBeforeCouldBeRenewed) {
  const auto at = [&](const std::string& uri) {
    const auto row = trust().revoked_hosts.find(uri);
    return row == trust().revoked_hosts.end() ? 0 : row->second.at_ns();
  };
  Issue("01", kHost, "key1", "", now_s() + 10 * 86'400);
  Issue("02", "muster://t1/host/lab/h1/only/ann", "key2", "", now_s() + 20 * 86'400);
  Issue("03", "muster://t1/user/host", "key3", "", now_s() + 86'400);
  const int64_t begun_ns = system_.state.now_ns();
  Revoke(kHost);
  Revoke(kOther);  // no certificate of it is known
  Revoke("muster://t1/host/only/only");
  Revoke("muster://t1/user/host");
  EXPECT_EQ(at(kHost), begun_ns);
  EXPECT_EQ(at(kOther), begun_ns);
  EXPECT_EQ(at("muster://t1/host/only/only"), begun_ns);
  EXPECT_EQ(trust().revoked_hosts.size(), 3u) << "users don't renew what has ended";
  system_.Step(21 * 86'400);
  EXPECT_TRUE(trust().certificates.empty());
  Revoke(kOther);
  EXPECT_GT(at(kOther), begun_ns);
  system_.Step(179 * 86'400);
  EXPECT_EQ(at(kHost), begun_ns);
  system_.Step(180 * 86'400);
  EXPECT_EQ(at(kHost), 0);
  EXPECT_NE(at(kOther), 0) << "it was revoked again, later";
  system_.Step(201 * 86'400);
  EXPECT_TRUE(trust().revoked_hosts.empty());
}

// A rotation waits for it: it may renew that one.
TEST_F(TrustTest, TheLastCertificateOfAHostThatHasNoneIsKnownAsLongAsItCouldBeRenewed) {
  constexpr int64_t kDayS = 86'400;
  const auto last = [&](const std::string& uri) {
    const auto row = trust().ended_of_hosts.find(uri);
    return row == trust().ended_of_hosts.end() ? "" : row->second.serial();
  };
  const int64_t begun_s = now_s();
  Issue("01", kHost, "key1", "", begun_s + 2 * kDayS);
  Issue("02", "muster://t1/host/lab/h1/only/ann", "key2", "", begun_s + 7 * kDayS);
  Issue("03", kOther, "key3", "", begun_s + 2 * kDayS);
  Issue("04", "muster://t1/user/ann", "key4", "", begun_s + 2 * kDayS);
  Issue("05", "muster://t1/host/lab/gone", "key5", "", begun_s + 2 * kDayS);
  system_.Step(3 * kDayS);
  EXPECT_EQ(last(kHost), "") << "it has a later one";
  EXPECT_EQ(last(kOther), "03");
  EXPECT_EQ(trust().ended_of_hosts.size(), 2u) << "users don't renew what has ended";
  Revoke("muster://t1/host/lab/gone");
  EXPECT_EQ(last("muster://t1/host/lab/gone"), "");
  system_.state.TakeChanges();
  system_.Step(8 * kDayS);
  EXPECT_EQ(last(kHost), "02");
  EXPECT_TRUE(system_.state.TakeChanges().trust);
  const auto loaded = State::Load(system_.state.AllRows());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->trust().ended_of_hosts.at(kHost).serial(), "02");
  EXPECT_EQ(loaded->trust().next_end_ns, trust().next_end_ns);
  Issue("06", kOther, "key3", "", now_s() + 200 * kDayS);
  EXPECT_EQ(last(kOther), "") << "it is back";
  system_.Step(96 * kDayS);
  EXPECT_EQ(last(kHost), "02");
  system_.Step(98 * kDayS);
  EXPECT_TRUE(trust().ended_of_hosts.empty());
}

// Before there were rows of revoked hosts, the certificates' own were kept.
TEST_F(TrustTest, AnOlderStoresRevokedCertificatesTellWhichHostsWere) {
  Issue("01", kHost, "key1", "", now_s() + 86'400);
  Issue("02", "muster://t1/host/lab/h1/only/ann", "key2", "", now_s() + 3 * 86'400);
  Revoke(kHost);
  const int64_t revoked_ns = system_.state.now_ns();
  std::vector<RowChange> rows = system_.state.AllRows();
  for (RowChange& row : rows) {
    if (row.kind != "trust") continue;
    pb::TrustRecord record;
    ASSERT_TRUE(record.ParseFromString(*row.bytes));
    record.clear_revoked_hosts();
    row.bytes = record.SerializeAsString();
  }
  absl::StatusOr<State> loaded = State::Load(rows);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  system_.state = *std::move(loaded);
  EXPECT_EQ(trust().revoked_hosts.at(kHost).at_ns(), revoked_ns);
  EXPECT_EQ(trust().revoked_hosts.at(kHost).forget_ns(), revoked_ns + 93 * kDay);
  system_.state.TakeChanges();
  system_.Step(4 * 86'400);
  EXPECT_TRUE(trust().certificates.empty());
  EXPECT_TRUE(system_.state.TakeChanges().trust) << "only this row tells it now";
  EXPECT_EQ(trust().revoked_hosts.at(kHost).at_ns(), revoked_ns);
}

TEST_F(TrustTest, IsTheSameAfterItWasStoredAndRead) {
  Turn(Change::PREPARED, 2);
  Token("a", InAnHour());
  User("ann", "nlp");
  Issue("01", kHost, "key1", "a", now_s() + 100);
  Issue("02", kOther, "key2", "", now_s() + 100);
  Revoke(kOther);
  const auto loaded = State::Load(system_.state.AllRows());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto rows = [](const State& state) {
    std::map<std::pair<std::string, std::string>, std::string> out;
    for (const RowChange& row : state.AllRows()) out[{row.kind, row.id}] = row.bytes.value_or("");
    return out;
  };
  EXPECT_EQ(rows(*loaded), rows(system_.state));
  EXPECT_EQ(loaded->trust().next_end_ns, trust().next_end_ns);
  EXPECT_EQ(loaded->trust().signer, 1u);
}

}  // namespace
}  // namespace muster
