#include "scheduler/store/store.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "muster/v1/record.pb.h"
#include "scheduler/store/crc.h"
#include "scheduler/store/migrations.h"
#include "scheduler/store/place.h"
#include "scheduler/store/sql.h"

namespace muster {
namespace {

constexpr int kCheckpointPages = 1000;
constexpr int64_t kBite = 500;  // rows that a transaction of nothing else trims of the history,
                                // commits of the journal by a fifth
constexpr int64_t kTrimmedForOne = 2;    // what is due goes twice as fast as anything comes
constexpr uint64_t kTailCommits = 1000;  // checked at every start; the rest in the background
constexpr char kFirstCommit[] = "SELECT ifnull(min(commit_number), 0) FROM journal";
constexpr int64_t kTrimEveryNs = kMinute;

uint32_t RowCrc(uint64_t commit, int64_t seq, std::string_view bytes) {
  char head[16];
  for (int i = 0; i < 8; ++i) {
    head[i] = static_cast<char>(commit >> (8 * i));
    head[8 + i] = static_cast<char>(static_cast<uint64_t>(seq) >> (8 * i));
  }
  return Crc32c(bytes, Crc32c(std::string_view(head, sizeof(head))));
}

// Whether a JobRecord has an end, read off its wire form: most rows are of jobs that have none, and
// parsing all of each costs more than writing it.
bool HasEnded(const std::string& bytes) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  while (const uint32_t tag = in.ReadTag()) {
    if (tag >> 3 == pb::JobRecord::kEndNsFieldNumber) {
      uint64_t end_ns = 0;
      return in.ReadVarint64(&end_ns) && end_ns != 0;
    }
    if (!google::protobuf::internal::WireFormatLite::SkipField(&in, tag)) return false;
  }
  return false;
}

bool Wanted(const std::atomic<bool>* stop) {
  return stop == nullptr || !stop->load(std::memory_order_relaxed);
}

}  // namespace

absl::Status ScanJournal(sqlite3* db, uint64_t first, uint64_t last,
                         const std::function<void(uint64_t, const std::string&)>& each,
                         const std::atomic<bool>* stop) {
  uint64_t expected = first;
  int64_t next_seq = 0;
  for (uint64_t from = first; from <= last; from += kTailCommits) {  // a read transaction a page
    Statement rows;
    if (absl::Status status =
            rows.Prepare(db,
                         "SELECT commit_number, seq, crc, bytes FROM journal "
                         "WHERE commit_number BETWEEN ? AND ? ORDER BY commit_number, seq");
        !status.ok()) {
      return status;
    }
    rows.Int(1, from).Int(2, std::min(last, from + kTailCommits - 1));
    bool begins = true;  // of the page
    while (true) {
      if (!Wanted(stop)) return absl::CancelledError("told to stop");
      absl::StatusOr<bool> row = rows.Next();
      if (!row.ok()) return row.status();
      if (!*row) break;
      const uint64_t commit = rows.IntColumn(0);
      const int64_t seq = rows.IntColumn(1);
      const std::string bytes = rows.TextColumn(3);
      if (commit == expected + 1 && next_seq > 0) {
        ++expected;
        next_seq = 0;
      }
      if (begins && commit > expected) {
        absl::StatusOr<int64_t> oldest = QueryInt(db, kFirstCommit);  // as of the same transaction
        if (!oldest.ok()) return oldest.status();
        if (static_cast<uint64_t>(*oldest) == commit) {  // what is missing was trimmed meanwhile
          expected = commit;
          next_seq = 0;
        }
      }
      begins = false;
      if (commit != expected || seq != next_seq) {
        return absl::DataLossError(
            absl::StrCat("journal: commit ", expected, " lacks event ", next_seq));
      }
      if (rows.IntColumn(2) != RowCrc(commit, seq, bytes)) {
        return absl::DataLossError(
            absl::StrCat("journal: checksum of commit ", commit, ", event ", seq, " is wrong"));
      }
      ++next_seq;
      each(commit, bytes);
    }
  }
  if (first <= last && (expected != last || next_seq == 0)) {
    return absl::DataLossError(absl::StrCat("journal: ends at commit ", expected, " of ", last));
  }
  return absl::OkStatus();
}

