// The directory a store lives in: made private, on a local file system, locked for one daemon's life (CONTRACTS 22).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Name of the file system if SQLite's locks and syncs can't be trusted on it ("nfs", …), else empty. `type` is statfs' f_type.
std::string NetworkFileSystem(long type);

// FAILED_PRECONDITION on a network file system, with a remedy.
absl::Status CheckFileSystem(const std::string& directory);

// Takes the lock file of `directory`; the descriptor holds it until closed. FAILED_PRECONDITION names the process that has it.
absl::StatusOr<int> LockDirectory(const std::string& directory);

}  // namespace muster
