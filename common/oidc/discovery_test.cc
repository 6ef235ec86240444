// What a provider tells of itself.
#include "common/oidc/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kIssuer[] = "https://id.example.org/realms/a";

TEST(Discovery, ItIsToldBelowTheIssuer) {
  EXPECT_EQ(DiscoveryUrl(kIssuer), std::string(kIssuer) + "/.well-known/openid-configuration");
  EXPECT_EQ(DiscoveryUrl("https://a/"), "https://a/.well-known/openid-configuration");
}

TEST(Discovery, AddressesAreThisIssuersAndHttps) {
  const json good = {{"issuer", kIssuer},
                     {"jwks_uri", "https://keys.example.org/k"},
                     {"token_endpoint", "https://id.example.org/token"}};
  const absl::StatusOr<Discovery> read = ReadDiscovery(good.dump(), kIssuer);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->keys_url, "https://keys.example.org/k");
  EXPECT_EQ(read->device_url, "");
  const struct {
    json change;
    const char* says;
  } kBad[] = {{{{"issuer", "https://id.example.org/realms/b"}}, "calls itself otherwise"},
              {{{"issuer", std::string(kIssuer) + "/"}}, "calls itself otherwise"},
              {{{"jwks_uri", "http://keys.example.org/k"}}, "jwks_uri"},
              {{{"jwks_uri", "file:///etc/passwd"}}, "jwks_uri"},
              {{{"jwks_uri", nullptr}}, "jwks_uri"},
              {{{"token_endpoint", "http://id.example.org/token"}}, "token_endpoint"}};
  for (const auto& [change, says] : kBad) {
    json bad = good;
    bad.update(change);
    const absl::StatusOr<Discovery> refused = ReadDiscovery(bad.dump(), kIssuer);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(says)) << bad;
  }
  EXPECT_FALSE(ReadDiscovery("<html>", kIssuer).ok());
}

TEST(Nonce, IsOfOneKey) {
  EXPECT_EQ(NonceOf("sha256:aa").size(), 64u);
  EXPECT_NE(NonceOf("sha256:aa"), NonceOf("sha256:ab"));
}

}  // namespace
}  // namespace muster