struct SqliteStore::Statements {
  Statement begin, commit, guard, event, put, erase, history;
  Statement oldest_journal, trim_journal, trim_history;

  absl::Status Prepare(sqlite3* db) {
    const std::pair<Statement*, const char*> all[] = {
        {&begin, "BEGIN IMMEDIATE"},
        {&commit, "COMMIT"},
        {&guard,
         "UPDATE meta SET last_commit = ?1, instance = ?4 WHERE epoch = ?2 AND instance = ?3"},
        {&event, "INSERT INTO journal VALUES (?1, ?2, ?3, ?4, ?5)"},
        {&put,
         "INSERT INTO rows VALUES (?1, ?2, ?3) ON CONFLICT (kind, id) DO UPDATE SET bytes = "
         "excluded.bytes"},
        {&erase, "DELETE FROM rows WHERE kind = ?1 AND id = ?2"},
        {&history,
         "INSERT OR REPLACE INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"},
        {&oldest_journal,
         "SELECT commit_number, now_ns FROM journal ORDER BY commit_number LIMIT 1"},
        {&trim_journal,
         "DELETE FROM journal WHERE commit_number BETWEEN ?1 AND ?2 AND now_ns < ?3 AND "
         "commit_number < ?4"},
        {&trim_history,
         "DELETE FROM history WHERE number IN (SELECT number FROM history WHERE end_ns < ?1 ORDER "
         "BY end_ns LIMIT ?2)"},
    };
    for (const auto& [statement, sql] : all) {
      if (absl::Status status = statement->Prepare(db, sql); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
};

SqliteStore::SqliteStore(StoreOptions options, int lock_fd, sqlite3* db)
    : options_(std::move(options)),
      lock_fd_(lock_fd),
      db_(db),
      statements_(std::make_unique<Statements>()) {}

SqliteStore::~SqliteStore() {
  statements_.reset();
  sqlite3_close(db_);
  close(lock_fd_);  // last: the lock covers closing the database
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const StoreOptions& options,
                                                               Recovered* recovered) {
  const std::string& directory = options.directory;
  const std::string path = absl::StrCat(directory, "/", kStoreFile);
  if (absl::Status status = MakeDirectories(directory, 0700); !status.ok()) return status;
  if (chmod(directory.c_str(), 0700) != 0) {
    return Annotate(ErrnoStatus(errno, directory),
                    "data_dir must belong to the user who runs musterd");
  }
  if (!options.allow_any_file_system) {
    if (absl::Status status = CheckFileSystem(directory); !status.ok()) return status;
  }
  absl::StatusOr<int> lock = LockDirectory(directory);
  if (!lock.ok()) return lock.status();
  if (options.adopt_restored && access(path.c_str(), F_OK) != 0) {
    close(*lock);
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": there is nothing to adopt. Put the backup there, under this name"));
  }
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<SqliteStore> store(new SqliteStore(options, *lock, db));
  if (code != SQLITE_OK) return Annotate(SqlError(db, "open"), path);
  if (absl::Status status = store->Recover(recovered); !status.ok()) {
    if (status.code() != absl::StatusCode::kDataLoss) return Annotate(status, path);
    return absl::DataLossError(
        absl::StrCat(path, ": ", status.message(),
                     ". Keep the file, and restore the newest backup into data_dir"));
  }
  return store;
}

absl::Status SqliteStore::Recover(Recovered* recovered) {
  *recovered = Recovered();
  if (absl::Status status =
          Execute(db_,
                  "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; "
                  "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA mmap_size=0; "
                  "PRAGMA wal_autocheckpoint=0");
      !status.ok()) {
    return status;
  }
  absl::StatusOr<std::string> mode = QueryText(db_, "PRAGMA journal_mode");
  if (!mode.ok()) return mode.status();
  if (*mode != "wal")
    return absl::FailedPreconditionError(
        absl::StrCat("journal mode is ", *mode, " instead of wal"));
  absl::StatusOr<int64_t> version = QueryInt(db_, "PRAGMA user_version");
  if (!version.ok()) return version.status();
  recovered->created = *version == 0;
  const std::string file = FileIdentity(absl::StrCat(options_.directory, "/", kStoreFile));
  if (!recovered->created && *version <= kSchemaVersion && !options_.adopt_restored) {
    if (absl::Status status = CheckOriginal(file); !status.ok()) return status;
  }
  if (absl::Status status = Migrate(db_, options_.directory); !status.ok()) return status;

  Statement meta;
  if (absl::Status status = meta.Prepare(db_, "SELECT store_id, epoch, last_commit FROM meta");
      !status.ok())
    return status;
  absl::StatusOr<bool> row = meta.Next();
  if (!row.ok()) return row.status();
  if (!*row) return absl::DataLossError("meta has no row");
  recovered->store_id = meta.TextColumn(0);
  const uint64_t last_epoch = meta.IntColumn(1);
  last_commit_ = meta.IntColumn(2);
  meta.Reset();
  epoch_ =
      options_.adopt_restored ? AdoptedEpoch(last_epoch, RealClock()->WallNs()) : last_epoch + 1;
  if (!IsId(recovered->store_id)) return absl::DataLossError("meta: the store id is damaged");
  if (absl::Status status = CheckTail(); !status.ok()) return status;

  next_instance_ = file.empty() ? RandomId() : absl::StrCat(RandomId(), kFileMark, file);
  instance_ =
      options_.adopt_restored ? absl::StrCat(kBackupMark, " ", next_instance_) : next_instance_;
  Statement raise;
  absl::Status status =
      raise.Prepare(db_, "UPDATE meta SET epoch = ?1, instance = ?2 WHERE epoch = ?3");
  if (status.ok()) status = raise.Int(1, epoch_).Text(2, instance_).Int(3, last_epoch).Run();
  if (!status.ok()) return status;
  if (sqlite3_changes(db_) != 1)
    return absl::AbortedError("another process changed the store while it was opened");

  Statement rows;
  if (status = rows.Prepare(db_, "SELECT kind, id, bytes FROM rows ORDER BY kind, id");
      !status.ok())
    return status;
  while (true) {
    absl::StatusOr<bool> more = rows.Next();
    if (!more.ok()) return more.status();
    if (!*more) break;
    RowChange change;
    change.kind = rows.TextColumn(0);
    change.id = rows.TextColumn(1);
    change.bytes = rows.TextColumn(2);
    recovered->rows.push_back(std::move(change));
  }
  recovered->epoch = epoch_;
  recovered->last_commit = last_commit_;
  sqlite3_wal_hook(
      db_,
      [](void* self, sqlite3*, const char*, int pages) {
        static_cast<SqliteStore*>(self)->wal_pages_ = pages;
        return SQLITE_OK;
      },
      this);
  return statements_->Prepare(db_);
}

// Neither a backup nor a copy. Before anything is migrated: who is refused can go back to what he
// had.
absl::Status SqliteStore::CheckOriginal(const std::string& file) {
  const absl::StatusOr<std::string> instance = QueryText(db_, "SELECT instance FROM meta");
  if (!instance.ok())
    return absl::IsNotFound(instance.status())
               ? absl::OkStatus()
               : instance.status();  // what lacks it is damaged, and called so
  if (instance->rfind(kBackupMark, 0) == 0) {
    return absl::FailedPreconditionError(
        "this is a backup, or was adopted by a start that did not get to its first commit: what "
        "was decided after it was made is not in it, and may "
        "still run. Start musterd on the newest store, or with --adopt-restored to go on from this "
        "one");
  }
  const size_t mark = instance->find(kFileMark);
  if (mark == std::string::npos ||
      MayBeSameFile(instance->substr(mark + sizeof kFileMark - 1), file))
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this is a copy: the store that musterd served last is another file. If that one is served, "
      "too, each decides without the other, and "
      "work runs twice. Start musterd on the original, or, once that is stopped for good, with "
      "--adopt-restored on this one");
}

