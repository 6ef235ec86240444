// muster secret: set, list, delete. A value comes by standard input or a file, never as a word of
// the command, which others on the machine may see.
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/render/format.h"
#include "cli/render/table.h"
#include "common/base/files.h"

namespace muster {
namespace {

constexpr size_t kMostBytes = (32 << 10) + 2;  // of a value, with an end of line

struct SecretOptions {
  std::string name, file;
};

// Nothing that is typed is shown until it goes out of scope.
class Unseen {
 public:
  Unseen() : terminal_(tcgetattr(STDIN_FILENO, &before_) == 0) {
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    if (terminal_) tcsetattr(STDIN_FILENO, TCSAFLUSH, &now);
  }
  ~Unseen() {
    if (terminal_) tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  termios before_{};
  const bool terminal_;
};

// Of a terminal one line, else all of it.
absl::StatusOr<std::string> FromStandardInput(const Session& session, const std::string& name,
                                              const Interrupt& interrupt) {
  const bool asks = isatty(STDIN_FILENO) != 0;
  const Unseen unseen;
  if (asks) session.Err(absl::StrCat("Value of ", Plain(name), " (it is not shown): "));
  std::string value;
  char buffer[4096];
  for (ssize_t count; (count = interrupt.Read(STDIN_FILENO, buffer, sizeof buffer)) != 0;) {
    if (count < 0 && errno == EINTR) return absl::CancelledError("interrupted");
    if (count < 0) return ErrnoStatus(errno, "standard input");
    value.append(buffer, static_cast<size_t>(count));
    if (value.size() > kMostBytes || (asks && value.back() == '\n')) break;
  }
  if (asks) session.Err("\n");
  return value;
}

int Set(Session& session, const SecretOptions& options) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  Interrupt interrupt;
  absl::StatusOr<std::string> value =
      options.file.empty() ? FromStandardInput(session, options.name, interrupt)
                           : ReadFile(options.file, static_cast<int64_t>(kMostBytes));
  if (absl::IsCancelled(value.status())) return kExitInterrupted;
  if (!value.ok()) return session.Fail(absl::InvalidArgumentError(value.status().message()));
  // The end of line that echo and editors put there is no part of it.
  if (!value->empty() && value->back() == '\n') value->pop_back();
  if (!value->empty() && value->back() == '\r') value->pop_back();
  pb::SetSecretRequest request;
  request.set_name(options.name);
  request.set_value(*std::move(value));
  const absl::StatusOr<pb::SetSecretResponse> response = (*client)->SetSecret(request);
  if (!response.ok()) return session.Fail(response.status());
  return session.ShowOne(absl::StrCat("Secret ", Plain(options.name),
                                      " is set.  Give it to a job: muster run --secret ",
                                      Plain(options.name), " -- …\n"),
                         *response, options.name);
}

int List(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::ListSecretsResponse> response = (*client)->ListSecrets();
  if (!response.ok()) return session.Fail(response.status());
  if (response->secrets().empty() && session.for_people()) {
    session.Err("You have no secrets here.  Set one: muster secret set NAME\n");
    return kExitOk;
  }
  Table table({{"NAME"}, {"SET"}});
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Secret& secret : response->secrets()) {
    table.AddRow({secret.name(), FormatDateTime(secret.set_ns())});
    rows.push_back(&secret);
    names.push_back(secret.name());
  }
  return session.Show(table, *response, rows, names);
}

int Delete(Session& session, const SecretOptions& options) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::DeleteSecretResponse> response = (*client)->DeleteSecret(options.name);
  if (!response.ok()) return session.Fail(response.status());
  return session.ShowOne(absl::StrCat("Secret ", Plain(options.name),
                                      " is deleted. Jobs that name it can't start any more.\n"),
                         *response, options.name);
}

}  // namespace

void AddSecret(CLI::App& root, Session& session) {
  CLI::App* secret =
      root.add_subcommand("secret", "Values that your jobs get and nobody is shown again");
  secret->require_subcommand(1);
  auto options = std::make_shared<SecretOptions>();
  CLI::App* set = secret->add_subcommand(
      "set", "Keep a value, sealed: of standard input, without its end of line");
  set->add_option("name", options->name, "As a variable's: HF_TOKEN")->required();
  set->add_option("--file", options->file, "Read the value from this file");
  set->callback([&session, options] {
    session.command = [&session, options] { return Set(session, *options); };
  });
  CLI::App* list = secret->add_subcommand("list", "Names of yours, and when they were set");
  list->callback([&session] { session.command = [&session] { return List(session); }; });
  CLI::App* remove = secret->add_subcommand("delete", "Forget a value");
  remove->add_option("name", options->name, "The secret")->required();
  remove->callback([&session, options] {
    session.command = [&session, options] { return Delete(session, *options); };
  });
}

}  // namespace muster
