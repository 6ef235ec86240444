// Which server a command talks to: flag --server > MUSTER_SERVER > the context of
// ~/.config/muster/config.yaml > the local socket.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct Settings {
  std::string server;  // unix:///path, or login:///path
  std::string queue;   // the context's default for job files; may be empty
  std::string origin;  // where the server's name came from, for messages
};

// How the environment is read; tests give their own. Empty text: unset.
using Environment = std::function<std::string(const char* name)>;
std::string ProcessEnvironment(const char* name);

// `server_flag` and `context_flag` may be empty. INVALID_ARGUMENT: a broken configuration file (all
// problems, formatted), an unknown context, or a context that can't be used yet. MUSTER_CONFIG
// names another file; MUSTER_CONTEXT another context.
absl::StatusOr<Settings> ResolveSettings(const std::string& server_flag,
                                         const std::string& context_flag,
                                         const Environment& environment);

// config.yaml, whether it is there or not.
std::string ClientConfigPath(const Environment& environment);
// Names of the contexts that `muster login` made beside this file, in their order.
std::vector<std::string> LoginsIn(const std::string& config_path);
// What `muster login --as NAME` writes: beside config.yaml, and a context without being named
// in it.
std::string LoginPathOf(const std::string& config_path, const std::string& context);

// $XDG_RUNTIME_DIR/muster/musterd.sock, else /tmp/muster-<uid>/musterd.sock: what `muster up`
// serves.
std::string LocalSocketPath(const Environment& environment);
// /tmp/muster-<uid>, where the shims of people have their sockets, too.
std::string TemporarySocketDirectory();
// ~/.local/share/muster/up, or below $XDG_DATA_HOME. Empty: no home directory.
std::string DefaultDataDirectory(const Environment& environment);

}  // namespace muster
