// What comes of identity providers, and of whoever says that it does: ID tokens, key sets, what a
// provider tells of itself.
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/issuers.h"
#include "common/oidc/discovery.h"
#include "common/oidc/json.h"
#include "common/oidc/jws.h"
#include "scheduler/trust/id_token.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  // A token, then, after a line's end, the keys that it is looked at with.
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find('\n');
  const std::string first = text.substr(0, end),
                    rest = end == text.npos ? "" : text.substr(end + 1);
  const absl::StatusOr<std::vector<VerifyingKey>> keys = ReadKeySet(rest);
  (void)ReadDiscovery(rest, "https://id.example.org");
  (void)WhyNoIssuer(first);
  IssuerRules rules;
  rules.issuer = "https://id.example.org";
  rules.client_id = "muster";
  rules.domain = size % 2 == 0 ? "" : "example.org";
  rules.groups_claim = "groups";
  rules.groups = {"nlp"};
  rules.without_nonce = true;
  constexpr int64_t kNowNs = 1'800'000'000 * kSecond;
  Jws bare;
  if (absl::StatusOr<nlohmann::json> claims = ReadJsonObject(rest); claims.ok()) {
    bare.claims = *std::move(claims);
    (void)CheckClaims(bare, rules, "sha256:aa", kNowNs);
  }
  const absl::StatusOr<Jws> token = ReadJws(first);
  if (!token.ok()) return 0;
  MUSTER_CHECK(token->algorithm == "RS256" || token->algorithm == "PS256" ||
               token->algorithm == "ES256");
  MUSTER_CHECK(first.size() <= kMaxTokenBytes && first.rfind(token->signed_text, 0) == 0);
  if (keys.ok()) (void)VerifyJws(*token, *keys);
  (void)CheckClaims(*token, rules, "sha256:aa", kNowNs);
  return 0;
}
