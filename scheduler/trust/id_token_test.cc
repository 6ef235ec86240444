// Which claims count.
#include "scheduler/trust/id_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/oidc/discovery.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kNowS = 1'800'000'000;
constexpr char kKeyHash[] = "sha256:aa";

IssuerRules Rules() {
  IssuerRules rules;
  rules.issuer = "https://id.example.org";
  rules.client_id = "muster";
  return rules;
}

json Good() {
  return {{"iss", "https://id.example.org"},
          {"sub", "4711"},
          {"aud", "muster"},
          {"iat", kNowS - 10},
          {"exp", kNowS + 300},
          {"nonce", NonceOf(kKeyHash)},
          {"preferred_username", "ann"}};
}

absl::StatusOr<Vouched> Check(const json& claims, const IssuerRules& rules = Rules()) {
  Jws token;
  token.claims = claims;
  token.signed_text = claims.dump();
  return CheckClaims(token, rules, kKeyHash, kNowS * kSecond);
}

json With(json claims, const json& change) {
  for (const auto& [name, value] : change.items()) {
    if (value.is_null()) {
      claims.erase(name);
    } else {
      claims[name] = value;
    }
  }
  return claims;
}

TEST(IdToken, SaysWhoItIs) {
  const absl::StatusOr<Vouched> vouched = Check(Good());
  ASSERT_TRUE(vouched.ok()) << vouched.status();
  EXPECT_EQ(vouched->name, "ann");
  EXPECT_EQ(vouched->subject, "4711");
  EXPECT_EQ(vouched->issuer, "https://id.example.org");
  EXPECT_FALSE(vouched->groups.has_value());
  EXPECT_EQ(vouched->ends_ns, (kNowS + 300 + 60) * kSecond);
  EXPECT_EQ(vouched->log_in_again_ns, kNowS * kSecond + 7 * kDay);
}

TEST(IdToken, WhatIsWrongWithOneIsRefused) {
  const struct {
    const char* what;
    json change;
    const char* says;
  } kCases[] = {
      {"another issuer", {{"iss", "https://id.example.org/"}}, "another issuer"},
      {"no issuer", {{"iss", nullptr}}, "another issuer"},
      {"no subject", {{"sub", nullptr}}, "no subject"},
      {"a number as subject", {{"sub", 7}}, "no subject"},
      {"a long subject", {{"sub", std::string(256, 's')}}, "no subject"},
      {"another audience", {{"aud", "grafana"}}, "another program"},
      {"other audiences", {{"aud", {"grafana", "muster2"}}, {"azp", "muster"}}, "another program"},
      {"a prefix of the audience", {{"aud", "muste"}}, "another program"},
      {"no audience", {{"aud", nullptr}}, "another program"},
      {"an object as audience", {{"aud", {{"muster", true}}}}, "another program"},
      {"numbers among audiences", {{"aud", {"muster", 7}}}, "another program"},
      {"several audiences, issued to nobody", {{"aud", {"muster", "a"}}}, "issued to"},
      {"several audiences, issued to another",
       {{"aud", {"muster", "a"}}, {"azp", "a"}},
       "issued to"},
      {"issued to another", {{"azp", "grafana"}}, "issued to"},
      {"expired", {{"exp", kNowS - 61}}, "has expired"},
      {"expired at this second", {{"exp", kNowS - 60}}, "has expired"},
      {"no end", {{"exp", nullptr}}, "from when until when"},
      {"an end as text", {{"exp", "2030"}}, "from when until when"},
      {"an end below zero", {{"exp", -1}}, "from when until when"},
      {"an end beyond all times", {{"exp", 1e300}}, "from when until when"},
      {"not yet valid", {{"nbf", kNowS + 61}}, "counts later"},
      {"a begin as text", {{"nbf", "now"}}, "from when until when"},
      {"issued in the future", {{"iat", kNowS + 61}}, "counts later"},
      {"no issue", {{"iat", nullptr}}, "from when until when"},
      {"too old", {{"iat", kNowS - 661}}, "too long ago"},
      {"the nonce of another key", {{"nonce", NonceOf("sha256:bb")}}, "another key"},
      {"the key's hash as nonce", {{"nonce", kKeyHash}}, "another key"},
      {"a number as nonce", {{"nonce", 7}}, "another key"},
      {"no nonce", {{"nonce", nullptr}}, "bound to no key"},
      {"no name", {{"preferred_username", nullptr}}, "names no user"},
      {"a long name", {{"preferred_username", std::string(256, 'a')}}, "names no user"},
      {"a list as name", {{"preferred_username", {"ann"}}}, "names no user"},
  };
  for (const auto& [what, change, says] : kCases) {
    const absl::StatusOr<Vouched> vouched = Check(With(Good(), change));
    ASSERT_FALSE(vouched.ok()) << what;
    EXPECT_EQ(vouched.status().code(), absl::StatusCode::kUnauthenticated) << what;
    EXPECT_THAT(std::string(vouched.status().message()), HasSubstr(says)) << what;
  }
}

