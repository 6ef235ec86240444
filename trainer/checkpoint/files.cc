#include "trainer/checkpoint/files.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/checkpoint/objects.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(const std::string& what, const std::string& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT;
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error),
                                        full ? "; free some, or name a place that has more" : "");
  if (error == ENOENT) return absl::NotFoundError(text);
  return absl::UnavailableError(text);
}

// Owns a descriptor.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

absl::Status WriteAll(int fd, std::span<const uint8_t> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("cannot write", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status SyncPath(const std::string& path, int flags) {
  Descriptor file{::open(path.c_str(), flags | O_CLOEXEC)};
  if (file.fd < 0) return Errno("cannot open", path);
  if (::fsync(file.fd) != 0) return Errno("cannot fsync", path);
  return absl::OkStatus();
}

absl::Status Failed(const std::string& text) {
  return text.empty() ? absl::OkStatus() : absl::UnavailableError(text);
}

// Makes a file without a name in TMPDIR.
absl::Status MakeNameless(Descriptor& file) {
  std::error_code error;
  const std::string folder = fs::temp_directory_path(error).string();
  // Never NOT_FOUND, which would be read as that the object isn't there.
  if (error)
    return absl::UnavailableError(absl::StrCat(
        "there must be a directory for temporary files, as TMPDIR names: ", error.message()));
  file.fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file.fd >= 0) return absl::OkStatus();
  // NFS has no such files, nor has overlayfs before Linux 6.1.
  std::string name = folder + "/muster-object-XXXXXX";
  file.fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (file.fd < 0 || ::unlink(name.c_str()) != 0)
    return absl::UnavailableError(
        absl::StrCat("cannot make a file in TMPDIR, ", folder, ": ", std::strerror(errno)));
  return absl::OkStatus();
}

// An object's bytes in a file without a name.
absl::Status FetchObject(const std::string& path, Descriptor& file) {
  absl::StatusOr<ObjectStore*> store = Objects();
  if (!store.ok()) return store.status();
  if (absl::Status s = MakeNameless(file); !s.ok()) return s;
  bool missing = false;
  const std::string problem = (*store)->Fetch(path, file.fd, missing);
  return missing ? absl::NotFoundError(problem) : Failed(problem);
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path, bool for_copies) {
  Descriptor file;
  if (IsObject(path)) {
    if (absl::Status s = FetchObject(path, file); !s.ok()) return s;
  } else {
    file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file.fd < 0) return Errno("cannot open", path);
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return Errno("cannot stat", path);
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  MappedFile mapped;
  if (info.st_size == 0) return mapped;
  void* data =
      ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return Errno("cannot map", path);
  mapped.data_ = static_cast<const uint8_t*>(data);
  mapped.size_bytes_ = static_cast<size_t>(info.st_size);
  if (for_copies) mapped.fd_ = std::exchange(file.fd, -1);
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::Release(std::span<const uint8_t> part) const {
  // Whole pages inside it; the neighbours' bytes stay.
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t from = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  if (from < to) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

absl::Status MappedFile::Copy(std::span<const uint8_t> part, uint8_t* out) const {
  off_t at = part.data() - data_;
  for (size_t left = part.size(); left > 0;) {
    const ssize_t n = ::pread(fd_, out, left, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return absl::DataLossError(n < 0 ? absl::StrCat("cannot read: ", std::strerror(errno))
                                       : "became shorter while it was read");
    out += n, at += n, left -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

size_t ReadAhead(const std::string& path, size_t most_bytes) {
  if (IsObject(path)) return 0;
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return 0;
  constexpr off_t kAtOnce =
      128 << 10;  // Linux does no more of one request than a device's read-ahead
  const off_t end =
      static_cast<off_t>(std::min<uint64_t>(static_cast<uint64_t>(info.st_size), most_bytes));
  for (off_t at = 0; at < end; at += kAtOnce)
    ::posix_fadvise(file.fd, at, kAtOnce, POSIX_FADV_WILLNEED);
  return static_cast<size_t>(end);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit_bytes) {
  absl::StatusOr<MappedFile> mapped = MappedFile::Open(path, /*for_copies=*/true);
  if (!mapped.ok()) return mapped.status();
  const std::span<const uint8_t> bytes = mapped->bytes();
  if (bytes.size() > limit_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes.size(), " bytes; at most ", limit_bytes, " are read"));
  }
  std::string text(bytes.size(), '\0');
  if (absl::Status s = mapped->Copy(bytes, reinterpret_cast<uint8_t*>(text.data())); !s.ok())
    return absl::DataLossError(absl::StrCat(path, ": ", s.message()));
  return text;
}

absl::StatusOr<DurableFile> DurableFile::Create(const std::string& path) {
  if (IsObject(path)) {
    absl::StatusOr<ObjectStore*> store = Objects();
    if (!store.ok()) return store.status();
    DurableFile file(path, -1);
    if (absl::Status s = Failed((*store)->Upload(path, file.upload_)); !s.ok()) return s;
    return file;
  }
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return Errno("cannot create", temporary);
  return DurableFile(path, fd);
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink((path_ + ".tmp").c_str());
}

absl::Status DurableFile::Write(std::span<const uint8_t> bytes) {
  return upload_ != nullptr ? Failed(upload_->Write(bytes.data(), bytes.size()))
                            : WriteAll(fd_, bytes, path_ + ".tmp");
}

absl::Status DurableFile::Commit(Until until) {
  if (upload_ != nullptr) return Failed(std::exchange(upload_, nullptr)->Commit());
  const std::string temporary = path_ + ".tmp";
  const bool synced = until == Until::kOnDisk;
  if (synced && ::fsync(fd_) != 0) return Errno("cannot fsync", temporary);
  // A file system of a network may learn only now that there is no room.
  const int closed = ::close(std::exchange(fd_, -1));
  absl::Status status = closed != 0 && errno != EINTR ? Errno("cannot close", temporary)
                        : ::rename(temporary.c_str(), path_.c_str()) != 0
                            ? Errno("cannot rename to", path_)
                            : absl::OkStatus();
  if (!status.ok()) ::unlink(temporary.c_str());
  if (!status.ok() || !synced) return status;
  const std::string parent = fs::path(path_).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

absl::Status WriteFileDurably(const std::string& path,
                              const std::vector<std::span<const uint8_t>>& pieces, Until until) {
  absl::StatusOr<DurableFile> file = DurableFile::Create(path);
  if (!file.ok()) return file.status();
  for (const std::span<const uint8_t> piece : pieces) {
    if (absl::Status s = file->Write(piece); !s.ok()) return s;
  }
  return file->Commit(until);
}

absl::Status WriteFileDurably(const std::string& path, std::string_view content, Until until) {
  return WriteFileDurably(
      path, {{reinterpret_cast<const uint8_t*>(content.data()), content.size()}}, until);
}

absl::Status MakeDirectories(const std::string& path) {
  if (IsObject(path)) return absl::OkStatus();
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot create ", path, ": ", error.message()));
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  return IsObject(path) ? absl::OkStatus() : SyncPath(path, O_RDONLY | O_DIRECTORY);
}

absl::Status RemoveFile(const std::string& path) {
  if (!IsObject(path))
    return ::unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus()
                                                          : Errno("cannot remove", path);
  absl::StatusOr<ObjectStore*> store = Objects();
  return store.ok() ? Failed((*store)->Remove(path)) : store.status();
}

absl::StatusOr<std::vector<std::string>> ObjectsBelow(const std::string& path) {
  absl::StatusOr<ObjectStore*> store = Objects();
  if (!store.ok()) return store.status();
  std::vector<std::string> found;
  if (absl::Status s = Failed((*store)->List(path, found)); !s.ok()) return s;
  return found;
}

absl::Status SyncTree(const std::string& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path, error)) {
    if (entry.is_regular_file()) {
      if (absl::Status s = SyncPath(entry.path().string(), O_RDONLY); !s.ok()) return s;
    } else if (entry.is_directory()) {
      if (absl::Status s = SyncDirectory(entry.path().string()); !s.ok()) return s;
    }
  }
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot list ", path, ": ", error.message()));
  return SyncDirectory(path);
}

void RemoveTree(const std::string& path) {
  if (IsObject(path)) {
    RemoveFile(path).IgnoreError();
    return;
  }
  const auto remove = [](const char* entry, const struct stat*, int, struct FTW*) {
    return ::remove(entry), 0;
  };
  ::nftw(path.c_str(), remove, /*nopenfd=*/16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

bool IsAtOrAbove(const std::string& outer, const std::string& inner) {
  std::error_code hidden;  // of what can't be looked at: apart
  const auto real = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, hidden), hidden);
  };
  const fs::path above = real(outer);
  for (fs::path at = real(inner); !at.empty(); at = at.parent_path()) {
    if (at == above || fs::equivalent(at, outer, hidden)) return true;
    if (!at.has_relative_path()) break;
  }
  return false;
}

bool DirectoriesOverlap(const std::string& one, const std::string& other) {
  return IsAtOrAbove(one, other) || IsAtOrAbove(other, one);
}

absl::Status ReplaceDirectory(const std::string& from, const std::string& to) {
  const std::string parent = fs::path(to).parent_path().string(), replaced = to + ".replaced";
  const auto sync = [&] { return SyncDirectory(parent.empty() ? "." : parent); };
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    RemoveTree(from);  // what was at `to`; a leftover harms nobody
    return sync();
  }
  const bool cannot_exchange = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
  if (!cannot_exchange && errno != ENOENT) return Errno("cannot replace", to);
  if (::rename(from.c_str(), to.c_str()) == 0)
    return sync();  // nothing was there, or an empty directory
  if (!cannot_exchange || (errno != ENOTEMPTY && errno != EEXIST))
    return Errno("cannot rename to", to);
  RemoveTree(replaced);
  if (::rename(to.c_str(), replaced.c_str()) != 0) return Errno("cannot rename to", replaced);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const absl::Status status = Errno("cannot rename to", to);
    ::rename(replaced.c_str(), to.c_str());
    return status;
  }
  if (absl::Status s = sync(); !s.ok()) return s;
  RemoveTree(replaced);
  return absl::OkStatus();
}

}  // namespace muster::trainer
