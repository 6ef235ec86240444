#include "agent/shim/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/shim/format.h"

namespace muster::shim {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string TemporaryName(const std::string& directory, std::string_view name) {
  return directory + "/." + std::string(name) + "." + std::to_string(::getpid()) + ".tmp";
}

// The content of a file that lies there, of whatever length.
int Overwrite(int fd, std::string_view content, bool sync) {
  struct stat info {};
  if (const int error = WriteAll(fd, content); error != 0) return error;
  if (::fstat(fd, &info) != 0 || (info.st_size > static_cast<off_t>(content.size()) &&
                                  ::ftruncate(fd, static_cast<off_t>(content.size())) != 0))
    return errno;
  return sync && ::fsync(fd) != 0 ? errno : 0;
}

int WriteTemporary(const std::string& path, std::string_view content, bool sync) {
  const auto make = [&] {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  };
  int made = make();
  if (made < 0 && errno == EEXIST && ::unlink(path.c_str()) == 0)
    made = make();  // of one that was killed here before us
  Descriptor fd(made);
  if (fd.get() < 0) return errno;
  if (const int error = WriteAll(fd.get(), content); error != 0) return error;
  if (sync && ::fsync(fd.get()) != 0) return errno;
  return 0;
}

constexpr std::string_view kStartedText = "started\n";
constexpr std::string_view kStoppedText = "stopped\n";

std::string_view TextOf(Claim claim) {
  return claim == Claim::kStarted ? kStartedText : kStoppedText;
}
const char* ClaimTextName(Claim claim) {
  return claim == Claim::kStarted ? "claim-started" : "claim-stopped";
}

}  // namespace

bool NamesNothing(int error) {
  return error == ENOENT || error == EACCES || error == ENOTDIR || error == ELOOP ||
         error == ENAMETOOLONG || error == ENOEXEC || error == E2BIG;
}

std::string SpareName(const std::string& directory, std::string_view name) {
  return directory + "/." + std::string(name) + ".spare";
}

pid_t LockHolder(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fd.get() < 0 || ::fcntl(fd.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  return lock.l_pid > 0 ? lock.l_pid : -1;
}

int WriteAll(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t done = ::write(fd, content.data(), content.size());
    if (done < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    content.remove_prefix(static_cast<size_t>(done));
  }
  return 0;
}

int SyncDirectory(const std::string& directory) {
  Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) return errno;
  return 0;
}

int SyncFile(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) return errno;
  return SyncDirectory(path.substr(0, path.rfind('/')));
}

int ReplaceFile(const std::string& directory, const std::string& name, std::string_view content,
                bool sync) {
  const std::string target = directory + "/" + name;
  std::string temporary = SpareName(directory, name);
  Descriptor spare(::open(temporary.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  bool exchanged = false;
  int error = 0;
  if (spare.get() >= 0 && ::fstat(spare.get(), &info) == 0 && S_ISREG(info.st_mode)) {
    error = Overwrite(spare.get(), content, sync);
    exchanged = error == 0 && ::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(),
                                          RENAME_EXCHANGE) == 0;
  } else {
    temporary = TemporaryName(directory, name);
    error = WriteTemporary(temporary, content, sync);
  }
  if (error == 0 && !exchanged && ::rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    return error;
  }
  return sync ? SyncDirectory(directory) : 0;
}

int ReserveFile(const std::string& directory, const std::string& name, size_t bytes) {
  const std::string spare = SpareName(directory, name), temporary = TemporaryName(directory, name);
  if (::access(spare.c_str(), F_OK) == 0) return 0;
  // Whole before it has its name: somebody else may use it from then on.
  int error = WriteTemporary(temporary, std::string(bytes, '\n'), /*sync=*/false);
  if (error == 0 &&
      ::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, spare.c_str(), RENAME_NOREPLACE) == 0)
    return 0;
  // Not every file system can.
  if (error == 0 && errno != EEXIST && ::link(temporary.c_str(), spare.c_str()) != 0 &&
      errno != EEXIST)
    error = errno;
  ::unlink(temporary.c_str());
  return error;
}

int ReadSmallFile(const std::string& path, std::string* content) {
  content->clear();
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW |
                                         O_NONBLOCK));  // a FIFO would wait for a writer
  return fd.get() < 0 ? errno : ReadAll(fd.get(), content);
}

int ReadAll(int fd, std::string* content) {
  content->clear();
  char buffer[16384];
  while (true) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (got == 0) return 0;
    content->append(buffer, static_cast<size_t>(got));
    if (content->size() > (size_t{64} << 20)) return EFBIG;
  }
}

int ReadClaim(const std::string& directory, Claim* claim) {
  std::string text;
  *claim = Claim::kNone;
  const int error = ReadSmallFile(directory + "/" + kClaimFile, &text);
  if (error == ENOENT) return 0;
  if (error != 0) return error;
  if (text == kStartedText) {
    *claim = Claim::kStarted;
  } else if (text == kStoppedText) {
    *claim = Claim::kStopped;
  } else {
    return EBADMSG;
  }
  return 0;
}

int MakeClaimTexts(const std::string& root) {
  for (const Claim claim : {Claim::kStarted, Claim::kStopped}) {
    const std::string name = ClaimTextName(claim);
    std::string content;
    if (ReadSmallFile(root + "/" + name, &content) == 0 && content == TextOf(claim)) continue;
    if (const int error = ReplaceFile(root, name, TextOf(claim)); error != 0) return error;
  }
  return 0;
}

int MakeClaim(const std::string& directory, Claim wanted, Claim* winner) {
  const std::string name = directory + "/" + kClaimFile;
  // The text that lies ready saves writing and syncing a file of its own. Without it, or with all
  // of its links in use, one is made.
  const std::string ready = directory + "/../../" + ClaimTextName(wanted);
  if (::link(ready.c_str(), name.c_str()) != 0 && errno != EEXIST) {
    const std::string temporary = TemporaryName(directory, ClaimTextName(wanted));
    int error = WriteTemporary(temporary, TextOf(wanted), true);
    if (error == 0 && ::link(temporary.c_str(), name.c_str()) != 0 && errno != EEXIST)
      error = errno;
    ::unlink(temporary.c_str());
    if (error != 0) return error;
  }
  if (const int error = SyncDirectory(directory); error != 0) return error;
  if (const int error = SyncDirectory(directory + "/.."); error != 0) return error;
  return ReadClaim(directory, winner);
}

}  // namespace muster::shim
