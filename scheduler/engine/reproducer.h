// Rows of a State in a file of their own: what a refused plan (CONTRACTS 20) is reproduced from.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/state/state.h"

namespace muster {

// Each row as kind, id and bytes, each with its length (32 bit, little-endian) before it. Durable when it returns OK.
absl::Status SaveRows(const std::string& path, const std::vector<RowChange>& rows);
// DATA_LOSS if the file ends inside a row.
absl::StatusOr<std::vector<RowChange>> LoadRows(const std::string& path);

}  // namespace muster
