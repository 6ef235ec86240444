// What comes along with a job from the machine and the shell that it is submitted from: its
// directory, packed, and variables.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/pack.h"
#include "cli/session.h"
#include "common/spec/spec.h"

namespace muster {

// Directories, each packed once however many jobs name it.
class Packs {
 public:
  // Packs it; its digest.
  absl::StatusOr<std::string> Add(const std::string& directory);
  // Gives each task with a relative workdir the digest of that directory, which lies in `base`.
  // What can't come along, by field.
  std::vector<FieldProblem> AddWorkdirs(const std::string& base, pb::JobSpec* spec);
  // Sends those that the spec names and the server hasn't.
  absl::Status Send(Session& session, Client& client, const pb::JobSpec& spec) const;

 private:
  std::map<std::string, Pack> by_directory_;
};

// The directory that a relative workdir of this job file is relative to.
std::string BaseOf(const std::string& job_file);

// `pairs`: NAME=VALUE, or NAME of a variable of this shell. They go over what the spec says for all
// tasks. INVALID_ARGUMENT names the one that isn't set.
absl::Status AddVariables(const std::vector<std::string>& pairs, pb::JobSpec* spec);

}  // namespace muster
