// The directory a store lives in: made private, on a local file system, locked for one daemon's life (CONTRACTS 22).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Name of the file system if SQLite's locks and syncs can't be trusted on it ("nfs", …), else empty. `type` is statfs' f_type.
std::string NetworkFileSystem(long type);

// FAILED_PRECONDITION on a network file system, with a remedy.
absl::Status CheckFileSystem(const std::string& directory);

// Free space that is kept for what must still be stored when the disk fills up: reports, ends, cancellations (CONTRACTS 23).
inline constexpr int64_t kBallastBytes = int64_t{256} << 20;

// Empty while `directory`'s file system has that much free for this user; else why submissions are refused, and the remedy.
std::string WhyNoRoom(const std::string& directory, int64_t ballast_bytes = kBallastBytes);

// fsync of a file or a directory.
absl::Status SyncPath(const std::string& path);

// Takes the lock file of `directory`; the descriptor holds it until closed. FAILED_PRECONDITION names the process that has it.
absl::StatusOr<int> LockDirectory(const std::string& directory);

}  // namespace muster
