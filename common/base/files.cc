#include "common/base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/descriptor.h"

namespace muster {
namespace {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

absl::Status ErrnoStatus(int error, std::string_view what) {
  const std::string text =
      absl::StrCat(absl::string_view(what.data(), what.size()), ": ", strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    case EEXIST:
      return absl::AlreadyExistsError(text);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, path);
  std::string content;
  char buffer[65536];
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, path);
    }
    if (got == 0) return content;
    content.append(buffer, static_cast<size_t>(got));
    if (static_cast<int64_t>(content.size()) > max_bytes) {
      return absl::OutOfRangeError(absl::StrCat(path, ": larger than ", max_bytes, " bytes"));
    }
  }
}

absl::Status WriteFileDurably(const std::string& path, std::string_view content, unsigned mode) {
  // Threads write the same path at once; the process before may have had this number, and have
  // been killed.
  static std::atomic<uint64_t> writes{0};
  const std::string temporary = absl::StrCat(path, ".tmp.", ::getpid(), ".", ++writes);
  ::unlink(temporary.c_str());
  {
    Descriptor fd(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    if (fd.get() < 0) return ErrnoStatus(errno, temporary);
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t wrote = ::write(fd.get(), content.data() + done, content.size() - done);
      if (wrote < 0) {
        if (errno == EINTR) continue;
        const int error = errno;
        ::unlink(temporary.c_str());
        return ErrnoStatus(error, temporary);
      }
      done += static_cast<size_t>(wrote);
    }
    if (::fsync(fd.get()) != 0) {
      const int error = errno;
      ::unlink(temporary.c_str());
      return ErrnoStatus(error, temporary);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(error, path);
  }
  return SyncDirectory(DirectoryOf(path));
}

absl::Status MakeDirectories(const std::string& path, unsigned mode) {
  // From the end: most often all of its parents are there.
  if (::mkdir(path.c_str(), mode) == 0) return absl::OkStatus();
  if (errno != EEXIST) {
    for (size_t i = 1; i <= path.size(); ++i) {
      if (i != path.size() && path[i] != '/') continue;
      const std::string part = path.substr(0, i);
      if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) return ErrnoStatus(errno, part);
    }
  }
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode))
    return absl::AlreadyExistsError(absl::StrCat(path, " is not a directory"));
  return absl::OkStatus();
}

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  DIR* open = ::opendir(directory.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = ::readdir(open)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status SyncDirectory(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, path);
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

std::string ExecutableDirectory() {
  if (const char* set = ::getenv("MUSTER_BIN_DIR"); set != nullptr && *set != '\0') return set;
  char buffer[4096];
  const ssize_t size = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  return size <= 0 ? "." : DirectoryOf(std::string(buffer, static_cast<size_t>(size)));
}

}  // namespace muster
