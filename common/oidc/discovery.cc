#include "common/oidc/discovery.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/issuers.h"
#include "common/oidc/json.h"
#include "common/pki/sha256.h"

namespace muster {

std::string DiscoveryUrl(std::string_view issuer) {
  const absl::string_view text(issuer.data(), issuer.size());
  return absl::StrCat(absl::StripSuffix(text, "/"), "/.well-known/openid-configuration");
}

absl::StatusOr<Discovery> ReadDiscovery(std::string_view json, std::string_view issuer) {
  const absl::StatusOr<nlohmann::json> read = ReadJsonObject(json);
  if (!read.ok()) return read.status();
  if (TextIn(*read, "issuer") != issuer) {
    return absl::InvalidArgumentError(
        "calls itself otherwise: the issuer has to be written exactly as it writes itself");
  }
  Discovery found;
  const struct {
    const char* name;
    std::string* to;
    bool needed;
  } kAddresses[] = {{"jwks_uri", &found.keys_url, true},
                    {"authorization_endpoint", &found.authorization_url, false},
                    {"token_endpoint", &found.token_url, false},
                    {"device_authorization_endpoint", &found.device_url, false}};
  for (const auto& address : kAddresses) {
    *address.to = TextIn(*read, address.name);
    if (address.to->empty() ? address.needed : !IsHttpsAddress(*address.to)) {
      return absl::InvalidArgumentError(
          absl::StrCat("has no ", address.name, " that begins with https://"));
    }
  }
  return found;
}

std::string NonceOf(std::string_view key_hash) {
  return Sha256Hex(
      absl::StrCat("muster login ", absl::string_view(key_hash.data(), key_hash.size())));
}

}  // namespace muster
