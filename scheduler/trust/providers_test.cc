// Providers that answer, are slow, or are not there.
#include "scheduler/trust/providers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "absl/strings/match.h"
#include "common/oidc/discovery.h"
#include "common/oidc/testing/signer.h"
#include "common/pki/certificates.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using enum absl::StatusCode;

constexpr char kIssuer[] = "https://id.example.org", kOther[] = "https://other.example.org";

class StandStill : public Clock {
 public:
  int64_t WallNs() override { return int64_t{1'800'000'000} * kSecond + now_ns; }
  int64_t MonotonicNs() override { return kHour + now_ns; }
  int64_t BootNs() override { return MonotonicNs(); }
  std::atomic<int64_t> now_ns = 0;
};

class ProvidersTest : public ::testing::Test {
 protected:
  ProvidersTest() {
    set_ = KeySetOf({signer_.Jwk()});
    Open();
  }
  void Open() {
    std::vector<IssuerRules> rules(2);
    rules[0].issuer = kIssuer;
    rules[1].issuer = kOther;
    for (IssuerRules& each : rules) each.client_id = "muster";
    ProviderParts parts;
    parts.fetch = [this](const std::string& url, const std::string&,
                         const std::atomic<bool>*) -> absl::StatusOr<std::string> {
      if (absl::StartsWith(url, kOther)) {
        held_.get_future().wait();
        return absl::UnavailableError("timed out");
      }
      ++asked_;
      std::lock_guard lock(mutex_);
      if (down_) return absl::UnavailableError("refused");
      if (url == DiscoveryUrl(kIssuer))
        return json{{"issuer", kIssuer}, {"jwks_uri", "https://id.example.org/keys"}}.dump();
      return set_;
    };
    parts.kind_of = [](const std::string& name) {
      return name == "root" ? NameKind::kReserved : NameKind::kFree;
    };
    parts.clock = &clock_;
    providers_ = std::make_unique<Providers>(std::move(rules), std::move(parts));
  }
  std::string Token(const TestSigner& signer, const json& change = json::object()) {
    const int64_t now_s = clock_.WallNs() / kSecond;
    json claims = {{"iss", kIssuer},
                   {"sub", "1"},
                   {"aud", "muster"},
                   {"iat", now_s},
                   {"exp", now_s + 300},
                   {"preferred_username", "ann"},
                   {"nonce", NonceOf(*KeyHash(key_))}};
    claims.update(change);
    return signer.Sign(claims);
  }
  std::future<absl::StatusOr<Vouched>> Begin(const std::string& token) {
    auto answer = std::make_shared<std::promise<absl::StatusOr<Vouched>>>();
    providers_->Check(token, *NewRequest(key_), [answer](absl::StatusOr<Vouched> vouched) {
      answer->set_value(std::move(vouched));
    });
    return answer->get_future();
  }
  absl::StatusOr<Vouched> Check(const std::string& token) { return Begin(token).get(); }
  void Set(std::string set, bool down) {
    std::lock_guard lock(mutex_);
    set_ = std::move(set);
    down_ = down;
  }

  StandStill clock_;
  const TestSigner signer_{"ES256", "k1"}, next_{"ES256", "k2"};
  const std::string key_ = NewKey();
  std::mutex mutex_;
  std::string set_;
  bool down_ = false;
  std::atomic<int> asked_ = 0;
  std::promise<void> held_;
  std::unique_ptr<Providers> providers_;
};

TEST_F(ProvidersTest, KeysAreReadOnceForManyLogins) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Check(Token(signer_)).ok());
  EXPECT_EQ(asked_, 2) << "the address of the keys, and the keys";
  EXPECT_EQ(Check(Token(signer_, {{"preferred_username", "root"}}))->kind, NameKind::kReserved);
  clock_.now_ns += kKeysKeptNs;
  EXPECT_TRUE(Check(Token(signer_)).ok());
  EXPECT_EQ(asked_, 4);
}

TEST_F(ProvidersTest, KeysThatAreWithdrawnCountNoLongerThanAnHour) {
  EXPECT_TRUE(Check(Token(signer_)).ok());
  Set(KeySetOf({next_.Jwk()}), false);
  clock_.now_ns += kKeysKeptNs;
  EXPECT_EQ(Check(Token(signer_)).status().code(), kUnauthenticated);
  EXPECT_TRUE(Check(Token(next_)).ok());
}

