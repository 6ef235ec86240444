#include "cli/settings.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/up/lock.h"
#include "common/base/files.h"
#include "common/spec/config_files.h"

namespace muster {
namespace {

std::string Home(const Environment& environment) {
  std::string home = environment("HOME");
  if (!home.empty()) return home;
  const struct passwd* entry = getpwuid(getuid());
  return entry != nullptr && entry->pw_dir != nullptr ? entry->pw_dir : "";
}

std::string TemporarySocketPath() { return TemporarySocketDirectory() + "/musterd.sock"; }

// A directory below /tmp or /run counts only if it is ours: anybody may make one of that name.
bool Ours(const std::string& socket) {
  struct stat info;
  const std::string directory = socket.substr(0, socket.rfind('/'));
  return lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == getuid();
}

// Where a `muster up` of this user may serve: with XDG_RUNTIME_DIR or without (cron and sudo have
// none), or wherever the one of the default directory does. The first where somebody listens, else
// the first.
std::string LocalServer(const Environment& environment) {
  std::string first = absl::StrCat("unix://", LocalSocketPath(environment));
  if (CheckReachable(first).ok()) return first;
  for (const std::string& socket :
       {absl::StrCat("/run/user/", getuid(), "/muster/musterd.sock"), TemporarySocketPath()}) {
    if (Ours(socket) && CheckReachable("unix://" + socket).ok()) return "unix://" + socket;
  }
  const UpHolder holder = UpLock::Holder(DefaultDataDirectory(environment));
  return holder.pid != 0 ? holder.server : first;
}

constexpr absl::string_view kLoginSuffix = ".identity";

}  // namespace

std::vector<std::string> LoginsIn(const std::string& config_path) {
  std::vector<std::string> names;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(config_path).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > kLoginSuffix.size() && absl::EndsWith(name, kLoginSuffix))
      names.push_back(name.substr(0, name.size() - kLoginSuffix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string ProcessEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string TemporarySocketDirectory() { return absl::StrCat("/tmp/muster-", getuid()); }

std::string LocalSocketPath(const Environment& environment) {
  std::string runtime = environment("XDG_RUNTIME_DIR");
  return runtime.empty() ? TemporarySocketPath() : absl::StrCat(runtime, "/muster/musterd.sock");
}

std::string DefaultDataDirectory(const Environment& environment) {
  std::string data = environment("XDG_DATA_HOME");
  if (!data.empty()) return absl::StrCat(data, "/muster/up");
  std::string home = Home(environment);
  return home.empty() ? "" : absl::StrCat(home, "/.local/share/muster/up");
}

std::string ClientConfigPath(const Environment& environment) {
  std::string named = environment("MUSTER_CONFIG");
  if (!named.empty()) return named;
  const std::string base = environment("XDG_CONFIG_HOME");
  return absl::StrCat(base.empty() ? absl::StrCat(Home(environment), "/.config") : base,
                      "/muster/config.yaml");
}

std::string LoginPathOf(const std::string& config_path, const std::string& context) {
  return absl::StrCat(config_path.substr(0, config_path.rfind('/') + 1), context, kLoginSuffix);
}

absl::StatusOr<Settings> ResolveSettings(const std::string& server_flag,
                                         const std::string& context_flag,
                                         const Environment& environment) {
  Settings settings;
  const std::string path = ClientConfigPath(environment);
  const bool named = !environment("MUSTER_CONFIG").empty();
  ClientConfig config;
  absl::StatusOr<std::string> text = ReadFile(path, kMaxYamlBytes + 1);
  if (text.ok()) {
    std::vector<Problem> problems;
    if (!ParseClientConfig(*text, path, LoginsIn(path), &config, &problems)) {
      ProblemFormat format;
      format.outcome = "nothing was done";
      return absl::InvalidArgumentError(FormatProblems(problems, path, format));
    }
  } else if (named || !absl::IsNotFound(text.status())) {
    return absl::InvalidArgumentError(std::string(text.status().message()));
  }
  std::string context = context_flag;
  if (context.empty()) context = environment("MUSTER_CONTEXT");
  if (context.empty()) context = config.current_context;
  const ClientContext* chosen = nullptr;
  if (!context.empty()) {
    for (const std::string& login : LoginsIn(path)) {
      if (config.contexts.count(login) == 0)
        config.contexts[login].login = LoginPathOf(path, login);
    }
    auto found = config.contexts.find(context);
    if (found == config.contexts.end()) {
      std::string names =
          absl::StrJoin(config.contexts, ", ",
                        [](std::string* out, const auto& entry) { out->append(entry.first); });
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": no context \"", context, "\". ",
                       names.empty() ? "There are none" : "There are " + names));
    }
    chosen = &found->second;
    settings.queue = chosen->queue;
  }
  // A flag is more than a variable, of whichever of the two.
  if (!server_flag.empty() || (context_flag.empty() && !environment("MUSTER_SERVER").empty())) {
    settings.server = server_flag.empty() ? environment("MUSTER_SERVER") : server_flag;
    settings.origin = server_flag.empty() ? "MUSTER_SERVER" : "--server";
    if (settings.server[0] == '/') settings.server = "unix://" + settings.server;
    return settings;
  }
  if (chosen != nullptr) {
    settings.server =
        chosen->login.empty() ? chosen->server : absl::StrCat(kLoginScheme, chosen->login);
    settings.origin = absl::StrCat("context ", context);
    return settings;
  }
  settings.server = LocalServer(environment);
  settings.origin = "the local socket";
  return settings;
}

}  // namespace muster
