// From a Prepare to what the shim runs: torchrun's environment, the program's words, the
// directories (docs/programs.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/reconcile/record.h"
#include "agent/shim/format.h"

namespace muster::agent {

// What the host adds to every launch. Nothing else of the agent's own environment is inherited.
struct LaunchHost {
  std::string bin_directory;  // first in PATH
  std::string home;
  std::string user;
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
                                        const std::string& progress_socket);

// The submitter's.
uint32_t UmaskOf(const v1::Prepare& prepare);

// The file that a `trainer:` task is started with: <attempt directory>/trainer.json.
std::string TrainerConfigPath(const v1::Prepare& prepare);

}  // namespace muster::agent
