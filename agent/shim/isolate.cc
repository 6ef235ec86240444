#include "agent/shim/isolate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "agent/shim/cgroup.h"
#include "agent/shim/durable.h"
#include "agent/shim/private_mounts.h"

namespace muster::shim {
namespace {

// What the keeper says once it is there.
constexpr char kReady = 1;
constexpr char kHostsProc = 2;  // /proc is the host's

void Sleep(int64_t ns) {
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  ::nanosleep(&time, nullptr);
}

// Runs in the keeper: blocks until the shim is gone, or (false) its deadline has passed, or so many
// milliseconds.
bool WaitForEnd(int pipe, int deadline, int timeout_ms) {
  while (true) {
    pollfd ready[2] = {{pipe, POLLIN, 0}, {deadline, POLLIN, 0}};
    const int count = ::poll(ready, 2, timeout_ms);
    if (count < 0 && errno != EINTR) return true;
    if (count == 0) return false;
    if (count < 0) continue;
    if (ready[0].revents != 0) return true;
    uint64_t times = 0;  // 0 again where the shim has put it off meanwhile
    if (ready[1].revents != 0 && ::read(deadline, &times, sizeof times) == sizeof times)
      return false;
  }
}

// "pid (any name) state ppid ...": the state, and the number of the parent. '\0': there is none
// such.
char StateOf(const std::string& stat, pid_t* parent) {
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos || name_end + 4 >= stat.size()) return '\0';
  *parent = static_cast<pid_t>(::strtol(stat.c_str() + name_end + 4, nullptr, 10));
  return stat[name_end + 2];
}

// One of its threads waits in the kernel, perhaps for long, and perhaps with what a reader of its
// memory waits for.
bool Stuck(const std::string& process) {
  bool stuck = false;
  DIR* tasks = ::opendir((process + "/task").c_str());
  if (tasks == nullptr) return false;
  while (const dirent* entry = ::readdir(tasks)) {
    std::string stat;
    pid_t parent = 0;
    if (entry->d_name[0] != '.' &&
        ReadSmallFile(process + "/task/" + entry->d_name + "/stat", &stat) == 0)
      stuck = stuck || StateOf(stat, &parent) == 'D';
  }
  ::closedir(tasks);
  return stuck;
}

int OpenEnvironment(const std::string& process) {
  return ::open((process + "/environ").c_str(), O_RDONLY | O_CLOEXEC);
}

// In one that reads for its parent: it has the parent's descriptors, and with them its locks.
void DieWithParent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  const pid_t now = ::getppid();  // 0: it is outside our PID namespace
  if (now != parent && now != 0) ::_exit(1);
}

// Reaps children that have ended or are about to.
void ReapSoon(std::vector<pid_t> children) {
  for (int i = 0; i < 20; ++i) {
    std::erase_if(children, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) != 0; });
    if (children.empty()) return;
    Sleep(5 * kMillisecond);
  }
}

// By a process of its own, which can be killed while it waits. 0, or an errno.
int ReadApart(int file, std::string* content) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return errno;
  const pid_t self = ::getpid();
  const pid_t reader = ::_Fork();
  if (reader == 0) {
    DieWithParent(self);
    char buffer[4096];
    for (ssize_t got; (got = ::read(file, buffer, sizeof buffer)) > 0;) {
      if (::write(pipe[1], buffer, static_cast<size_t>(got)) != got) ::_exit(1);
    }
    ::_exit(0);
  }
  ::close(pipe[1]);
  int error = reader < 0 ? errno : 0;
  const int64_t until_ns = SteadyNs() + kPatienceWithStuck;
  char buffer[16384];
  while (error == 0) {
    pollfd ready{pipe[0], POLLIN, 0};
    const int64_t left_ns = until_ns - SteadyNs();
    if (left_ns <= 0 || ::poll(&ready, 1, static_cast<int>(left_ns / kMillisecond) + 1) == 0) {
      error = ETIMEDOUT;
      break;
    }
    const ssize_t got = ::read(pipe[0], buffer, sizeof buffer);
    if (got == 0) break;
    if (got > 0) content->append(buffer, static_cast<size_t>(got));
  }
  ::close(pipe[0]);
  if (reader > 0) {
    ::kill(reader, SIGKILL);
    ReapSoon({reader});
  }
  return error;
}

