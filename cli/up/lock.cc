#include "cli/up/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/files.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int kPollMs = 20;
constexpr int kTriesMost = 250;  // 5 s; whoever only looks shares the lock for microseconds
constexpr size_t kTroubleBytesMax = 4000;
constexpr size_t kHolderBytesMax = 8192;

std::string LockPath(const std::string& data_dir) { return data_dir + "/up.lock"; }

std::string NoteBeside(const std::string& server) {
  return absl::StrCat(absl::StripPrefix(server, "unix://"), ".up");
}

// "PID SERVER\nTROUBLE"
UpHolder ReadHolder(int fd, const std::string& data_dir) {
  UpHolder holder;
  char text[kHolderBytesMax];
  const ssize_t length = pread(fd, text, sizeof text, 0);
  std::string said(text, static_cast<size_t>(std::max<ssize_t>(0, length)));
  said.erase(said.find_last_not_of('\n') + 1);  // Write fills up with them
  const size_t line = std::min(said.find('\n'), said.size()), blank = said.find(' ');
  if (blank >= line || !absl::SimpleAtoi(said.substr(0, blank), &holder.pid)) return {};
  holder.data_dir = data_dir;
  holder.server = said.substr(blank + 1, line - blank - 1);
  holder.trouble = said.substr(std::min(line + 1, said.size()));
  return holder;
}

// Though others, who only look whether somebody holds it, may share it for a moment. 0, or why not:
// EWOULDBLOCK where another one holds it.
int TakeAlone(int fd) {
  for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; ++tries) {
    const int error = errno;
    if (error != EWOULDBLOCK || tries == kTriesMost || flock(fd, LOCK_SH | LOCK_NB) != 0)
      return error;
    flock(fd, LOCK_UN);
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UpLock>> UpLock::Take(const std::string& data_dir,
                                                     const std::string& server, UpHolder* holder) {
  const int fd = open(LockPath(data_dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, LockPath(data_dir));
  std::unique_ptr<UpLock> lock(new UpLock(fd, data_dir, server));
  const int error = TakeAlone(fd);
  if (error == EWOULDBLOCK) {
    *holder = ReadHolder(fd, data_dir);
    return absl::AlreadyExistsError("muster up is already running");
  }
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(LockPath(data_dir), " can't be locked: ", strerror(error),
                     "; name a directory on a local file system: --data-dir DIR"));
  }
  if (absl::Status written = lock->Write(""); !written.ok()) return written;
  return lock;
}

UpHolder UpLock::Holder(const std::string& data_dir) {
  const int fd = open(LockPath(data_dir).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  UpHolder holder;
  if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) holder = ReadHolder(fd, data_dir);
  close(fd);
  return holder;
}

UpHolder UpLock::Serving(const std::string& server, const Environment& environment) {
  const std::string note = NoteBeside(server);
  struct stat info;
  if (lstat(note.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid()) {
    const absl::StatusOr<std::string> data_dir = ReadFile(note, 8192);
    if (data_dir.ok()) {
      const UpHolder holder = Holder(std::string(absl::StripSuffix(*data_dir, "\n")));
      if (holder.server == server) return holder;
    }
  }
  const UpHolder holder = Holder(DefaultDataDirectory(environment));
  return holder.server == server ? holder : UpHolder();
}

bool UpLock::WaitUntilFree(const std::string& data_dir, const Interrupt& interrupt) {
  const int fd = open(LockPath(data_dir).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  bool free = false;
  while (!(free = flock(fd, LOCK_SH | LOCK_NB) == 0) && !interrupt.WaitFor(kPollMs)) {
  }
  close(fd);
  return free;
}

UpLock::~UpLock() { close(fd_); }

void UpLock::NameDirectory() const {
  const int fd = open(NoteBeside(server_).c_str(),
                      O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const std::string text = data_dir_ + "\n";
  if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    unlink(NoteBeside(server_).c_str());
  close(fd);
}

void UpLock::ForgetDirectory() const { unlink(NoteBeside(server_).c_str()); }

void UpLock::Tell(const std::string& trouble) {
  Write(trouble.substr(0, kTroubleBytesMax)).IgnoreError();  // a full disk may be the trouble
}

absl::Status UpLock::Write(const std::string& trouble) {
  std::string text = absl::StrCat(getpid(), " ", server_, "\n", trouble);
  const size_t length = text.size();
  struct stat before {};
  if (fstat(fd_, &before) != 0) return ErrnoStatus(errno, LockPath(data_dir_));
  // Over what stands there, and shorter only then: who reads meanwhile finds a holder, and where
  // the disk is full, what stood there stays.
  text.resize(std::max(length, std::min(kHolderBytesMax, static_cast<size_t>(before.st_size))),
              '\n');
  const ssize_t wrote = pwrite(fd_, text.data(), text.size(), 0);
  if (wrote != static_cast<ssize_t>(text.size()))
    return ErrnoStatus(wrote < 0 ? errno : ENOSPC, LockPath(data_dir_));
  if (ftruncate(fd_, static_cast<off_t>(length)) != 0)
    return ErrnoStatus(errno, LockPath(data_dir_));
  return absl::OkStatus();
}

std::string DownCommand(const std::string& data_dir, const Environment& environment) {
  return data_dir == DefaultDataDirectory(environment)
             ? "muster down"
             : absl::StrCat("muster down --data-dir ", data_dir);
}

int64_t RestartPause::After(int64_t ran_ns) {
  ends_ = ran_ns >= kMinute ? 1 : std::min(ends_ + 1, 1'000'000);
  if (ends_ == 1) return 0;
  return std::min(kMinute, kSecond << std::min(ends_ - 2, 6));
}

}  // namespace muster
