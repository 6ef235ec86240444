#include "agent/host/processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/shim/durable.h"
#include "agent/shim/isolate.h"
#include "agent/shim/private_mounts.h"
#include "agent/shim/shim.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/fnv.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr size_t kSocketName = 12;       // characters of a progress socket's name
constexpr int kTriesInVain = 5;          // of shims that end before they started anything
constexpr int64_t kShimLogTail = 16384;  // bytes
constexpr char kTokenFile[] = "token";   // in an attempt's directory, of an agent of several users

// A socket of both families where there is IPv6: it meets whoever has the port in either.
bool IsFree(int port) {
  for (const int family : {AF_INET6, AF_INET}) {
    const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;  // no such family here
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    six.sin6_port = four.sin_port = htons(static_cast<uint16_t>(port));
    const int off = 0;
    if (family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const int failed = family == AF_INET
                           ? ::bind(fd, reinterpret_cast<sockaddr*>(&four), sizeof four)
                           : ::bind(fd, reinterpret_cast<sockaddr*>(&six), sizeof six);
    const int error = failed != 0 ? errno : 0;
    ::close(fd);
    if (error == 0) return true;
    if (error == EADDRINUSE || error == EACCES) return false;
  }
  return true;
}

bool IsInMemory(const char* directory) {
  struct statfs info {};
  return ::statfs(directory, &info) == 0 && info.f_type == TMPFS_MAGIC &&
         ::access(directory, W_OK | X_OK) == 0;
}

// A directory in one where anybody may make some. `shared`: others may enter it, and not list it.
absl::Status MakeOurs(const std::string& directory, bool shared) {
  struct stat info {};
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoStatus(errno, directory);
  const bool ours =
      ::lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
  if (ours && shared && ::chmod(directory.c_str(), 0711) == 0) return absl::OkStatus();
  if (ours && !shared && (info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(directory, ": must be a directory of mode ",
                                                  shared ? "0711" : "0700",
                                                  " that belongs to this user"));
}

template <typename F>
void ForEachProcess(F f) {
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return;
  while (const dirent* entry = ::readdir(proc)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry->d_name, &pid) && pid > 1)
      f(pid, absl::StrCat("/proc/", entry->d_name));
  }
  ::closedir(proc);
}

}  // namespace

absl::StatusOr<PortRange> ParsePortRange(std::string_view text) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), '-');
  PortRange range;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &range.first) ||
      !absl::SimpleAtoi(parts[1], &range.last) || range.first < 1024 || range.last > 65535 ||
      range.first > range.last) {
    return absl::InvalidArgumentError(
        "--port-range: wants FIRST-LAST between 1024 and 65535, such as 20000-29999");
  }
  return range;
}

std::string WhyPortsCollide(const PortRange& range, const std::string& ephemeral) {
  std::string text;
  PortRange kernels;
  if (shim::ReadSmallFile(ephemeral, &text) != 0 ||
      ::sscanf(text.c_str(), "%d %d", &kernels.first, &kernels.last) != 2)
    return "";
  if (range.last < kernels.first || range.first > kernels.last) return "";
  return absl::StrCat(
      "rendezvous ports ", range.first, "-", range.last,
      " overlap with those that the kernel gives to clients (net.ipv4.ip_local_port_range), ",
      kernels.first, "-", kernels.last,
      ": attempts will fail when a client has theirs. Give --port-range ports outside of it");
}

