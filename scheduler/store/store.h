// The daemon's store: one SQLite file in WAL mode, written by one thread and one connection
// (contracts 17-24 of docs/contracts.md).
//
// Tables: meta (store id, epoch, instance, newest commit), journal (commit, seq, crc, bytes), rows
// (kind, id, bytes) = current State, history (finished jobs, typed and indexed). A commit writes
// journal, rows and history together.
//
// Thread-safety: none. One thread opens, commits and closes; readers open the file themselves,
// read-only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "scheduler/engine/ports.h"

struct sqlite3;

namespace muster {

struct StoreOptions {
  std::string directory;  // data_dir; made with mode 0700 if missing
  int64_t journal_retention_ns = kDay;
  int64_t history_retention_ns = 7 * kDay;  // of finished jobs
  bool allow_any_file_system = false;       // tests only
  // Go on from a backup or a copy (contract 19): the epoch jumps above every one that an agent can
  // have seen. The first commit has to hold StoreAdopted; until then the store stays a backup.
  bool adopt_restored = false;
};

// Unix time in milliseconds: above every epoch that was counted up from an earlier start, and that
// of any earlier adoption.
inline uint64_t AdoptedEpoch(uint64_t last_epoch, int64_t wall_ns) {
  return std::max(last_epoch + 1, static_cast<uint64_t>(wall_ns / 1'000'000));
}

// What the store held when it was opened.
struct Recovered {
  std::string store_id;  // 32 hex digits, born with the store
  uint64_t epoch = 0;    // this start's: one more than the last one's, durable
  uint64_t last_commit = 0;
  std::vector<RowChange> rows;  // of State, in (kind, id) order
  bool created = false;         // there was no store before
};

class SqliteStore : public Store {
 public:
  // Takes the lock, migrates, checks the journal's tail, raises the epoch. Errors name the path and
  // a remedy: FAILED_PRECONDITION another daemon, a network file system, a newer store, a backup or
  // a copy that nobody adopts; DATA_LOSS a damaged one; else from the system.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const StoreOptions& options,
                                                           Recovered* recovered);
  ~SqliteStore() override;

  // Trims, too: twice as much as it adds of what is kept for no longer, so that a store that never
  // rests doesn't grow. ABORTED: another instance owns the store. After any error this store
  // refuses everything.
  absl::Status Commit(const Transaction& transaction) override;
  // Trims the journal and the history by a small bite; empties the WAL into the database.
  void Idle() override;

 private:
  struct Statements;
  SqliteStore(StoreOptions options, int lock_fd, sqlite3* db);
  absl::Status Recover(Recovered* recovered);
  absl::Status CheckOriginal(const std::string& file);
  absl::Status CheckTail();
  absl::Status CommitOrFail(const Transaction& transaction);
  absl::Status Guard(uint64_t commit);
  absl::Status WriteRow(const RowChange& row);
  absl::Status WriteHistory(const std::string& bytes);
  absl::StatusOr<int64_t> Trim(int64_t now_ns, int64_t commits, int64_t jobs);
  absl::StatusOr<bool> TrimBite();

  const StoreOptions options_;
  const int lock_fd_;
  sqlite3* const db_;
  std::unique_ptr<Statements> statements_;
  std::string instance_;
  std::string
      next_instance_;  // from the first commit on, where a backup is adopted; else instance_
  uint64_t epoch_ = 0;
  uint64_t last_commit_ = 0;
  int64_t now_ns_ = 0;      // of the newest commit
  int64_t trimmed_ns_ = 0;  // when there was last nothing to trim
  int64_t oldest_ns_ = 0;   // of a commit that is not younger than the journal's oldest
  int64_t ended_ = 0;       // finished jobs that the commit being made adds
  int wal_pages_ = 0;       // as of the newest commit
  bool failed_ = false;
};

inline constexpr char kStoreFile[] = "muster.db";  // inside the directory
inline constexpr char kBackupMark[] =
    "backup";  // instances that begin with it: the file is a copy that BackupStore made
inline constexpr char kFileMark[] =
    " in file ";  // after it an instance says in which file it was (FileIdentity)

// Calls `each` for the events of the commits `first`..`last` in order, a read transaction a
// thousand commits. The writer may trim meanwhile: then it goes on where the journal begins.
// DATA_LOSS names the commit whose checksum doesn't match or that is missing; CANCELLED once *stop
// is true.
absl::Status ScanJournal(sqlite3* db, uint64_t first, uint64_t last,
                         const std::function<void(uint64_t commit, const std::string& event)>& each,
                         const std::atomic<bool>* stop = nullptr);

// Reads the whole store: SQLite's quick_check (given up after 2 s, so that it never holds up the
// writer's checkpoints for longer), the journal's checksums and the contiguity of its commits. For
// a thread of its own after the start. Once *stop is true it gives up within milliseconds and
// returns CANCELLED.
absl::Status CheckStore(const std::string& directory, const std::atomic<bool>* stop = nullptr);

}  // namespace muster
