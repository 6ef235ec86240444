#include "common/base/issuers.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Issuers, AreHttpsAddresses) {
  for (const char* good : {"https://a", "https://id.example.org", "https://id.example.org/",
                           "https://id.example.org:8443/realms/a"})
    EXPECT_EQ(WhyNoIssuer(good), "") << good;
  for (const char* bad : {"", "https://", "https:///x", "http://id.example.org", "id.example.org",
                          "https://a@b", "https://a?b", "https://a#b", "https://a b",
                          "https://a\tb", "https://a\nb", "https://a\x7f", "https://\xc3\xa9",
                          "https://a\"b", "https://a\\b", "https://<a>", "file:///etc/passwd"})
    EXPECT_NE(WhyNoIssuer(bad), "") << bad;
  EXPECT_NE(WhyNoIssuer("https://" + std::string(2048, 'a')), "") << "too long";
}

TEST(Issuers, AnAddressOfAProvidersMayHaveAQuery) {
  EXPECT_TRUE(IsHttpsAddress("https://a/keys?of=b"));
  EXPECT_FALSE(IsHttpsAddress("https://a/keys#b"));
}

}  // namespace
}  // namespace muster
