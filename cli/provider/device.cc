// The device authorization grant (RFC 8628).
#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/provider/ask.h"
#include "common/base/clock.h"
#include "common/oidc/json.h"

namespace muster {
namespace {

constexpr char kGrant[] = "urn:ietf:params:oauth:grant-type:device_code";
constexpr int64_t kUsualIntervalS = 5, kMostIntervalS = 60;  // RFC 8628, 3.2

int64_t SecondsIn(const nlohmann::json& answer, const char* name, int64_t otherwise, int64_t most) {
  const auto found = answer.find(name);
  if (found == answer.end() || !found->is_number_unsigned()) return otherwise;
  return static_cast<int64_t>(
      std::min<uint64_t>(found->get<uint64_t>(), static_cast<uint64_t>(most)));
}

}  // namespace

absl::StatusOr<std::string> TokenByDevice(const ProviderClient& client) {
  const absl::StatusOr<Discovery> provider = Discover(client);
  if (!provider.ok()) return provider.status();
  if (provider->device_url.empty() || provider->token_url.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(client.issuer,
                     " offers no login with a code (device authorization): log in "
                     "on a machine with a browser, without --device"));
  }
  int64_t status = 0;
  const absl::StatusOr<nlohmann::json> begun =
      Post(client, provider->device_url,
           {{"client_id", client.client_id}, {"scope", ScopesOf(client)}, {"nonce", client.nonce}},
           &status);
  if (!begun.ok()) return begun.status();
  const std::string code = TextIn(*begun, "device_code"), user_code = TextIn(*begun, "user_code");
  const std::string where = TextIn(*begun, "verification_uri");
  if (code.empty() || user_code.empty() || where.empty())
    return Refused(TextIn(*begun, "error"), TextIn(*begun, "error_description"));
  client.say(absl::StrCat("Open ", AsShown(where), " on any machine, and enter the code ",
                          AsShown(user_code),
                          "\nThe page has to show this code, and whoever sent you another one is "
                          "no friend.\n"));
  int64_t interval_s =
      std::max<int64_t>(1, SecondsIn(*begun, "interval", kUsualIntervalS, kMostIntervalS));
  const int64_t until_ns =
      RealClock()->MonotonicNs() +
      std::min(
          client.timeout_ns,
          SecondsIn(*begun, "expires_in", client.timeout_ns / kSecond, kDay / kSecond) * kSecond);
  absl::Status lost;
  while (RealClock()->MonotonicNs() < until_ns) {
    // Nothing tells that it is granted: the provider is asked as often as it allows (3.5).
    std::this_thread::sleep_for(std::chrono::seconds(interval_s));
    const absl::StatusOr<nlohmann::json> answer = Post(
        client, provider->token_url,
        {{"grant_type", kGrant}, {"device_code", code}, {"client_id", client.client_id}}, &status);
    if (lost.ok() && !answer.ok()) {
      client.say(
          absl::StrCat("The provider gave no answer, and is asked again until the code ends: ",
                       AsShown(std::string(answer.status().message())), "\n"));
    }
    lost = answer.status();
    if (!answer.ok()) {  // the code is still good, and who is slow is asked less often (3.5)
      interval_s = std::min(2 * interval_s, kMostIntervalS);
      continue;
    }
    const std::string error = TextIn(*answer, "error");
    if (error == "slow_down") interval_s = std::min(interval_s + 5, kMostIntervalS);
    if (error != "authorization_pending" && error != "slow_down") return IdTokenIn(*answer);
  }
  return lost.ok() ? absl::DeadlineExceededError("the code wasn't entered in time: log in anew")
                   : lost;
}

}  // namespace muster
