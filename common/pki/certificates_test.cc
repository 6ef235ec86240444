#include "common/pki/certificates.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

constexpr int64_t kNow = 1'800'000'000;
constexpr Validity kYear{kNow - 3600, kNow + 365 * 86400};
constexpr Validity kDay{kNow - 3600, kNow + 86400};

const Principal kHostH7{Principal::kHost, "t1", "lab", "h7"};
const Principal kAnn{Principal::kUser, "t1", "", "ann"};

// A root, an authority below it, and what that issues.
class CertificatesTest : public testing::Test {
 protected:
  CertificatesTest()
      : root_key_(NewKey()),
        root_(*NewRoot(root_key_, "Muster t1 root", kYear)),
        key_(NewKey()),
        authority_(*IssueAuthority(*NewRequest(key_), "Muster t1", kYear, root_, root_key_)) {}

  std::string Chain(const Principal& holder, Validity validity = kDay) {
    const auto leaf = Issue(*NewRequest(NewKey()), holder, validity, authority_, key_);
    EXPECT_TRUE(leaf.ok()) << leaf.status();
    return *leaf + authority_;
  }

  const std::string root_key_, root_, key_, authority_;
};

TEST_F(CertificatesTest, AChainLeadsFromItsHolderToTheRoot) {
  for (const Principal& holder : {kHostH7, kAnn, Principal{Principal::kServer, "t1", "", ""}}) {
    const auto got = VerifyHolder(Chain(holder), root_, kNow);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, holder);
  }
}

TEST_F(CertificatesTest, WhatIsNotValidNowOrNotSignedByTheRootIsRefused) {
  const std::string other_key = NewKey();
  const std::string other_root = *NewRoot(other_key, "Muster t1 root", kYear);
  const std::string chain = Chain(kHostH7);
  const std::string leaf_alone = chain.substr(0, chain.size() - authority_.size());
  // A holder's certificate is no authority, whatever is signed with its key.
  const std::string host_key = NewKey();
  const std::string host = *Issue(*NewRequest(host_key), kHostH7, kDay, authority_, key_);
  const std::string by_host = *Issue(*NewRequest(NewKey()), kAnn, kDay, host, host_key);
  const struct {
    const char* what;
    std::string chain, roots;
    int64_t now_s;
  } kCases[] = {
      {"expired", chain, root_, kDay.end_s + 1},
      {"not yet valid", chain, root_, kDay.begin_s - 1},
      {"another root of the same name", chain, other_root, kNow},
      {"without the authority between", leaf_alone, root_, kNow},
      {"signed by a holder", by_host + host + authority_, root_, kNow},
      {"an authority itself", authority_, root_, kNow},
  };
  for (const auto& c : kCases) {
    const auto got = VerifyHolder(c.chain, c.roots, c.now_s);
    EXPECT_EQ(got.status().code(), absl::StatusCode::kUnauthenticated) << c.what << got.status();
  }
}

TEST_F(CertificatesTest, NoneOutlivesItsIssuer) {
  const std::string chain = Chain(kAnn, {kNow - 10 * 365 * 86400, kNow + 10 * 365 * 86400});
  EXPECT_EQ(ReadCertificate(chain)->validity.end_s, kYear.end_s);
  EXPECT_EQ(ReadCertificate(chain)->validity.begin_s, kYear.begin_s);
}

TEST_F(CertificatesTest, SaysWhoseItIs) {
  const std::string key = NewKey();
  const auto all = ReadCertificates(*Issue(*NewRequest(key), kHostH7, kDay, authority_, key_) +
                                    authority_ + root_);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0].uri, "muster://t1/host/lab/h7");
  EXPECT_EQ((*all)[0].key_hash, *KeyHash(key));
  EXPECT_FALSE((*all)[0].authority);
  EXPECT_TRUE((*all)[1].authority);
  EXPECT_EQ((*all)[1].uri, "");
  EXPECT_EQ((*all)[0].serial.size(), 40u);
  EXPECT_NE((*all)[0].serial, (*all)[1].serial);
  EXPECT_TRUE(absl::StartsWith((*all)[2].fingerprint, "sha256:"));
}

TEST_F(CertificatesTest, OfARequestOnlyTheKeyCounts) {
  const std::string key = NewKey();
  const std::string request = *NewRequest(key);
  EXPECT_EQ(*ReadRequest(request), *KeyHash(key));
  // A request whose signature was made by another key: the last characters belong to it.
  std::string forged = request;
  const size_t at = forged.find("\n-----END") - 6;
  forged[at] = forged[at] == 'A' ? 'B' : 'A';
  EXPECT_FALSE(ReadRequest(forged).ok());
  EXPECT_FALSE(Issue(forged, kAnn, kDay, authority_, key_).ok());
}

TEST_F(CertificatesTest, NamesThatAreNoneAreNotIssued) {
  for (const Principal& bad :
       {Principal{Principal::kUser, "t1", "", "ann,DNS:musterd.t1"},
        Principal{Principal::kUser, "t1", "", ""}, Principal{Principal::kHost, "t1", "", "h7"},
        Principal{Principal::kHost, "t1", "lab/x", "h7"}}) {
    EXPECT_EQ(Issue(*NewRequest(NewKey()), bad, kDay, authority_, key_).status().code(),
              absl::StatusCode::kInvalidArgument)
        << UriOf(bad);
  }
}

TEST_F(CertificatesTest, AnIdentityIsAKeyAndItsOwnChain) {
  const std::string key = NewKey();
  const std::string leaf = *Issue(*NewRequest(key), kHostH7, kDay, authority_, key_);
  EXPECT_TRUE(CheckIdentity(key + leaf + authority_).ok());
  EXPECT_TRUE(CheckIdentity(leaf + authority_ + key).ok());
  for (const std::string& bad :
       {key, leaf, NewKey() + leaf + authority_, key + leaf + root_, key + authority_ + leaf}) {
    EXPECT_FALSE(CheckIdentity(bad).ok());
  }
}

TEST_F(CertificatesTest, WhatCanNotBeReadIsRefusedWithAReason) {
  const std::string bad_base64 = absl::StrReplaceAll(root_, {{"M", "!"}});
  for (const std::string& text : {std::string(), std::string("x"), std::string(1 << 20, '-'),
                                  root_.substr(0, root_.size() / 2), bad_base64}) {
    EXPECT_FALSE(ReadCertificates(text).ok());
    EXPECT_FALSE(ReadRequest(text).ok());
    EXPECT_FALSE(KeyHash(text).ok());
    EXPECT_FALSE(VerifyHolder(text, root_, kNow).ok());
    EXPECT_FALSE(NewRequest(text).ok());
  }
  EXPECT_TRUE(absl::StrContains(KeyHash(root_).status().message(), "no private key"));
  EXPECT_FALSE(NewRoot(root_, "x", kYear).ok());
  EXPECT_FALSE(Issue(*NewRequest(NewKey()), kAnn, kDay, authority_, root_key_).ok());
}

}  // namespace
}  // namespace muster
