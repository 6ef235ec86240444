// The task of a job that a command asks something of while it runs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

struct RunningTask {
  std::string name;
  int32_t attempt = 0;
  int32_t ranks = 1;
  bool trainer = false;  // it runs muster-trainer
};

// For both of `muster checkpoints now` and `muster profile`: requests are files beside rank 0
// (docs/programs.md). kRequestsOrExit begins their scripts.
inline constexpr int kNoRequests = 7;
inline constexpr char kRequestsOrExit[] =
    "[ -n \"$MUSTER_REQUEST_DIR\" ] || exit 7; mkdir -p \"$MUSTER_REQUEST_DIR\" || exit 1\n";
// The agent of its host doesn't set the directory.
absl::Status NoRequests(const std::string& job_id);

// The one with that name, or without a name the only one that runs.
absl::StatusOr<RunningTask> FindRunningTask(const pb::Job& job, const std::string& name);

}  // namespace muster
