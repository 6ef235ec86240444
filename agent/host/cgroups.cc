#include "agent/host/cgroups.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "common/base/clock.h"
#include "common/base/fnv.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr char kNone[] = "none";
constexpr char kBasesFile[] = "cgroups", kBasesName[] = "muster-agent-cgroups";

// Where this process is in the hierarchy of version 2 (`controller` empty) or of a controller of
// version 1; "" if there is none.
std::string OwnGroup(std::string_view controller) {
  std::string mounts, groups;
  if (shim::ReadSmallFile("/proc/self/mountinfo", &mounts) != 0 ||
      shim::ReadSmallFile("/proc/self/cgroup", &groups) != 0)
    return "";
  std::string mount, root;
  for (const absl::string_view line :
       absl::StrSplit(mounts, '\n')) {  // "36 25 0:31 ROOT MOUNT options … - TYPE SOURCE OPTIONS"
    const std::vector<absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<absl::string_view> first = absl::StrSplit(halves[0], ' '),
                                         second = absl::StrSplit(halves[1], ' ');
    if (first.size() < 5 || second.size() < 3) continue;
    const std::vector<absl::string_view> options = absl::StrSplit(second[2], ',');
    const bool fits = controller.empty()
                          ? second[0] == "cgroup2"
                          : second[0] == "cgroup" &&
                                std::find(options.begin(), options.end(),
                                          absl::string_view(controller.data(),
                                                            controller.size())) != options.end();
    if (!fits) continue;
    root = std::string(first[3]);
    mount = std::string(first[4]);
    break;
  }
  if (mount.empty()) return "";
  for (const absl::string_view line :
       absl::StrSplit(groups, '\n')) {  // "4:memory:/some/group", "0::/"
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> names = absl::StrSplit(parts[1], ',');
    const bool fits =
        controller.empty()
            ? parts[0] == "0"
            : std::find(names.begin(), names.end(),
                        absl::string_view(controller.data(), controller.size())) != names.end();
    if (!fits) continue;
    absl::string_view path = parts[2];
    if (root != "/") absl::ConsumePrefix(&path, root);
    absl::ConsumeSuffix(&path, "/");
    return absl::StrCat(mount, path);
  }
  return "";
}

