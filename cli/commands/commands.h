// Every command: each function adds its subcommands to the parser; the chosen one sets
// Session::command.
#pragma once

#include <string>

#include "cli/session.h"

namespace CLI {
class App;
}

namespace muster {

void AddSubmit(CLI::App& root, Session& session);       // submit
void AddTune(CLI::App& root, Session& session);         // tune
void AddScore(CLI::App& root, Session& session);        // score
void AddValidate(CLI::App& root, Session& session);     // validate
void AddRun(CLI::App& root, Session& session);          // run -- CMD
void AddJobs(CLI::App& root, Session& session);         // jobs, history, show
void AddCheckpoints(CLI::App& root, Session& session);  // checkpoints list, now
void AddProfile(CLI::App& root, Session& session);      // profile
void AddStorage(CLI::App& root, Session& session);      // storage
void AddFollow(CLI::App& root, Session& session);       // attach, wait, cancel, logs
void AddExec(CLI::App& root, Session& session);         // exec, forward
void AddDev(CLI::App& root, Session& session);          // dev up, list, open, stop, resume
void AddQueue(CLI::App& root, Session& session);        // queue list, show, apply, diff
void AddFleet(CLI::App& root,
              Session& session);  // cluster, host: list, show, drain, resume; host confirm-off
void AddAccess(CLI::App& root,
               Session& session);  // access list, grant, revoke, check; audit list, verify
void AddSecret(CLI::App& root, Session& session);      // secret set, list, delete
void AddLogin(CLI::App& root, Session& session);       // login
void AddLogout(CLI::App& root, Session& session);      // logout
void AddTrust(CLI::App& root, Session& session);       // user, ca
void AddToken(CLI::App& root, Session& session);       // token create, list, revoke
void AddHostTokens(CLI::App* host, Session& session);  // host token, revoke; AddFleet's
void AddExplain(CLI::App& root, Session& session);     // explain, simulate
void AddTop(CLI::App& root, Session& session);         // top, ledger
void AddSandbox(CLI::App& root, Session& session);     // sandbox
void AddUp(CLI::App& root, Session& session);          // up, down
void AddAdmin(CLI::App& root, Session& session);  // admin backup, verify, replay, adopt-restored
void AddAbout(CLI::App& root, Session& session);  // fields, ping, version, completion

// Checks options of which an empty value is a slip, such as an unset variable of a shell.
inline std::string RefuseEmpty(const std::string& given) {
  return given.empty() ? "is empty; give a value, or leave it out" : "";
}

}  // namespace muster