// The newest commits as meta counts them are there, contiguous, unharmed; and there is nothing
// beyond them.
absl::Status SqliteStore::CheckTail() {
  absl::StatusOr<int64_t> first = QueryInt(db_, kFirstCommit);
  absl::StatusOr<int64_t> last = QueryInt(db_, "SELECT ifnull(max(commit_number), 0) FROM journal");
  if (!first.ok()) return first.status();
  if (!last.ok()) return last.status();
  if (static_cast<uint64_t>(*last) != last_commit_) {
    return absl::DataLossError(
        absl::StrCat("the journal ends at commit ", *last, ", but ", last_commit_, " were made"));
  }
  if (last_commit_ == 0) return absl::OkStatus();
  const uint64_t from = last_commit_ < kTailCommits ? 1 : last_commit_ - kTailCommits + 1;
  return ScanJournal(db_, std::max<uint64_t>(from, *first), last_commit_,
                     [](uint64_t, const std::string&) {});
}

absl::Status SqliteStore::Commit(const Transaction& transaction) {
  if (failed_) return absl::FailedPreconditionError("the store failed before");
  absl::Status status = CommitOrFail(transaction);
  if (!status.ok()) {
    failed_ = true;
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }
  instance_ = next_instance_;
  last_commit_ = transaction.commit;
  now_ns_ = transaction.now_ns;
  if (wal_pages_ >= kCheckpointPages &&
      sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr) !=
          SQLITE_OK) {
    LogWarn("checkpoint of the store failed",
            {{"error", sqlite3_errmsg(db_)}, {"wal_pages", wal_pages_}});
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::CommitOrFail(const Transaction& transaction) {
  MUSTER_CHECK(transaction.commit == last_commit_ + 1 && !transaction.events.empty());
  absl::Status status = statements_->begin.Run();
  if (status.ok()) status = Guard(transaction.commit);
  for (size_t i = 0; status.ok() && i < transaction.events.size(); ++i) {
    const std::string& bytes = transaction.events[i];
    status = statements_->event.Int(1, transaction.commit)
                 .Int(2, i)
                 .Int(3, transaction.now_ns)
                 .Int(4, RowCrc(transaction.commit, i, bytes))
                 .Blob(5, bytes)
                 .Run();
  }
  for (size_t i = 0; status.ok() && i < transaction.rows.size(); ++i)
    status = WriteRow(transaction.rows[i]);
  if (status.ok())
    status = Trim(transaction.now_ns, kTrimmedForOne, kTrimmedForOne * std::exchange(ended_, 0))
                 .status();
  if (status.ok()) status = statements_->commit.Run();
  return status;
}

// Inside a transaction: it holds only as long as this process owns the store.
absl::Status SqliteStore::Guard(uint64_t commit) {
  absl::Status status = statements_->guard.Int(1, commit)
                            .Int(2, epoch_)
                            .Text(3, instance_)
                            .Text(4, next_instance_)
                            .Run();
  if (status.ok() && sqlite3_changes(db_) != 1) {
    status = absl::AbortedError(absl::StrCat(
        "another musterd has taken over the store (this one's epoch is ", epoch_, ")"));
  }
  return status;
}

absl::Status SqliteStore::WriteRow(const RowChange& row) {
  if (!row.bytes.has_value()) return statements_->erase.Text(1, row.kind).Text(2, row.id).Run();
  absl::Status status =
      statements_->put.Text(1, row.kind).Text(2, row.id).Blob(3, *row.bytes).Run();
  if (status.ok() && row.kind == "job") status = WriteHistory(*row.bytes);
  return status;
}

// Lists have one row of an array: its first member's, in the state of the whole.
pb::JobState StateInLists(const pb::JobRecord& job) {
  return job.has_ended() ? StateOfArray(job.ended()) : job.state();
}

absl::Status SqliteStore::WriteHistory(const std::string& bytes) {
  if (!HasEnded(bytes)) return absl::OkStatus();
  pb::JobRecord job;
  MUSTER_CHECK(job.ParseFromString(bytes));
  ++ended_;
  return statements_->history.Int(1, job.number())
      .Text(2, job.uid())
      .Text(3, job.owner())
      .Text(4, job.spec().queue())
      .Text(5, job.spec().name())
      .Int(6, job.member() > 0 ? pb::JOB_STATE_UNSPECIFIED : StateInLists(job))
      .Int(7, job.cause())
      .Int(8, job.submit_ns())
      .Int(9, job.start_ns())
      .Int(10, std::max(job.end_ns(), job.ended().end_ns()))
      .Blob(11, bytes)
      .Run();
}

void SqliteStore::Idle() {
  if (failed_) return;
  if (now_ns_ - trimmed_ns_ >= kTrimEveryNs) {
    absl::StatusOr<bool> more = TrimBite();
    if (!more.ok()) {
      // As after any failed commit: of a sync that failed nobody knows what it left (contract 18).
      // The next commit ends the process.
      failed_ = true;
      sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
      LogError("trimming the store failed", {{"error", std::string(more.status().message())}});
      return;
    }
    if (!*more) trimmed_ns_ = now_ns_;
  }
  if (wal_pages_ == 0) return;
  if (sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr) ==
      SQLITE_OK)
    wal_pages_ = 0;
}