TEST(IdToken, ClocksMayDifferByTheLeeway) {
  for (const json& change : {json{{"exp", kNowS - 59}}, json{{"nbf", kNowS + 60}},
                             json{{"iat", kNowS + 60}}, json{{"iat", kNowS - 659}}})
    EXPECT_TRUE(Check(With(Good(), change)).ok()) << change;
}

TEST(IdToken, SeveralAudiencesCountIfItWasIssuedToMuster) {
  const json several = {{"aud", {"a", "muster"}}, {"azp", "muster"}};
  EXPECT_TRUE(Check(With(Good(), several)).ok());
  IssuerRules rules = Rules();
  rules.audiences = {"https://muster.example.org"};
  EXPECT_TRUE(Check(With(Good(), {{"aud", "https://muster.example.org"}}), rules).ok());
}

TEST(IdToken, OnlyWhereItIsSaidOneCountsThatIsBoundToNoKey) {
  IssuerRules rules = Rules();
  rules.without_nonce = true;
  EXPECT_TRUE(Check(With(Good(), {{"nonce", nullptr}}), rules).ok());
  EXPECT_FALSE(Check(With(Good(), {{"nonce", NonceOf("sha256:bb")}}), rules).ok());
}

TEST(IdToken, AnAddressIsANameWithinItsDomain) {
  IssuerRules rules = Rules();
  rules.name_claim = "email";
  rules.domain = "Example.org";
  const auto check = [&](const json& email, const json& verified) {
    return Check(With(Good(), {{"email", email}, {"email_verified", verified}}), rules);
  };
  EXPECT_EQ(check("Ann.Lee@example.ORG", true)->name, "ann.lee");
  for (const char* bad : {"ann@example.com", "ann@evil.example.org", "ann@example.org.evil", "ann",
                          "ann@x@example.org", "ann@example.org@evil"})
    EXPECT_FALSE(check(bad, true).ok()) << bad;
  for (const json& verified : {json(false), json("true"), json(1), json(nullptr)})
    EXPECT_FALSE(check("ann@example.org", verified).ok()) << verified;
}

TEST(IdToken, OfGroupsThoseCountThatAreNamed) {
  IssuerRules rules = Rules();
  rules.groups_claim = "groups";
  rules.groups = {"speech", "nlp"};
  EXPECT_THAT(*Check(With(Good(), {{"groups", {"speech", "admins", "nlp"}}}), rules)->groups,
              ElementsAre("nlp", "speech"));
  EXPECT_THAT(*Check(With(Good(), {{"groups", "nlp"}}), rules)->groups, ElementsAre("nlp"));
  for (const json& none : {json(nullptr), json(7), json{{"nlp", true}}})
    EXPECT_THAT(*Check(With(Good(), {{"groups", none}}), rules)->groups, ElementsAre()) << none;
}

}  // namespace
}  // namespace muster