// 0 if a group can be made below the directory.
int Probe(const std::string& directory, const std::string& name) {
  const std::string path = absl::StrCat(directory, "/", name);
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return errno;
  // Whether a process may be moved there depends on both groups: one tries.
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(shim::EnterCgroups({path, "", ""}));
  int status = 0;
  while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  ::rmdir(path.c_str());
  return pid < 0 ? EAGAIN : WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

bool HasWord(const std::string& path, absl::string_view word) {
  std::string text;
  if (shim::ReadSmallFile(path, &text) != 0) return false;
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \n"));
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

HostCgroups::HostCgroups(const std::string& directory, const std::string& owner)
    : prefix_(absl::StrFormat("muster-%016x-", Fnv1a(owner))) {
  Find(directory);
  RememberBases(owner);
}

void HostCgroups::RememberBases(const std::string& owner) {
  const std::string file = owner + "/" + kBasesFile;
  std::string text, error;
  std::vector<shim::Line> lines;
  if (shim::ReadSmallFile(file, &text) == 0 && shim::ParseFile(text, kBasesName, &lines, &error)) {
    for (const shim::Line& line : lines)
      bases_.push_back({line.Get("unified"), line.Get("memory"), line.Get("pids")});
  }
  const shim::Cgroups here{unified_, memory_, pids_};
  const auto same = [&](const shim::Cgroups& base) {
    return base.unified == here.unified && base.memory == here.memory && base.pids == here.pids;
  };
  if (!here.any() || std::any_of(bases_.begin(), bases_.end(), same)) return;
  bases_.push_back(here);
  lines.push_back(shim::Line{"base"}
                      .Add("unified", here.unified)
                      .Add("memory", here.memory)
                      .Add("pids", here.pids));
  if (const int failed = shim::ReplaceFile(owner, kBasesFile, shim::FormatFile(kBasesName, lines));
      failed != 0) {
    LogWarn("an agent that is started elsewhere won't find this one's control groups",
            {{"file", file}, {"error", strerror(failed)}});
  }
}

void HostCgroups::Find(const std::string& directory) {
  if (directory == kNone) {
    described_ = "no control groups, as told";
    return;
  }
  const std::string probe = absl::StrCat(prefix_, "probe");
  const std::string unified = directory.empty() ? OwnGroup("") : directory;
  const int error = unified.empty() ? ENOENT : Probe(unified, probe);
  if (error != 0) {
    described_ = absl::StrCat("no control groups: ",
                              unified.empty() ? "version 2 is not mounted"
                                              : absl::StrCat(unified, ": ", strerror(error)));
    return;
  }
  unified_ = unified;
  // Where the group has processes of its own, the kernel refuses to give its children controllers.
  const auto find = [&](const std::string& controller, bool* unified, std::string* version_1) {
    const bool offers = HasWord(unified_ + "/cgroup.controllers", controller);
    *unified =
        offers && (HasWord(unified_ + "/cgroup.subtree_control", controller) ||
                   shim::WriteControl(unified_ + "/cgroup.subtree_control", "+" + controller) == 0);
    if (*unified || offers) return;
    const std::string own = OwnGroup(controller);
    if (!own.empty() && Probe(own, probe) == 0) *version_1 = own;
  };
  find("memory", &unified_memory_, &memory_);
  find("pids", &unified_pids_, &pids_);
  described_ =
      absl::StrCat("control groups (version 2)", unified_memory_    ? ", with memory limits"
                                                 : !memory_.empty() ? ", memory limits by version 1"
                                                                    : ", no memory limits");
}

shim::Cgroups HostCgroups::Below(const shim::Cgroups& base, const std::string& attempt) const {
  shim::Cgroups groups;
  if (!base.unified.empty()) groups.unified = absl::StrCat(base.unified, "/", prefix_, attempt);
  if (!base.memory.empty()) groups.memory = absl::StrCat(base.memory, "/", prefix_, attempt);
  if (!base.pids.empty()) groups.pids = absl::StrCat(base.pids, "/", prefix_, attempt);
  return groups;
}

bool HostCgroups::Kill(const std::string& attempt) const {
  bool any = false;
  for (const shim::Cgroups& base : bases_) {
    const shim::Cgroups groups = Below(base, attempt);
    if (!shim::CgroupPopulated(groups)) continue;
    shim::KillCgroup(groups);
    any = true;
  }
  return any;
}

void HostCgroups::Remove(const std::string& attempt) const {
  for (const shim::Cgroups& base : bases_) shim::RemoveCgroups(Below(base, attempt));
}

shim::Cgroups HostCgroups::Make(const std::string& attempt, int64_t memory_bytes,
                                int64_t most_processes, bool* counted) const {
  shim::Cgroups groups = Below({unified_, memory_, pids_}, attempt);
  if (memory_bytes == 0) groups.memory.clear();
  if (most_processes == 0) groups.pids.clear();
  for (std::string* directory : {&groups.unified, &groups.memory, &groups.pids}) {
    if (directory->empty() || ::mkdir(directory->c_str(), 0755) == 0 || errno == EEXIST) continue;
    LogWarn("an attempt has no control group", {{"group", *directory}, {"error", strerror(errno)}});
    directory->clear();
  }
  // False: there is no such limit.
  const auto limit = [&](int64_t most, bool unified, const std::string& unified_file,
                         const std::string& version_1, const std::string& file) {
    const std::string name = !version_1.empty()                   ? version_1 + file
                             : unified && !groups.unified.empty() ? groups.unified + unified_file
                                                                  : "";
    if (most == 0 || name.empty()) return false;
    const int error = shim::WriteControl(name, absl::StrCat(most));
    if (error != 0)
      LogWarn("an attempt is not limited", {{"file", name}, {"error", strerror(error)}});
    return error == 0;
  };
  limit(memory_bytes, unified_memory_, "/memory.max", groups.memory, "/memory.limit_in_bytes");
  const bool holds = limit(most_processes, unified_pids_, "/pids.max", groups.pids, "/pids.max");
  if (counted != nullptr) *counted = holds;
  return groups;
}

int HostCgroups::EndAllBut(const std::vector<std::string>& attempts) const {
  std::set<std::string> names;
  for (const shim::Cgroups& made : bases_) {
    for (const std::string* base : {&made.unified, &made.memory, &made.pids}) {
      DIR* directory = base->empty() ? nullptr : ::opendir(base->c_str());
      if (directory == nullptr) continue;
      while (const dirent* entry = ::readdir(directory)) {
        absl::string_view name = entry->d_name;
        if (absl::ConsumePrefix(&name, prefix_) &&
            std::find(attempts.begin(), attempts.end(), name) == attempts.end())
          names.insert(std::string(name));
      }
      ::closedir(directory);
    }
  }
  int lived = 0;
  const int64_t until_ns = RealClock()->MonotonicNs() + 10 * kSecond;
  for (const std::string& name : names) {
    if (Kill(name)) ++lived;
    while (Kill(name) && RealClock()->MonotonicNs() < until_ns) {
      const timespec pause{0, 2'000'000};
      ::nanosleep(&pause, nullptr);
    }
    Remove(name);
  }
  return lived;
}

}  // namespace muster::agent
