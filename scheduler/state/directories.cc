#include "scheduler/state/directories.h"

#include "absl/strings/match.h"
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

std::string StorageOfPath(const State& state, const std::string& path) {
  std::string found;
  size_t longest = 0;
  for (const auto& [name, storage] : state.cluster_file().storages()) {
    std::string base = storage.url().empty() ? storage.path() : storage.url();
    while (base.size() > 1 && base.back() == '/') base.pop_back();
    const size_t user = base.find("{user}");
    const std::string common = base.substr(0, user);
    const bool below =
        !common.empty() && absl::StartsWith(path, common) &&
        (user != std::string::npos || path.size() == common.size() || path[common.size()] == '/');
    // Of equal ones the first by name: a map has no order of its own.
    if (!below || common.size() < longest || (common.size() == longest && found <= name)) continue;
    found = name;
    longest = common.size();
  }
  return found;
}

std::string JobDirectory(const State& state, const JobRow& job) {
  return DirectoryIn(state, JobStorage(state, job), job);
}

}  // namespace muster
