// What is told beside a running job of the storage that it writes to, for `muster storage`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "muster/v1/job_service.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// In bytes; -1: it isn't told there.
struct StorageTold {
  int64_t total = -1, free = -1;        // of the file system; a quota of the directory counts there
  int64_t quota_used = -1, quota = -1;  // of the job's owner
  int64_t files = -1;                   // of the job's own directory
};

// `output`: lines of "room SIZE BLOCKS FREE", the first of which is a block's bytes; "quota USED
// SOFT HARD" in KiB, of whose limits 0 is none; "files KIB". Any of them may be missing; others
// are no lines of ours.
absl::StatusOr<StorageTold> ReadStorage(const std::string& output);

pb::JobStorage StorageOf(const pb::Job& job, const StorageTold& told);
std::string RenderStorage(const pb::Job& job, const StorageTold& told);

}  // namespace muster
