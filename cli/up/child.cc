#include "cli/up/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"

namespace muster {

namespace {

constexpr off_t kLogBytesMax = 64 << 20;

}  // namespace

void KeepLogShort(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= kLogBytesMax)
    return;
  const std::string kept = path + ".1";
  const int from = open(path.c_str(), O_RDWR | O_CLOEXEC);
  const int to = open(kept.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ssize_t copied = -1;
  if (from >= 0 && to >= 0) {
    do copied = sendfile(to, from, nullptr, kLogBytesMax);
    while (copied > 0 || (copied < 0 && errno == EINTR));
  }
  if (copied < 0)
    unlink(kept.c_str());  // no room for both: the disk counts more than what was said long ago
  if (from >= 0 && ftruncate(from, 0) != 0) unlink(kept.c_str());
  for (const int fd : {from, to})
    if (fd >= 0) close(fd);
}

void Child::KeepShort() {
  KeepLogShort(log_path_);
  struct stat info;
  if (stat(log_path_.c_str(), &info) == 0) log_begin_ = std::min(log_begin_, info.st_size);
}

Child::Child(std::string program, std::vector<std::string> arguments, std::string log_path)
    : program_(std::move(program)),
      name_(program_.substr(program_.rfind('/') + 1)),
      log_path_(std::move(log_path)),
      arguments_(std::move(arguments)) {}

Child::~Child() { Stop(10'000); }

absl::Status Child::Start() {
  KeepLogShort(log_path_);
  int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return ErrnoStatus(errno, log_path_);
  struct stat info;
  log_begin_ = fstat(log, &info) == 0 ? info.st_size : 0;
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<char*> argv = {
      program_.data()};  // made before the fork: nothing may be allocated after it
  for (std::string& argument : arguments_) argv.push_back(argument.data());
  std::string once = std::exchange(once_, "");
  if (!once.empty()) argv.push_back(once.data());
  argv.push_back(nullptr);
  pid_t parent = getpid();
  pid_t pid = _Fork();  // fork() would run gRPC's handlers, which wait for its threads
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv(argv[0], argv.data());
    dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
  }
  int error = errno;
  close(log);
  if (null >= 0) close(null);
  if (pid < 0) return ErrnoStatus(error, "fork");
  pid_ = pid;
  ending_.clear();
  return absl::OkStatus();
}

void Child::Note(int wait_status) {
  ending_ = WIFSIGNALED(wait_status) ? absl::StrCat("SIG", sigabbrev_np(WTERMSIG(wait_status)))
                                     : absl::StrCat("exit ", WEXITSTATUS(wait_status));
  pid_ = -1;
}

bool Child::Running() {
  if (pid_ < 0) return false;
  int status = 0;
  pid_t result = waitpid(pid_, &status, WNOHANG);
  if (result == 0) return true;
  if (result == pid_) Note(status);
  pid_ = -1;
  return false;
}

void Child::Stop(int grace_ms) {
  if (!Running()) return;
  kill(pid_, SIGTERM);
  for (int waited_ms = 0; waited_ms < grace_ms; waited_ms += 20) {
    if (!Running()) return;
    poll(nullptr, 0, 20);
  }
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  Note(status);
}

std::string Child::LastLines() const {
  absl::StatusOr<std::string> log = ReadFile(log_path_);
  if (!log.ok()) return "";
  std::string text = log->substr(std::min<size_t>(log->size(), static_cast<size_t>(log_begin_)));
  size_t begin = text.size();
  for (int lines = 0; begin > 0 && lines <= 10; ++lines) {
    size_t newline = text.rfind('\n', begin - 1);
    if (newline == std::string::npos) return text;
    begin = newline;
  }
  return begin == 0 ? text : text.substr(begin + 1);
}

}  // namespace muster
