// How `muster login` gets an ID token of an identity provider: in a browser (authorization code
// with PKCE, RFC 7636, answered at a loopback address, RFC 8252), or with a code that is entered on
// another machine (RFC 8628). Either is for one key: the token's nonce is that key's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/oidc/discovery.h"

namespace muster {

struct ProviderClient {
  std::string issuer, client_id;
  std::vector<std::string> scopes;
  std::string ca_file;  // PEM; empty: the authorities that this machine trusts
  std::string nonce;
  int redirect_port = 0;             // of the loopback address; 0: any that is free
  int64_t timeout_ns = 5 * kMinute;  // for people
  // Shows a line to whoever logs in.
  std::function<void(const std::string& text)> say;
};

// UNAVAILABLE: the provider doesn't answer. FAILED_PRECONDITION: it can't do this. Else why it
// gave no token, in its words.
absl::StatusOr<std::string> TokenByBrowser(const ProviderClient& client);
absl::StatusOr<std::string> TokenByDevice(const ProviderClient& client);

}  // namespace muster
