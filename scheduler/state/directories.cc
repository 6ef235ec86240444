#include "scheduler/state/directories.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace muster {

std::string DirectoryIn(const State& state, const std::string& storage, const JobRow& job) {
  const auto it = state.cluster_file().storages().find(storage);
  if (it == state.cluster_file().storages().end()) return "";
  const std::string& base = it->second.url().empty() ? it->second.path() : it->second.url();
  if (base.empty()) return "";
  // A user's part of it: who owns a job was told by the kernel, and no account's name has a slash.
  return absl::StrCat(absl::StrReplaceAll(base, {{"{user}", job.owner}}), "/jobs/", job.number, "-",
                      job.uid.substr(0, 8));
}

std::string JobDirectory(const State& state, const JobRow& job) {
  return DirectoryIn(state, JobStorage(state, job), job);
}

}  // namespace muster
