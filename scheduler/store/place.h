// The directory a store lives in: made private, on a local file system, locked for one daemon's
// life (contract 22 of docs/contracts.md).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace muster {

// Name of the file system if SQLite's locks and syncs can't be trusted on it ("nfs", …), else
// empty. `type` is statfs' f_type.
std::string NetworkFileSystem(long type);

// FAILED_PRECONDITION on a network file system, with a remedy.
absl::Status CheckFileSystem(const std::string& directory);

// Free space that is kept for what must still be stored when the disk fills up: reports, ends,
// cancellations (contract 23).
inline constexpr int64_t kBallastBytes = int64_t{256} << 20;

// Empty while `directory`'s file system has that much free for this user; else why submissions are
// refused, and the remedy.
std::string WhyNoRoom(const std::string& directory, int64_t ballast_bytes = kBallastBytes);

// WhyNoRoom as of at most kRoomAgeNs ago: each submission asks. Thread-safe.
inline constexpr int64_t kRoomAgeNs = 20'000'000;
class RoomWatch {
 public:
  // The clock must outlive it.
  RoomWatch(std::string directory, Clock* clock, int64_t ballast_bytes = kBallastBytes)
      : directory_(std::move(directory)), clock_(clock), ballast_bytes_(ballast_bytes) {}
  std::string Why();

 private:
  const std::string directory_;
  Clock* const clock_;
  const int64_t ballast_bytes_;
  std::mutex mutex_;
  bool asked_ = false;
  int64_t asked_ns_ = 0;
  std::string why_;
};

// Sizes of the store's files in `directory`; 0 where there is none.
struct StoreBytes {
  int64_t database = 0;
  int64_t wal = 0;
};
StoreBytes StoreBytesIn(const std::string& directory);

// fsync of a file or a directory.
absl::Status SyncPath(const std::string& path);

// Which file this is, told without opening it: it stays so when the file is written, moved or
// renamed, and a copy is another one. By inode and time of birth, INODE.SECONDS.NANOSECONDS, 0.0
// where the file system doesn't tell when it was; not by device, whose number may change at a boot.
// Empty: inodes say nothing on this file system (overlay, vfat), or it can't be read.
std::string FileIdentity(const std::string& path);
// Whether both may be the same file's: one of them empty, or all alike that both know.
bool MayBeSameFile(const std::string& identity, const std::string& other);

// Takes the lock file of `directory`; the descriptor holds it until closed. FAILED_PRECONDITION
// names the process that has it.
absl::StatusOr<int> LockDirectory(const std::string& directory);

}  // namespace muster
