// Finished jobs that State has forgotten, for questions about the past: the store keeps them for
// `history_retention`.
//
// Thread-safe: callers of the API ask, never the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

class History {
 public:
  struct Row {
    uint64_t number = 0;
    std::string_view owner, queue;  // until `each` returns, as what `record` reads
    pb::JobState state = pb::JOB_STATE_UNSPECIFIED;
    std::function<std::string()> record;  // serialized pb::JobRecord
  };

  virtual ~History() = default;
  // The serialized pb::JobRecord of a job by its number or uid; "": there is none. Errors as the
  // database tells them.
  virtual absl::StatusOr<std::string> Find(std::string_view id) = 0;
  // Jobs with above < number < before, newest first, those that State still holds among them; until
  // `each` returns false. An array is one row, that of its first member.
  virtual absl::Status Scan(uint64_t before, uint64_t above,
                            const std::function<bool(const Row&)>& each) = 0;
};

}  // namespace muster
