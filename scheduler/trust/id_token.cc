#include "scheduler/trust/id_token.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/oidc/discovery.h"
#include "common/oidc/json.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr double kLatestS = 253402300799;  // the end of the year 9999
constexpr size_t kMaxSubjectBytes = 255;   // Core, 2

// A NumericDate, in whole seconds; none: it is there and is no such number.
std::optional<int64_t> SecondsIn(const json& claims, const char* name, int64_t missing_s) {
  const auto found = claims.find(name);
  if (found == claims.end()) return missing_s;
  if (!found->is_number()) return std::nullopt;
  const double seconds = found->get<double>();
  if (!(seconds >= 0 && seconds <= kLatestS)) return std::nullopt;
  return static_cast<int64_t>(seconds);
}

// A text, or a list of texts; none: it is neither.
std::optional<std::vector<std::string>> TextsIn(const json& claims, const char* name) {
  std::vector<std::string> texts;
  const auto found = claims.find(name);
  if (found == claims.end()) return texts;
  if (found->is_string()) return std::vector<std::string>{found->get<std::string>()};
  if (!found->is_array()) return std::nullopt;
  for (const json& text : *found) {
    if (!text.is_string()) return std::nullopt;
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

absl::Status CheckTimes(const json& claims, const IssuerRules& rules, int64_t now_ns,
                        int64_t* ends_ns) {
  const int64_t now_s = now_ns / kSecond, leeway_s = rules.leeway_ns / kSecond;
  const std::optional<int64_t> end_s = SecondsIn(claims, "exp", -1);
  const std::optional<int64_t> issued_s = SecondsIn(claims, "iat", -1);
  const std::optional<int64_t> begin_s = SecondsIn(claims, "nbf", 0);
  if (end_s.value_or(-1) < 0 || issued_s.value_or(-1) < 0 || !begin_s.has_value())
    return RefusedToken("doesn't say from when until when it counts");
  if (*end_s + leeway_s <= now_s) return RefusedToken("has expired");
  if (std::max(*begin_s, *issued_s) > now_s + leeway_s)
    return RefusedToken("counts later: the clocks of musterd and of the provider differ");
  if (*issued_s + rules.max_age_ns / kSecond + leeway_s <= now_s)
    return RefusedToken("was issued too long ago");
  *ends_ns = std::min(*end_s, *issued_s + rules.max_age_ns / kSecond) * kSecond + rules.leeway_ns;
  return absl::OkStatus();
}

// Whom it is for: this client, and with others only if it was issued to this one.
absl::Status CheckAudience(const json& claims, const IssuerRules& rules) {
  const auto ours = [&](const std::string& client) {
    return client == rules.client_id || std::find(rules.audiences.begin(), rules.audiences.end(),
                                                  client) != rules.audiences.end();
  };
  const std::optional<std::vector<std::string>> audience = TextsIn(claims, "aud");
  if (!audience.has_value() || std::none_of(audience->begin(), audience->end(), ours))
    return RefusedToken("is for another program than Muster");
  if ((audience->size() > 1 || claims.contains("azp")) && !ours(TextIn(claims, "azp")))
    return RefusedToken("was issued to another program than Muster");
  return absl::OkStatus();
}

absl::Status CheckNonce(const json& claims, const IssuerRules& rules, std::string_view key_hash) {
  if (!claims.contains("nonce")) {
    if (rules.without_nonce) return absl::OkStatus();
    return RefusedToken(
        "is bound to no key (it has no nonce). In a browser, muster login --oidc gets one that is; "
        "for programs, and for --device with a provider that leaves it out, musterd.yaml may allow "
        "them: without_nonce");
  }
  if (TextIn(claims, "nonce") != NonceOf(key_hash))
    return RefusedToken("is bound to another key: it was made for another login");
  return absl::OkStatus();
}

absl::StatusOr<std::string> NameIn(const json& claims, const IssuerRules& rules) {
  std::string name = TextIn(claims, rules.name_claim.c_str());
  if (name.empty() || name.size() > kMaxSubjectBytes) {
    return RefusedToken(
        absl::StrCat("names no user: it has no text of up to 255 bytes as ", rules.name_claim));
  }
  if (rules.name_claim == "email") {
    const auto verified = claims.find("email_verified");
    if (verified == claims.end() || *verified != true)
      return RefusedToken("has an address that its provider hasn't verified (email_verified)");
  }
  if (rules.domain.empty()) return name;
  absl::AsciiStrToLower(&name);  // so are addresses: who has which name is asked by subject
  const size_t at = name.find('@');
  if (at == name.npos || name.substr(at + 1) != absl::AsciiStrToLower(rules.domain)) {
    return RefusedToken(
        absl::StrCat("is of somebody outside of ", rules.domain, " (", rules.name_claim, ")"));
  }
  name.resize(at);
  return name;
}

}  // namespace

absl::Status RefusedToken(absl::string_view what) {
  return absl::UnauthenticatedError(absl::StrCat("the ID token ", what));
}

absl::StatusOr<Vouched> CheckClaims(const Jws& token, const IssuerRules& rules,
                                    std::string_view key_hash, int64_t now_ns) {
  const json& claims = token.claims;
  Vouched vouched;
  vouched.issuer = TextIn(claims, "iss");
  vouched.subject = TextIn(claims, "sub");
  if (vouched.issuer != rules.issuer) return RefusedToken("is another issuer's");
  if (vouched.subject.empty() || vouched.subject.size() > kMaxSubjectBytes)
    return RefusedToken("has no subject");
  if (absl::Status status = CheckAudience(claims, rules); !status.ok()) return status;
  if (absl::Status status = CheckTimes(claims, rules, now_ns, &vouched.ends_ns); !status.ok())
    return status;
  if (absl::Status status = CheckNonce(claims, rules, key_hash); !status.ok()) return status;
  absl::StatusOr<std::string> name = NameIn(claims, rules);
  if (!name.ok()) return name.status();
  vouched.name = *std::move(name);
  if (!rules.groups_claim.empty()) {
    const auto said = TextsIn(claims, rules.groups_claim.c_str());
    std::set<std::string> groups;
    for (const std::string& group : said.value_or(std::vector<std::string>())) {
      if (std::find(rules.groups.begin(), rules.groups.end(), group) != rules.groups.end())
        groups.insert(group);
    }
    vouched.groups.emplace(groups.begin(), groups.end());
  }
  vouched.token_hash = Sha256Hex(token.signed_text);
  vouched.log_in_again_ns = now_ns + rules.log_in_again_ns;
  vouched.existing_users = rules.existing_users;
  return vouched;
}

}  // namespace muster
