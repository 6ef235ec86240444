// A job of one task from the flags of a command: `run` and `dev up`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands/submission.h"

namespace CLI {
class App;
}

namespace muster {

struct JobFlags {
  std::vector<std::string> command, env, secrets, clusters, gpu_types;
  std::string queue, name, gpus, cpus, memory, time_limit, workdir, image;
  int workers = 1, max_restarts = 0;
};

// Those that both have.
void AddJobFlags(CLI::App* command, JobFlags* flags);
// What was left out and has one answer only: the queue, the GPUs' type.
void FillFlags(const Settings& settings, const SpecContext& context, JobFlags* flags);
// INVALID_ARGUMENT names the flag. What the server knows better (queue, flavours) it checks itself.
absl::StatusOr<pb::JobSpec> SpecOfFlags(const JobFlags& flags);
// What the server says of fields, of the flags that gave them; empty: it speaks of no field.
std::string WrongFlags(const absl::Status& status);

}  // namespace muster
