#include "common/oidc/jws.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/oidc/json.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr char kRs256[] = "RS256", kPs256[] = "PS256", kEs256[] = "ES256";
constexpr int kLeastRsaBits = 2048, kMostRsaBits = 8192, kMostExponentBits = 64;
constexpr size_t kCoordinateBytes = 32;  // of P-256

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;

absl::Status Bad(const char* what) { return absl::InvalidArgumentError(what); }

// One text for each value: no padding, no blanks, no bits that don't count.
bool FromBase64Url(std::string_view text, std::string* bytes) {
  const absl::string_view given(text.data(), text.size());
  return absl::WebSafeBase64Unescape(given, bytes) && absl::WebSafeBase64Escape(*bytes) == given;
}

Number NumberOf(const json& key, const char* name) {
  std::string bytes;
  if (!FromBase64Url(TextIn(key, name), &bytes) || bytes.empty() || bytes.size() > 2048)
    return nullptr;
  return Number(BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()),
                          static_cast<int>(bytes.size()), nullptr));
}

std::shared_ptr<void> KeyFrom(const char* type, OSSL_PARAM_BLD* build) {
  const std::unique_ptr<OSSL_PARAM, Freed<OSSL_PARAM_free>> parameters(
      OSSL_PARAM_BLD_to_param(build));
  const std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX_free>> context(
      EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (parameters != nullptr && context != nullptr && EVP_PKEY_fromdata_init(context.get()) == 1)
    EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, parameters.get());
  ERR_clear_error();
  if (key == nullptr) return nullptr;
  return {key, [](void* freed) { EVP_PKEY_free(static_cast<EVP_PKEY*>(freed)); }};
}

std::shared_ptr<void> RsaKey(const json& key) {
  const Number modulus = NumberOf(key, "n"), exponent = NumberOf(key, "e");
  if (modulus == nullptr || exponent == nullptr || !BN_is_odd(exponent.get()) ||
      BN_is_one(exponent.get()) || BN_num_bits(exponent.get()) > kMostExponentBits ||
      BN_num_bits(modulus.get()) < kLeastRsaBits || BN_num_bits(modulus.get()) > kMostRsaBits)
    return nullptr;
  const std::unique_ptr<OSSL_PARAM_BLD, Freed<OSSL_PARAM_BLD_free>> build(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get());
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get());
  return KeyFrom("RSA", build.get());
}

std::shared_ptr<void> P256Key(const json& key) {
  std::string x, y;
  if (TextIn(key, "crv") != "P-256" || !FromBase64Url(TextIn(key, "x"), &x) ||
      !FromBase64Url(TextIn(key, "y"), &y) || x.size() != kCoordinateBytes ||
      y.size() != kCoordinateBytes)
    return nullptr;
  // OpenSSL refuses a point that isn't on the curve.
  const std::string point = "\x04" + x + y;  // uncompressed (SEC 1, 2.3.3)
  const std::unique_ptr<OSSL_PARAM_BLD, Freed<OSSL_PARAM_BLD_free>> build(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(build.get(), OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0);
  OSSL_PARAM_BLD_push_octet_string(build.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                   point.size());
  return KeyFrom("EC", build.get());
}

// Whether its set says that it verifies signatures.
bool IsForSignatures(const json& key) {
  if (key.contains("use") && TextIn(key, "use") != "sig") return false;
  const auto operations = key.find("key_ops");
  return operations == key.end() ||
         (operations->is_array() &&
          std::find(operations->begin(), operations->end(), "verify") != operations->end());
}

void AddKey(const json& key, std::vector<VerifyingKey>* keys) {
  const std::string type = TextIn(key, "kty"), id = TextIn(key, "kid");
  if (id.empty() || !IsForSignatures(key)) return;
  std::shared_ptr<void> read;
  std::vector<std::string> algorithms;
  if (type == "RSA") {
    read = RsaKey(key);
    algorithms = {kRs256, kPs256};
  } else if (type == "EC") {
    read = P256Key(key);
    algorithms = {kEs256};
  }
  if (read == nullptr) return;
  for (const std::string& algorithm : algorithms) {
    if (!key.contains("alg") || TextIn(key, "alg") == algorithm)
      keys->push_back({id, algorithm, read});
  }
}

// As OpenSSL reads one of ECDSA; empty: the two numbers are no signature.
std::string ToDer(const std::string& numbers) {
  if (numbers.size() != 2 * kCoordinateBytes) return "";
  const auto* bytes = reinterpret_cast<const unsigned char*>(numbers.data());
  const std::unique_ptr<ECDSA_SIG, Freed<ECDSA_SIG_free>> signature(ECDSA_SIG_new());
  ECDSA_SIG_set0(signature.get(), BN_bin2bn(bytes, kCoordinateBytes, nullptr),
                 BN_bin2bn(bytes + kCoordinateBytes, kCoordinateBytes, nullptr));
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(signature.get(), &der);
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(std::max(size, 0)));
  OPENSSL_free(der);
  return text;
}

