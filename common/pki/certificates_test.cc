#include "common/pki/certificates.h"

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

constexpr int64_t kNow = 1'800'000'000;
constexpr Validity kYear{kNow - 3600, kNow + 365 * 86400};
constexpr Validity kDay{kNow - 3600, kNow + 86400};

const Holder kHostH7{Holder::kHost, "t1", "lab", "h7"};
const Holder kAnn{Holder::kUser, "t1", "", "ann"};

// An authority, and what it issues.
class CertificatesTest : public testing::Test {
 protected:
  CertificatesTest() : key_(NewKey()), root_(*NewRoot(key_, "Muster t1 1", kYear)) {}

  std::string Chain(const Holder& holder, Validity validity = kDay) {
    const auto leaf = Issue(*NewRequest(NewKey()), holder, validity, root_, key_);
    EXPECT_TRUE(leaf.ok()) << leaf.status();
    return *leaf + root_;
  }

  const std::string key_, root_;
};

TEST_F(CertificatesTest, AChainLeadsFromItsHolderToTheRoot) {
  for (const Holder& holder : {kHostH7, kAnn, Holder{Holder::kServer, "t1", "", ""}}) {
    const auto got = VerifyHolder(Chain(holder), root_, kNow);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, holder);
  }
}

TEST_F(CertificatesTest, WhatIsNotValidNowOrNotSignedByTheRootIsRefused) {
  const std::string other_key = NewKey();
  const std::string other_root = *NewRoot(other_key, "Muster t1 1", kYear);
  const std::string chain = Chain(kHostH7);
  // A holder's certificate is no authority, whatever is signed with its key.
  const std::string host_key = NewKey();
  const std::string host = *Issue(*NewRequest(host_key), kHostH7, kDay, root_, key_);
  const std::string by_host = *Issue(*NewRequest(NewKey()), kAnn, kDay, host, host_key);
  const struct {
    const char* what;
    std::string chain, roots;
    int64_t now_s;
  } kCases[] = {
      {"expired", chain, root_, kDay.end_s + 1},
      {"not yet valid", chain, root_, kDay.begin_s - 1},
      {"another root of the same name", chain, other_root, kNow},
      {"signed by a holder", by_host + host + root_, root_, kNow},
      {"an authority itself", root_, root_, kNow},
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
  const auto all = ReadCertificates(*Issue(*NewRequest(key), kHostH7, kDay, root_, key_) + root_);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].uri, "muster://t1/host/lab/h7");
  EXPECT_EQ((*all)[0].key_hash, *KeyHash(key));
  EXPECT_FALSE((*all)[0].authority);
  EXPECT_TRUE((*all)[1].authority);
  EXPECT_EQ((*all)[1].uri, "");
  EXPECT_EQ((*all)[0].serial.size(), 40u);
  EXPECT_NE((*all)[0].serial, (*all)[1].serial);
  EXPECT_TRUE(absl::StartsWith((*all)[1].fingerprint, "sha256:"));
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
  EXPECT_FALSE(Issue(forged, kAnn, kDay, root_, key_).ok());
}

TEST_F(CertificatesTest, NamesThatAreNoneAreNotIssued) {
  for (const Holder& bad :
       {Holder{Holder::kUser, "t1", "", "ann,DNS:musterd.t1"}, Holder{Holder::kUser, "t1", "", ""},
        Holder{Holder::kHost, "t1", "", "h7"}, Holder{Holder::kHost, "t1", "lab/x", "h7"}}) {
    EXPECT_EQ(Issue(*NewRequest(NewKey()), bad, kDay, root_, key_).status().code(),
              absl::StatusCode::kInvalidArgument)
        << UriOf(bad);
  }
}

TEST_F(CertificatesTest, AnIdentityIsAKeyAndItsOwnChain) {
  const std::string key = NewKey();
  const std::string leaf = *Issue(*NewRequest(key), kHostH7, kDay, root_, key_);
  const std::string other = *NewRoot(NewKey(), "Muster t1 1", kYear);
  EXPECT_TRUE(CheckIdentity(key + leaf + root_).ok());
  EXPECT_TRUE(CheckIdentity(leaf + root_ + key).ok());
  for (const std::string& bad :
       {key, leaf, NewKey() + leaf + root_, key + leaf + other, key + root_ + leaf}) {
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
  EXPECT_FALSE(Issue(*NewRequest(NewKey()), kAnn, kDay, root_, NewKey()).ok());
}

}  // namespace
}  // namespace muster
