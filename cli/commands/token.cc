// Tokens of one's own, for programs: they log in with fewer rights than their owner.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/render/table.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr std::array<std::pair<const char*, pb::Role>, 3> kScopeVerbs = {
    {{"view", pb::ROLE_VIEWER}, {"submit", pb::ROLE_SUBMITTER}, {"operate", pb::ROLE_OPERATOR}}};

struct ScopedTokenOptions {
  std::vector<std::string> scopes;
  std::string ttl;
};

// "submit:research/nlp"; "view:/" for all queues.
absl::StatusOr<pb::Scope> ParseScope(const std::string& text) {
  const size_t colon = text.find(':');
  const auto verb = std::find_if(kScopeVerbs.begin(), kScopeVerbs.end(), [&](const auto& one) {
    return colon != std::string::npos && text.substr(0, colon) == one.first;
  });
  if (verb == kScopeVerbs.end() || colon + 1 == text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--scope ", text,
                     ": write view:QUEUE, submit:QUEUE or operate:QUEUE, such as "
                     "submit:research/nlp; / is the root of the queues"));
  }
  pb::Scope scope;
  scope.set_role(verb->second);
  const std::string queue = text.substr(colon + 1);
  scope.set_queue(queue == "/" ? "" : queue);
  return scope;
}

std::string ScopeText(const pb::Scope& scope) {
  const auto verb = std::find_if(kScopeVerbs.begin(), kScopeVerbs.end(),
                                 [&](const auto& one) { return one.second == scope.role(); });
  return absl::StrCat(verb == kScopeVerbs.end() ? "?" : verb->first, ":",
                      scope.queue().empty() ? "/" : scope.queue());
}

std::string TimeLeft(int64_t now_ns, int64_t at_ns) {
  return at_ns <= now_ns ? "past" : FormatDuration((at_ns - now_ns) / kSecond * kSecond);
}

int CreateScopedToken(Session& session, const ScopedTokenOptions& options) {
  pb::CreateTokenRequest request;
  for (const std::string& text : options.scopes) {
    const absl::StatusOr<pb::Scope> scope = ParseScope(text);
    if (!scope.ok()) return session.Fail(scope.status());
    *request.add_scopes() = *scope;
  }
  if (!options.ttl.empty()) {
    const absl::StatusOr<int64_t> ttl = ParseDuration(options.ttl);
    if (!ttl.ok())
      return session.Fail(
          absl::InvalidArgumentError(absl::StrCat("--ttl: ", ttl.status().message())));
    request.set_ttl_ns(*ttl);
  }
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::NewTokenResponse> response = (*client)->CreateToken(request);
  if (!response.ok()) return session.Fail(response.status());
  const int code =
      session.ShowOne(absl::StrCat("muster login ", response->join_address(), " --token ",
                                   response->token(), " --ca ", response->fingerprint(), "\n"),
                      *response, response->id());
  if (session.for_people()) {
    session.Err(absl::StrCat(
        "Who runs this line is you, with ", absl::StrJoin(options.scopes, ", "), " alone, for ",
        TimeLeft(session.now_ns(), response->expires_ns() + kSecond),
        ". It is shown this once. Take it back: muster token revoke ", response->id(), "\n"));
  }
  return code;
}

int ListOwnTokens(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::ListTokensResponse> response = (*client)->ListTokens();
  if (!response.ok()) return session.Fail(response.status());
  Table table({{"TOKEN"}, {"SCOPES"}, {"ENDS IN"}});
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Holding::Token& token : response->tokens()) {
    std::vector<std::string> scopes;
    for (const pb::Scope& scope : token.scopes()) scopes.push_back(ScopeText(scope));
    table.AddRow(
        {token.id(), absl::StrJoin(scopes, ","), TimeLeft(session.now_ns(), token.expires_ns())});
    rows.push_back(&token);
    names.push_back(token.id());
  }
  return session.Show(table, *response, rows, names);
}

int RevokeOwnToken(Session& session, const std::string& id) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  pb::RevokeTokenRequest request;
  request.set_id(id);
  const absl::StatusOr<pb::RevokeTokenResponse> response = (*client)->RevokeToken(request);
  if (!response.ok()) return session.Fail(response.status());
  return session.ShowOne("It counts no longer; what is connected with it ends within seconds.\n",
                         *response, id);
}

}  // namespace

void AddToken(CLI::App& root, Session& session) {
  CLI::App* token =
      root.add_subcommand("token",
                          "Tokens for programs, with fewer rights than you have: create, "
                          "list, revoke");
  token->require_subcommand(1);
  auto options = std::make_shared<ScopedTokenOptions>();
  CLI::App* create = token->add_subcommand("create", "Print the line that a program logs in with");
  create
      ->add_option("--scope", options->scopes,
                   "What it may: view:QUEUE, submit:QUEUE or operate:QUEUE; as often as needed")
      ->required();
  create->add_option("--ttl", options->ttl, "How long it is good; default 30d, at most 90d");
  create->callback([&session, options] {
    session.command = [&session, options] { return CreateScopedToken(session, *options); };
  });
  CLI::App* list = token->add_subcommand("list", "Those of yours");
  list->callback([&session] { session.command = [&session] { return ListOwnTokens(session); }; });
  auto id = std::make_shared<std::string>();
  CLI::App* revoke = token->add_subcommand("revoke", "It counts no longer, within seconds");
  revoke->add_option("id", *id)->required();
  revoke->callback([&session, id] {
    session.command = [&session, id] { return RevokeOwnToken(session, *id); };
  });
}

}  // namespace muster
