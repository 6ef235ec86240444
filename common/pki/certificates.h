// Keys, requests and certificates (X.509, ECDSA on P-256 with SHA-256), as PEM. What comes from
// outside is refused with a reason, never trusted: of a request only its public key counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/pki/names.h"

namespace muster {

inline constexpr size_t kMaxPemBytes = 64 << 10;  // of anything that is read here

// Certificates of hosts, users and servers begin so long before they are issued: clocks differ.
inline constexpr int64_t kCertificateSkewS = 3600;

// From when and until when, Unix time.
struct Validity {
  int64_t begin_s = 0;
  int64_t end_s = 0;
  // From its issue on.
  int64_t life_s() const { return std::max<int64_t>(end_s - begin_s - kCertificateSkewS, 0); }
  // Half of that is over: it is to be renewed.
  bool Due(int64_t now_s) const { return now_s >= begin_s + kCertificateSkewS + life_s() / 2; }
};

struct Certificate {
  std::string serial;       // hexadecimal, lower case
  std::string fingerprint;  // "sha256:" and the hash of the DER form, hexadecimal
  std::string key_hash;     // of the public key (SubjectPublicKeyInfo), as `fingerprint`
  bool authority = false;
  std::string uri;  // the one URI among the alternative names; empty: none
  Validity validity;
};

// A new private key, PKCS#8, not encrypted: keep it in a file that only its owner may read.
std::string NewKey();
// The key's public part, as Certificate::key_hash. INVALID_ARGUMENT: no private key on P-256.
absl::StatusOr<std::string> KeyHash(std::string_view key_pem);
// A request to sign the key's public part: proof that who asks has the private one. It carries no
// name: what is issued is named by whoever issues it.
absl::StatusOr<std::string> NewRequest(std::string_view key_pem);
// The public key's hash of a request whose signature is right.
absl::StatusOr<std::string> ReadRequest(std::string_view request_pem);

// An authority, which signs itself and holders only. `name` is what people see ("Muster t1 1").
absl::StatusOr<std::string> NewRoot(std::string_view key_pem, std::string_view name,
                                    Validity validity);
// The certificate of a user, a host (client authentication) or the server (server authentication,
// by ServerName). Not valid longer than the issuer's.
absl::StatusOr<std::string> Issue(std::string_view request_pem, const Holder& holder,
                                  Validity validity, std::string_view issuer_pem,
                                  std::string_view issuer_key_pem);

// The first certificate of the text.
absl::StatusOr<Certificate> ReadCertificate(std::string_view pem);
// Each certificate of the text, in its order.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(std::string_view pem);
// Who holds the first certificate of `chain_pem`, if it is valid at `now_s` and leads to one of
// `roots_pem` over the others of the chain. UNAUTHENTICATED with the reason otherwise.
absl::StatusOr<Holder> VerifyHolder(std::string_view chain_pem, std::string_view roots_pem,
                                    int64_t now_s);
// Whether one text holds a key and a chain that belong together: what a server or client is given
// as its one file of identity. INVALID_ARGUMENT says what is wrong.
absl::Status CheckIdentity(std::string_view pem);

}  // namespace muster
