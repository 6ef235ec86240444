// The certificate office: who gets a certificate, for how long, and when the authority changes.
// Reads State and answers with the event that makes it so; what it hands out counts once that event
// is durable. Pure but for random keys.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/pki/certificates.h"
#include "common/pki/names.h"
#include "common/pki/tokens.h"
#include "scheduler/state/state.h"
#include "scheduler/trust/id_token.h"

namespace muster {

namespace pb = ::muster::v1;

struct CertificateLives {
  int64_t host_ns = 7 * kDay;
  int64_t user_ns = 12 * kHour;
  int64_t server_ns = 30 * kDay;
  int64_t authority_ns = 3650 * kDay;
};

inline constexpr int64_t kTokenNs = kHour, kTokenMostNs = 90 * kDay;

// A certificate that one of the present authorities signed. Whether it is revoked and not expired
// is asked each time it is used.
struct Presented {
  Holder holder;
  std::string uri;
  Certificate certificate;
  uint64_t authority = 0;
};

// PEM of all authorities that are trusted.
std::string TrustedPem(const Trust& trust);
// UNAUTHENTICATED: no authority of this scheduler signed it, or it is the scheduler's own. Its
// dates are not looked at.
absl::StatusOr<Presented> ReadPresented(const Trust& trust, std::string_view certificate_pem);
// Empty: a certificate with this serial, signed by this authority, for this holder counts. Else why
// not.
std::string WhyNotTrusted(const Trust& trust, const Holder& holder, const std::string& serial,
                          uint64_t authority);

// The host was revoked after it got this certificate, and State knows the certificate no longer, or
// never did, as after a restored backup: its beginning tells. Of known ones the row does.
bool WasRevoked(const Trust& trust, const Holder& holder, const Certificate& certificate);

// 1 to 32 of a-z, 0-9, '_', '-' and '.'.
bool IsUserName(const std::string& name);

class Office {
 public:
  // `master_key` seals the authority's keys (seal.h).
  Office(std::string master_key, CertificateLives lives)
      : master_key_(std::move(master_key)), lives_(lives) {}

  struct Issued {
    std::vector<pb::Event> before;  // in the same step
    pb::Event event;
    std::string certificate;  // PEM
  };

  // The first authority.
  pb::Event Make(int64_t now_ns) const;
  // Whether the master key opens what State keeps. FAILED_PRECONDITION with what to do.
  absl::Status CheckKey(const Trust& trust) const;
  // A key of 32 bytes for something else: another one for each purpose, the same one as long as the
  // master key is.
  std::string KeyFor(std::string_view purpose) const;

  using InUse = std::function<bool(const std::string& serial)>;
  // FAILED_PRECONDITION: it isn't the turn of this step, or, without `force`, somebody is behind.
  absl::StatusOr<pb::Event> Turn(const State& state, pb::AuthorityChanged::Step step, bool force,
                                 int64_t now_ns, const InUse& in_use) const;
  // Who would have to join again if the next step of the rotation were forced; none while there is
  // no rotation. Before another authority signs: whose newest certificate came without it. Before
  // the old one is dropped: whose newest certificate it signed. A certificate that was never seen
  // in use doesn't count: it may not have arrived. Hosts whose last one has ended are waited for as
  // long as RenewExpired serves them; users log in anew. Nobody is waited for whose authority is
  // trusted no longer.
  static std::vector<std::string> Behind(const State& state, int64_t now_ns, const InUse& in_use);
  // Whether its holder should have another one: a newer authority is there.
  static bool Outdated(const Trust& trust, const std::string& serial);

  absl::StatusOr<Issued> Join(const Trust& trust, std::string_view token, std::string_view request,
                              int64_t now_ns) const;
  absl::StatusOr<Issued> Renew(const Trust& trust, const Holder& holder, std::string_view request,
                               int64_t now_ns) const;
  absl::StatusOr<Issued> RenewExpired(const Trust& trust, std::string_view certificate,
                                      std::string_view request, int64_t now_ns) const;
  // Of a user whom an identity provider vouches for, with a token that hasn't been used yet.
  // PERMISSION_DENIED: the name isn't theirs. *why: what of it the audit says, and nobody else.
  absl::StatusOr<Issued> LogIn(const Trust& trust, const Vouched& vouched, std::string_view request,
                               int64_t now_ns, std::string* why) const;
  // A new key and its certificate for the scheduler itself, then the authority's. Not kept.
  absl::StatusOr<std::string> ServerIdentity(const Trust& trust, int64_t now_ns) const;

  const CertificateLives& lives() const { return lives_; }

 private:
  absl::StatusOr<std::string> Sign(const Trust& trust, std::string_view request,
                                   const Holder& holder, int64_t life_ns, int64_t now_ns) const;
  // `user`: of a provider's user, how they logged in; may be null.
  absl::StatusOr<Issued> Issue(const Trust& trust, std::string_view request, const Holder& holder,
                               const pb::NetworkUser* user, const std::string& token,
                               int64_t now_ns) const;
  pb::Authority NewAuthority(const std::string& trust_id, uint64_t version, int64_t now_ns) const;

  const std::string master_key_;
  const CertificateLives lives_;
};

// 32 bytes in hexadecimal and a newline, readable by its owner alone. With `make` a file that isn't
// there is made. FAILED_PRECONDITION: it isn't there, others may read it, or it lies in `data_dir`,
// where a backup would carry it.
absl::StatusOr<std::string> ReadMasterKey(const std::string& path, const std::string& data_dir,
                                          bool make);

}  // namespace muster
