// Authorization code with PKCE (RFC 7636), answered at a loopback address (RFC 8252).
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/provider/ask.h"
#include "cli/provider/loopback.h"
#include "cli/provider/open_browser.h"
#include "common/pki/sha256.h"

namespace muster {
namespace {

std::string UrlOf(const std::string& at, const ProviderForm& parameters) {
  std::string url = at;
  for (const auto& [name, value] : parameters) {
    absl::StrAppend(&url, absl::StrContains(url, '?') ? "&" : "?", name, "=",
                    PercentEncoded(value));
  }
  return url;
}

}  // namespace

absl::StatusOr<std::string> TokenByBrowser(const ProviderClient& client) {
  const absl::StatusOr<Discovery> provider = Discover(client);
  if (!provider.ok()) return provider.status();
  if (provider->authorization_url.empty() || provider->token_url.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(client.issuer, " offers no login in a browser: try --device"));
  }
  absl::StatusOr<Loopback> loopback = Loopback::Open(client.redirect_port);
  if (!loopback.ok()) return loopback.status();
  const std::string verifier = RandomText(), state = RandomText();
  const std::string url = UrlOf(provider->authorization_url,
                                {{"response_type", "code"},
                                 {"client_id", client.client_id},
                                 {"redirect_uri", loopback->url()},
                                 {"scope", ScopesOf(client)},
                                 {"state", state},
                                 {"nonce", client.nonce},
                                 {"code_challenge", absl::WebSafeBase64Escape(Sha256(verifier))},
                                 {"code_challenge_method", "S256"}});
  client.say(absl::StrCat("Log in here:\n", url, "\n"));
  OpenBrowser(url);
  absl::StatusOr<std::map<std::string, std::string>> back =
      loopback->Wait(state, client.timeout_ns);
  if (!back.ok()) return back.status();
  // Of another provider (RFC 9207): its code isn't for this one's ears.
  if (back->count("iss") != 0 && (*back)["iss"] != client.issuer)
    return absl::PermissionDeniedError("another provider than the one that was asked answered");
  if ((*back)["code"].empty()) return Refused((*back)["error"], (*back)["error_description"]);
  int64_t status = 0;
  const absl::StatusOr<nlohmann::json> answer = Post(client, provider->token_url,
                                                     {{"grant_type", "authorization_code"},
                                                      {"code", (*back)["code"]},
                                                      {"redirect_uri", loopback->url()},
                                                      {"client_id", client.client_id},
                                                      {"code_verifier", verifier}},
                                                     &status);
  if (!answer.ok()) return answer.status();
  return IdTokenIn(*answer);
}

}  // namespace muster
