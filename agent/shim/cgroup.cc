#include "agent/shim/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "agent/shim/durable.h"

namespace muster::shim {
namespace {

// "name 12" in a file of such lines; 0 if it isn't there.
int64_t Number(const std::string& path, std::string_view name) {
  std::string text;
  if (ReadSmallFile(path, &text) != 0) return 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.size() > name.size() && line.substr(0, name.size()) == name &&
        line[name.size()] == ' ')
      return ::strtoll(text.c_str() + at + name.size(), nullptr, 10);
    at = end + 1;
  }
  return 0;
}

bool Gone(int error) { return error == ENOENT || error == ENODEV; }

// Calls `f` with every group below the directory, deepest first, and with itself.
template <typename F>
void ForEachGroup(const std::string& directory, F f) {
  if (directory.empty()) return;
  if (DIR* open = ::opendir(directory.c_str()); open != nullptr) {
    while (const dirent* entry = ::readdir(open)) {
      if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
        ForEachGroup(directory + "/" + entry->d_name, f);
    }
    ::closedir(open);
  }
  f(directory);
}

// What can't be read counts as there: devices must not be called free on a guess.
bool AnyMember(const std::string& directory) {
  bool any = false;
  ForEachGroup(directory, [&](const std::string& group) {
    std::string text;
    const int error = ReadSmallFile(group + "/cgroup.procs", &text);
    any = any || (error == 0 ? !text.empty() : !Gone(error));
  });
  return any;
}

template <typename F>
void ForEachMember(const std::string& directory, F f) {
  ForEachGroup(directory, [&](const std::string& group) {
    std::string text;
    if (ReadSmallFile(group + "/cgroup.procs", &text) != 0) return;
    for (size_t at = 0; at < text.size();
         at = text.find('\n', at) == std::string::npos ? text.size() : text.find('\n', at) + 1) {
      const long pid = ::strtol(text.c_str() + at, nullptr, 10);
      if (pid > 1) f(static_cast<pid_t>(pid));
    }
  });
}

void KillMembers(const std::string& directory) {
  ForEachMember(directory, [](pid_t pid) { ::kill(pid, SIGKILL); });
}

bool Populated(const std::string& unified) {
  std::string text;
  const int error = ReadSmallFile(unified + "/cgroup.events", &text);
  return error == 0 ? text.find("populated 0") == std::string::npos : !Gone(error);
}

}  // namespace

int WriteControl(const std::string& file, std::string_view text) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int error = ::write(fd, text.data(), text.size()) < 0 ? errno : 0;
  ::close(fd);
  return error;
}

pid_t ForkInto(const Cgroups& cgroups, Cgroups* left) {
  *left = cgroups;
  const int directory = kPlainForks || cgroups.unified.empty()
                            ? -1
                            : ::open(cgroups.unified.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return ::fork();
  clone_args arguments{};
  arguments.flags = CLONE_INTO_CGROUP;
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<uint64_t>(directory);
  left->unified.clear();
  pid_t pid = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  if (pid < 0) {
    left->unified = cgroups.unified;
    pid = ::fork();
  }
  ::close(directory);
  return pid;
}

int EnterCgroups(const Cgroups& cgroups) {
  for (const std::string* directory : {&cgroups.unified, &cgroups.memory, &cgroups.pids}) {
    if (directory->empty()) continue;
    if (const int error = WriteControl(*directory + "/cgroup.procs", "0"); error != 0) return error;
  }
  return 0;
}

int64_t OomKills(const Cgroups& cgroups) {
  if (!cgroups.memory.empty()) return Number(cgroups.memory + "/memory.oom_control", "oom_kill");
  return cgroups.unified.empty() ? 0 : Number(cgroups.unified + "/memory.events", "oom_kill");
}

bool CgroupPopulated(const Cgroups& cgroups) {
  return (!cgroups.unified.empty() && Populated(cgroups.unified)) || AnyMember(cgroups.memory) ||
         AnyMember(cgroups.pids);
}

std::vector<pid_t> CgroupMembers(const std::string& directory) {
  std::vector<pid_t> members;
  ForEachMember(directory, [&](pid_t pid) { members.push_back(pid); });
  return members;
}

void KillCgroup(const Cgroups& cgroups) {
  // One word where the kernel knows it (5.14); else whoever is there now, again and again.
  if (!cgroups.unified.empty() && WriteControl(cgroups.unified + "/cgroup.kill", "1") != 0)
    KillMembers(cgroups.unified);
  KillMembers(cgroups.memory);
  KillMembers(cgroups.pids);
}

bool RemoveCgroups(const Cgroups& cgroups) {
  bool gone = true;
  for (const std::string* directory : {&cgroups.unified, &cgroups.memory, &cgroups.pids}) {
    if (directory->empty() || ::rmdir(directory->c_str()) == 0 || errno == ENOENT) continue;
    ForEachGroup(*directory,
                 [&](const std::string& group) { gone = ::rmdir(group.c_str()) == 0 && gone; });
  }
  return gone;
}

}  // namespace muster::shim
