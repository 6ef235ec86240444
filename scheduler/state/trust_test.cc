// The authority, tokens of hosts and certificates, as State keeps them.
#include <gtest/gtest.h>

#include "common/base/units.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::SystemBuilder;

class TrustTest : public ::testing::Test {
 protected:
  TrustTest() { Made("t1"); }

  void Made(const std::string& trust_id) {
    pb::Event event;
    event.mutable_authority_made()->set_trust_id(trust_id);
    event.mutable_authority_made()->mutable_root()->set_certificate(trust_id + " root");
    system_.Do(event);
  }
  void Token(const std::string& id, int64_t expires_ns, bool revoked = false) {
    pb::Event event;
    event.mutable_host_token()->mutable_token()->set_id(id);
    event.mutable_host_token()->mutable_token()->set_expires_ns(expires_ns);
    event.mutable_host_token()->set_revoked(revoked);
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
  const Trust& trust() const { return system_.state.trust(); }
  int64_t now_s() const { return system_.state.now_ns() / kSecond; }

  SystemBuilder system_;
};

TEST_F(TrustTest, AnAuthorityIsMadeOnce) {
  Made("t2");
  EXPECT_EQ(trust().trust_id, "t1");
  EXPECT_EQ(trust().root.certificate(), "t1 root");
}

TEST_F(TrustTest, ATokenIsSpentForOneKey) {
  Token("a", system_.state.now_ns() + kHour);
  Issue("01", "muster://t1/host/lab/h1", "key1", "a", now_s() + 100);
  Issue("02", "muster://t1/host/lab/h1", "key2", "a", now_s() + 100);
  Issue("03", "muster://t1/host/lab/h1", "key1", "a", now_s() + 100);  // its reply was lost
  Issue("04", "muster://t1/host/lab/h1", "key1", "b", now_s() + 100);  // there is no such token
  ASSERT_EQ(trust().certificates.size(), 2u);
  EXPECT_EQ(trust().certificates.count("01"), 1u);
  EXPECT_EQ(trust().certificates.count("03"), 1u);
  EXPECT_EQ(trust().tokens.at("a").key_hash(), "key1");
  // Made again under its number, it would be unspent.
  Token("a", system_.state.now_ns() + kHour);
  EXPECT_EQ(trust().tokens.at("a").key_hash(), "key1");
}

TEST_F(TrustTest, ARevokedTokenIsGone) {
  Token("a", system_.state.now_ns() + kHour);
  Token("a", 0, /*revoked=*/true);
  EXPECT_TRUE(trust().tokens.empty());
}

TEST_F(TrustTest, RevokesAllThatNameAHolderAndNobodyElse) {
  Issue("01", "muster://t1/host/lab/h1", "key1", "", now_s() + 100);
  Issue("02", "muster://t1/host/lab/h1", "key2", "", now_s() + 100);
  Issue("03", "muster://t1/host/lab/h10", "key3", "", now_s() + 100);
  Revoke("muster://t1/host/lab/h1");
  EXPECT_NE(trust().certificates.at("01").revoked_ns(), 0);
  EXPECT_NE(trust().certificates.at("02").revoked_ns(), 0);
  EXPECT_EQ(trust().certificates.at("03").revoked_ns(), 0);
}

TEST_F(TrustTest, WhatHasExpiredIsForgottenAndNothingElse) {
  Issue("01", "muster://t1/host/lab/h1", "key1", "", now_s() + 100);
  Issue("02", "muster://t1/host/lab/h2", "key2", "", now_s() + 200);
  Token("a", system_.state.now_ns() + 150 * kSecond);
  system_.state.TakeChanges();
  system_.Step(120);
  EXPECT_EQ(trust().certificates.size(), 1u);
  EXPECT_EQ(trust().certificates.count("02"), 1u);
  EXPECT_EQ(trust().tokens.size(), 1u);
  const ChangedRows changed = system_.state.TakeChanges();
  EXPECT_EQ(changed.certificates, std::vector<std::string>{"01"});
  EXPECT_FALSE(system_.state.RowsOf(changed).front().bytes.has_value()) << "the row is gone";
  system_.Step(240);
  EXPECT_TRUE(trust().certificates.empty());
  EXPECT_TRUE(trust().tokens.empty());
}

TEST_F(TrustTest, IsTheSameAfterItWasStoredAndRead) {
  Token("a", system_.state.now_ns() + kHour);
  Issue("01", "muster://t1/host/lab/h1", "key1", "a", now_s() + 100);
  Revoke("muster://t1/host/lab/h1");
  const auto loaded = State::Load(system_.state.AllRows());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto rows = [](const State& state) {
    std::map<std::pair<std::string, std::string>, std::string> out;
    for (const RowChange& row : state.AllRows()) out[{row.kind, row.id}] = row.bytes.value_or("");
    return out;
  };
  EXPECT_EQ(rows(*loaded), rows(system_.state));
  EXPECT_EQ(loaded->trust().next_end_ns, trust().next_end_ns);
}

}  // namespace
}  // namespace muster