// Deletes at most so many of the oldest commits and finished jobs that are kept for no longer;
// returns the number of rows. Whole commits only; the newest commit always stays. Inside a
// transaction.
absl::StatusOr<int64_t> SqliteStore::Trim(int64_t now_ns, int64_t commits, int64_t jobs) {
  const int64_t journal_before_ns = now_ns - options_.journal_retention_ns;
  int64_t deleted = 0;
  if (oldest_ns_ < journal_before_ns) {
    absl::StatusOr<bool> row = statements_->oldest_journal.Next();
    if (!row.ok()) return row.status();
    const int64_t oldest = *row ? statements_->oldest_journal.IntColumn(0) : 0;
    oldest_ns_ = *row ? statements_->oldest_journal.IntColumn(1) : now_ns;
    statements_->oldest_journal.Reset();
    if (oldest_ns_ < journal_before_ns) {
      absl::Status status = statements_->trim_journal.Int(1, oldest)
                                .Int(2, oldest + commits - 1)
                                .Int(3, journal_before_ns)
                                .Int(4, last_commit_)
                                .Run();
      if (!status.ok()) return status;
      deleted += sqlite3_changes(db_);
    }
  }
  if (jobs > 0) {
    absl::Status status =
        statements_->trim_history.Int(1, now_ns - options_.history_retention_ns).Int(2, jobs).Run();
    if (!status.ok()) return status;
    deleted += sqlite3_changes(db_);
  }
  return deleted;
}

