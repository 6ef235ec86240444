#include "common/oidc/discovery.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/oidc/json.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

constexpr char kHttps[] = "https://";
constexpr size_t kMaxUrlBytes = 2048;

bool IsHttps(const std::string& url) {
  return absl::StartsWith(url, kHttps) && url.size() >= sizeof kHttps &&
         url.size() <= kMaxUrlBytes && url[sizeof kHttps - 1] != '/' &&
         url.find_first_of("\\\"<>@#") == url.npos &&
         std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string WhyNoIssuer(std::string_view url) {
  const std::string text(url.substr(0, kMaxUrlBytes + 1));
  if (IsHttps(text) && text.find('?') == text.npos) return "";
  return "is no address of an issuer; write it as its tokens have it, such as "
         "https://id.example.org";
}

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
    if (address.to->empty() ? address.needed : !IsHttps(*address.to)) {
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
