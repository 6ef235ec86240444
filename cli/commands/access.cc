// Who may do what, and what was done: roles on queues, and the audit.
#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands/commands.h"
#include "cli/render/table.h"

namespace muster {
namespace {

constexpr char kGroup[] = "group:";
const std::vector<std::string> kRoles = {"viewer", "submitter", "operator", "admin"};

struct AccessOptions {
  std::string who, role, queue;
};
struct AuditOptions {
  std::string user, since;
  bool denied = false;
  int32_t limit = 100;
};

std::string RoleText(pb::Role role) {
  return role == pb::ROLE_UNSPECIFIED ? "no role" : kRoles.at(static_cast<size_t>(role) - 1);
}
std::string QueueOrRoot(const std::string& path) { return path.empty() ? "/" : path; }
// The root is written as /.
std::string PathOf(const std::string& queue) { return queue == "/" ? "" : queue; }
std::string BindingName(const pb::Binding& binding) {
  return binding.group().empty() ? binding.user() : absl::StrCat(kGroup, binding.group());
}

pb::Binding BindingOf(const AccessOptions& options) {
  pb::Binding binding;
  if (absl::StartsWith(options.who, kGroup)) {
    binding.set_group(options.who.substr(sizeof(kGroup) - 1));
  } else {
    binding.set_user(options.who);
  }
  for (size_t r = 0; r < kRoles.size(); ++r) {
    if (kRoles[r] == options.role) binding.set_role(static_cast<pb::Role>(r + 1));
  }
  binding.set_queue(PathOf(options.queue));
  return binding;
}

int List(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::ListAccessResponse> response = (*client)->ListAccess();
  if (!response.ok()) return session.Fail(response.status());
  Table table({{"QUEUE"}, {"WHO"}, {"ROLE"}, {"BY"}});
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::ListAccessResponse::Entry& entry : response->entries()) {
    const pb::Binding& binding = entry.binding();
    table.AddRow({QueueOrRoot(binding.queue()), BindingName(binding), RoleText(binding.role()),
                  entry.by().empty() ? "grant" : absl::StrCat("`", entry.by(), ":` of the queue")});
    rows.push_back(&entry);
    names.push_back(BindingName(binding));
  }
  if (rows.empty() && session.for_people()) {
    session.Err(
        "Nobody was granted anything that you may see; root and the user who runs musterd may do "
        "everything.  Grant: muster access grant NAME admin /\n");
    return kExitOk;
  }
  return session.Show(table, *response, rows, names);
}

int Grant(Session& session, const AccessOptions& options) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const pb::Binding binding = BindingOf(options);
  const absl::StatusOr<pb::GrantResponse> response = (*client)->Grant(binding);
  if (!response.ok()) return session.Fail(response.status());
  const std::string before =
      response->before() == pb::ROLE_UNSPECIFIED || response->before() == binding.role()
          ? ""
          : absl::StrCat(", in place of ", RoleText(response->before()));
  return session.ShowOne(absl::StrCat(options.who, " is ", RoleText(binding.role()), " at ",
                                      QueueOrRoot(binding.queue()), " and below", before,
                                      ".  Undo: muster access revoke ", options.who, " ",
                                      QueueOrRoot(binding.queue()), "\n"),
                         *response, options.who);
}

int Revoke(Session& session, const AccessOptions& options) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const pb::Binding binding = BindingOf(options);
  const absl::StatusOr<pb::RevokeResponse> response = (*client)->Revoke(binding);
  if (!response.ok()) return session.Fail(response.status());
  return session.ShowOne(
      absl::StrCat(options.who, " is not ", RoleText(response->before()), " any more at ",
                   QueueOrRoot(binding.queue()), "; roles from above or of groups stay.\n"),
      *response, options.who);
}

int Check(Session& session, const AccessOptions& options) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  pb::CheckAccessRequest request;
  request.set_user(options.who);
  request.set_queue(PathOf(options.queue));
  const absl::StatusOr<pb::CheckAccessResponse> response = (*client)->CheckAccess(request);
  if (!response.ok()) return session.Fail(response.status());
  const std::string groups =
      response->groups_size() == 0
          ? ""
          : absl::StrCat(" (groups ", absl::StrJoin(response->groups(), ", "), ")");
  return session.ShowOne(
      absl::StrCat(response->user(), groups, " has ", RoleText(response->role()), " at ",
                   QueueOrRoot(response->queue()), ": ", response->why(), "\n"),
      *response, response->user());
}

