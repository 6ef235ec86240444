// The audit: who changed what, and what was denied to whom. Append-only, in files of its own beside
// the store; each record's hash covers the record before it, so that none can be changed, left out
// or put in without all later hashes being others.
//
// A line is HASH, a space, the record as JSON without its hash. HASH is the hexadecimal SHA-256 of
// the hash before (64 zeros before the first), a space and that JSON. Who may write the files can
// also write a whole new chain: an operator who notes the last hash elsewhere finds that out.
//
// A file is called by the number of its first record and the hash before it, so that each can be
// checked by itself, the oldest one too once those before it are gone. Files go by age and by the
// size of all; a record says which went. Denials have a bound of their own: nobody can fill the
// files with them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "muster/v1/access_service.pb.h"

namespace muster {

namespace pb = ::muster::v1;

inline constexpr char kAuditAddress[] = "address ";   // before a user who is but an address
inline constexpr int64_t kAuditFileBytes = 64 << 20;  // then another file is begun
inline constexpr size_t kAuditWaitingMost = 100'000;  // records that wait to be written
inline constexpr size_t kAuditTextMost = 2'000;       // bytes of a record's object, and detail
// In a minute: denials of one user that are written whole; records that all strangers together get
// (addresses, and uids that nobody knows); users, and strangers, whose further ones are counted
// apart.
inline constexpr int64_t kAuditWhole = 30;
inline constexpr size_t kAuditOfStrangers = 512, kAuditUsersMost = 4'096, kAuditStrangersMost = 256;

struct AuditOptions {
  int64_t file_bytes = kAuditFileBytes;
  // Files whose records are all older go; 0: none does. Another file is begun in a sixteenth of it.
  int64_t retention_ns = 0;
  // What all files may have, and a sixteenth; above it the oldest go. 0: no bound.
  int64_t most_bytes = 0;
  Clock* clock = RealClock();
};

struct AuditHead {
  uint64_t first = 0;  // number of the oldest record that is there; 0: none is
  uint64_t last = 0;
  std::string hash;  // of the last; empty: none yet
};

struct AuditFile {
  std::string path;
  uint64_t first = 0;    // number of its first record; 0: its name has none
  std::string before;    // hash before that; empty: its name has none
  int64_t bytes = 0;     // that count; what is behind them isn't read
  int64_t begun_ns = 0;  // when its first record is of; 0: unknown
};

// Reads all files of the directory and compares each hash. DATA_LOSS names the file and line of the
// first that is wrong. `each` (optional) gets every record. Files may be taken away from the front.
absl::StatusOr<AuditHead> ReadAudit(const std::string& directory,
                                    const std::function<void(const pb::AuditRecord&)>& each = {});

// Thread-safe. Writes on a thread of its own, and syncs what it has written before it waits again.
class Audit {
 public:
  // `directory` is made where it isn't there. A last line that was not written whole is cut off.
  // DATA_LOSS as ReadAudit, of the newest file: older ones are for Verify, so that a start doesn't
  // take the longer the more there is.
  static absl::StatusOr<std::unique_ptr<Audit>> Open(const std::string& directory,
                                                     const AuditOptions& options = {});
  ~Audit();
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  // On the audit's thread, once the record is on disk, or can't be written.
  using Written = std::function<void(const absl::Status&)>;
  // Its number and hash are filled in here. What was granted ("OK") is never left out. Of the
  // denials of one user the first kAuditWhole of a minute are written whole; further ones are
  // counted, and told at the minute's end in one record for each method and outcome. While too much
  // waits, or too many others are denied something in that minute, they are counted all together,
  // as what strangers are denied beyond kAuditOfStrangers. `written` is called at once for what is
  // counted.
  void Add(pb::AuditRecord record, Written written = nullptr);
  // Of a connection, which costs its other end nothing: only the first of a minute is written
  // whole.
  void AddConnection(pb::AuditRecord record);
  // Until all that was added by now is written and synced; what is counted still, once its minute
  // is over.
  void Flush();
  // The newest `limit` records that `wanted` takes, oldest first.
  absl::StatusOr<std::vector<pb::AuditRecord>> Newest(
      size_t limit, const std::function<bool(const pb::AuditRecord&)>& wanted);
  // ReadAudit, compared with what this process wrote. With `number` also that this record has still
  // this hash. NOT_FOUND: it is older than what is kept.
  absl::StatusOr<AuditHead> Verify(uint64_t number, const std::string& hash);
  int64_t bytes() const { return total_bytes_; }  // of all files

 private:
  // Those of one method and outcome that were denied a user in one minute.
  struct Denials {
    int64_t seen = 0, counted = 0;  // counted: not written whole
    pb::AuditRecord last;           // of the counted ones
    std::vector<std::string> objects;
    bool others = false;  // not all are among them
  };
  struct Denied {
    int64_t until_ns = 0;
    bool stranger = false;
    int64_t whole = 0;
    std::map<std::string, Denials> by_call;
  };
  struct Reading {  // what is there to be read at one moment
    std::vector<AuditFile> files;
    AuditHead head;
    bool foreign = false;  // the open file is longer, or shorter, than what was written here
  };

  Audit(std::string directory, const AuditOptions& options, std::deque<AuditFile> files,
        AuditHead head, int fd);
  void Take(pb::AuditRecord record, Written written, bool connection);
  // Whether it is to be written whole, else it is counted; under mutex_, as all up to LeaveOut.
  bool TakeDenial(const pb::AuditRecord& record, bool connection);
  // What is told of those whose minute is over goes to what waits; or of all.
  void TellCounted(bool all);
  void Tell(const Denied& denied);
  bool StrangersHaveRoom();
  void LeaveOut();
  void Run();
  absl::Status WriteAll(std::vector<pb::AuditRecord> records);  // synced
  absl::Status Write(pb::AuditRecord record);                   // under writing_, as all below
  absl::Status Begin();                                         // another file
  bool Full(const pb::AuditRecord& record) const;               // the open file
  // Removes files by age and size; what the audit says of it.
  std::optional<pb::AuditRecord> Trim();
  Reading Now();  // takes writing_

  const std::string directory_;
  const AuditOptions options_;
  std::mutex writing_;           // held while files are written, begun or removed
  std::deque<AuditFile> files_;  // the last one is open; under writing_
  AuditHead head_;               // under writing_
  int fd_ = -1;
  bool failed_ = false, stuck_ = false;  // the last write, and removal
  std::atomic<int64_t> total_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<pb::AuditRecord> waiting_;
  std::vector<Written> told_once_written_;  // of those that wait
  std::map<std::string, Denied> denied_;    // by uid and user
  size_t strangers_ = 0;                    // of these
  size_t strangers_told_ = 0;               // records that they got in the minute that ends
  int64_t strangers_until_ns_ = 0;          // then
  uint64_t left_out_ = 0;                   // denials, since the last record of them
  int64_t left_out_until_ns_ = 0;
  uint64_t rounds_ = 0;  // of writing that have ended
  bool busy_ = false, asked_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace muster
