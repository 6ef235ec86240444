// Packed directories that come along with jobs, beside the store: data_dir/packs/OWNER/DIGEST, each
// owner's apart. Nobody can name, read or learn of another's: what is asked for is always asked of
// one owner (docs/decisions/098-packed-directories.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/units.h"
#include "common/pack/format.h"
#include "common/pki/sha256.h"
#include "scheduler/state/state.h"

namespace muster {

struct PackLimits {
  int64_t bytes = kPackMaxBytes;           // of one
  int64_t owner_bytes = int64_t{1} << 30;  // of one owner's together, with those that are coming
  size_t owner_packs = 1000;
  int64_t least_bytes = 4 << 10;     // what a small one counts as: a block of the disk
  size_t owner_uploads = 16;         // that are coming at once
  int64_t upload_ns = 10 * kMinute;  // one that stands still so long is dropped

  int64_t TakenBy(int64_t size) const { return std::max(size, least_bytes); }
};

// Owner and digest.
using PackName = std::pair<std::string, std::string>;
// Those that unfinished jobs of this State start in.
std::set<PackName> PacksOf(const State& state);

// Thread-safe.
class PackStore {
 public:
  static constexpr int64_t kMaxReadBytes = int64_t{1} << 20;

  // Makes `directory`; drops what was coming when the process ended. The clock must outlive it.
  static absl::StatusOr<std::unique_ptr<PackStore>> Open(std::string directory, PackLimits limits,
                                                         Clock* clock);

  // Takes a piece, if it is the next one; where to go on. `size` once the whole is on disk. Where
  // the owner has too much, the oldest that no unfinished job needs make room.
  // INVALID_ARGUMENT: it is too large, or isn't what the digest names. RESOURCE_EXHAUSTED: what
  // jobs need leaves no room. UNAVAILABLE: again in a moment.
  absl::StatusOr<int64_t> Put(const std::string& owner, const std::string& digest, int64_t size,
                              int64_t offset, std::string_view data);
  // Whether it is here; it counts as used now.
  bool Use(const std::string& owner, const std::string& digest);
  // At most kMaxReadBytes from there on. NOT_FOUND: it isn't here, or was damaged on disk, and is
  // no more. UNAVAILABLE: not now.
  struct Piece {
    std::string data;
    int64_t size = 0;  // of the whole
  };
  absl::StatusOr<Piece> Read(const std::string& owner, const std::string& digest, int64_t offset);
  // Those in `used` are needed by jobs, and count as used now. Removes what was not used for so
  // long; how many.
  int Collect(const std::set<PackName>& used, int64_t keep_ns);

 private:
  struct Upload {
    int fd = -1;
    std::string path;
    int64_t size = 0;
    int64_t offset = 0;
    int64_t at_ns = 0;       // MonotonicNs of the newest piece
    bool finishing = false;  // all is here, and being made durable
    Sha256Stream hash;
  };
  using Uploads = std::map<PackName, std::unique_ptr<Upload>>;

  PackStore(std::string directory, PackLimits limits, Clock* clock)
      : directory_(std::move(directory)), limits_(limits), clock_(clock) {}

  std::string FolderOf(const std::string& owner) const;
  std::string PathOf(const PackName& name) const;
  bool Touch(const std::string& path);
  bool IsWhole(const PackName& name);
  absl::Status MakeRoom(const std::string& owner, int64_t size);
  absl::StatusOr<Upload*> Begin(const PackName& name, int64_t size);
  absl::Status Finish(const PackName& name, Upload* upload);
  void Drop(Uploads::iterator upload);
  void DropIdle();

  const std::string directory_;
  const PackLimits limits_;
  Clock* const clock_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Uploads uploads_;
  std::set<std::string> needed_;  // paths, as of the last Collect
  bool collected_ = false;
  std::set<std::string> checked_;  // paths of those whose content was compared with their digest
};

}  // namespace muster
