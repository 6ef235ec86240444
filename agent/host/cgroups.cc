#include "agent/host/cgroups.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/shim/durable.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr char kNone[] = "none";

std::string Hash(std::string_view text) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return absl::StrFormat("%016x", hash);
}

// Where this process is in the hierarchy of version 2 (`controller` empty) or of a controller of version 1; "" if there is none.
std::string OwnGroup(std::string_view controller) {
  std::string mounts, groups;
  if (shim::ReadSmallFile("/proc/self/mountinfo", &mounts) != 0 || shim::ReadSmallFile("/proc/self/cgroup", &groups) != 0) return "";
  std::string mount, root;
  for (const absl::string_view line : absl::StrSplit(mounts, '\n')) {   // "36 25 0:31 ROOT MOUNT options … - TYPE SOURCE OPTIONS"
    const std::vector<absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<absl::string_view> first = absl::StrSplit(halves[0], ' '), second = absl::StrSplit(halves[1], ' ');
    if (first.size() < 5 || second.size() < 3) continue;
    const std::vector<absl::string_view> options = absl::StrSplit(second[2], ',');
    const bool fits = controller.empty() ? second[0] == "cgroup2"
                                         : second[0] == "cgroup" && std::find(options.begin(), options.end(), absl::string_view(controller.data(), controller.size())) != options.end();
    if (!fits) continue;
    root = std::string(first[3]);
    mount = std::string(first[4]);
    break;
  }
  if (mount.empty()) return "";
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {   // "4:memory:/some/group", "0::/"
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> names = absl::StrSplit(parts[1], ',');
    const bool fits = controller.empty() ? parts[0] == "0" : std::find(names.begin(), names.end(), absl::string_view(controller.data(), controller.size())) != names.end();
    if (!fits) continue;
    absl::string_view path = parts[2];
    if (root != "/") absl::ConsumePrefix(&path, root);
    absl::ConsumeSuffix(&path, "/");
    return absl::StrCat(mount, path);
  }
  return "";
}

int WriteTo(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int error = ::write(fd, text.data(), text.size()) < 0 ? errno : 0;
  ::close(fd);
  return error;
}

// 0 if a group can be made below the directory.
int Probe(const std::string& directory, const std::string& name) {
  const std::string path = absl::StrCat(directory, "/", name);
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return errno;
  const int error = ::access((path + "/cgroup.procs").c_str(), W_OK) == 0 ? 0 : errno;
  ::rmdir(path.c_str());
  return error;
}

bool HasWord(const std::string& path, absl::string_view word) {
  std::string text;
  if (shim::ReadSmallFile(path, &text) != 0) return false;
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \n"));
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

HostCgroups::HostCgroups(const std::string& directory, const std::string& owner) : prefix_(absl::StrCat("muster-", Hash(owner), "-")) {
  if (directory == kNone) {
    described_ = "no control groups, as told";
    return;
  }
  const std::string probe = absl::StrCat(prefix_, "probe");
  const std::string unified = directory.empty() ? OwnGroup("") : directory;
  const int error = unified.empty() ? ENOENT : Probe(unified, probe);
  if (error != 0) {
    described_ = absl::StrCat("no control groups: ", unified.empty() ? "version 2 is not mounted" : absl::StrCat(unified, ": ", strerror(error)));
    return;
  }
  unified_ = unified;
  // Where the group has processes of its own, the kernel refuses to give its children controllers.
  const bool offers = HasWord(unified_ + "/cgroup.controllers", "memory");
  unified_memory_ = offers && (HasWord(unified_ + "/cgroup.subtree_control", "memory") || WriteTo(unified_ + "/cgroup.subtree_control", "+memory") == 0);
  if (!unified_memory_ && !offers) {
    const std::string memory = OwnGroup("memory");
    if (!memory.empty() && Probe(memory, probe) == 0) memory_ = memory;
  }
  described_ = absl::StrCat("control groups (version 2)", unified_memory_ ? ", with memory limits" : !memory_.empty() ? ", memory limits by version 1" : ", no memory limits");
}

shim::Cgroups HostCgroups::Of(const std::string& attempt) const {
  shim::Cgroups groups;
  if (!unified_.empty()) groups.unified = absl::StrCat(unified_, "/", prefix_, attempt);
  if (!memory_.empty()) groups.memory = absl::StrCat(memory_, "/", prefix_, attempt);
  return groups;
}

shim::Cgroups HostCgroups::Make(const std::string& attempt, int64_t memory_bytes) const {
  shim::Cgroups groups = Of(attempt);
  if (memory_bytes == 0) groups.memory.clear();
  for (std::string* directory : {&groups.unified, &groups.memory}) {
    if (directory->empty() || ::mkdir(directory->c_str(), 0755) == 0 || errno == EEXIST) continue;
    LogWarn("an attempt has no control group", {{"group", *directory}, {"error", strerror(errno)}});
    directory->clear();
  }
  if (memory_bytes == 0) return groups;
  const std::string limit = absl::StrCat(memory_bytes);
  std::string file;
  if (!groups.memory.empty()) {
    file = groups.memory + "/memory.limit_in_bytes";
  } else if (unified_memory_ && !groups.unified.empty()) {
    file = groups.unified + "/memory.max";
  }
  if (file.empty()) return groups;
  if (const int error = WriteTo(file, limit); error != 0) LogWarn("an attempt's memory is not limited", {{"file", file}, {"error", strerror(error)}});
  return groups;
}

int HostCgroups::EndAllBut(const std::vector<std::string>& attempts) const {
  std::set<std::string> names;
  for (const std::string* base : {&unified_, &memory_}) {
    DIR* directory = base->empty() ? nullptr : ::opendir(base->c_str());
    if (directory == nullptr) continue;
    while (const dirent* entry = ::readdir(directory)) {
      absl::string_view name = entry->d_name;
      if (absl::ConsumePrefix(&name, prefix_) && std::find(attempts.begin(), attempts.end(), name) == attempts.end()) names.insert(std::string(name));
    }
    ::closedir(directory);
  }
  int lived = 0;
  const int64_t until_ns = RealClock()->MonotonicNs() + 10 * kSecond;
  for (const std::string& name : names) {
    const shim::Cgroups groups = Of(name);
    if (shim::CgroupPopulated(groups)) ++lived;
    while (shim::CgroupPopulated(groups) && RealClock()->MonotonicNs() < until_ns) {
      shim::KillCgroup(groups);
      const timespec pause{0, 2'000'000};
      ::nanosleep(&pause, nullptr);
    }
    shim::RemoveCgroups(groups);
  }
  return lived;
}

}  // namespace muster::agent
