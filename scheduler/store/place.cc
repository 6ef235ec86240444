#include "scheduler/store/place.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/files.h"
#include "scheduler/store/store.h"

namespace muster {

std::string NetworkFileSystem(long type) {
  struct Known {
    unsigned long type;
    const char* name;
  };
  static constexpr Known kKnown[] = {
      {0x6969, "nfs"},      {0x517B, "smb"},        {0xFF534D42, "cifs"},  {0xFE534D42, "smb2"},
      {0x01021997, "9p"},   {0x0BD00BD0, "lustre"}, {0x00C36400, "ceph"},  {0x47504653, "gpfs"},
      {0x5346414F, "afs"},  {0x73757245, "coda"},   {0x564C, "ncp"},       {0x7461636F, "ocfs2"},
      {0x01161970, "gfs2"}, {0x65735546, "fuse"},   {0x19830326, "fhgfs"},
  };
  for (const Known& known : kKnown) {
    if (known.type == static_cast<unsigned long>(type)) return known.name;
  }
  return "";
}

absl::Status CheckFileSystem(const std::string& directory) {
  struct statfs info {};
  if (statfs(directory.c_str(), &info) != 0)
    return ErrnoStatus(errno, absl::StrCat(directory, ": statfs"));
  const std::string network = NetworkFileSystem(info.f_type);
  if (network.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      directory, " is on a network file system (", network,
      "), where the store's locks and syncs can't be trusted. Put data_dir on a local disk"));
}

std::string WhyNoRoom(const std::string& directory, int64_t ballast_bytes) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) return absl::StrCat(directory, ": ", strerror(errno));
  const int64_t free_bytes =
      static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  if (free_bytes >= ballast_bytes) return "";
  return absl::StrCat("only ", free_bytes >> 20, " MiB are free in ", directory,
                      "; new jobs are taken again once there are ", ballast_bytes >> 20,
                      ". What runs goes on");
}

std::string RoomWatch::Why() {
  const int64_t now_ns = clock_->MonotonicNs();
  std::lock_guard lock(mutex_);
  if (asked_ && now_ns - asked_ns_ < kRoomAgeNs) return why_;
  asked_ = true;
  asked_ns_ = now_ns;
  return why_ = WhyNoRoom(directory_, ballast_bytes_);
}

StoreBytes StoreBytesIn(const std::string& directory) {
  const auto size = [&directory](const char* suffix) -> int64_t {
    struct stat info {};
    return stat(absl::StrCat(directory, "/", kStoreFile, suffix).c_str(), &info) == 0 ? info.st_size
                                                                                      : 0;
  };
  return {size(""), size("-wal")};
}

absl::Status SyncPath(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, path);
  const bool synced = fsync(fd) == 0;
  const int error = errno;
  close(fd);
  return synced ? absl::OkStatus() : ErrnoStatus(error, path);
}

std::string FileIdentity(const std::string& path) {
  // Of these an inode's number may change while its file stays: overlay, aufs, vfat, exfat.
  constexpr long kUnstable[] = {0x794C7630, 0x61756673, 0x4D44, 0x2011BAB0};
  struct statfs info {};
  struct statx file {};
  if (statfs(path.c_str(), &info) != 0 ||
      std::find(std::begin(kUnstable), std::end(kUnstable), info.f_type) != std::end(kUnstable))
    return "";
  if (statx(AT_FDCWD, path.c_str(), 0, STATX_INO | STATX_BTIME, &file) != 0 ||
      (file.stx_mask & STATX_INO) == 0)
    return "";
  const bool born = (file.stx_mask & STATX_BTIME) != 0;
  return absl::StrCat(file.stx_ino, ".", born ? file.stx_btime.tv_sec : 0, ".",
                      born ? file.stx_btime.tv_nsec : 0);
}

bool MayBeSameFile(const std::string& identity, const std::string& other) {
  if (identity.empty() || other.empty() || identity == other) return true;
  const auto inode = [](const std::string& text) { return text.substr(0, text.find('.')); };
  const auto unborn = [](const std::string& text) { return text.ends_with(".0.0"); };
  return inode(identity) == inode(other) && (unborn(identity) || unborn(other));
}

absl::StatusOr<int> LockDirectory(const std::string& directory) {
  const std::string path = directory + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    char holder[32] = {};
    const ssize_t length = pread(fd, holder, sizeof(holder) - 1, 0);
    close(fd);
    if (error != EWOULDBLOCK) return ErrnoStatus(error, absl::StrCat(path, ": flock"));
    const std::string pid(
        absl::StripSuffix(absl::string_view(holder, length > 0 ? length : 0), "\n"));
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": another musterd serves this directory",
                     pid.empty() ? "" : absl::StrCat(" (pid ", pid, ")"),
                     ". Stop it first, or give this one another data_dir"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, path);
  }
  return fd;
}

}  // namespace muster
