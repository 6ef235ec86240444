#include "cli/login_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kPoll(20);

}  // namespace

// For reading, as a login may be of mode 0400.
LoginLock::LoginLock(const std::string& path)
    : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  // A file system without locks: as if alone.
  locked_ = fd_ >= 0 && (flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
}

LoginLock::~LoginLock() {
  if (fd_ >= 0) close(fd_);
}

bool LoginLock::held() const {
  struct stat locked {
  }, present{};
  return locked_ && fstat(fd_, &locked) == 0 && stat(path_.c_str(), &present) == 0 &&
         locked.st_dev == present.st_dev && locked.st_ino == present.st_ino;
}

absl::StatusOr<std::unique_ptr<LoginLock>> LoginLock::Wait(const std::string& path,
                                                           int64_t limit_ns) {
  const int64_t until_ns = RealClock()->MonotonicNs() + limit_ns;
  for (;;) {
    auto lock = std::make_unique<LoginLock>(path);
    if (lock->fd_ < 0 || lock->held()) return lock;
    if (RealClock()->MonotonicNs() >= until_ns) {
      return absl::FailedPreconditionError(
          absl::StrCat(path,
                       ": another muster command renews or replaces this login just now. Try again "
                       "in a minute; nothing was changed"));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace muster
