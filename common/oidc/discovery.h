// What an identity provider tells of itself (OpenID Connect Discovery 1.0).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace muster {

inline constexpr size_t kMaxDiscoveryBytes = 256 << 10;

struct Discovery {
  std::string keys_url;           // jwks_uri
  std::string authorization_url;  // of a browser
  std::string token_url;
  std::string device_url;  // of who has no browser; empty: the provider has none
};

// Where `issuer` tells it.
std::string DiscoveryUrl(std::string_view issuer);
// INVALID_ARGUMENT: it is another issuer's, or lacks an address, or names one that isn't https.
absl::StatusOr<Discovery> ReadDiscovery(std::string_view json, std::string_view issuer);

// The nonce that binds a token to the key of a request for a certificate. `key_hash`:
// certificates.h.
std::string NonceOf(std::string_view key_hash);

}  // namespace muster
