#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/commands/completion.h"
#include "common/base/clock.h"
#include "common/spec/fields.h"

namespace muster {
namespace {

int Fields(Session& session, const std::string& path) {
  std::string schema;
  if (path.rfind("trainer", 0) == 0) {  // only the server knows what the trainer takes
    absl::StatusOr<Client*> client = session.client();
    if (client.ok()) {
      if (auto response = (*client)->TrainerSchema(); response.ok()) schema = response->json();
    }
  }
  std::string text = FieldsText(path, schema);
  if (text.empty()) {
    session.Err(absl::StrCat("muster: no field ", Plain(path), ".", FieldSuggestion(path), "  All: muster fields\n"));
    return kExitNotFound;
  }
  session.Out(text);
  return kExitOk;
}

int Ping(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  int64_t begin_ns = RealClock()->MonotonicNs();
  absl::StatusOr<pb::PingResponse> response = (*client)->Ping();
  if (!response.ok()) return session.Fail(response.status());
  std::string text = absl::StrCat((*client)->server(), ": musterd ", response->version(), ", epoch ", response->epoch(), ", you are ", Plain(response->user()),
                                  response->single_user() ? " (single user)" : "", ", answered in ", (RealClock()->MonotonicNs() - begin_ns) / 1000, " us\n");
  if (const pb::StepStats& steps = response->steps(); steps.steps() > 0) {
    absl::StrAppend(&text, steps.steps(), " steps with ", steps.events(), " events since its start; 99 of 100 took at most ", steps.step_ns_p99() / 1000,
                    " us, their commits ", steps.commit_ns_p99() / 1000, " us\n");
  }
  if (!response->accepts_submissions()) absl::StrAppend(&text, "It takes no submissions: ", Plain(response->why_not()), "\n");
  return session.ShowOne(text, *response, response->version());
}

}  // namespace

void AddAbout(CLI::App& root, Session& session) {
  auto path = std::make_shared<std::string>();
  CLI::App* fields = root.add_subcommand("fields", "What a job file may say: fields, types, defaults, limits");
  fields->add_option("path", *path, "A field such as resources or trainer.max_steps");
  fields->callback([&session, path] { session.command = [&session, path] { return Fields(session, *path); }; });

  CLI::App* ping = root.add_subcommand("ping", "Who serves, and as whom it knows you");
  ping->callback([&session] { session.command = [&session] { return Ping(session); }; });

  CLI::App* version = root.add_subcommand("version", "Version of this program");
  version->callback([&session] {
    session.command = [&session] {
      session.Out(absl::StrCat("muster ", MUSTER_VERSION, "\n"));
      return static_cast<int>(kExitOk);
    };
  });

  auto shell = std::make_shared<std::string>("bash");
  CLI::App* completion = root.add_subcommand("completion", "Shell completion:  source <(muster completion bash)");
  completion->add_option("shell", *shell, "bash")->check(CLI::IsMember({"bash"}));
  completion->callback([&session, &root] {
    session.command = [&session, &root] {
      session.Out(BashCompletion(root));
      return static_cast<int>(kExitOk);
    };
  });
}

}  // namespace muster
