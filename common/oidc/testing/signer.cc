#include "common/oidc/testing/signer.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

using nlohmann::json;

std::string BigNumber(EVP_PKEY* key, const char* name, int bytes) {
  BIGNUM* number = nullptr;
  MUSTER_CHECK(EVP_PKEY_get_bn_param(key, name, &number) == 1);
  std::string text(static_cast<size_t>(bytes == 0 ? BN_num_bytes(number) : bytes), '\0');
  BN_bn2binpad(number, reinterpret_cast<unsigned char*>(text.data()),
               static_cast<int>(text.size()));
  BN_free(number);
  return text;
}

std::string ToNumbers(const std::string& der) {
  const auto* at = reinterpret_cast<const unsigned char*>(der.data());
  ECDSA_SIG* read = d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(der.size()));
  std::string text(64, '\0');
  auto* bytes = reinterpret_cast<unsigned char*>(text.data());
  BN_bn2binpad(ECDSA_SIG_get0_r(read), bytes, 32);
  BN_bn2binpad(ECDSA_SIG_get0_s(read), bytes + 32, 32);
  ECDSA_SIG_free(read);
  return text;
}

}  // namespace

std::string ToBase64Url(const std::string& bytes) { return absl::WebSafeBase64Escape(bytes); }

std::string KeySetOf(const std::vector<json>& keys) { return json{{"keys", keys}}.dump(); }

std::string SignByMac(const std::string& secret, json header, const json& claims) {
  header["alg"] = "HS256";
  const std::string text =
      absl::StrCat(ToBase64Url(header.dump()), ".", ToBase64Url(claims.dump()));
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size);
  return absl::StrCat(text, ".", ToBase64Url(std::string(reinterpret_cast<char*>(mac), size)));
}

TestSigner::TestSigner(std::string algorithm, std::string key_id)
    : algorithm_(std::move(algorithm)), key_id_(std::move(key_id)) {
  EVP_PKEY* key = algorithm_ == "ES256" ? EVP_EC_gen("P-256") : EVP_RSA_gen(2048);
  MUSTER_CHECK(key != nullptr);
  key_ = std::shared_ptr<void>(key, [](void* old) { EVP_PKEY_free(static_cast<EVP_PKEY*>(old)); });
}

json TestSigner::Jwk() const {
  auto* key = static_cast<EVP_PKEY*>(key_.get());
  json jwk = {{"kid", key_id_}, {"use", "sig"}, {"alg", algorithm_}};
  if (algorithm_ == "ES256") {
    jwk["kty"] = "EC";
    jwk["crv"] = "P-256";
    jwk["x"] = ToBase64Url(BigNumber(key, OSSL_PKEY_PARAM_EC_PUB_X, 32));
    jwk["y"] = ToBase64Url(BigNumber(key, OSSL_PKEY_PARAM_EC_PUB_Y, 32));
  } else {
    jwk["kty"] = "RSA";
    jwk["n"] = ToBase64Url(BigNumber(key, OSSL_PKEY_PARAM_RSA_N, 0));
    jwk["e"] = ToBase64Url(BigNumber(key, OSSL_PKEY_PARAM_RSA_E, 0));
  }
  return jwk;
}

std::string TestSigner::PublicPem() const {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PUBKEY(bio, static_cast<EVP_PKEY*>(key_.get()));
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

json TestSigner::Header() const { return {{"alg", algorithm_}, {"kid", key_id_}, {"typ", "JWT"}}; }

std::string TestSigner::Sign(const json& header, const json& claims) const {
  const std::string text =
      absl::StrCat(ToBase64Url(header.dump()), ".", ToBase64Url(claims.dump()));
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  EVP_PKEY_CTX* how = nullptr;
  MUSTER_CHECK(EVP_DigestSignInit(context, &how, EVP_sha256(), nullptr,
                                  static_cast<EVP_PKEY*>(key_.get())) == 1);
  if (algorithm_ == "PS256") {
    EVP_PKEY_CTX_set_rsa_padding(how, RSA_PKCS1_PSS_PADDING);
    EVP_PKEY_CTX_set_rsa_pss_saltlen(how, RSA_PSS_SALTLEN_DIGEST);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  EVP_DigestSign(context, nullptr, &size, bytes, text.size());
  std::string signature(size, '\0');
  MUSTER_CHECK(EVP_DigestSign(context, reinterpret_cast<unsigned char*>(signature.data()), &size,
                              bytes, text.size()) == 1);
  signature.resize(size);
  EVP_MD_CTX_free(context);
  if (algorithm_ == "ES256") signature = ToNumbers(signature);
  return absl::StrCat(text, ".", ToBase64Url(signature));
}

}  // namespace muster
