// muster logout: forget a scheduler on another machine.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/login_lock.h"
#include "common/base/files.h"
#include "common/spec/config_files.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

// As if this shell named no server and no context.
std::string WithoutChoice(const char* name) {
  const std::string_view variable = name;
  return variable == "MUSTER_SERVER" || variable == "MUSTER_CONTEXT" ? ""
                                                                     : ProcessEnvironment(name);
}

// Takes current_context out of the settings file; every other byte is its owner's and stays. A file
// with nothing else in it goes, but where MUSTER_CONFIG wants one.
absl::Status ForgetCurrent(const std::string& config) {
  const absl::StatusOr<std::string> text = ReadFile(config, kMaxYamlBytes + 1);
  if (!text.ok()) return text.status();
  std::vector<absl::string_view> kept = absl::StrSplit(*text, '\n');
  std::erase_if(kept,
                [](absl::string_view line) { return absl::StartsWith(line, "current_context:"); });
  const std::string left = absl::StrJoin(kept, "\n");
  ClientConfig parsed;
  std::vector<Problem> problems;
  if (!ParseClientConfig(left, config, {}, &parsed, &problems) || !parsed.current_context.empty())
    return absl::FailedPreconditionError(
        absl::StrCat("take current_context out of ", config,
                     " first: it is written in a way that this can't change. Nothing was removed"));
  std::error_code error;
  const std::string file = std::filesystem::canonical(config, error).string();  // of a link
  struct stat info;
  if (error || stat(file.c_str(), &info) != 0) return ErrnoStatus(errno, config);
  const bool nothing_else = absl::StripAsciiWhitespace(left).empty();
  if (nothing_else && ProcessEnvironment("MUSTER_CONFIG").empty())
    return unlink(config.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, config);
  return WriteFileDurably(file, left, info.st_mode & 07777);
}

// What commands do from now on.
std::string Afterwards(const std::string& context, bool current) {
  if (!ProcessEnvironment("MUSTER_SERVER").empty()) return "";  // as before
  if (const std::string named = ProcessEnvironment("MUSTER_CONTEXT"); !named.empty())
    return named == context ? " MUSTER_CONTEXT still names it: unset it." : "";
  return current ? " Commands go to this machine's server again." : "";
}

absl::Status NothingToLeave() {
  const std::vector<std::string> logins = LoginsIn(ClientConfigPath(ProcessEnvironment));
  if (logins.empty())
    return absl::FailedPreconditionError(
        "you are not logged in anywhere: this machine keeps no login. One is made by muster login");
  return absl::FailedPreconditionError(absl::StrCat(
      "you are not logged in to what commands use now; name a context: muster logout ", logins[0],
      logins.size() == 1 ? "" : absl::StrCat(", of ", absl::StrJoin(logins, ", "))));
}

int Logout(Session& session, const std::string& named) {
  const absl::StatusOr<Settings> settings =
      named.empty() ? session.settings() : ResolveSettings("", named, ProcessEnvironment);
  if (!settings.ok()) return session.Fail(settings.status());
  absl::string_view path = settings->server;
  if (!absl::ConsumePrefix(&path, kLoginScheme)) {
    return session.Fail(named.empty()
                            ? NothingToLeave()
                            : absl::NotFoundError(absl::StrCat(
                                  "context ", named, " is no login, but ", settings->server,
                                  ": it has no key to remove; to drop it, take it out of ",
                                  ClientConfigPath(ProcessEnvironment))));
  }
  const std::string context(absl::StripPrefix(settings->origin, "context "));
  const absl::StatusOr<Settings> by_default = ResolveSettings("", "", WithoutChoice);
  const bool current = by_default.ok() && by_default->server == settings->server;
  const std::string file(path);
  // A renewal would bring it back.
  const absl::StatusOr<std::unique_ptr<LoginLock>> lock = LoginLock::Wait(file, kLoginLockLimitNs);
  if (!lock.ok()) return session.Fail(lock.status());
  // The settings first: without its context, what names it would be refused.
  if (current) {
    if (absl::Status changed = ForgetCurrent(ClientConfigPath(ProcessEnvironment)); !changed.ok())
      return session.Fail(changed);
  }
  if (unlink(file.c_str()) != 0 && errno != ENOENT) return session.Fail(ErrnoStatus(errno, file));
  session.Say(absl::StrCat("Logged out: the key and certificate in ", file, " are gone.",
                           Afterwards(context, current), "\n"));
  return kExitOk;
}

}  // namespace

void AddLogout(CLI::App& root, Session& session) {
  auto context = std::make_shared<std::string>();
  CLI::App* logout = root.add_subcommand(
      "logout", "Forget a login: its key and certificate are removed from this machine");
  logout->add_option("context", *context, "Default: the one that commands use now");
  logout->callback([&session, context] {
    session.command = [&session, context] { return Logout(session, *context); };
  });
}

}  // namespace muster
