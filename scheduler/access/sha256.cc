#include "scheduler/access/sha256.h"

#include <openssl/evp.h>

#include "common/base/check.h"

namespace muster {

std::string Sha256(std::string_view data) {
  std::string hash(32, '\0');
  MUSTER_CHECK(EVP_Digest(data.data(), data.size(), reinterpret_cast<unsigned char*>(hash.data()),
                          nullptr, EVP_sha256(), nullptr) == 1);
  return hash;
}

}  // namespace muster