TEST_F(ProvidersTest, AKeyThatIsNotKnownIsAskedForOnceInHalfAMinute) {
  EXPECT_TRUE(Check(Token(signer_)).ok());
  clock_.now_ns += kKeysRestNs;
  for (int i = 0; i < 20; ++i)
    EXPECT_THAT(std::string(Check(Token(next_)).status().message()), HasSubstr("half a minute"));
  EXPECT_EQ(asked_, 4);
  Set(KeySetOf({signer_.Jwk(), next_.Jwk()}), false);
  EXPECT_FALSE(Check(Token(next_)).ok());
  clock_.now_ns += kKeysRestNs;
  EXPECT_TRUE(Check(Token(next_)).ok());
  EXPECT_TRUE(Check(Token(signer_)).ok());
  EXPECT_EQ(asked_, 6);
}

TEST_F(ProvidersTest, OneThatIsDownIsSaidToBeAndAskedAgainInAMoment) {
  Set("", true);
  for (int i = 0; i < 5; ++i) {
    const absl::Status status = Check(Token(signer_)).status();
    EXPECT_EQ(status.code(), kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("can't read the keys of https://id."));
  }
  EXPECT_EQ(asked_, 1);
  Set(KeySetOf({signer_.Jwk()}), false);
  clock_.now_ns += kFailedRestNs;
  EXPECT_TRUE(Check(Token(signer_)).ok());
  // Keys that it has are good for their hour.
  Set("", true);
  EXPECT_TRUE(Check(Token(signer_)).ok());
  clock_.now_ns += kKeysRestNs;
  EXPECT_EQ(Check(Token(next_)).status().code(), kUnavailable);
  EXPECT_TRUE(Check(Token(signer_)).ok());
  EXPECT_EQ(providers_->Counts().failed_fetches, 2);
}

TEST_F(ProvidersTest, WhatIsNoKeySetIsSaidToBeUnreadable) {
  for (const char* set : {"<html>", "{}", "[]"}) {
    Set(set, false);
    EXPECT_EQ(Check(Token(signer_)).status().code(), kUnavailable) << set;
    clock_.now_ns += kFailedRestNs;
  }
}

TEST_F(ProvidersTest, OneThatIsSlowKeepsOnlyItsOwnUsersWaiting) {
  std::vector<std::future<absl::StatusOr<Vouched>>> waiting;
  for (size_t i = 0; i < kWaitingMost + 1; ++i)
    waiting.push_back(Begin(Token(signer_, {{"iss", kOther}})));
  EXPECT_TRUE(Check(Token(signer_)).ok());
  // One is being looked at, the others wait; whoever comes then isn't kept.
  while (waiting.back().wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    waiting.push_back(Begin(Token(signer_, {{"iss", kOther}})));
  EXPECT_EQ(waiting.back().get().status().code(), kUnavailable);
  waiting.pop_back();
  held_.set_value();
  for (auto& each : waiting) EXPECT_EQ(each.get().status().code(), kUnavailable);
}

TEST_F(ProvidersTest, ForgedTokensAreRefused) {
  const std::string good = Token(signer_);
  const json header = {{"alg", "none"}, {"kid", "k1"}};
  const std::string claims = good.substr(good.find('.'), good.rfind('.') - good.find('.') + 1);
  const struct {
    const char* what;
    std::string token;
  } kCases[] = {
      {"none", ToBase64Url(header.dump()) + claims},
      {"HS256 with the public key",
       SignByMac(signer_.PublicPem(), signer_.Header(), {{"iss", kIssuer}})},
      {"another key", Token(TestSigner("ES256", "k1"))},
      {"another issuer", Token(signer_, {{"iss", "https://evil.example"}})},
      {"another audience", Token(signer_, {{"aud", "grafana"}})},
      {"another key's nonce", Token(signer_, {{"nonce", NonceOf("sha256:00")}})},
      {"expired", Token(signer_, {{"exp", 1'799'999'000}})},
      {"not yet valid", Token(signer_, {{"nbf", 1'800'009'000}})},
      {"altered",
       good.substr(0, good.find('.') + 1) + ToBase64Url("{}") + good.substr(good.rfind('.'))},
      {"oversize", std::string(1 << 20, 'a')},
      {"garbage", "\xff\xfe"},
      {"nothing", ""},
  };
  for (const auto& [what, token] : kCases)
    EXPECT_EQ(Check(token).status().code(), kUnauthenticated) << what;
  EXPECT_TRUE(Check(good).ok());
}

TEST_F(ProvidersTest, WhoeverWaitsWhileItStopsIsAnswered) {
  auto first = Begin(Token(signer_, {{"iss", kOther}}));
  auto second = Begin(Token(signer_, {{"iss", kOther}}));
  std::thread stopping([this] { providers_->Stop(); });
  held_.set_value();
  EXPECT_EQ(first.get().status().code(), kUnavailable);
  EXPECT_EQ(second.get().status().code(), kUnavailable);
  stopping.join();
  EXPECT_EQ(Check(Token(signer_)).status().code(), kUnavailable);
}

}  // namespace
}  // namespace muster
