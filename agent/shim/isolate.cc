#include "agent/shim/isolate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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
#include <utility>

#include "agent/shim/cgroup.h"
#include "agent/shim/durable.h"

namespace muster::shim {
namespace {

void Sleep(int64_t ns) {
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  ::nanosleep(&time, nullptr);
}

// Runs in the keeper: blocks until the shim is gone.
void WaitForEnd(int pipe) {
  char byte;
  while (true) {
    const ssize_t got = ::read(pipe, &byte, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) return;
  }
}

// Kills the children of `parent` but one, and says how many live ones there were, those included that another user's rights protect.
int KillChildren(pid_t parent, pid_t but) {
  int found = 0;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return 0;
  while (const dirent* entry = ::readdir(proc)) {
    char* end = nullptr;
    const long pid = ::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0' || pid <= 1 || pid == but) continue;
    std::string stat;  // "pid (any name) state ppid ..."
    if (ReadSmallFile(std::string("/proc/") + entry->d_name + "/stat", &stat) != 0) continue;
    const size_t name_end = stat.rfind(") ");
    if (name_end == std::string::npos || name_end + 4 >= stat.size()) continue;
    const char state = stat[name_end + 2];
    if (state == 'Z' || state == 'X' || ::strtol(stat.c_str() + name_end + 4, nullptr, 10) != parent) continue;
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

int KillByToken(std::string_view token) {
  const std::string wanted = std::string(kTokenVariable) + "=" + std::string(token);
  int found = 0;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return 0;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(proc)) {
    char* end = nullptr;
    const long pid = ::strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0' || pid <= 1 || pid == self) continue;
    std::string environment;
    if (ReadSmallFile(std::string("/proc/") + entry->d_name + "/environ", &environment) != 0) continue;
    for (size_t at = 0; at < environment.size();) {
      size_t stop = environment.find('\0', at);
      if (stop == std::string::npos) stop = environment.size();
      if (std::string_view(environment).substr(at, stop - at) == wanted) {
        ::kill(static_cast<pid_t>(pid), SIGKILL);
        ++found;
        break;
      }
      at = stop + 1;
    }
  }
  ::closedir(proc);
  return found;
}

Isolation::Isolation(std::string token, bool want_namespace) : token_(std::move(token)) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  if (want_namespace && ::unshare(CLONE_NEWPID | CLONE_NEWNS) == 0) {
    has_namespace_ = true;
    ::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr);  // what the host mounts later still shows, ours doesn't leave
  }
  StartKeeper();
}

// The keeper's life.
int Isolation::Keep(Pipes pipes) const {
  ::close(pipes.end[1]);
  ::close(pipes.ready[0]);
  ::signal(SIGCHLD, SIG_IGN);  // orphans that become ours are reaped by the kernel
  BlockEverySignal();
  if (has_namespace_) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    // A view of /proc that agrees with getpid(). Not every container allows it; then /proc shows the host's numbers.
    ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  } else {
    ::setsid();
  }
  const char byte = 1;
  if (::write(pipes.ready[1], &byte, 1) != 1) return 70;
  ::close(pipes.ready[1]);
  WaitForEnd(pipes.end[0]);
  // The shim is dead. In a namespace our end is everybody's end.
  if (!has_namespace_) {
    Backoff backoff;
    for (int quiet = 0; quiet < 3;) {
      quiet = KillByToken(token_) == 0 ? quiet + 1 : 0;
      if (quiet > 0) {
        backoff.Reset();
        Sleep(10 * kMillisecond);
      } else {
        backoff.Pause();
      }
    }
  }
  return 0;
}

void Isolation::StartKeeper() {
  Pipes pipes;
  if (::pipe2(pipes.end, O_CLOEXEC) != 0 || ::pipe2(pipes.ready, O_CLOEXEC) != 0) ::_exit(70);
  // In a namespace it makes a few calls of the kernel and waits, so it may share the shim's memory: a copy would cost both of them a fault
  // for each page they write to. Without one it has work to do when the shim is dead, and needs memory of its own.
  if (has_namespace_ && !kPlainForks) {
    alignas(16) static char stack[32 << 10];
    std::pair<const Isolation*, Pipes> given{this, pipes};   // read before the keeper says that it is ready
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
  char byte;
  while (::read(pipes.ready[0], &byte, 1) < 0 && errno == EINTR) {
  }
  ::close(pipes.ready[0]);
}

bool Isolation::EnterChild(pid_t shim) const {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  const pid_t parent = ::getppid();
  return has_namespace_ ? parent == 0 : parent == shim;
}

void Isolation::KillAll() {
  if (has_namespace_) {
    ::kill(keeper_, SIGKILL);  // returns from waitpid only when the kernel has ended and reaped the whole namespace
  } else {
    // By parent too: an orphan that dropped our environment (`env -i x &`) is our child, and we would wait for it for ever.
    const pid_t self = ::getpid();
    Backoff backoff;
    for (int quiet = 0; quiet < 2;) {
      quiet = KillByToken(token_) + KillChildren(self, keeper_) == 0 ? quiet + 1 : 0;
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      if (quiet > 0) backoff.Reset();
      if (quiet < 2) backoff.Pause();
    }
    ::kill(keeper_, SIGKILL);
  }
  ::close(keeper_pipe_);
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
}

}  // namespace muster::shim
