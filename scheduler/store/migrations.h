// The store's schema by version (`PRAGMA user_version`), each step one transaction. The tests hold
// a store of every version.
#pragma once

#include <string>

#include "absl/status/status.h"

struct sqlite3;

namespace muster {

inline constexpr int kSchemaVersion = 6;

// Brings an older store (or an empty file: version 0) to kSchemaVersion. FAILED_PRECONDITION if it
// is newer. `path` is for messages.
absl::Status Migrate(sqlite3* db, const std::string& path);

}  // namespace muster
