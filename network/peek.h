// Which certificates a TLS server shows, before anything is sent to it: one that joins knows its
// scheduler's authority by fingerprint only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

// The chain that the server at HOST:PORT shows in its handshake, PEM. Nothing of it is verified,
// and the connection is closed after the handshake. UNAVAILABLE: nobody serves TLS there.
absl::StatusOr<std::string> PeekChain(const std::string& address, int64_t timeout_ns);

// A connection to HOST:PORT, tried on each address that the name has; -1: none of them answers, and
// *why says it.
int ConnectTo(const std::string& address, int64_t timeout_ns, std::string* why);

}  // namespace muster
