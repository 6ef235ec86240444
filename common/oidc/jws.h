// Signed tokens (RFC 7515, compact form) and the keys that sign them (RFC 7517), as identity
// providers use them: RS256, PS256 and ES256, and nothing else. What comes from outside is refused
// with a reason that quotes nothing of it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

inline constexpr size_t kMaxTokenBytes = 16 << 10;
inline constexpr size_t kMaxKeysBytes = 256 << 10, kMaxKeys = 100;

struct Jws {
  std::string algorithm, key_id;
  nlohmann::json claims;
  std::string signed_text;  // header and claims as they were sent
  std::string signature;
};

// INVALID_ARGUMENT: it is none, or is signed in another way, or not at all. Nothing is verified.
absl::StatusOr<Jws> ReadJws(std::string_view token);

// A key that may verify. A value.
struct VerifyingKey {
  std::string id;             // never empty
  std::string algorithm;      // the only one that it is for
  std::shared_ptr<void> key;  // EVP_PKEY
};

// Those of a provider's key set that can verify: for signatures, with an id, RSA of 2048 to 8192
// bits or on P-256. A key that doesn't say its algorithm counts once for each that fits it. Others
// are left out. INVALID_ARGUMENT: it is no key set.
absl::StatusOr<std::vector<VerifyingKey>> ReadKeySet(std::string_view json);

// NOT_FOUND: no key has the token's id. UNAUTHENTICATED: none of those that have is for its
// algorithm, or its signature is another one's.
absl::Status VerifyJws(const Jws& jws, const std::vector<VerifyingKey>& keys);

}  // namespace muster
