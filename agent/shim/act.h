// The work on a job's storage that Muster does for it: its directories, trainer.json, its export.
// The paths are the job's, and it may have planted what it likes on them: so it is done as the
// job's owner, never as root (docs/decisions/078-run-as-the-owner.md).
//
// An agent that serves several users starts `muster-shim --act` for it, which becomes the owner
// before it looks at any path. One that serves the user who started it calls Act itself. No
// dependencies beyond the standard library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/shim/format.h"

namespace muster::shim {

inline constexpr int kArchiveFd = 3;

struct ActRequest {
  std::optional<User> user;  // whom `muster-shim --act` becomes; none: whoever runs it, not root
  uint32_t umask = 022;
  std::string job_directory;  // made, with its parents
  // Made below the job's directory, or wherever they are; names below it don't lead out of it.
  std::vector<std::string> directories;
  std::string spread;   // the directory of all jobs', where it is to be looked at (Act)
  std::string workdir;  // has to be there; empty: none
  // A directory that came along, in the job's: unpacked from `archive` unless it is there; empty:
  // none. `archive` < 0: what wants it is told (kWanted). To `muster-shim --act` it is descriptor
  // kArchiveFd.
  std::string unpacked;
  int archive = -1;
  std::string image;                            // that has to be there, as workdir has
  std::string trainer_directory, trainer_json;  // trainer.json's; empty: none
  // A staged export, and where it goes: below the job's directory, or an absolute path.
  std::string staged, target;
};

struct ActResult {
  // kJobs: the job names what isn't there, or what it may not have. kWanted: an archive, and all
  // else is done. kHosts: all else.
  enum class Kind { kDone, kJobs, kHosts, kWanted } kind = Kind::kDone;
  std::string text;  // what went wrong, where
  std::string note;  // for the log

  bool done() const { return kind == Kind::kDone; }
};

std::string FormatActRequest(const ActRequest& request);
bool ParseActRequest(std::string_view content, ActRequest* request, std::string* error);
std::string FormatActResult(const ActResult& result);
bool ParseActResult(std::string_view content, ActResult* result, std::string* error);

// As whoever calls. Blocks on the storage.
ActResult Act(const ActRequest& request);

// muster-shim --act: a request on standard input, its result on standard output. The exit status.
int RunAct();

// Renames `staged` to `target`, durably; done before counts as done, and a crash at any point
// leaves what a repetition completes. What lay at the target leaves only once the new export is
// there for good, and only if it is an export that was published before and nobody has changed
// since: all else is kept beside it, as TARGET.previous. Thread-safe for different targets.
ActResult PublishExport(const std::string& staged, const std::string& job_directory,
                        const std::string& target);

// ---- paths ----

// Opens a directory (O_PATH) below another (-1: an absolute path, anywhere). Links of /proc are not
// followed, and below another no name leads out of it. -1: errno says why.
int OpenDirectory(int below, const std::string& path);
// The same, but makes what is missing of it.
int MakeDirectories(int below, const std::string& path, mode_t mode);

}  // namespace muster::shim
