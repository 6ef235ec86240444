// Puts an export that was staged whole in its place (decision 006).
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster::agent {

// Renames `staged` to `target`, durably; done before counts as done, and a crash at any point
// leaves what a repetition completes. What lay at the target leaves only once the new export is
// there for good, and only if it is an export that was published before and nobody has changed
// since: all else is kept beside it, as TARGET.previous. Thread-safe for different targets; blocks
// on their storage.
absl::Status PublishExport(const std::string& staged, const std::string& target);

}  // namespace muster::agent
