// Who comes over a network: hosts and users join by tokens, and the authority that signs for them.
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/render/json.h"
#include "cli/render/table.h"
#include "cli/up/lock.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"

namespace muster {
namespace {

struct TokenOptions {
  std::string host, user, ttl;
  std::vector<std::string> groups;
  bool reusable = false;
};

std::string When(int64_t now_ns, int64_t at_ns) {
  if (at_ns == 0) return "-";
  return at_ns <= now_ns
             ? "past"
             : absl::StrCat("in ", FormatDuration((at_ns - now_ns) / kSecond * kSecond));
}

// What was refused; and of the server of a `muster up`, which has no musterd.yaml to mend, what it
// is for.
int Refused(Session& session, const Client& client, const absl::Status& status) {
  const int code = session.Fail(status);
  if (absl::IsFailedPrecondition(status) &&
      UpLock::Serving(client.server(), ProcessEnvironment).pid != 0)
    session.Err(
        "  It is that of muster up, which serves one user on one machine. Several machines: "
        "docs/hosts.md\n");
  return code;
}

absl::StatusOr<pb::NewTokenResponse> AskForToken(Client* client, const TokenOptions& options) {
  pb::NewTokenRequest request;
  request.set_host(options.host);
  request.set_user(options.user);
  for (const std::string& group : options.groups) request.add_groups(group);
  request.set_reusable(options.reusable);
  if (!options.ttl.empty()) {
    const absl::StatusOr<int64_t> ttl = ParseDuration(options.ttl);
    if (!ttl.ok())
      return absl::InvalidArgumentError(absl::StrCat("--ttl: ", ttl.status().message()));
    request.set_ttl_ns(*ttl);
  }
  return client->NewToken(request);
}

// The line that its holder runs, and to people what it is good for.
int ShowToken(Session& session, Client* client, const TokenOptions& options,
              const pb::NewTokenResponse& token) {
  const std::string line =
      absl::StrCat(token.join_address(), " --token ", token.token(), " --ca ", token.fingerprint());
  const absl::StatusOr<pb::PingResponse> ping = client->Ping();
  const std::string text =
      options.host.empty() ? absl::StrCat("muster login ", line, "\n")
      : !token.only_user().empty()
          ? absl::StrCat("muster-agent join ", line,
                         " --state-dir ~/.local/share/muster-agent --as-me\n")
          : absl::StrCat("muster-agent join ", line, " --state-dir /var/lib/muster-agent",
                         ping.ok() && ping->single_user() ? " --single-user" : "", "\n");
  const int code = session.ShowOne(text, token, token.id());
  if (session.for_people()) {
    session.Err(absl::StrCat(
        options.host.empty() ? options.user + " runs" : "Run on " + options.host,
        token.only_user().empty() ? "" : absl::StrCat(", as ", token.only_user(), ","),
        " this line ", When(session.now_ns(), token.expires_ns()) == "past" ? "" : "within ",
        FormatDuration((token.expires_ns() - session.now_ns() + kSecond - 1) / kSecond * kSecond),
        options.reusable ? ", as often as needed" : ", once", ". Take it back: muster ",
        options.host.empty() ? "user" : "host", " token revoke ", token.id(), "\n"));
  }
  return code;
}

int NewToken(Session& session, const TokenOptions& options) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::NewTokenResponse> token = AskForToken(*client, options);
  if (!token.ok()) return Refused(session, **client, token.status());
  return ShowToken(session, *client, options, *token);
}

// The part of the range `pattern` from its host number `first` to `last`: of lab/h[01-10] 3 and 5
// are lab/h[04-06].
std::string PartOfRange(const std::string& pattern, const std::vector<std::string>& names,
                        size_t first, size_t last) {
  const size_t slash = pattern.find('/'), open = pattern.find('[', slash),
               close = pattern.find(']', open);
  const size_t behind = pattern.size() - close - 1, before = open - slash - 1;
  const auto number = [&](size_t host) {
    return names[host].substr(before, names[host].size() - behind - before);
  };
  return absl::StrCat(pattern.substr(0, open + 1), number(first), "-", number(last),
                      pattern.substr(close));
}

// Of hosts `names`, in order: a line each, or one list. The first that is refused ends it.
int NewTokensOf(Session& session, Client* client, const TokenOptions& options,
                const std::vector<std::string>& names) {
  const std::string cluster = options.host.substr(0, options.host.find('/') + 1);
  const bool is_list = session.format() == Format::kJson || session.format() == Format::kYaml;
  std::vector<pb::NewTokenResponse> made;
  absl::Status refused;
  for (const std::string& name : names) {
    TokenOptions one = options;
    one.host = absl::StrCat(cluster, name);
    absl::StatusOr<pb::NewTokenResponse> token = AskForToken(client, one);
    refused = token.status();
    if (!refused.ok()) break;
    made.push_back(*std::move(token));
    if (!is_list) ShowToken(session, client, one, made.back());
  }
  if (is_list) {
    std::vector<const google::protobuf::Message*> rows;
    for (const pb::NewTokenResponse& token : made) rows.push_back(&token);
    session.Out(session.format() == Format::kJson ? ListToJson(rows) : ListToYaml(rows));
  }
  if (refused.ok()) return kExitOk;
  const int code = Refused(session, *client, refused);
  if (!made.empty())
    session.Err(absl::StrCat(
        "  ",
        made.size() == 1 ? absl::StrCat(cluster, names[0], " has its token")
                         : absl::StrCat(PartOfRange(options.host, names, 0, made.size() - 1),
                                        " have their tokens"),
        ". Go on with the others: muster host token new '",
        PartOfRange(options.host, names, made.size(), names.size() - 1), "'\n"));
  return code;
}

// lab/h[01-10]
int NewHostTokens(Session& session, const TokenOptions& options) {
  constexpr size_t kMostAtOnce = 100;  // that musterd grants without a rest
  const size_t slash = options.host.find('/');
  // Without a range musterd says what is wrong with it.
  if (slash == std::string::npos || options.host.find('[', slash) == std::string::npos)
    return NewToken(session, options);
  std::vector<std::string> names;
  std::string why;
  if (!ExpandHosts(options.host.substr(slash + 1), &names, &why))
    return session.Fail(absl::InvalidArgumentError(why));
  if (names.size() > kMostAtOnce) {
    return session.Fail(absl::InvalidArgumentError(absl::StrCat(
        options.host, " are ", names.size(), " hosts; name at most ", kMostAtOnce, " at once")));
  }
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  return NewTokensOf(session, *client, options, names);
}

std::string TokensText(const pb::Holding& row, int64_t now_ns) {
  std::vector<std::string> texts;
  for (const pb::Holding::Token& token : row.tokens()) {
    texts.push_back(absl::StrCat(token.id(), " ",
                                 token.spent()      ? "spent, forgotten"
                                 : token.reusable() ? "reusable"
                                                    : "open",
                                 " ", When(now_ns, token.expires_ns())));
  }
  return texts.empty() ? "-" : absl::StrJoin(texts, "; ");
}

int ListHolders(Session& session, bool users) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  pb::ListHoldersRequest request;
  request.set_users(users);
  const absl::StatusOr<pb::ListHoldersResponse> response = (*client)->ListHolders(request);
  if (!response.ok()) return session.Fail(response.status());
  Table table(users ? Table({{"USER"}, {"GROUPS"}, {"CERTIFICATE"}, {"REVOKED"}, {"TOKENS"}})
                    : Table({{"HOST"}, {"CERTIFICATE"}, {"REVOKED"}, {"TOKENS"}}));
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Holding& row : response->holders()) {
    std::vector<std::string> cells = {row.name()};
    if (users) cells.push_back(row.groups_size() == 0 ? "-" : absl::StrJoin(row.groups(), ","));
    cells.push_back(row.certificate_end_s() == 0
                        ? "none"
                        : "ends " + When(session.now_ns(), row.certificate_end_s() * kSecond));
    cells.push_back(absl::StrCat(row.revoked()));
    cells.push_back(TokensText(row, session.now_ns()));
    table.AddRow(std::move(cells));
    rows.push_back(&row);
    names.push_back(row.name());
  }
  return session.Show(table, *response, rows, names);
}

