#include "scheduler/store/migrations.h"

#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "scheduler/store/place.h"
#include "scheduler/store/sql.h"

namespace muster {
namespace {

// Index i brings version i to i + 1. A step that was released is never changed.
constexpr const char* kSteps[kSchemaVersion] = {
    // 0 -> 1: meta has one row; journal rows are ordered by commit and place inside it.
    R"sql(
CREATE TABLE meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  store_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  instance TEXT NOT NULL,
  last_commit INTEGER NOT NULL
);
CREATE TABLE journal (
  commit_number INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  now_ns INTEGER NOT NULL,
  crc INTEGER NOT NULL,
  bytes BLOB NOT NULL,
  PRIMARY KEY (commit_number, seq)
) WITHOUT ROWID;
CREATE TABLE rows (
  kind TEXT NOT NULL,
  id TEXT NOT NULL,
  bytes BLOB NOT NULL,
  PRIMARY KEY (kind, id)
) WITHOUT ROWID;
)sql",
    // 1 -> 2: finished jobs, for questions about the past.
    R"sql(
CREATE TABLE history (
  number INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,
  owner TEXT NOT NULL,
  queue TEXT NOT NULL,
  name TEXT NOT NULL,
  state INTEGER NOT NULL,
  cause INTEGER NOT NULL,
  submit_ns INTEGER NOT NULL,
  start_ns INTEGER NOT NULL,
  end_ns INTEGER NOT NULL,
  bytes BLOB NOT NULL
);
CREATE INDEX history_by_end ON history (end_ns);
CREATE INDEX history_by_owner ON history (owner, end_ns);
CREATE INDEX history_by_queue ON history (queue, end_ns);
)sql",
    // 2 -> 3: rows may hold the ledger's class `fragmented` and hosts' quarantines, which the
    // release before can't read. The events that it
    // journalled make other rows by the rules of now: without its first commit the journal counts
    // as one that was trimmed, of which only
    // checksums and gaps are checked (VerifyStore). The copy has it whole.
    R"sql(
DELETE FROM journal WHERE commit_number = 1 AND (SELECT last_commit FROM meta) > 1;
)sql",
    // 3 -> 4: the same, as lost hosts in a row are counted (decision 048), and held places outlive
    // silent hosts.
    R"sql(
DELETE FROM journal WHERE commit_number = 1 AND (SELECT last_commit FROM meta) > 1;
)sql",
    // 4 -> 5: the same. The release before would forget for whom jobs wait (131), who was revoked,
    // and whose names are whose (132), and would start tasks apart that start together (137).
    R"sql(
DELETE FROM journal WHERE commit_number = 1 AND (SELECT last_commit FROM meta) > 1;
)sql",
    // 5 -> 6: the same. The release before would let a host that was revoked renew a certificate
    // that had ended (085). A run is booked when nothing of it runs any more, before its export is
    // published: of attempts that wait for theirs during the upgrade it isn't.
    R"sql(
DELETE FROM journal WHERE commit_number = 1 AND (SELECT last_commit FROM meta) > 1;
)sql",
};

// The store as it is, beside it: what to go back to with the release before (contract 24). One
// that is there may be of an upgrade that was gone back on since.
absl::Status KeepCopy(sqlite3* db, const std::string& directory, int64_t version) {
  const std::string target = absl::StrCat(directory, "/muster.db.version-", version),
                    temporary = absl::StrCat(target, ".part");
  unlink(temporary.c_str());
  Statement copy;
  absl::Status status = copy.Prepare(db, "VACUUM INTO ?1");
  if (status.ok()) status = copy.Text(1, temporary).Run();
  if (status.ok()) status = SyncPath(temporary);
  if (status.ok() && rename(temporary.c_str(), target.c_str()) != 0)
    status = ErrnoStatus(errno, target);
  if (status.ok()) status = SyncPath(directory);
  if (status.ok()) return status;
  unlink(temporary.c_str());
  return Annotate(status, absl::StrCat("the copy before the migration, ", target,
                                       ", which needs as much room as the store"));
}

}  // namespace

absl::Status Migrate(sqlite3* db, const std::string& path) {
  absl::StatusOr<int64_t> version = QueryInt(db, "PRAGMA user_version");
  if (!version.ok()) return Annotate(version.status(), path);
  if (*version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": the store has version ", *version, ", newer than this musterd's ", kSchemaVersion,
        ". Start the newer musterd, or restore a backup made before the upgrade"));
  }
  if (*version > 0 && *version < kSchemaVersion) {
    if (absl::Status status = KeepCopy(db, path, *version); !status.ok()) return status;
  }
  for (int64_t from = *version; from < kSchemaVersion; ++from) {
    absl::Status status = Execute(db, "BEGIN IMMEDIATE");
    if (status.ok()) status = Execute(db, kSteps[from]);
    if (status.ok() && from == 0) {
      status =
          Execute(db, absl::StrCat("INSERT INTO meta VALUES (1, '", RandomId(), "', 0, '', 0)"));
    }
    if (status.ok()) status = Execute(db, absl::StrCat("PRAGMA user_version = ", from + 1));
    if (status.ok()) status = Execute(db, "COMMIT");
    if (!status.ok()) {
      sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr);
      return Annotate(status, absl::StrCat(path, ": migration from version ", from));
    }
    if (*version > 0) LogInfo("store migrated", {{"path", path}, {"from", from}, {"to", from + 1}});
  }
  return absl::OkStatus();
}

}  // namespace muster
