#include "common/base/run_program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/units.h"
#include "common/base/utf8.h"

namespace muster {
namespace {

constexpr size_t kErrorBytes = 500;  // of standard error, its end
constexpr int64_t kCancelIntervalNs = 100 * kMillisecond;

// A file in memory with these bytes, closed in programs; "" is /dev/null. -1: not to be had, errno
// says why.
int OpenInput(const std::string& bytes) {
  if (bytes.empty()) return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int fd = ::memfd_create("input", MFD_CLOEXEC);
  for (size_t at = 0; fd >= 0 && at < bytes.size();) {
    const ssize_t put = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (put < 0) {
      ::close(fd);
      return -1;
    }
    at += static_cast<size_t>(put);
  }
  if (fd >= 0) ::lseek(fd, 0, SEEK_SET);
  return fd;
}

// Both ends are closed in programs.
struct Pipe {
  int read = -1, write = -1;
  ~Pipe() {
    for (const int fd : {read, write}) {
      if (fd >= 0) ::close(fd);
    }
  }
  bool Open() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return false;
    read = fds[0];
    write = fds[1];
    return ::fcntl(read, F_SETFL, O_NONBLOCK) == 0;
  }
  void CloseWrite() {
    ::close(write);
    write = -1;
  }
  // What is there now; closes at the end.
  void Drain(size_t most, bool keep_end, std::string* out) {
    char buffer[16384];
    while (read >= 0) {
      const ssize_t got = ::read(read, buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        ::close(read);
        read = -1;
        return;
      }
      const size_t room = keep_end ? static_cast<size_t>(got)
                                   : std::min(static_cast<size_t>(got), most - out->size());
      out->append(buffer, room);
      if (keep_end && out->size() > most) out->erase(0, out->size() - most);
    }
  }
};

// posix_spawn's work with a word of its own: the kernel kills the child when the calling thread is
// gone, which waits for it. 0, or an errno; a program that isn't there exits with 127.
int SpawnBound(char* const* words, char* const* variables, int input, int out, int err,
               pid_t* child) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::_Fork();  // fork() would run gRPC's handlers, which wait for its threads
  if (pid < 0) return errno;
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::setpgid(0, 0);
    ::dup2(input, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(words[0], words, variables);
    ::dprintf(2, "%s: %s", words[0], ::strerrordesc_np(errno));
    ::_exit(127);
  }
  ::setpgid(pid, pid);
  *child = pid;
  return 0;
}

}  // namespace

absl::StatusOr<ProgramEnd> RunProgram(const ProgramOptions& options) {
  Pipe out, err;
  if (!out.Open() || !err.Open()) return ErrnoStatus(errno, "pipe");
  const int input = OpenInput(options.input);
  if (input < 0) return ErrnoStatus(errno, "its input");
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.write, 1);
  ::posix_spawn_file_actions_adddup2(&actions, err.write, 2);
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> words, variables;
  for (const std::string& word : options.argv) words.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& variable : options.environment)
    variables.push_back(const_cast<char*>(variable.c_str()));
  words.push_back(nullptr);
  variables.push_back(nullptr);
  pid_t pid = -1;
  char* const* const environment = options.environment.empty() ? environ : variables.data();
  const int error =
      options.dies_with_us
          ? SpawnBound(words.data(), environment, input, out.write, err.write, &pid)
          : ::posix_spawn(&pid, words[0], &actions, &attributes, words.data(), environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  ::close(input);
  if (error != 0) return ErrnoStatus(error, options.argv[0]);
  out.CloseWrite();
  err.CloseWrite();
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));

  ProgramEnd end;
  std::string said;
  const int64_t until_ns = RealClock()->MonotonicNs() + options.time_limit_ns;
  bool ended = false, late = false, cancelled = false;
  while (!ended && !late && !cancelled) {
    int64_t wait_ns = until_ns - RealClock()->MonotonicNs();
    late = options.time_limit_ns > 0 && wait_ns <= 0;
    cancelled = options.cancel != nullptr && *options.cancel;
    if (late || cancelled) break;
    if (options.time_limit_ns == 0 || options.cancel != nullptr || pidfd < 0)
      wait_ns = kCancelIntervalNs;
    pollfd ready[3] = {{pidfd, POLLIN, 0}, {out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
    ::poll(ready, 3, static_cast<int>(std::min<int64_t>(wait_ns, kMinute) / kMillisecond) + 1);
    siginfo_t info{};
    ended = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == pid;
    out.Drain(options.most_bytes, /*keep_end=*/false, &end.output);
    err.Drain(kErrorBytes, /*keep_end=*/true, &said);
  }
  if (!ended) ::kill(-pid, SIGKILL);  // not reaped yet: the group's number is still its own
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (pidfd >= 0) ::close(pidfd);
  end.exit_code = ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (late) {
    end.why = absl::StrCat("no end within ", FormatDuration(options.time_limit_ns));
  } else if (cancelled) {
    end.why = "given up";
  } else if (end.exit_code < 0) {
    end.why = absl::StrCat("killed by signal ", WTERMSIG(status));
  } else if (end.exit_code > 0) {
    end.why = absl::StrCat("exit ", end.exit_code);
  }
  const std::string words_said = ValidUtf8(std::string(absl::StripAsciiWhitespace(said)));
  if (!end.why.empty() && !words_said.empty()) absl::StrAppend(&end.why, ": ", words_said);
  return end;
}

}  // namespace muster