// "1 token", "2 tokens"
std::string Count(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

int Revoke(Session& session, const pb::RevokeHolderRequest& request) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::RevokeHolderResponse> response = (*client)->RevokeHolder(request);
  if (!response.ok()) return Refused(session, **client, response.status());
  std::string text = "The token buys nothing any more.\n";
  if (request.token().empty()) {
    text = absl::StrCat("Revoked ", Count(response->certificates(), "certificate"), " and ",
                        Count(response->tokens(), "token"),
                        "; what is connected with them ends within seconds.\n");
  }
  if (!request.host().empty()) {
    absl::StrAppend(&text, "What ", request.host(), " had before renews no more.\n");
    if (response->certificates() + response->tokens() == 0)
      absl::StrAppend(&text, "Nothing of it was known. Is it the right name? muster host list\n");
  }
  return session.ShowOne(text, *response,
                         absl::StrCat(request.host(), request.user(), request.token()));
}

int ShowAuthority(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::GetAuthorityResponse> response = (*client)->GetAuthority();
  if (!response.ok()) return Refused(session, **client, response.status());
  std::string text = absl::StrCat("Trust      ", response->trust_id(), "\nAddresses  ",
                                  absl::StrJoin(response->addresses(), ", "), "; to join ",
                                  response->join_address(), "\n");
  for (const pb::GetAuthorityResponse::Entry& entry : response->authorities()) {
    absl::StrAppend(&text, "Authority  ", entry.version(), entry.signs() ? ", signs" : ", trusted",
                    ", ends ", When(session.now_ns(), entry.end_s() * kSecond), "\n           ",
                    entry.fingerprint(), "\n");
  }
  if (response->authorities_size() == 2) {
    absl::StrAppend(
        &text, "Rotation   next: muster ca rotate ",
        response->authorities(1).signs() ? "drop" : "sign",
        response->behind_size() == 0
            ? ""
            : absl::StrCat("; not ready yet: ", absl::StrJoin(response->behind(), ", ")),
        "\n");
  }
  return session.ShowOne(text, *response, response->trust_id());
}

