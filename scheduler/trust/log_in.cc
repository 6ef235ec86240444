// Users whom an identity provider vouches for: whose name they may have, and what is kept of it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "scheduler/trust/office.h"

namespace muster {
namespace {

constexpr char kSpent[] = "oidc-";  // before the hash of an ID token, among the tokens' ids
constexpr int64_t kSpentMostNs = 2 * kDay;

// Why the name isn't to be had, for the audit; empty: it is.
std::string WhyNotTheirs(const Trust& trust, const Vouched& vouched) {
  if (!IsUserName(vouched.name)) return "no name of a user";
  if (vouched.kind == NameKind::kReserved) return "reserved";
  if (vouched.kind == NameKind::kAccount && !vouched.existing_users)
    return "the name of an account of this machine, and not existing_users";
  // A revoked one would come back by another name, and one would take many before others come.
  for (const auto& [name, user] : trust.users) {
    if (name != vouched.name && user.issuer() == vouched.issuer &&
        user.subject() == vouched.subject)
      return absl::StrCat("its subject is ", name, user.revoked() ? ", who is revoked" : "");
  }
  const auto row = trust.users.find(vouched.name);
  if (row == trust.users.end()) {
    return vouched.has_roles && !vouched.existing_users
               ? "the name has roles already, and not existing_users"
               : "";
  }
  const pb::NetworkUser& user = row->second;
  if (user.revoked()) return "revoked";
  if (user.issuer().empty())
    return vouched.existing_users ? "" : "the name of somebody invited, and not existing_users";
  if (user.issuer() != vouched.issuer) return "the name of another provider's user";
  return user.subject() == vouched.subject ? "" : "the name of another of its subjects";
}

pb::NetworkUser UserOf(const Trust& trust, const Vouched& vouched) {
  pb::NetworkUser user;
  if (const auto row = trust.users.find(vouched.name); row != trust.users.end()) user = row->second;
  user.set_name(vouched.name);
  user.set_issuer(vouched.issuer);
  user.set_subject(vouched.subject);
  user.set_log_in_again_ns(vouched.log_in_again_ns);
  if (vouched.groups.has_value()) {
    user.clear_groups();
    for (const std::string& group : *vouched.groups) user.add_groups(group);
  }
  return user;
}

}  // namespace

bool IsUserName(const std::string& name) {
  // Digits alone are a uid on hosts.
  return !name.empty() && name.size() <= 32 && IsLabel(name) &&
         name.find_first_not_of("0123456789") != name.npos &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
                  c == '.';
         });
}

absl::StatusOr<Office::Issued> Office::LogIn(const Trust& trust, const Vouched& vouched,
                                             std::string_view request, int64_t now_ns,
                                             std::string* why) const {
  if (*why = WhyNotTheirs(trust, vouched); !why->empty()) {
    return absl::PermissionDeniedError(
        "you can't log in here by the name that your provider gives you: it may be somebody "
        "else's, reserved or revoked, or none that Muster takes (1 to 32 of a-z, 0-9, '_', '-' "
        "and '.', not digits alone). Whoever administers this scheduler finds the reason in its "
        "audit, and can "
        "invite you: muster user invite");
  }
  const std::string spent = kSpent + vouched.token_hash;
  if (vouched.ends_ns <= now_ns) return RefusedToken("has expired");
  if (trust.tokens.count(spent) != 0)
    return RefusedToken("has been used already, and counts once. Log in anew: muster login --oidc");
  const pb::NetworkUser user = UserOf(trust, vouched);
  absl::StatusOr<Issued> issued = Issue(
      trust, request, Holder{Holder::kUser, trust.trust_id, "", vouched.name}, &user, "", now_ns);
  if (!issued.ok()) return issued;
  *issued->before.emplace_back().mutable_network_user()->mutable_user() = user;
  // Of nobody, so that it outlives a revocation; and without a secret, so that it buys nothing.
  pb::JoinToken* token = issued->before.emplace_back().mutable_join_token()->mutable_token();
  token->set_id(spent);
  token->set_key_hash(issued->event.certificate_issued().certificate().key_hash());
  token->set_expires_ns(std::min(vouched.ends_ns, now_ns + kSpentMostNs));
  return issued;
}

}  // namespace muster
