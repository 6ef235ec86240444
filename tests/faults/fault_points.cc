// Ends the process that it is part of with SIGKILL at a named point: before or after the n-th call
// of a kind that concerns a path. Loaded with LD_PRELOAD, or linked into a program.
//
// The point is read once from a file: $FAULT_POINT, or `fault-point` beside the program. Its one
// line is CALL WHEN N PATTERN:
//   CALL     sync: fsync and fdatasync; link; rename; write: the first pwrite to a file since it
//   was synced last, that is, where a
//            transaction of SQLite's begins to be written
//   WHEN     before, after
//   N        from 1, counted by each process for itself; 0: calls are only told
//   PATTERN  as of fnmatch, of the path; link and rename: of the new one
// Beside the file grows FILE.calls, a line `CALL PATH` for each call that matches. Who reaches the
// point makes FILE.reached before it dies; with that file there nobody dies.
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <string>

namespace {

// The host's own, whatever is mounted over it later: a shim's keeper mounts one in which the shim
// isn't to be found.
int g_proc = -1;
__attribute__((constructor)) void OpenProc() {
  g_proc = ::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

std::string Target(const std::string& name) {
  char buffer[4096];
  const ssize_t size = ::readlinkat(g_proc, name.c_str(), buffer, sizeof buffer);
  return size <= 0 ? "" : std::string(buffer, static_cast<size_t>(size));
}

std::string PathOf(int fd) { return Target("self/fd/" + std::to_string(fd)); }

class Point {
 public:
  Point() {
    const char* named = ::getenv("FAULT_POINT");
    const std::string program = Target("self/exe");
    file_ = named != nullptr ? named : program.substr(0, program.rfind('/') + 1) + "fault-point";
    char line[4096], call[16], when[16], pattern[2048];
    FILE* const file = ::fopen(file_.c_str(), "re");
    if (file == nullptr) return;
    if (::fgets(line, sizeof line, file) != nullptr &&
        ::sscanf(line, "%15s %15s %d %2047s", call, when, &number_, pattern) == 4) {
      call_ = call;
      before_ = strcmp(when, "before") == 0;
      pattern_ = pattern;
    }
    ::fclose(file);
  }

  // True: the call that follows is the one, and the process ends after it.
  bool Before(const char* call, const std::string& path) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (call_ == "write") {
      if (strcmp(call, "sync") == 0) written_.erase(path);
      if (strcmp(call, "write") == 0 && !written_.insert(path).second) return false;
    }
    if (call_ != call || ::fnmatch(pattern_.c_str(), path.c_str(), 0) != 0) return false;
    Append(".calls", call_ + " " + path + "\n");
    if (++count_ != number_) return false;
    if (before_) Die();
    return !before_;
  }

  void Die() const {
    const int reached =
        ::open((file_ + ".reached").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (reached < 0) return;
    ::kill(::getpid(), SIGKILL);
    while (true) ::pause();
  }

 private:
  void Append(const char* suffix, const std::string& text) const {
    const int fd =
        ::open((file_ + suffix).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (::syscall(SYS_write, fd, text.data(), text.size()) < 0) perror("fault point");
    ::close(fd);
  }

  std::mutex mutex_;
  std::string file_, call_, pattern_;
  bool before_ = true;
  int number_ = 0, count_ = 0;
  std::set<std::string> written_;
};

Point& ThePoint() {
  static Point& point = *new Point;  // outlives what is destroyed at the end of the process
  return point;
}

template <typename Real>
auto Call(const char* call, const std::string& path, Real real) {
  Point& point = ThePoint();
  const int before = errno;
  const bool last = point.Before(call, path);
  errno = before;
  const auto result = real();
  if (last) point.Die();
  return result;
}

}  // namespace

extern "C" {

int fsync(int fd) {
  return Call("sync", PathOf(fd), [=] { return static_cast<int>(::syscall(SYS_fsync, fd)); });
}
int fdatasync(int fd) {
  return Call("sync", PathOf(fd), [=] { return static_cast<int>(::syscall(SYS_fdatasync, fd)); });
}
int link(const char* from, const char* to) noexcept {
  return Call("link", to, [=] {
    return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  });
}
int rename(const char* from, const char* to) noexcept {
  return Call("rename", to, [=] {
    return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  });
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) {
  return Call("write", PathOf(fd),
              [=] { return static_cast<ssize_t>(::syscall(SYS_pwrite64, fd, bytes, size, at)); });
}
ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t at) {
  return Call("write", PathOf(fd),
              [=] { return static_cast<ssize_t>(::syscall(SYS_pwrite64, fd, bytes, size, at)); });
}

}  // extern "C"
