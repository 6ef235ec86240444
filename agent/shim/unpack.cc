#include "agent/shim/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "common/pack/format.h"

namespace muster::shim {
namespace {

using Kind = Unpacked::Kind;

constexpr size_t kBuffer = 1 << 16;
constexpr size_t kSyncedOneByOne = 256;  // files; more of them cost less by their file system
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
    if (files_.size() + directories_.size() > kSyncedOneByOne) {
      const Fd any(::openat(root_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      return any.get() >= 0 && ::syncfs(any.get()) == 0 ? Unpacked() : Storage("sync", errno);
    }
    directories_.push_back(".");
    for (const std::vector<std::string>* paths : {&files_, &directories_}) {
      for (const std::string& path : *paths) {
        const int parent = ParentOf(path);
        const std::string name = path.substr(path.rfind('/') + 1);
        const Fd open(::openat(parent, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
        // One that its owner may not read, by umask, is synced by nobody.
        if (open.get() < 0 && errno == EACCES) continue;
        if (open.get() < 0 || ::fsync(open.get()) != 0) return Storage(path, errno);
      }
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

// A name that nobody else takes.
std::string Unguessed(const std::string& name) {
  unsigned char random[8] = {};
  (void)!::getrandom(random, sizeof random, 0);
  std::string text = "." + name + ".";
  for (const unsigned char byte : random) {
    char digits[3];
    ::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

}  // namespace

Unpacked Unpack(int below, const std::string& name, int archive, uint32_t umask) {
  const auto is_there = [&] { return Fd(::openat(below, name.c_str(), kDirectory)).get() >= 0; };
  if (is_there()) return {};
  if (errno != ENOENT) return Storage(name, errno);
  if (archive < 0) return {Kind::kWanted, "", 0};
  const std::string made = Unguessed(name);
  if (::mkdirat(below, made.c_str(), 0700) != 0) return Storage(made, errno);
  const Fd root(::openat(below, made.c_str(), kDirectory));
  Unpacked result =
      root.get() < 0 ? Storage(made, errno) : Unpacking(archive, root.get(), umask).Run();
  if (result.kind == Kind::kDone && (::fchmodat(below, made.c_str(), 0777 & ~umask, 0) != 0 ||
                                     ::renameat(below, made.c_str(), below, name.c_str()) != 0)) {
    const int error = errno;
    result = is_there() ? Unpacked() : Storage(name, error);  // another host was first
  }
  std::error_code ignored;  // nothing, where it has its name
  std::filesystem::remove_all("/proc/self/fd/" + std::to_string(below) + "/" + made, ignored);
  if (result.kind == Kind::kDone) {
    const Fd parent(::openat(below, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent.get() >= 0) ::fsync(parent.get());
  }
  return result;
}

}  // namespace muster::shim