// Whether the environment in this file has the entry. It needs no memory of its own, so that a
// fork of a process with other threads may ask. 0, or an errno.
int FindEntry(int file, std::string_view entry, bool* found) {
  *found = false;
  constexpr size_t kOther = SIZE_MAX;
  size_t matched = 0;  // of the present entry, each of which ends with a zero; kOther: it differs
  char buffer[4096];
  while (true) {
    const ssize_t got = ::read(file, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    for (const char c : std::string_view(buffer, static_cast<size_t>(got))) {
      if (c == '\0') {
        *found = *found || matched == entry.size();
        matched = 0;
      } else {
        matched = matched < entry.size() && entry[matched] == c ? matched + 1 : kOther;
      }
    }
    if (got > 0) continue;
    *found = *found || matched == entry.size();  // the last one may lack its zero
    return 0;
  }
}

struct Stray {
  pid_t pid = 0;
  std::string process;  // its directory below /proc
};

struct Answer {
  size_t index;  // of the stray
  bool carries, failed;
};

// The life of the process that looks at one of them, and kills it if it carries the entry.
[[noreturn]] void KillIfItCarries(pid_t parent, const Stray& stray, size_t index, int file,
                                  std::string_view entry, int answers) {
  DieWithParent(parent);
  Answer answer{index, false, false};
  answer.failed = FindEntry(file, entry, &answer.carries) != 0;
  if (answer.carries) ::kill(stray.pid, SIGKILL);
  ::_exit(::write(answers, &answer, sizeof answer) == sizeof answer ? 0 : 1);
}

// Kills those that carry the entry; how many. Each is looked at by a process of its own, all at
// once: they are waited for no longer than one is.
int KillStuck(const std::vector<Stray>& stuck, std::string_view entry, int64_t patience_ns,
              int* unknown) {
  const pid_t self = ::getpid();
  int pipe[2];
  if (stuck.empty()) return 0;
  if (::pipe2(pipe, O_CLOEXEC) != 0) {
    *unknown += static_cast<int>(stuck.size());
    return 0;
  }
  std::map<size_t, pid_t> waits;  // readers that haven't answered, by index
  std::vector<pid_t> readers;
  for (size_t i = 0; i < stuck.size(); ++i) {
    const int file = OpenEnvironment(stuck[i].process);
    if (file < 0 && (errno == ENOENT || errno == ESRCH || errno == EACCES)) continue;
    const pid_t reader = file < 0 ? -1 : ::_Fork();
    if (reader == 0) KillIfItCarries(self, stuck[i], i, file, entry, pipe[1]);
    if (file >= 0) ::close(file);
    if (reader > 0)
      readers.push_back(waits[i] = reader);
    else
      ++*unknown;
  }
  ::close(pipe[1]);
  int found = 0;
  const int64_t until_ns = SteadyNs() + patience_ns;
  while (!waits.empty()) {
    pollfd ready{pipe[0], POLLIN, 0};
    const int64_t left_ns = until_ns - SteadyNs();
    if (left_ns <= 0) break;
    if (::poll(&ready, 1, static_cast<int>(left_ns / kMillisecond) + 1) <= 0) continue;
    Answer answer;  // written, and so read, in one piece
    const ssize_t got = ::read(pipe[0], &answer, sizeof answer);
    if (got == 0) break;
    if (got < 0) continue;
    waits.erase(answer.index);
    if (answer.carries) ++found;
    if (answer.failed) ++*unknown;
  }
  ::close(pipe[0]);
  *unknown += static_cast<int>(waits.size());
  for (const auto& [index, reader] : waits) ::kill(reader, SIGKILL);
  ReapSoon(std::move(readers));
  return found;
}

// Kills the children of `parent` but one, and says how many live ones there were, those included
// that another user's rights protect.
int KillChildren(pid_t parent, pid_t but) {
  int found = 0;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return 0;
  while (const dirent* entry = ::readdir(proc)) {
    char* end = nullptr;
    const long pid = ::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0' || pid <= 1 || pid == but) continue;
    std::string stat;
    if (ReadSmallFile(std::string("/proc/") + entry->d_name + "/stat", &stat) != 0) continue;
    pid_t its_parent = 0;
    const char state = StateOf(stat, &its_parent);
    if (state == '\0' || state == 'Z' || state == 'X' || its_parent != parent) continue;
    ::kill(static_cast<pid_t>(pid), SIGKILL);
    ++found;
  }
  ::closedir(proc);
  return found;
}

void BlockEverySignal() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace

void Backoff::Pause() {
  Sleep(next_ns_);
  next_ns_ = std::min(2 * next_ns_, kLongest);
}

int ReadEnvironment(const std::string& process, std::string* content) {
  content->clear();
  const int file = OpenEnvironment(process);
  if (file < 0) return errno;
  const int error = Stuck(process) ? ReadApart(file, content) : ReadAll(file, content);
  ::close(file);
  return error;
}

int KillByToken(std::string_view token, int* unknown, const std::string& proc_directory,
                int64_t patience_ns) {
  const std::string wanted = std::string(kTokenVariable) + "=" + std::string(token);
  int found = 0, untold = 0;
  DIR* proc = ::opendir(proc_directory.c_str());
  if (proc == nullptr) return 0;
  const pid_t self = ::getpid();
  std::vector<Stray> stuck;  // last: they may take their time
  while (const dirent* entry = ::readdir(proc)) {
    char* end = nullptr;
    const long pid = ::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0' || pid <= 1 || pid == self) continue;
    const std::string process = proc_directory + "/" + entry->d_name;
    bool carries = false;
    const int file = OpenEnvironment(process);
    if (file < 0) continue;  // another user's, mostly
    if (Stuck(process)) {
      stuck.push_back({static_cast<pid_t>(pid), process});
    } else if (FindEntry(file, wanted, &carries) == 0 && carries) {
      ::kill(static_cast<pid_t>(pid), SIGKILL);
      ++found;
    }
    ::close(file);
  }
  ::closedir(proc);
  found += KillStuck(stuck, wanted, patience_ns, &untold);
  if (unknown != nullptr) *unknown += untold;
  return found;
}

Isolation::Isolation(std::string token, bool want_namespace, Cgroups cgroups, int deadline,
                     bool owned, const std::vector<std::string>& devices)
    : token_(std::move(token)), cgroups_(std::move(cgroups)), deadline_(deadline), owned_(owned) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  if (want_namespace) MakeNamespaces(devices);
  if (owned_ && !has_namespace_ && problem_.empty()) problem_ = "no PID namespace";
  StartKeeper();
}

