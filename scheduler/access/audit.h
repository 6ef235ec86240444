// The audit: who changed what, and what was denied to whom. Append-only, in files of its own beside
// the store; each record's hash covers the record before it, so that none can be changed, left out
// or put in without all later hashes being others.
//
// A line is HASH, a space, the record as JSON without its hash. HASH is the hexadecimal SHA-256 of
// the hash before (64 zeros before the first), a space and that JSON. Who may write the files can
// also write a whole new chain: an operator who notes the last hash elsewhere finds that out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/v1/access_service.pb.h"

namespace muster {

namespace pb = ::muster::v1;

inline constexpr int64_t kAuditFileBytes = 64 << 20;  // then another file is begun
inline constexpr size_t kAuditWaitingMost = 100'000;  // records that wait to be written

struct AuditHead {
  uint64_t first = 0;  // number of the oldest record that is there; 0: none is
  uint64_t last = 0;
  std::string hash;  // of the last; empty: none yet
};

// Reads all files of the directory and compares each hash. DATA_LOSS names the file and line of the
// first that is wrong. `each` (optional) gets every record. Files may be taken away from the front.
absl::StatusOr<AuditHead> ReadAudit(const std::string& directory,
                                    const std::function<void(const pb::AuditRecord&)>& each = {});

// Thread-safe. Writes on a thread of its own, and syncs what it has written before it waits again.
class Audit {
 public:
  // `directory` is made where it isn't there. A last line that was not written whole is cut off.
  // DATA_LOSS as ReadAudit.
  static absl::StatusOr<std::unique_ptr<Audit>> Open(const std::string& directory,
                                                     int64_t file_bytes = kAuditFileBytes);
  ~Audit();
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  // On the audit's thread, once the record is on disk, or can't be written.
  using Written = std::function<void(const absl::Status&)>;
  // Its number and hash are filled in here. While too many wait, denials are counted only, and told
  // in one record afterwards (`written` is called at once then); what was granted is never left
  // out.
  void Add(pb::AuditRecord record, Written written = nullptr);
  // Until all that was added is written and synced.
  void Flush();
  // The newest `limit` records that `wanted` takes, oldest first.
  absl::StatusOr<std::vector<pb::AuditRecord>> Newest(
      size_t limit, const std::function<bool(const pb::AuditRecord&)>& wanted);
  // ReadAudit, compared with what this process wrote. With `number` also that this record has still
  // this hash.
  absl::StatusOr<AuditHead> Verify(uint64_t number, const std::string& hash);

 private:
  Audit(std::string directory, int64_t file_bytes, AuditHead head, int fd, int64_t bytes);
  void Run();
  absl::Status WriteAll(std::vector<pb::AuditRecord> records);  // synced
  absl::Status Write(pb::AuditRecord record);                   // under writing_
  absl::Status Begin();                                         // another file; under writing_

  const std::string directory_;
  const int64_t file_bytes_;
  std::mutex writing_;  // held while files are written or read
  AuditHead head_;      // under writing_
  int fd_ = -1;
  int64_t bytes_ = 0;  // of the open file
  bool failed_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<pb::AuditRecord> waiting_;
  std::vector<Written> told_once_written_;  // of those that wait
  uint64_t left_out_ = 0;                   // denials, since the last record of them
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace muster
