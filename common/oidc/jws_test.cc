// Which signatures count.
#include "common/oidc/jws.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/oidc/testing/signer.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const json kClaims = {{"iss", "https://id.example.org"}, {"sub", "1"}};

absl::Status Verify(const std::string& token, const std::string& set) {
  const absl::StatusOr<Jws> read = ReadJws(token);
  if (!read.ok()) return read.status();
  const absl::StatusOr<std::vector<VerifyingKey>> keys = ReadKeySet(set);
  if (!keys.ok()) return keys.status();
  return VerifyJws(*read, *keys);
}

std::string Unsigned(const json& header, const json& claims) {
  return absl::StrCat(ToBase64Url(header.dump()), ".", ToBase64Url(claims.dump()), ".");
}

TEST(Jws, EachAlgorithmCountsWithAKeyThatIsForIt) {
  for (const char* algorithm : {"RS256", "PS256", "ES256"}) {
    const TestSigner signer(algorithm, "k1");
    const std::string token = signer.Sign(kClaims);
    EXPECT_TRUE(Verify(token, KeySetOf({signer.Jwk()})).ok()) << algorithm;
    json any = signer.Jwk();
    any.erase("alg");
    any.erase("use");
    EXPECT_TRUE(Verify(token, KeySetOf({any})).ok()) << algorithm;
  }
}

TEST(Jws, AKeyThatIsForSomethingElseVerifiesNothing) {
  const TestSigner signer("RS256", "k1");
  const std::string token = signer.Sign(kClaims);
  const struct {
    const char* what;
    json change;
  } kCases[] = {
      {"for encryption", {{"use", "enc"}}},
      {"another operation", {{"key_ops", {"encrypt"}}}},
      {"another algorithm", {{"alg", "PS256"}}},
      {"an algorithm for encryption", {{"alg", "RSA-OAEP"}}},
      {"another type", {{"kty", "oct"}, {"k", ToBase64Url("secret")}}},
      {"no type", {{"kty", 7}}},
      {"another id", {{"kid", "k2"}}},
      {"no id", {{"kid", ""}}},
      {"too short", {{"n", ToBase64Url(std::string(128, '\xff'))}}},
      {"too long", {{"n", ToBase64Url(std::string(1200, '\xff'))}}},
      {"an exponent of one", {{"e", ToBase64Url("\x01")}}},
      {"an even exponent", {{"e", ToBase64Url("\x02")}}},
  };
  for (const auto& [what, change] : kCases) {
    json key = signer.Jwk();
    key.update(change);
    EXPECT_FALSE(Verify(token, KeySetOf({key})).ok()) << what;
  }
  const TestSigner curve("ES256", "k1");
  json off = curve.Jwk();
  off["x"] = ToBase64Url(std::string(32, '\x01'));
  EXPECT_THAT(*ReadKeySet(KeySetOf({off})), IsEmpty()) << "no point of the curve";
}

TEST(Jws, NoOtherWayToSignIsTaken) {
  const TestSigner signer("RS256", "k1");
  const std::string set = KeySetOf({signer.Jwk()}), token = signer.Sign(kClaims);
  const json header = signer.Header();
  const auto with = [&](const json& change) {
    json changed = header;
    changed.update(change);
    return changed;
  };
  const std::string claims_part = ToBase64Url(kClaims.dump());
  const struct {
    const char* what;
    std::string token;
    const char* says;
  } kCases[] = {
      {"none", Unsigned(with({{"alg", "none"}}), kClaims), "RS256, PS256 or ES256"},
      {"None", Unsigned(with({{"alg", "None"}}), kClaims), "RS256, PS256 or ES256"},
      {"no algorithm", Unsigned({{"kid", "k1"}}, kClaims), "RS256, PS256 or ES256"},
      {"an empty signature", Unsigned(header, kClaims), "didn't make"},
      {"HS256 with the public key", SignByMac(signer.PublicPem(), header, kClaims), "RS256"},
      {"another key's", TestSigner("RS256", "k1").Sign(kClaims), "didn't make"},
      {"a key that isn't there", TestSigner("RS256", "k9").Sign(kClaims), "doesn't list"},
      {"RS256 said to be PS256", signer.Sign(with({{"alg", "PS256"}}), kClaims), "didn't make"},
      {"RS256 said to be ES256", signer.Sign(with({{"alg", "ES256"}}), kClaims), "didn't make"},
      {"another kind", signer.Sign(with({{"typ", "at+jwt"}}), kClaims), "another kind"},
      {"extensions", signer.Sign(with({{"crit", {"b64"}}}), kClaims), "extensions"},
      {"no key", signer.Sign(with({{"kid", ""}}), kClaims), "which key"},
      {"a byte more", token + "A", "three parts|didn't make"},
      {"padding", token + "=", "three parts"},
      {"a blank", token + " ", "three parts"},
      {"another payload",
       absl::StrCat(token.substr(0, token.find('.')), ".", ToBase64Url(R"({"sub":"2"})"),
                    token.substr(token.rfind('.'))),
       "didn't make"},
      {"five parts", token + ".a.b", "three parts"},
      {"a name twice",
       absl::StrCat(ToBase64Url(R"({"alg":"RS256","alg":"none","kid":"k1"})"), ".", claims_part,
                    ".AAAA"),
       "plain JSON"},
      {"deep",
       absl::StrCat(ToBase64Url(header.dump()), ".",
                    ToBase64Url("{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}"),
                    ".AAAA"),
       "plain JSON"},
      {"no object", absl::StrCat(ToBase64Url("[]"), ".", claims_part, ".AAAA"), "plain JSON"},
      {"garbage", "a.b.c", "three parts|plain JSON"},
      {"nothing", "", "three parts"},
      {"oversize", std::string(kMaxTokenBytes + 1, 'a'), "16 KiB"},
  };
  for (const auto& [what, forged, says] : kCases) {
    const absl::Status status = Verify(forged, set);
    EXPECT_FALSE(status.ok()) << what;
    EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex(says)) << what;
  }
}

TEST(Jws, ASignatureOfEs256IsTwoNumbersAndNothingElse) {
  const TestSigner signer("ES256", "k1");
  const std::string token = signer.Sign(kClaims), set = KeySetOf({signer.Jwk()});
  const std::string body = token.substr(0, token.rfind('.') + 1);
  for (const size_t size : {0, 1, 63, 65, 72}) {
    EXPECT_FALSE(Verify(body + ToBase64Url(std::string(size, '\x30')), set).ok()) << size;
  }
  EXPECT_FALSE(Verify(body + ToBase64Url(std::string(64, '\0')), set).ok()) << "zeros";
}

TEST(KeySet, WhatIsNoneIsRefused) {
  for (const char* bad : {"", "[]", "{}", R"({"keys":{}})", R"({"keys":1})"})
    EXPECT_FALSE(ReadKeySet(bad).ok()) << bad;
  EXPECT_THAT(*ReadKeySet(R"({"keys":[1,"a",{},null]})"), IsEmpty());
  EXPECT_FALSE(ReadKeySet(KeySetOf(std::vector<json>(kMaxKeys + 1, json::object()))).ok());
  EXPECT_FALSE(ReadKeySet(std::string(kMaxKeysBytes + 1, ' ')).ok());
}

}  // namespace
}  // namespace muster