void Isolation::MakeNamespaces(const std::vector<std::string>& devices) {
  // Shared memory of System V and message queues belong to the job, too, and go with it.
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS | (owned_ ? CLONE_NEWIPC : 0)) != 0) {
    if (owned_) problem_ = std::string("PID, mount and IPC namespaces: ") + strerror(errno);
    return;
  }
  has_namespace_ = true;
  // What the host mounts later still shows, ours doesn't leave.
  const bool own = ::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0;
  if (!owned_) return;
  std::string what = "/";
  if (const int error = own ? MakePrivateMounts(devices, &what) : errno; error != 0)
    problem_ = "private mounts: " + what + ": " + strerror(error);
}

// The keeper's life.
int Isolation::Keep(Pipes pipes) const {
  ::close(pipes.end[1]);
  ::close(pipes.ready[0]);
  ::signal(SIGCHLD, SIG_IGN);  // orphans that become ours are reaped by the kernel
  BlockEverySignal();
  char byte = kReady;
  if (has_namespace_) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    // A view of /proc that agrees with getpid(). Not every container allows it; then /proc shows
    // the host's numbers.
    if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
      byte = kHostsProc;
  } else {
    ::setsid();
  }
  if (::write(pipes.ready[1], &byte, 1) != 1) return 70;
  ::close(pipes.ready[1]);
  bool gone = WaitForEnd(pipes.end[0], deadline_, -1);
  // In a namespace our end is everybody's end.
  if (has_namespace_) return 0;
  KillStrays();
  // The deadline has passed: also what couldn't be told, or was on its way to its exec.
  for (; !gone; KillStrays()) gone = WaitForEnd(pipes.end[0], -1, 1000);
  return 0;
}