bool IsSignedBy(const Jws& jws, const VerifyingKey& key) {
  const std::string signature = key.algorithm == kEs256 ? ToDer(jws.signature) : jws.signature;
  const std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  EVP_PKEY_CTX* how = nullptr;  // the context's
  bool good = EVP_DigestVerifyInit(context.get(), &how, EVP_sha256(), nullptr,
                                   static_cast<EVP_PKEY*>(key.key.get())) == 1;
  if (good && key.algorithm == kPs256) {
    good = EVP_PKEY_CTX_set_rsa_padding(how, RSA_PKCS1_PSS_PADDING) == 1 &&
           EVP_PKEY_CTX_set_rsa_pss_saltlen(how, RSA_PSS_SALTLEN_DIGEST) == 1;
  }
  good = good &&
         EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                          signature.size(),
                          reinterpret_cast<const unsigned char*>(jws.signed_text.data()),
                          jws.signed_text.size()) == 1;
  ERR_clear_error();
  return good;
}

}  // namespace

absl::StatusOr<Jws> ReadJws(std::string_view token) {
  if (token.size() > kMaxTokenBytes) return Bad("is longer than 16 KiB");
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(token.data(), token.size()), '.');
  std::string header_text, claims_text;
  Jws jws;
  if (parts.size() != 3 || !FromBase64Url(parts[0], &header_text) ||
      !FromBase64Url(parts[1], &claims_text) || !FromBase64Url(parts[2], &jws.signature))
    return Bad("is not three parts of base64url: is it the ID token?");
  const absl::StatusOr<json> header = ReadJsonObject(header_text);
  absl::StatusOr<json> claims = ReadJsonObject(claims_text);
  if (!header.ok() || !claims.ok()) return Bad("has a part that is no plain JSON object");
  jws.algorithm = TextIn(*header, "alg");
  jws.key_id = TextIn(*header, "kid");
  if (jws.algorithm != kRs256 && jws.algorithm != kPs256 && jws.algorithm != kEs256)
    return Bad("is not signed with RS256, PS256 or ES256, which is all that counts here");
  // Critical extensions (RFC 7515, 4.1.11): none is known here. `b64` is one of them.
  if (header->contains("crit") || header->contains("b64"))
    return Bad("has extensions that are not known here");
  const std::string type = TextIn(*header, "typ");
  if (header->contains("typ") && !absl::EqualsIgnoreCase(type, "JWT"))
    return Bad("is a token of another kind: the ID token is wanted");
  if (jws.key_id.empty()) return Bad("doesn't say which key signed it");
  jws.claims = *std::move(claims);
  jws.signed_text = std::string(token.substr(0, token.rfind('.')));
  return jws;
}

absl::StatusOr<std::vector<VerifyingKey>> ReadKeySet(std::string_view json_text) {
  if (json_text.size() > kMaxKeysBytes) return Bad("has more than 256 KiB");
  const absl::StatusOr<json> set = ReadJsonObject(json_text);
  if (!set.ok()) return set.status();
  const auto keys = set->find("keys");
  if (keys == set->end() || !keys->is_array()) return Bad("has no list of keys");
  if (keys->size() > kMaxKeys) return Bad("has more than 100 keys");
  std::vector<VerifyingKey> read;
  for (const json& key : *keys) {
    if (key.is_object()) AddKey(key, &read);
  }
  return read;
}

absl::Status VerifyJws(const Jws& jws, const std::vector<VerifyingKey>& keys) {
  bool known = false;
  for (const VerifyingKey& key : keys) {
    if (key.id != jws.key_id) continue;
    known = true;
    if (key.algorithm == jws.algorithm && IsSignedBy(jws, key)) return absl::OkStatus();
  }
  if (!known) return absl::NotFoundError("is signed with a key that its issuer doesn't list");
  return absl::UnauthenticatedError("has a signature that its issuer's key didn't make");
}

}  // namespace muster