// True if there may be more.
absl::StatusOr<bool> SqliteStore::TrimBite() {
  absl::Status status = statements_->begin.Run();
  if (status.ok()) status = Guard(last_commit_);
  if (!status.ok()) return status;
  absl::StatusOr<int64_t> deleted = Trim(now_ns_, kBite / 5, kBite);
  if (!deleted.ok()) return deleted.status();
  if (status = statements_->commit.Run(); !status.ok()) return status;
  return *deleted > 0;
}

absl::Status CheckStore(const std::string& directory, const std::atomic<bool>* stop) {
  absl::StatusOr<sqlite3*> opened = OpenReadOnly(absl::StrCat(directory, "/", kStoreFile));
  if (!opened.ok()) return opened.status();
  sqlite3* const db = *opened;
  struct Until {
    std::chrono::steady_clock::time_point give_up;
    const std::atomic<bool>* stop;
  } until{std::chrono::steady_clock::now() + std::chrono::seconds(2), stop};
  sqlite3_progress_handler(
      db, 10'000,
      [](void* at) {
        const Until& until = *static_cast<const Until*>(at);
        return !Wanted(until.stop) || std::chrono::steady_clock::now() > until.give_up ? 1 : 0;
      },
      &until);
  absl::StatusOr<std::string> quick = QueryText(db, "PRAGMA quick_check(1)");
  const bool interrupted = !quick.ok() && sqlite3_errcode(db) == SQLITE_INTERRUPT;
  sqlite3_progress_handler(db, 0, nullptr, nullptr);
  absl::Status status = absl::OkStatus();
  if (!quick.ok() && !interrupted) status = quick.status();
  if (quick.ok() && *quick != "ok")
    status = absl::DataLossError(absl::StrCat("quick_check: ", *quick));
  if (status.ok()) {
    absl::StatusOr<int64_t> first = QueryInt(db, kFirstCommit);
    absl::StatusOr<int64_t> last = QueryInt(db, "SELECT last_commit FROM meta");
    if (!first.ok()) status = first.status();
    if (status.ok() && !last.ok()) status = last.status();
    if (status.ok() && *first > 0)
      status = ScanJournal(db, *first, *last, [](uint64_t, const std::string&) {}, stop);
  }
  sqlite3_close(db);
  if (!Wanted(stop)) return absl::CancelledError("told to stop");
  return status;
}

}  // namespace muster
