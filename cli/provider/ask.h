// What both ways to a token ask a provider.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "cli/provider/provider.h"

namespace muster {

using ProviderForm = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<Discovery> Discover(const ProviderClient& client);
// A JSON object that a POST of this form answers; *status is the answer's.
absl::StatusOr<nlohmann::json> Post(const ProviderClient& client, const std::string& url,
                                    const ProviderForm& form, int64_t* status);
// Of what a provider says, as it goes to a terminal: printable, and short.
std::string AsShown(std::string text);
// The token in an answer of the token endpoint; else what it says is wrong (RFC 6749, 5.2).
absl::StatusOr<std::string> IdTokenIn(const nlohmann::json& answer);
absl::Status Refused(const std::string& error, const std::string& description);
std::string ScopesOf(const ProviderClient& client);
// 43 characters that nobody guesses.
std::string RandomText();
std::string PercentEncoded(const std::string& text);

}  // namespace muster
