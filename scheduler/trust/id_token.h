// Which ID tokens of identity providers (OpenID Connect Core 1.0, 3.1.3.7) count, and for whom.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"
#include "common/oidc/jws.h"

namespace muster {

// Of one issuer, as musterd.yaml says (docs/configure.md).
struct IssuerRules {
  std::string issuer, client_id;
  std::vector<std::string> audiences;  // that count beside client_id
  std::vector<std::string> scopes = {"openid", "profile", "email"};
  std::string name_claim = "preferred_username";
  std::string domain;  // the claim is NAME@domain; empty: it is NAME
  std::string groups_claim;
  std::vector<std::string> groups;  // of the claim those that count
  std::string ca_file;
  int64_t leeway_ns = kMinute;
  int64_t max_age_ns = 10 * kMinute;
  int64_t log_in_again_ns = 7 * kDay;
  bool without_nonce = false;   // tokens of programs, which are bound to no key
  bool existing_users = false;  // may be who is known otherwise
};

// How a name is known before an identity provider names it.
enum class NameKind { kFree, kAccount, kReserved };

// What a token that counts says.
struct Vouched {
  std::string issuer, subject;
  std::string name;                                // of a user of Muster; not looked at yet
  std::optional<std::vector<std::string>> groups;  // ascending; none: nothing is said of groups
  std::string token_hash;                          // what was signed, as SHA-256
  int64_t ends_ns = 0;                             // Unix time: the token counts no longer
  int64_t log_in_again_ns = 0;                     // Unix time
  bool existing_users = false;
  bool has_roles = false;  // somebody gave some to the name
  NameKind kind = NameKind::kFree;
};

// "the ID token …": what is wrong with it. UNAUTHENTICATED.
absl::Status RefusedToken(absl::string_view what);

// Of a token whose signature is right. `key_hash`: of the key that a certificate is asked for.
absl::StatusOr<Vouched> CheckClaims(const Jws& token, const IssuerRules& rules,
                                    std::string_view key_hash, int64_t now_ns);

}  // namespace muster
