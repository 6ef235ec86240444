#include "agent/shim/unpack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "agent/shim/durable.h"
#include "common/pack/format.h"

namespace muster::shim {
namespace {

using Kind = Unpacked::Kind;

constexpr size_t kBuffer = 1 << 16;
constexpr size_t kSyncedAtOnce = 64, kSyncers = 16;  // files, threads
constexpr int kMostListed = 10'000;  // of a job's directory, which may have any number
constexpr int kTries = 8;            // for a name that stays ours
// What another machine, or this one before its last boot, left behind while it unpacked: whether
// its lock is held can't be told here, and nobody waits for an unpacking for so long.
constexpr time_t kForgottenAfterS = 15 * 60;
constexpr size_t kMachineDigits = 8, kRandomDigits = 16;
constexpr int kDirectory = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() { Reset(-1); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  void Reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

Unpacked Bad(const std::string& what) { return {Kind::kBadArchive, what, 0}; }
Unpacked Storage(const std::string& what, int error) { return {Kind::kStorage, what, error}; }

// 0, or what went wrong. One by one, each would wait for a commit of the file system of its own;
// syncfs would wait for all that others' jobs have written there, too.
int SyncTogether(const Fd* files, size_t count) {
  std::atomic<size_t> next = 0;
  std::atomic<int> error = 0;
  const auto sync = [&] {
    for (size_t i = next++; i < count; i = next++) {
      if (::fsync(files[i].get()) != 0) error = errno;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(kSyncers);
  try {
    while (threads.size() + 1 < std::min(kSyncers, count)) threads.emplace_back(sync);
  } catch (const std::system_error&) {  // the owner has too many processes: with fewer, then
  }
  sync();
  for (std::thread& thread : threads) thread.join();
  return error;
}

class Unpacking {
 public:
  // `root` is the empty directory that all goes into.
  Unpacking(int archive, int root, uint32_t umask)
      : archive_(archive), root_(root), umask_(umask) {}

  Unpacked Run() {
    struct stat info {};
    if (::fstat(archive_, &info) != 0) return Storage("the archive", errno);
    size_ = info.st_size;
    std::string text;
    if (size_ > kPackMaxBytes) return Bad("it is too large");
    if (!Read(kPackMagic.size(), &text) || text != kPackMagic) return Bad("it is no archive");
    for (int64_t entries = 0;; ++entries) {
      if (!Read(kPackHeaderBytes, &text)) return Bad("it ends early");
      const PackHeader header = ReadPackHeader(text);
      if (header.kind == kPackEnd) {
        if (header.path_bytes != 0 || header.content_bytes != 0 || at_ != size_)
          return Bad("something follows its end");
        return Sync();
      }
      if (entries >= kPackMaxEntries) return Bad("it has too many entries");
      std::string path;
      if (header.path_bytes > kPackMaxPath || !Read(header.path_bytes, &path) || !IsPackPath(path))
        return Bad("an entry has a path that it may not have");
      if (header.content_bytes > static_cast<uint64_t>(size_ - at_)) return Bad("it ends early");
      if (Unpacked made = Make(header, path); made.kind != Kind::kDone) return made;
    }
  }

 private:
  bool Read(size_t bytes, std::string* text) {
    text->resize(bytes);
    size_t got = 0;
    while (got < bytes) {
      const ssize_t count = ::pread(archive_, text->data() + got, bytes - got, at_);
      if (count <= 0) return false;
      got += static_cast<size_t>(count);
      at_ += count;
    }
    return true;
  }

  // The directory that an entry of this path lies in: entries before it made it. -1: they didn't.
  int ParentOf(const std::string& path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return root_;
    const std::string parent = path.substr(0, slash);
    if (parent == parent_path_ && parent_.get() >= 0) return parent_.get();
    std::string_view rest = parent;
    Fd at(::fcntl(root_, F_DUPFD_CLOEXEC, 0));
    while (at.get() >= 0 && !rest.empty()) {
      const std::string name(TakePackName(&rest));
      at.Reset(::openat(at.get(), name.c_str(), kDirectory));
    }
    parent_.Reset(at.get() < 0 ? -1 : ::fcntl(at.get(), F_DUPFD_CLOEXEC, 0));
    parent_path_ = parent;
    return parent_.get();
  }

  Unpacked Make(const PackHeader& header, const std::string& path) {
    const int parent = ParentOf(path);
    if (parent < 0) return Bad(path + " lies in no directory of it");
    const std::string name = path.substr(path.rfind('/') + 1);
    const mode_t all = header.kind == kPackFile ? 0666 : 0777;
    switch (header.kind) {
      case kPackDirectory:
        if (header.content_bytes != 0) return Bad(path + " is a directory with content");
        if (::mkdirat(parent, name.c_str(), 0777) == 0 &&
            ::fchmodat(parent, name.c_str(), all & ~umask_, 0) == 0) {
          directories_.push_back(path);
          return {};
        }
        break;
      case kPackLink: {
        std::string target;
        if (header.content_bytes > kPackMaxLink || !Read(header.content_bytes, &target) ||
            !IsPackLink(path, target))
          return Bad(path + " is a link that leads out of it");
        if (::symlinkat(target.c_str(), parent, name.c_str()) == 0) return {};
        break;
      }
      case kPackFile:
      case kPackProgram:
        return Write(parent, name, path, header.content_bytes, all & ~umask_);
      default:
        return Bad(path + " is neither file, directory nor link");
    }
    return errno == EEXIST ? Bad(path + " is in it twice") : Storage(path, errno);
  }

  Unpacked Write(int parent, const std::string& name, const std::string& path, uint64_t bytes,
                 mode_t mode) {
    const Fd file(
        ::openat(parent, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file.get() < 0)
      return errno == EEXIST ? Bad(path + " is in it twice") : Storage(path, errno);
    std::string piece;
    for (uint64_t left = bytes; left > 0; left -= piece.size()) {
      if (!Read(std::min<uint64_t>(left, kBuffer), &piece)) return Bad("it ends early");
      size_t written = 0;
      while (written < piece.size()) {
        const ssize_t count = ::write(file.get(), piece.data() + written, piece.size() - written);
        if (count < 0 && errno != EINTR) return Storage(path, errno);
        written += static_cast<size_t>(std::max<ssize_t>(count, 0));
      }
    }
    if (::fchmod(file.get(), mode) != 0) return Storage(path, errno);
    files_.push_back(path);
    return {};
  }

  // So that nobody finds it half there after a loss of power.
  Unpacked Sync() {
    directories_.emplace_back(".");
    std::vector<std::string>& paths = files_;
    paths.insert(paths.end(), directories_.begin(), directories_.end());
    std::array<Fd, kSyncedAtOnce> open;
    size_t count = 0;
    for (size_t i = 0; i < paths.size(); ++i) {
      const int parent = ParentOf(paths[i]);
      const std::string name = paths[i].substr(paths[i].rfind('/') + 1);
      open[count].Reset(::openat(parent, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      // One that its owner may not read, by umask, is synced by nobody.
      if (open[count].get() < 0 && errno != EACCES) return Storage(paths[i], errno);
      if (open[count].get() >= 0) ++count;
      if (count < open.size() && i + 1 < paths.size()) continue;
      if (const int error = SyncTogether(open.data(), count); error != 0)
        return Storage("sync", error);
      count = 0;
    }
    return {};
  }

  const int archive_, root_;
  const mode_t umask_;
  off_t at_ = 0, size_ = 0;
  Fd parent_;  // the newest one's
  std::string parent_path_;
  std::vector<std::string> files_, directories_;
};

// What is unpacked before it has its name: ".NAME.MACHINE.RANDOM". A machine's is another one after
// each boot.
std::string TemporaryPrefix(const std::string& name) { return "." + name + "."; }

std::string ThisMachine() {
  std::string boot_id;
  (void)ReadSmallFile("/proc/sys/kernel/random/boot_id", &boot_id);
  boot_id.resize(kMachineDigits, '0');
  return boot_id;
}

void RemoveAll(int below, const std::string& name) {
  std::error_code ignored;
  std::filesystem::remove_all("/proc/self/fd/" + std::to_string(below) + "/" + name, ignored);
}

bool TryLock(int directory) { return ::flock(directory, LOCK_EX | LOCK_NB) == 0; }

// Removes what was left behind of this name by unpackings that were killed. Who unpacks holds a
// lock on its directory, which others of the same machine see whatever the file system is.
void RemoveForgotten(int below, const std::string& name) {
  const int listed = ::openat(below, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const open = listed < 0 ? nullptr : ::fdopendir(listed);
  if (open == nullptr) return;
  const std::string prefix = TemporaryPrefix(name), machine = ThisMachine() + ".";
  std::vector<std::string> found;
  for (int i = 0; i < kMostListed; ++i) {
    const dirent* entry = ::readdir(open);
    if (entry == nullptr) break;
    const std::string_view other = entry->d_name;
    if (other.substr(0, prefix.size()) == prefix &&
        other.size() == prefix.size() + machine.size() + kRandomDigits)
      found.emplace_back(other);
  }
  ::closedir(open);
  for (const std::string& other : found) {
    const Fd directory(
        ::openat(below, other.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    if (directory.get() < 0 || ::fstat(directory.get(), &info) != 0) continue;
    const bool ours = other.compare(prefix.size(), machine.size(), machine) == 0;
    if (!ours && info.st_mtime > ::time(nullptr) - kForgottenAfterS) continue;
    if (TryLock(directory.get())) RemoveAll(below, other);
  }
}

// A new empty directory of an unguessed name, locked, that nobody else takes for a forgotten one.
// Its descriptor in `*directory`; 0 or why there is none.
int MakeLocked(int below, const std::string& name, std::string* made, Fd* directory) {
  for (int i = 0; i < kTries; ++i) {
    uint64_t random = 0;
    (void)!::getrandom(&random, sizeof random, 0);
    char digits[kRandomDigits + 1];
    ::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(random));
    *made = TemporaryPrefix(name) + ThisMachine() + "." + digits;
    if (::mkdirat(below, made->c_str(), 0700) != 0) return errno;
    directory->Reset(
        ::openat(below, made->c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat here {
    }, there{};
    if (directory->get() >= 0 && TryLock(directory->get()) &&
        ::fstat(directory->get(), &here) == 0 &&
        ::fstatat(below, made->c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        here.st_ino == there.st_ino)
      return 0;
    // Who looks for forgotten ones was faster.
  }
  return EAGAIN;
}

}  // namespace

Unpacked Unpack(int below, const std::string& name, int archive, uint32_t umask) {
  const auto is_there = [&] { return Fd(::openat(below, name.c_str(), kDirectory)).get() >= 0; };
  const bool there = is_there();
  const int why = errno;
  if (there || archive >= 0) RemoveForgotten(below, name);
  if (there) return {};
  if (why != ENOENT) return Storage(name, why);
  if (archive < 0) return {Kind::kWanted, "", 0};
  std::string made;
  Fd root;
  if (const int error = MakeLocked(below, name, &made, &root); error != 0)
    return Storage(made, error);
  Unpacked result = Unpacking(archive, root.get(), umask).Run();
  // Its owner's alone, whatever the umask: what a file's mode kept from others is not in the
  // archive.
  if (result.kind == Kind::kDone && (::fchmod(root.get(), 0700) != 0 ||
                                     ::renameat(below, made.c_str(), below, name.c_str()) != 0)) {
    const int error = errno;
    result = is_there() ? Unpacked() : Storage(name, error);  // another host was first
  }
  RemoveAll(below, made);  // nothing, where it has its name
  if (result.kind == Kind::kDone) {
    const Fd parent(::openat(below, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent.get() >= 0) ::fsync(parent.get());
  }
  return result;
}

}  // namespace muster::shim
