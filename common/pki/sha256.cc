#include "common/pki/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace muster {

namespace {
constexpr size_t kBytes = 32;
}

std::string Sha256(std::string_view data) {
  std::string hash(kBytes, '\0');
  MUSTER_CHECK(EVP_Digest(data.data(), data.size(), reinterpret_cast<unsigned char*>(hash.data()),
                          nullptr, EVP_sha256(), nullptr) == 1);
  return hash;
}

std::string Sha256Hex(std::string_view data) { return absl::BytesToHexString(Sha256(data)); }

bool IsSha256Hex(std::string_view text) {
  return text.size() == 2 * kBytes && text.find_first_not_of("0123456789abcdef") == text.npos;
}

struct Sha256Stream::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256Stream::Sha256Stream() : context_(std::make_unique<Context>()) {
  MUSTER_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
}

Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::Add(std::string_view data) {
  MUSTER_CHECK(EVP_DigestUpdate(context_->evp, data.data(), data.size()) == 1);
}

std::string Sha256Stream::Hex() {
  std::string hash(kBytes, '\0');
  MUSTER_CHECK(EVP_DigestFinal_ex(context_->evp, reinterpret_cast<unsigned char*>(hash.data()),
                                  nullptr) == 1);
  return absl::BytesToHexString(hash);
}

}  // namespace muster
