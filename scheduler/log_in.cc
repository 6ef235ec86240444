#include "scheduler/log_in.h"

#include "absl/strings/str_cat.h"
#include "common/oidc/jws.h"
#include "network/https/https.h"

namespace muster {
namespace {

IssuerRules RulesOf(const OidcConfig& config) {
  IssuerRules rules;
  rules.issuer = config.issuer;
  rules.client_id = config.client_id;
  rules.audiences = config.audiences;
  rules.scopes = config.scopes;
  rules.name_claim = config.name_claim;
  rules.domain = config.domain;
  rules.groups_claim = config.groups_claim;
  rules.groups = config.groups;
  rules.ca_file = config.ca;
  rules.leeway_ns = config.leeway_ns;
  rules.max_age_ns = config.max_age_ns;
  rules.log_in_again_ns = config.log_in_again_ns;
  rules.without_nonce = config.without_nonce;
  rules.existing_users = config.existing_users;
  return rules;
}

absl::StatusOr<std::string> Fetch(const std::string& url, const std::string& ca_file,
                                  const std::atomic<bool>* stop) {
  HttpsQuestion question;
  question.url = url;
  question.ca_file = ca_file;
  question.bytes_max = kMaxKeysBytes;
  question.stop = stop;
  absl::StatusOr<HttpsAnswer> answer = Ask(question);
  if (!answer.ok()) return answer.status();
  if (answer->status != 200)
    return absl::UnavailableError(absl::StrCat(url, ": answers with status ", answer->status));
  return std::move(answer->body);
}

}  // namespace

std::unique_ptr<Providers> OpenProviders(const MusterdConfig& config, const Users* users,
                                         Clock* clock) {
  if (config.oidc.empty()) return nullptr;
  std::vector<IssuerRules> rules;
  for (const OidcConfig& issuer : config.oidc) rules.push_back(RulesOf(issuer));
  ProviderParts parts;
  parts.fetch = Fetch;
  parts.kind_of = [users](const std::string& name) {
    switch (users->HowKnown(name)) {
      case KnownAs::kNobody:
        return NameKind::kFree;
      case KnownAs::kSomebody:
        return NameKind::kAccount;
      default:
        return NameKind::kReserved;
    }
  };
  parts.clock = clock;
  return std::make_unique<Providers>(std::move(rules), std::move(parts));
}

}  // namespace muster
