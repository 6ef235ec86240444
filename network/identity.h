// What a host or a user keeps of having joined: one file, which is replaced as a whole, so that
// key, certificate and authorities always belong together. Text: lines of "word value", then PEM:
// the key, the certificate, and the authorities that are trusted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/pki/certificates.h"
#include "common/pki/names.h"

namespace muster {

struct Identity {
  std::vector<std::string> addresses;  // of the scheduler, HOST:PORT
  std::string join_address;
  std::string key, certificate, authorities;  // PEM

  // Of `certificate`.
  Holder holder;
  Validity validity;
};

std::string WriteIdentity(const Identity& identity);
// INVALID_ARGUMENT: it isn't one, or its parts don't belong together.
absl::StatusOr<Identity> ReadIdentity(std::string_view text);
// NOT_FOUND: there is no such file. FAILED_PRECONDITION: others may read it.
absl::StatusOr<Identity> LoadIdentity(const std::string& path);
absl::Status SaveIdentity(const std::string& path, const Identity& identity);

// Empty if `address` is HOST:PORT, a name or an IPv4 address and a port from 1 to 65535; else why
// not, with an example that has this port.
std::string WhyNoAddress(std::string_view address, int example_port = 7420);
// Empty if `text` is an authority's fingerprint, as `--ca` takes it; else why not.
std::string WhyNoFingerprint(std::string_view text);

}  // namespace muster
