#include "cli/provider/ask.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/oidc/json.h"
#include "common/pki/seal.h"
#include "network/https/https.h"

namespace muster {
namespace {

constexpr int64_t kProviderNs = 15 * kSecond;
constexpr size_t kToldChars = 200;

}  // namespace

std::string AsShown(std::string text) {
  if (text.size() > kToldChars) text.resize(kToldChars);
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return !absl::ascii_isprint(static_cast<unsigned char>(c)); }, '?');
  return text;
}

absl::StatusOr<Discovery> Discover(const ProviderClient& client) {
  HttpsQuestion question;
  question.url = DiscoveryUrl(client.issuer);
  question.ca_file = client.ca_file;
  question.timeout_ns = kProviderNs;
  question.bytes_max = kMaxDiscoveryBytes;
  const absl::StatusOr<HttpsAnswer> answer = Ask(question);
  if (!answer.ok()) return answer.status();
  if (answer->status != 200) {
    return absl::UnavailableError(
        absl::StrCat(question.url, ": answers with status ", answer->status));
  }
  absl::StatusOr<Discovery> found = ReadDiscovery(answer->body, client.issuer);
  if (found.ok()) return found;
  return absl::UnavailableError(
      absl::StrCat(question.url, ": what is there ", found.status().message()));
}

absl::StatusOr<nlohmann::json> Post(const ProviderClient& client, const std::string& url,
                                    const ProviderForm& form, int64_t* status) {
  HttpsQuestion question;
  question.url = url;
  question.form = form;
  question.ca_file = client.ca_file;
  question.timeout_ns = kProviderNs;
  const absl::StatusOr<HttpsAnswer> answer = Ask(question);
  if (!answer.ok()) return answer.status();
  *status = answer->status;
  absl::StatusOr<nlohmann::json> read = ReadJsonObject(answer->body);
  if (read.ok()) return read;
  return absl::UnavailableError(
      absl::StrCat(url, ": answers with status ", answer->status, " and no JSON"));
}

absl::Status Refused(const std::string& error, const std::string& description) {
  return absl::PermissionDeniedError(
      absl::StrCat("the provider gave no token: ", AsShown(error),
                   description.empty() ? "" : absl::StrCat(" (", AsShown(description), ")")));
}

absl::StatusOr<std::string> IdTokenIn(const nlohmann::json& answer) {
  if (const std::string error = TextIn(answer, "error"); !error.empty())
    return Refused(error, TextIn(answer, "error_description"));
  std::string token = TextIn(answer, "id_token");
  if (token.empty())
    return absl::PermissionDeniedError("the provider gave no ID token; is `openid` in scopes?");
  return token;
}

std::string ScopesOf(const ProviderClient& client) { return absl::StrJoin(client.scopes, " "); }

std::string RandomText() { return absl::WebSafeBase64Escape(RandomBytes(32)); }

std::string PercentEncoded(const std::string& text) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
                       c == '_' || c == '~';
    absl::StrAppend(&encoded,
                    plain ? std::string(1, c) : absl::StrCat("%", absl::BytesToHexString({&c, 1})));
  }
  return encoded;
}

}  // namespace muster