// From `sign` on musterd shows the new authority alone.
constexpr char kOlderLines[] =
    "Lines to join or log in that were made before the new one signed take another --ca: the "
    "fingerprint that muster ca show says signs. Their tokens still count.\n";

int Rotate(Session& session, const std::string& step, bool force) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  pb::RotateRequest request;
  request.set_step(step == "prepare" ? pb::ROTATE_STEP_PREPARE
                   : step == "sign"  ? pb::ROTATE_STEP_SIGN
                                     : pb::ROTATE_STEP_DROP);
  request.set_force(force);
  const absl::StatusOr<pb::RotateResponse> response = (*client)->Rotate(request);
  if (!response.ok()) return Refused(session, **client, response.status());
  std::string text =
      step == "prepare" ? "The new authority is trusted by whoever renews from now on. Next, once "
                          "muster ca show names nobody: muster ca rotate sign\n"
      : step == "sign"
          ? absl::StrCat("The new authority signs. ", kOlderLines,
                         "Next, once muster ca show names nobody: muster ca rotate drop\n")
          : absl::StrCat("The old authority is trusted no longer. ", kOlderLines);
  if (response->left_behind_size() > 0)
    absl::StrAppend(&text, "These must join again: ", absl::StrJoin(response->left_behind(), ", "),
                    "\n");
  return session.ShowOne(text, *response, step);
}