// The guardian's work.
void Isolation::KillStrays() const {
  Backoff backoff;
  for (int quiet = 0; quiet < 3;) {
    KillCgroup(cgroups_);
    quiet = KillByToken(token_) == 0 ? quiet + 1 : 0;
    if (quiet > 0) {
      backoff.Reset();
      Sleep(10 * kMillisecond);
    } else {
      backoff.Pause();
    }
  }
}

void Isolation::StartKeeper() {
  Pipes pipes;
  if (::pipe2(pipes.end, O_CLOEXEC) != 0 || ::pipe2(pipes.ready, O_CLOEXEC) != 0) ::_exit(70);
  // Read before the keeper says that it is ready, by when this function still has it.
  std::pair<const Isolation*, Pipes> given{this, pipes};
  // In a namespace it makes a few calls of the kernel and waits, so it may share the shim's memory:
  // a copy would cost both of them a fault for each page they write to. Without one it has work to
  // do when the shim is dead, and needs memory of its own.
  if (has_namespace_ && !kPlainForks) {
    alignas(16) static char stack[32 << 10];
    const auto keep = [](void* argument) -> int {
      const auto [self, own] = *static_cast<const std::pair<const Isolation*, Pipes>*>(argument);
      ::_exit(self->Keep(own));
    };
    keeper_ = ::clone(keep, stack + sizeof stack, CLONE_VM | SIGCHLD, &given);
  }
  if (keeper_ < 0) keeper_ = ::fork();
  if (keeper_ < 0) ::_exit(70);
  if (keeper_ == 0) ::_exit(Keep(pipes));
  ::close(pipes.end[0]);
  ::close(pipes.ready[1]);
  keeper_pipe_ = pipes.end[1];
  char byte = 0;
  while (::read(pipes.ready[0], &byte, 1) < 0 && errno == EINTR) {
  }
  if (owned_ && byte != kReady && problem_.empty()) problem_ = "no /proc of the namespace's own";
  ::close(pipes.ready[0]);
}

bool Isolation::EnterChild(pid_t shim) const {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  const pid_t parent = ::getppid();
  return has_namespace_ ? parent == 0 : parent == shim;
}

void Isolation::KillAll() {
  KillCgroup(cgroups_);
  if (has_namespace_) {
    if (keeper_ > 0)
      ::kill(keeper_, SIGKILL);  // returns from waitpid only when the kernel has ended and reaped
                                 // the whole namespace
  } else {
    // By parent: whoever they are of, orphans become our children. What another daemon of this user
    // started for them isn't, and is found by its token.
    const pid_t self = ::getpid();
    Backoff backoff;
    for (int quiet = 0; quiet < 2;) {
      quiet = KillChildren(self, keeper_) + KillByToken(token_) == 0 ? quiet + 1 : 0;
      for (pid_t pid; (pid = ::waitpid(-1, nullptr, WNOHANG)) > 0;) {
        if (pid == keeper_) keeper_ = -1;
      }
      if (quiet > 0) backoff.Reset();
      if (quiet < 2) backoff.Pause();
    }
    if (keeper_ > 0) ::kill(keeper_, SIGKILL);
  }
  ::close(keeper_pipe_);
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
}

}  // namespace muster::shim