int ListAudit(Session& session, const AuditOptions& options) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  pb::ListAuditRequest request;
  request.set_limit(options.limit);
  request.set_user(options.user);
  request.set_denied(options.denied);
  const absl::StatusOr<pb::ListAuditResponse> response = (*client)->ListAudit(request);
  if (!response.ok()) return session.Fail(response.status());
  Table table({{"NUMBER", Table::kRight},
               {"TIME"},
               {"USER"},
               {"CALL"},
               {"OBJECT"},
               {"OUTCOME"},
               {"HASH", Table::kLeft, true},
               {"DETAIL", Table::kLeft, true}});
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::AuditRecord& record : response->records()) {
    table.AddRow({absl::StrCat(record.number()), FormatDateTime(record.at_ns()), record.user(),
                  record.method(), record.object(), record.outcome(), record.hash(),
                  record.detail()});
    rows.push_back(&record);
    names.push_back(absl::StrCat(record.number()));
  }
  return session.Show(table, *response, rows, names);
}

int VerifyAudit(Session& session, const AuditOptions& options) {
  pb::VerifyAuditRequest request;
  if (!options.since.empty()) {
    const std::vector<std::string> parts = absl::StrSplit(options.since, ':');
    uint64_t number = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &number) || number == 0) {
      return session.Fail(absl::InvalidArgumentError(absl::StrCat(
          "--noted ", options.since, ": write NUMBER:HASH, as an earlier verify told it")));
    }
    request.set_number(number);
    request.set_hash(parts[1]);
  }
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::VerifyAuditResponse> response = (*client)->VerifyAudit(request);
  if (!response.ok()) return session.Fail(response.status());
  return session.ShowOne(
      response->last() == 0
          ? "The audit is empty.\n"
          : absl::StrCat("Records ", response->first(), " to ", response->last(),
                         " are as they were written.  Note this elsewhere, for --noted:\n",
                         response->last(), ":", response->hash(), "\n"),
      *response, response->hash());
}

}  // namespace

void AddAccess(CLI::App& root, Session& session) {
  CLI::App* access =
      root.add_subcommand("access", "Roles of users and groups on queues: list, grant, revoke");
  access->require_subcommand(1);
  auto options = std::make_shared<AccessOptions>();
  access->add_subcommand("list", "Who has which role where, as far as you may know")
      ->callback([&session] { session.command = [&session] { return List(session); }; });
  CLI::App* grant = access->add_subcommand(
      "grant", "Give a role at a queue and all below it (sacctmgr add user)");
  CLI::App* revoke = access->add_subcommand("revoke", "Take the role at a queue back");
  for (CLI::App* command : {grant, revoke}) {
    command->add_option("who", options->who, "A user, or group:NAME")->required();
    if (command == grant) {
      command->add_option("role", options->role, "viewer, submitter, operator or admin")
          ->required()
          ->check(CLI::IsMember(kRoles));
    }
    command->add_option("queue", options->queue, "Path such as research/nlp; / is the root")
        ->required();
  }
  grant->callback([&session, options] {
    session.command = [&session, options] { return Grant(session, *options); };
  });
  revoke->callback([&session, options] {
    session.command = [&session, options] { return Revoke(session, *options); };
  });
  CLI::App* check = access->add_subcommand("check", "Which role somebody has at a queue, and why");
  check->add_option("queue", options->queue, "Path such as research/nlp; / is the root")
      ->required();
  check->add_option("user", options->who, "Default: you");
  check->callback([&session, options] {
    session.command = [&session, options] { return Check(session, *options); };
  });

  CLI::App* audit = root.add_subcommand("audit", "What was changed and denied: list, verify");
  audit->require_subcommand(1);
  auto asked = std::make_shared<AuditOptions>();
  CLI::App* list = audit->add_subcommand("list", "The newest records");
  list->add_option("--user", asked->user, "Of this user only");
  list->add_flag("--denied", asked->denied, "What did not succeed only");
  list->add_option("--limit", asked->limit, "So many at most; default 100")
      ->check(CLI::Range(1, 1000));
  list->callback([&session, asked] {
    session.command = [&session, asked] { return ListAudit(session, *asked); };
  });
  CLI::App* verify =
      audit->add_subcommand("verify", "Read all of it and compare each record's hash");
  verify->add_option("--noted", asked->since,
                     "NUMBER:HASH of an earlier verify: that record has to be there still");
  verify->callback([&session, asked] {
    session.command = [&session, asked] { return VerifyAudit(session, *asked); };
  });
}

}  // namespace muster
