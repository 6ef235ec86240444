// Files that survive a crash: written beside their name, synced, renamed, the directory synced.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);
// temporary file, write, fsync, rename, fsync of the directory. The old content or the new one,
// never a mixture.
absl::Status WriteFileDurably(const std::string& path, std::string_view content,
                              unsigned mode = 0600);
absl::Status MakeDirectories(const std::string& path, unsigned mode = 0700);
// What lies there, sorted, without what is hidden; nothing if it can't be read.
std::vector<std::string> NamesIn(const std::string& directory);
absl::Status SyncDirectory(const std::string& path);
absl::Status ErrnoStatus(int error,
                         std::string_view what);  // "what: No space left on device", code by errno
std::string ExecutableDirectory();  // $MUSTER_BIN_DIR, else the directory of /proc/self/exe

}  // namespace muster
