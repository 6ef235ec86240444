#include "agent/host/owners.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sched.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/shim/durable.h"
#include "agent/shim/identity.h"
#include "common/base/descriptor.h"
#include "common/base/files.h"
#include "common/base/log.h"

namespace muster::agent {
namespace {

constexpr char kOwnerName[] = "muster-agent-owner";
constexpr size_t kLongestName = 255;
constexpr int kMostGroups = 65536;

// Fit to be asked for and to be a file's name.
bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c > ' ' && c != '/' && c != ':' && c != 0x7f; });
}

// A user of a certificate needs no account to submit: no host is to blame, else three such jobs
// would take it from everybody.
absl::Status Unknown(const std::string& name, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "this host knows no user ", name, why,
      ": the administrator makes the account on every host (docs/hosts.md); `getent passwd ", name,
      "` must show it"));
}

bool ParseOwner(const std::string& text, Owner* owner) {
  std::vector<shim::Line> lines;
  std::string error;
  if (!shim::ParseFile(text, kOwnerName, &lines, &error) || lines.size() != 2 ||
      lines[0].kind != "user" || !shim::ReadUser(lines[0], &owner->user))
    return false;
  owner->name = lines[1].Get("name");
  owner->home = lines[1].Get("home");
  return !owner->name.empty();
}

std::string FormatOwner(const Owner& owner) {
  return shim::FormatFile(kOwnerName,
                          {shim::UserLine(owner.user),
                           shim::Line{"account"}.Add("name", owner.name).Add("home", owner.home)});
}

// A file that holds `text`, to be read from its beginning. 0, or an errno.
int WriteFromStart(int file, const std::string& text) {
  if (file < 0) return errno;
  if (const int error = shim::WriteAll(file, text); error != 0) return error;
  return ::lseek(file, 0, SEEK_SET) == 0 ? 0 : errno;
}

// `archive` < 0: none.
absl::StatusOr<pid_t> StartAct(const std::string& program, int in, int out, int archive) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  if (archive >= 0) ::posix_spawn_file_actions_adddup2(&actions, archive, shim::kArchiveFd);
  ::posix_spawn_file_actions_addclosefrom_np(
      &actions, archive >= 0 ? shim::kArchiveFd + 1 : shim::kArchiveFd);
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  char* const argv[] = {const_cast<char*>("muster-shim"), const_cast<char*>("--act"), nullptr};
  char* const environment[] = {nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, program);
  return pid;
}

// "Device Minor: 	 3" of the driver's file of a device; -1: it has none.
int MinorOf(const std::string& information) {
  std::string text;
  if (shim::ReadSmallFile(information, &text) != 0) return -1;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "Device Minor:")) continue;
    int minor = -1;
    return absl::SimpleAtoi(line, &minor) ? minor : -1;
  }
  return -1;
}

}  // namespace

absl::StatusOr<Owner> FindOwner(const std::string& name, uint32_t min_uid) {
  if (!IsName(name)) return Unknown(name, ", and nobody can have that name");
  uint32_t number = 0;
  const bool by_number = absl::SimpleAtoi(name, &number);
  passwd entry{};
  passwd* found = nullptr;
  std::string buffer(1 << 16, '\0');
  const int error = by_number
                        ? ::getpwuid_r(number, &entry, buffer.data(), buffer.size(), &found)
                        : ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    const bool none = error == 0 || error == ENOENT || error == ESRCH || error == EBADF ||
                      error == EPERM;  // getpwnam(3)
    if (none) return Unknown(name, "");
    return absl::FailedPreconditionError(
        absl::StrCat("who ", name, " is can't be told: ", strerror(error),
                     "; mend this host's name services (`getent passwd ", name, "`)"));
  }
  Owner owner;
  owner.name = entry.pw_name;
  owner.home = entry.pw_dir;
  owner.user.uid = entry.pw_uid;
  owner.user.gid = entry.pw_gid;
  owner.user.minimum = min_uid;
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  while (::getgrouplist(entry.pw_name, entry.pw_gid, groups.data(), &count) < 0) {
    if (count > kMostGroups || static_cast<size_t>(count) <= groups.size())
      return absl::FailedPreconditionError(absl::StrCat("the groups of ", name, " can't be told"));
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(static_cast<size_t>(count));
  owner.user.groups.assign(groups.begin(), groups.end());
  if (const std::string why = shim::WhyNotRunAs(owner.user); !why.empty())
    return absl::InvalidArgumentError(absl::StrCat("owner ", name, ": ", why));
  return owner;
}

Owners::Owners(std::string directory, std::string program, uint32_t min_uid)
    : directory_(std::move(directory)), program_(std::move(program)), min_uid_(min_uid) {
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    LogWarn("owners of jobs are not remembered",
            {{"directory", directory_}, {"error", strerror(errno)}});
}

absl::StatusOr<Owner> Owners::Ask(const std::string& name) {
  absl::StatusOr<Owner> owner = FindOwner(name, min_uid_);
  if (!owner.ok()) return owner;
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string text = FormatOwner(*owner);
  const auto known = known_.find(name);
  if (known == known_.end() || FormatOwner(known->second) != text) {
    if (const int error = shim::ReplaceFile(directory_, name, text, /*sync=*/false); error != 0)
      return ErrnoStatus(error, absl::StrCat(directory_, "/", name));
    known_[name] = *owner;
  }
  return owner;
}

