// From a Prepare to what the shim runs: torchrun's environment, the program's words, the
// directories (docs/programs.md).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/host/owners.h"
#include "agent/reconcile/record.h"
#include "agent/shim/format.h"

namespace muster::agent {

// What the host adds to every launch. Nothing else of the agent's own environment is inherited.
struct LaunchHost {
  std::string bin_directory;  // first in PATH
  std::string home;           // of whoever runs the agent, as the next one
  std::string user;
  bool as_owners = false;            // jobs run as their owners; else all as whoever runs the agent
  uint32_t min_uid = 1000;           // of an owner
  int64_t most_processes = 0;        // of an attempt of an owner's; 0: no limit
  std::vector<std::string> devices;  // nodes below /dev that each job gets, with as_owners
  // DriverFiles, as they are at the start of each program in an image that has GPUs: an upgrade of
  // the driver names its libraries anew. Empty: there are none.
  std::function<std::vector<std::string>()> driver;
  std::string lang;
  bool declared = false;  // devices are stand-ins: processes see no GPU
  std::string boot_id;
  int64_t log_file_bytes = int64_t{64} << 20;
  int64_t log_files = 4;
  bool pid_namespace = true;
  std::vector<std::string>
      sockets;  // directories for progress sockets, the best first: SocketDirectories
};

// Pure. INVALID_ARGUMENT names the variable or field that can't be had.
absl::Status CheckLaunch(const v1::Prepare& prepare);
// The same, and what its shim is told.
absl::StatusOr<shim::Spec> MakeShimSpec(const AttemptRecord& record, const LaunchHost& host,
                                        const std::string& token,
                                        const std::string& progress_socket,
                                        const Owner* owner = nullptr);  // with as_owners

// The files of the GPUs' driver that a program wants and no image has, below `root`; none without a
// driver.
std::vector<std::string> DriverFiles(const std::string& root = "");

// Where its programs start.
std::string WorkdirOf(const v1::Prepare& prepare);
// Of the host's directories those that a program in an image sees at the same path, as the job was
// given a path of them.
std::vector<std::string> ShownInImage(const v1::Prepare& prepare);

// Where a directory that came along lies in the job's; empty: none did.
std::string UnpackedName(const v1::Prepare& prepare);

// The submitter's.
uint32_t UmaskOf(const v1::Prepare& prepare);

// The file that a `trainer:` task is started with: <attempt directory>/trainer.json.
std::string TrainerConfigPath(const v1::Prepare& prepare);

}  // namespace muster::agent
