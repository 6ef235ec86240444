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

// The one with that name, or without a name the only one that runs.
absl::StatusOr<RunningTask> FindRunningTask(const pb::Job& job, const std::string& name);

}  // namespace muster