absl::StatusOr<Owner> Owners::Known(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto known = known_.find(name); known != known_.end()) return known->second;
  std::string text;
  Owner owner;
  if (!IsName(name) || shim::ReadSmallFile(absl::StrCat(directory_, "/", name), &text) != 0 ||
      !ParseOwner(text, &owner))
    return absl::FailedPreconditionError(
        absl::StrCat("who ", name, " is was lost with what this host had prepared"));
  owner.user.minimum = min_uid_;
  if (const std::string why = shim::WhyNotRunAs(owner.user); !why.empty())
    return absl::InvalidArgumentError(absl::StrCat("owner ", name, ": ", why));
  return known_[name] = owner;
}

absl::Status Owners::Act(const Owner& owner, shim::ActRequest request) const {
  request.user = owner.user;
  const Descriptor told(::memfd_create("request", MFD_CLOEXEC));
  if (const int error = WriteFromStart(told.get(), shim::FormatActRequest(request)); error != 0)
    return ErrnoStatus(error, "request");
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return ErrnoStatus(errno, "a pipe");
  const Descriptor in(pipe[0]);
  absl::StatusOr<pid_t> pid = [&] {
    const Descriptor out(pipe[1]);
    return StartAct(program_, told.get(), out.get(), request.archive);
  }();
  if (!pid.ok()) return pid.status();
  std::string text, error;
  const int failed = shim::ReadAll(in.get(), &text);
  int status = 0;
  while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  shim::ActResult result;
  if (failed != 0) return ErrnoStatus(failed, "what was done as the job's owner");
  if (!shim::ParseActResult(text, &result, &error))
    return absl::InternalError(absl::StrCat(
        "what was to be done as ", owner.name,
        " ended early: ", WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status)) : error));
  return ToStatus(result);
}

absl::Status ToStatus(const shim::ActResult& result) {
  if (!result.note.empty()) LogWarn("published", {{"note", result.note}});
  switch (result.kind) {
    case shim::ActResult::Kind::kDone:
      break;
    case shim::ActResult::Kind::kJobs:
      return absl::InvalidArgumentError(result.text);
    case shim::ActResult::Kind::kHosts:
      return absl::FailedPreconditionError(result.text);
    case shim::ActResult::Kind::kWanted:
      return absl::OutOfRangeError("the directory that came along is wanted");
  }
  return absl::OkStatus();
}

bool WantsArchive(const absl::Status& status) { return absl::IsOutOfRange(status); }

absl::Status CheckCanIsolate() {
  if (::geteuid() != 0)
    return absl::FailedPreconditionError(
        "only root can run jobs as their owners: start the agent as root, or with --single-user "
        "for your own jobs");
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) != 0) ::_exit(1);
    const pid_t first = ::_Fork();
    if (first == 0) {
      if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) ::_exit(2);
      ::_exit(::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0 ? 3
                                                                                               : 0);
    }
    int status = 0;
    if (first < 0 || ::waitpid(first, &status, 0) < 0) ::_exit(1);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = -1;
  if (pid < 0 || ::waitpid(pid, &status, 0) < 0) return ErrnoStatus(errno, "a process");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  const int step = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return absl::FailedPreconditionError(absl::StrCat(
      "users' jobs can't be kept apart here: ",
      step == 1   ? "no PID, mount and IPC namespaces"
      : step == 2 ? "no mounts of its own"
                  : "no /proc of its own",
      ". The agent wants CAP_SYS_ADMIN, outside of a container that forbids it; or start it with "
      "--single-user"));
}

absl::StatusOr<std::vector<std::string>> DeviceNodes(const std::vector<int32_t>& devices,
                                                     const std::string& proc,
                                                     const std::string& dev) {
  std::vector<std::string> nodes;
  const auto add_if_there = [&](const char* name) {
    const std::string path = absl::StrCat(dev, "/", name);
    if (::access(path.c_str(), F_OK) == 0) nodes.push_back(path);
  };
  add_if_there("infiniband");
  if (devices.empty()) return nodes;
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps"})
    add_if_there(name);
  // In the order of the bus, as our indices are.
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(proc + "/driver/nvidia/gpus", error), end;
       !error && it != end; it.increment(error))
    found.push_back(it->path().string());
  std::sort(found.begin(), found.end());
  for (const int32_t device : devices) {
    const int minor = device >= 0 && static_cast<size_t>(device) < found.size()
                          ? MinorOf(found[static_cast<size_t>(device)] + "/information")
                          : -1;
    const std::string path = absl::StrCat(dev, "/nvidia", minor);
    if (minor < 0 || ::access(path.c_str(), F_OK) != 0)
      return absl::FailedPreconditionError(
          absl::StrCat("device ", device, " has no node below ", dev,
                       ": let the driver make it (nvidia-modprobe, nvidia-persistenced)"));
    nodes.push_back(path);
  }
  return nodes;
}

}  // namespace muster::agent