absl::StatusOr<int32_t> FindPort(const PortRange& range, std::string_view seed,
                                 const std::vector<int32_t>& taken) {
  const uint64_t hash = Fnv1a(seed);
  const int count = range.last - range.first + 1;
  for (int i = 0; i < count; ++i) {
    const int port = range.first + static_cast<int>((hash + static_cast<uint64_t>(i)) %
                                                    static_cast<uint64_t>(count));
    if (std::find(taken.begin(), taken.end(), port) == taken.end() && IsFree(port)) return port;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no free rendezvous port in ", range.first, "-", range.last));
}

std::vector<std::string> SocketDirectories(uid_t user, bool in_memory, const std::string& of_unit,
                                           const std::string& of_login) {
  constexpr uid_t kFirstPerson = 1000;
  std::vector<std::string> directories = {of_unit};
  // Sockets come and go with each attempt: in memory where that can be. Not those of people, whose
  // files there go when they log out (logind's RemoveIPC); and under a name that `rm /dev/shm/*`
  // leaves alone.
  if (in_memory && user < kFirstPerson)
    directories.push_back(absl::StrCat("/dev/shm/.muster-", user));
  // That name, and the one in /tmp, may be taken by anybody; this one by root alone.
  if (user == 0) directories.emplace_back("/run/muster-agent");
  directories.push_back(absl::StrCat("/tmp/muster-", user));
  // Last, as it goes with its user's last login, whatever still runs.
  if (!of_login.empty()) directories.push_back(of_login + "/muster-agent");
  std::erase_if(directories, [](const std::string& directory) {
    return directory.empty() || directory[0] != '/' ||
           directory.size() + 1 + kSocketName > sizeof(sockaddr_un::sun_path) - 1;
  });
  return directories;
}

std::vector<std::string> SocketDirectories() {
  const auto variable = [](const char* name) {
    return std::string(::getenv(name) == nullptr ? "" : ::getenv(name));
  };
  const std::string of_unit =
      variable("RUNTIME_DIRECTORY");  // by systemd; several are separated by colons
  return SocketDirectories(::geteuid(), IsInMemory("/dev/shm"),
                           of_unit.substr(0, of_unit.find(':')), variable("XDG_RUNTIME_DIR"));
}

int EndForgottenShims(const std::string& state_path) {
  const std::string prefix = state_path + "/attempts/";
  std::set<pid_t> shims;
  ForEachProcess([&](pid_t pid, const std::string& proc) {
    std::string name, words;  // the command line of a process may keep its reader waiting
                              // (shim::ReadEnvironment), its name doesn't
    struct stat info {};      // anybody may give a process that name: ours are this user's
    if (::stat(proc.c_str(), &info) != 0 || info.st_uid != ::geteuid() ||
        shim::ReadSmallFile(proc + "/comm", &name) != 0 || name != "muster-shim\n" ||
        shim::ReadSmallFile(proc + "/cmdline", &words) != 0)
      return;
    const std::string directory = words.substr(std::min(words.size(), words.find('\0') + 1));
    if (words.rfind("muster-shim", 0) == 0 && directory.rfind(prefix, 0) == 0) shims.insert(pid);
  });
  if (shims.empty()) return 0;
  // Their processes carry tokens by which what outlives a shim for a moment is found.
  std::set<std::string> tokens;
  ForEachProcess([&](pid_t, const std::string& proc) {
    std::string stat, environment;
    if (shim::ReadSmallFile(proc + "/stat", &stat) != 0) return;
    const size_t name_end = stat.rfind(") ");  // "pid (any name) state ppid ..."
    int parent = 0;
    if (name_end == std::string::npos ||
        ::sscanf(stat.c_str() + name_end, ") %*c %d", &parent) != 1 || shims.count(parent) == 0)
      return;
    if (shim::ReadEnvironment(proc, &environment) != 0) return;
    for (const absl::string_view entry : absl::StrSplit(environment, '\0')) {
      if (absl::StartsWith(entry, absl::StrCat(shim::kTokenVariable, "=")))
        tokens.emplace(entry.substr(entry.find('=') + 1));
    }
  });
  for (const pid_t shim : shims) ::kill(shim, SIGKILL);
  const int64_t until_ns = RealClock()->MonotonicNs() + 10 * kSecond;
  while (RealClock()->MonotonicNs() < until_ns) {
    int left = 0;
    for (const std::string& token : tokens) left += shim::KillByToken(token);
    for (const pid_t shim : shims) left += ::kill(shim, 0) == 0 ? 1 : 0;
    if (left == 0) break;
    const timespec pause{0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return static_cast<int>(shims.size());
}

absl::StatusOr<pid_t> StartShim(const std::string& program, const std::string& directory, int spec,
                                const std::string& log) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, spec, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  ::posix_spawnattr_init(&attributes);
  // Everything blocked until the shim listens: a SIGUSR1 that comes at once must wait, not kill.
  sigset_t blocked, defaults;
  ::sigfillset(&blocked);
  ::sigfillset(&defaults);
  ::posix_spawnattr_setsigmask(&attributes, &blocked);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  char* const argv[] = {const_cast<char*>("muster-shim"), const_cast<char*>(directory.c_str()),
                        nullptr};
  char* const environment[] = {nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, program);
  return pid;
}

HostProcesses::HostProcesses(StateDirectory* state, LaunchHost host, PortRange ports,
                             HostCgroups cgroups, StorageThreads* threads)
    : state_(state),
      host_(std::move(host)),
      range_(ports),
      cgroups_(std::move(cgroups)),
      threads_(threads) {
  if (const std::string why = WhyPortsCollide(range_); !why.empty())
    LogWarn("badly chosen ports", {{"why", why}});
  if (!host_.as_owners) return;
  std::erase_if(host_.sockets, [](const std::string& path) { return shim::IsPrivate(path); });
  owners_ = std::make_shared<Owners>(state_->path() + "/owners",
                                     host_.bin_directory + "/muster-shim", host_.min_uid);
}

// Attempts that go on have their sockets there, and it stays.
HostProcesses::~HostProcesses() { ::rmdir(sockets_.c_str()); }

absl::Status HostProcesses::FindSockets() {
  absl::Status refused = absl::FailedPreconditionError("no directory for progress sockets");
  for (const std::string& directory : host_.sockets) {
    const absl::Status status = MakeOurs(directory, host_.as_owners);
    if (status.ok()) {
      sockets_ = directory;
      return status;
    }
    if (&directory == &host_.sockets.front()) refused = status;
  }
  return refused;
}

absl::StatusOr<int32_t> HostProcesses::Prepare(const v1::Prepare& prepare) {
  // What can be told to be impossible is told now, before anything is durable.
  if (absl::Status status = CheckLaunch(prepare); !status.ok()) return status;
  if (!prepare.task().trainer_json().empty()) {
    const std::string trainer = host_.bin_directory + "/muster-trainer";
    if (::access(trainer.c_str(), X_OK) != 0)
      return absl::FailedPreconditionError(trainer + ": this host has no muster-trainer");
  }
  if (absl::Status status = PrepareStorage(prepare); !status.ok()) return status;
  if (!prepare.hosts_rendezvous() && !prepare.start_at_once()) return 0;
  std::vector<int32_t> taken;
  for (const auto& [id, port] : ports_taken_) taken.push_back(port);
  absl::StatusOr<int32_t> port =
      FindPort(range_, absl::StrCat(state_->state_id(), RandomId()), taken);
  if (port.ok()) ports_taken_[IdOf(prepare.key())] = *port;
  return port;
}

// What is granted of /dev, and how many processes there may be. `groups`: made for it.
absl::Status HostProcesses::Grant(const AttemptRecord& record, const Owner& owner,
                                  shim::Spec* spec) const {
  const auto& here = record.prepare.here().devices();
  const absl::StatusOr<std::vector<std::string>> nodes = DeviceNodes(
      host_.declared ? std::vector<int32_t>() : std::vector<int32_t>(here.begin(), here.end()));
  if (!nodes.ok()) return nodes.status();
  spec->devices = *nodes;
  spec->devices.insert(spec->devices.end(), host_.devices.begin(), host_.devices.end());
  spec->user = owner.user;
  return absl::OkStatus();
}

// A few more may have better luck (a full disk); all the others would end as they did.
absl::Status HostProcesses::WhyInVain(const AttemptId& id) const {
  const auto found = in_vain_.find(id);
  if (found == in_vain_.end() || found->second.times < kTriesInVain) return absl::OkStatus();
  std::ifstream file(state_->path() + "/shim.log", std::ios::ate);
  file.seekg(std::max<std::streamoff>(0, file.tellg() - std::streamoff{kShimLogTail}));
  const std::string log(std::istreambuf_iterator<char>(file), {});
  const std::string mark = absl::StrCat(state_->AttemptDirectory(id), ": ");
  const size_t last = log.rfind(mark);
  const std::string said = last == std::string::npos ? "nothing" : log.substr(last + mark.size());
  return absl::FailedPreconditionError(absl::StrCat(
      "muster-shim ended with ", found->second.code, " before it started anything, ",
      found->second.times, " times; the last said: ", said.substr(0, said.find('\n'))));
}

absl::Status HostProcesses::SpawnShim(const AttemptRecord& record) {
  if (absl::Status status = WhyInVain(record.id); !status.ok()) return status;
  if (absl::Status status = HoldSecrets(record.prepare); !status.ok()) return status;
  if (absl::Status status = FindSockets(); !status.ok()) return status;
  std::optional<Owner> owner;
  if (owners_ != nullptr) {
    const absl::StatusOr<Owner> known = owners_->Known(record.prepare.owner());
    if (!known.ok()) return known.status();
    owner = *known;
  }
  const absl::StatusOr<std::string> token = MakeToken(record.id);
  if (!token.ok()) return token.status();
  absl::StatusOr<shim::Spec> spec = MakeShimSpec(
      record, host_, *token, absl::StrCat(sockets_, "/", RandomId().substr(0, kSocketName)),
      owner.has_value() ? &*owner : nullptr);
  if (!spec.ok()) return spec.status();
  AddSecrets(record.id, &*spec);
  if (owner.has_value()) {
    if (absl::Status status = Grant(record, *owner, &*spec); !status.ok()) return status;
  }
  bool counted = false;
  const int64_t most_processes = owner.has_value() ? host_.most_processes : 0;
  const shim::Cgroups groups = cgroups_.Make(
      DirectoryName(record.id),
      record.prepare.task().resources().memory_bytes() * record.prepare.here().workers(),
      most_processes, &counted);
  spec->cgroup = groups.unified;
  spec->memory_cgroup = groups.memory;
  spec->pids_cgroup = groups.pids;
  if (!counted) spec->most_processes = most_processes;
  const std::string directory = state_->AttemptDirectory(record.id);
  // In memory: nobody else reads it, and a file costs more than the rest of this.
  const int told = ::memfd_create("spec", MFD_CLOEXEC);
  const int unwritten = told < 0 ? errno : shim::WriteAll(told, shim::FormatSpec(*spec));
  if (unwritten != 0 || ::lseek(told, 0, SEEK_SET) != 0) {
    if (told >= 0) ::close(told);
    return ErrnoStatus(unwritten, "spec");
  }

  const absl::StatusOr<pid_t> pid = StartShim(host_.bin_directory + "/muster-shim", directory, told,
                                              state_->path() + "/shim.log");
  ::close(told);
  if (!pid.ok()) {
    shim::RemoveCgroups(groups);
    return pid.status();
  }
  if (const auto before = spawned_.find(record.id); before != spawned_.end())
    Reaped(record.id, before->second);
  spawned_[record.id] = *pid;
  return absl::OkStatus();
}

// By what strays are found that outlive their shim. The same for each shim of an attempt: their
// lock lets one at a time begin. Where others run jobs, too, they could guess it.
std::string HostProcesses::Token(const AttemptId& id) const {
  if (owners_ == nullptr) return absl::StrCat(state_->state_id(), ".", DirectoryName(id));
  std::string token;
  shim::ReadSmallFile(absl::StrCat(state_->AttemptDirectory(id), "/", kTokenFile), &token);
  return token;
}

absl::StatusOr<std::string> HostProcesses::MakeToken(const AttemptId& id) {
  std::string token = Token(id);
  if (!token.empty()) return token;
  token = RandomId();
  const int error =
      shim::ReplaceFile(state_->AttemptDirectory(id), kTokenFile, token, /*sync=*/false);
  if (error != 0) return ErrnoStatus(error, "token");
  return token;
}

pid_t HostProcesses::ShimPid(const AttemptId& id) {
  for (const char* name : {shim::kPreparedFile, shim::kLockFile}) {
    if (const pid_t holder =
            shim::LockHolder(absl::StrCat(state_->AttemptDirectory(id), "/", name));
        holder != 0)
      return holder;
  }
  const auto found = spawned_.find(id);
  if (found == spawned_.end()) return 0;
  siginfo_t info{};
  const bool ended =
      ::waitid(P_PID, static_cast<id_t>(found->second), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != 0;
  return ended ? 0 : found->second;
}

void HostProcesses::SignalShim(const AttemptId& id) {
  const pid_t pid = ShimPid(id);
  if (pid <= 0) return;
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return;
  // The lock once more: the number may have been another's by the time it was opened.
  if (ShimPid(id) == pid) ::syscall(SYS_pidfd_send_signal, fd, SIGUSR1, nullptr, 0);
  ::close(fd);
}

// Whether it has ended. One that was killed says nothing of the next.
bool HostProcesses::Reaped(const AttemptId& id, pid_t pid) {
  int status = 0;
  const pid_t ended = ::waitpid(pid, &status, WNOHANG);
  if (ended == 0) return false;
  if (ended == pid && WIFEXITED(status) && WEXITSTATUS(status) != shim::kShimDone &&
      WEXITSTATUS(status) != shim::kShimNotClaimed) {
    InVain& in_vain = in_vain_[id];
    ++in_vain.times;
    in_vain.code = WEXITSTATUS(status);
  }
  return true;
}

void HostProcesses::Reap(pid_t pid) {
  const auto found = std::find_if(spawned_.begin(), spawned_.end(),
                                  [pid](const auto& spawned) { return spawned.second == pid; });
  if (found == spawned_.end()) {
    if (pid > 0) ::waitpid(pid, nullptr, WNOHANG);  // a newer one has taken its place
  } else if (Reaped(found->first, pid)) {
    spawned_.erase(found);
  }
}

void HostProcesses::ReapEnded() {
  for (auto it = spawned_.begin(); it != spawned_.end();)
    it = Reaped(it->first, it->second) ? spawned_.erase(it) : std::next(it);
}

bool HostProcesses::KillStrays(const AttemptId& id, bool ended) {
  if (const bool populated = cgroups_.Kill(DirectoryName(id)); populated || ended) return populated;
  std::string text, error;
  shim::Spec spec;
  const bool older =
      shim::ReadSmallFile(absl::StrCat(state_->AttemptDirectory(id), "/", shim::kSpecFile),
                          &text) == 0 &&
      shim::ParseSpec(text, &spec, &error);
  const std::string token = older ? spec.token : Token(id);
  if (token.empty()) return false;  // no shim was ever started
  int unknown = 0;  // may be this attempt's: as long as that can't be told its devices aren't free
  return shim::KillByToken(token, &unknown) + unknown > 0;
}

void HostProcesses::RemoveCgroup(const AttemptId& id) {
  in_vain_.erase(id);
  secrets_.erase(id);
  cgroups_.Remove(DirectoryName(id));
}

}  // namespace muster::agent