void AddRevokeToken(CLI::App* token, Session& session) {
  auto id = std::make_shared<std::string>();
  CLI::App* revoke =
      token->add_subcommand("revoke", "One that was not spent buys nothing any more");
  revoke->add_option("id", *id)->required();
  revoke->callback([&session, id] {
    session.command = [&session, id] {
      pb::RevokeHolderRequest request;
      request.set_token(*id);
      return Revoke(session, request);
    };
  });
}

}  // namespace

void AddHostTokens(CLI::App* host, Session& session) {
  CLI::App* token = host->add_subcommand("token", "How a host joins: new, list, revoke");
  token->require_subcommand(1);
  auto options = std::make_shared<TokenOptions>();
  CLI::App* made = token->add_subcommand("new", "Print the line that a host joins with, once");
  made->add_option("cluster/host", options->host, "Or several: lab/h[01-10]")->required();
  made->add_option("--ttl", options->ttl, "How long it is good; default and most: 1h");
  made->callback([&session, options] {
    session.command = [&session, options] { return NewHostTokens(session, *options); };
  });
  CLI::App* list = token->add_subcommand("list", "Hosts with their certificates and tokens");
  list->callback(
      [&session] { session.command = [&session] { return ListHolders(session, false); }; });
  AddRevokeToken(token, session);
  auto name = std::make_shared<std::string>();
  CLI::App* revoke = host->add_subcommand(
      "revoke", "A host's certificates count no longer; it is disconnected within seconds");
  revoke->add_option("cluster/host", *name)->required();
  revoke->callback([&session, name] {
    session.command = [&session, name] {
      pb::RevokeHolderRequest request;
      request.set_host(*name);
      return Revoke(session, request);
    };
  });
}

void AddTrust(CLI::App& root, Session& session) {
  CLI::App* user =
      root.add_subcommand("user", "Users on other machines: invite, list, revoke, token");
  user->require_subcommand(1);
  auto options = std::make_shared<TokenOptions>();
  CLI::App* invite =
      user->add_subcommand("invite", "Print the line that a user logs in with, once");
  invite->add_option("name", options->user)->required();
  invite->add_option("--group", options->groups, "Their group; as often as needed");
  invite->add_option("--ttl", options->ttl, "How long it is good; default 1h, at most 90d");
  invite->add_flag("--reusable", options->reusable,
                   "For a program: it logs in with it as often as it needs to");
  invite->callback([&session, options] {
    session.command = [&session, options] { return NewToken(session, *options); };
  });
  CLI::App* list = user->add_subcommand("list", "Users with their groups, certificates and tokens");
  list->callback(
      [&session] { session.command = [&session] { return ListHolders(session, true); }; });
  auto name = std::make_shared<std::string>();
  CLI::App* revoke = user->add_subcommand(
      "revoke", "A user's certificates and tokens count no longer, within seconds");
  revoke->add_option("name", *name)->required();
  revoke->callback([&session, name] {
    session.command = [&session, name] {
      pb::RevokeHolderRequest request;
      request.set_user(*name);
      return Revoke(session, request);
    };
  });
  CLI::App* token = user->add_subcommand("token", "Invitations: revoke");
  token->require_subcommand(1);
  AddRevokeToken(token, session);

  CLI::App* ca = root.add_subcommand("ca", "The authority that signs certificates: show, rotate");
  ca->require_subcommand(1);
  CLI::App* show = ca->add_subcommand("show", "Those that are trusted, and how far a rotation is");
  show->callback([&session] { session.command = [&session] { return ShowAuthority(session); }; });
  auto step = std::make_shared<std::string>();
  auto force = std::make_shared<bool>(false);
  CLI::App* rotate =
      ca->add_subcommand("rotate", "Replace it, in three steps: prepare, sign, drop");
  rotate->add_option("step", *step)->required()->check(CLI::IsMember({"prepare", "sign", "drop"}));
  rotate->add_flag("--force", *force, "Don't wait for whoever is behind: they must join again");
  rotate->callback([&session, step, force] {
    session.command = [&session, step, force] { return Rotate(session, *step, *force); };
  });
}

}  // namespace muster
