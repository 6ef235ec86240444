#include "scheduler/store/admin.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "muster/v1/record.pb.h"
#include "scheduler/decide/decider.h"
#include "scheduler/state/bytes.h"
#include "scheduler/state/state.h"
#include "scheduler/store/migrations.h"
#include "scheduler/store/place.h"
#include "scheduler/store/sql.h"
#include "scheduler/store/store.h"

namespace muster {
namespace {

struct Close {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
};
using Database = std::unique_ptr<sqlite3, Close>;

absl::StatusOr<Database> OpenFile(const std::string& path, int flags) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Database owned(db);
  if (code != SQLITE_OK) return Annotate(SqlError(db, "open"), path);
  sqlite3_busy_timeout(db, 10'000);
  if (absl::Status status = Execute(db, "PRAGMA mmap_size=0; PRAGMA trusted_schema=OFF");
      !status.ok())
    return Annotate(status, path);
  return owned;
}

absl::Status CheckIntegrity(sqlite3* db) {
  absl::StatusOr<std::string> said = QueryText(db, "PRAGMA integrity_check(1)");
  if (!said.ok()) return said.status();
  return *said == "ok" ? absl::OkStatus()
                       : absl::DataLossError(absl::StrCat("integrity_check: ", *said));
}

// What the rows are as of one commit, and how far the journal goes.
struct Held {
  StoreReport report;
  std::vector<RowChange> rows;  // in (kind, id) order
};

absl::StatusOr<Held> ReadHeld(sqlite3* db) {
  Held held;
  if (absl::Status status = Execute(db, "BEGIN"); !status.ok())
    return status;  // one transaction: musterd may go on meanwhile
  Statement meta, rows, journal;
  absl::Status status = meta.Prepare(db, "SELECT store_id, epoch, last_commit FROM meta");
  if (status.ok()) status = rows.Prepare(db, "SELECT kind, id, bytes FROM rows ORDER BY kind, id");
  if (status.ok())
    status = journal.Prepare(
        db, "SELECT ifnull(min(commit_number), 0), ifnull(max(commit_number), 0) FROM journal");
  if (!status.ok()) return status;
  absl::StatusOr<bool> row = meta.Next();
  if (!row.ok() || !*row) return row.ok() ? absl::DataLossError("meta has no row") : row.status();
  held.report.store_id = meta.TextColumn(0);
  held.report.epoch = meta.IntColumn(1);
  held.report.last_commit = meta.IntColumn(2);
  meta.Reset();
  row = journal.Next();
  if (!row.ok()) return row.status();
  held.report.first_commit = journal.IntColumn(0);
  if (static_cast<uint64_t>(journal.IntColumn(1)) != held.report.last_commit) {
    return absl::DataLossError(absl::StrCat("the journal ends at commit ", journal.IntColumn(1),
                                            ", but ", held.report.last_commit, " were made"));
  }
  journal.Reset();
  while (true) {
    row = rows.Next();
    if (!row.ok()) return row.status();
    if (!*row) break;
    held.rows.push_back({rows.TextColumn(0), rows.TextColumn(1), rows.TextColumn(2)});
  }
  held.report.rows = held.rows.size();
  return Execute(db, "COMMIT").ok() ? absl::StatusOr<Held>(std::move(held))
                                    : absl::InternalError("COMMIT of a reader failed");
}

// Calls `each` with the events of every commit, one commit at a time, but for those that are
// trimmed before they are read. Ends with the first error, its own or that of `each`.
absl::Status ForEachCommit(
    sqlite3* db, const StoreReport& report,
    const std::function<absl::Status(uint64_t commit, const std::vector<std::string>& events)>&
        each) {
  uint64_t commit = report.first_commit;
  std::vector<std::string> events;
  absl::Status failed;
  const absl::Status scanned = ScanJournal(db, report.first_commit, report.last_commit,
                                           [&](uint64_t number, const std::string& bytes) {
                                             if (number != commit) {
                                               if (failed.ok() && !events.empty())
                                                 failed = each(commit, events);
                                               events.clear();
                                               commit = number;
                                             }
                                             events.push_back(bytes);
                                           });
  if (failed.ok() && scanned.ok() && !events.empty()) failed = each(commit, events);
  return failed.ok() ? scanned : failed;
}

absl::StatusOr<pb::Event> Parse(uint64_t commit, const std::string& bytes) {
  pb::Event event;
  if (event.ParseFromString(bytes)) return event;
  return absl::DataLossError(
      absl::StrCat("journal: an event of commit ", commit, " can't be parsed"));
}

// Of a plan: what Decide gave. All else came from outside, or from the engine before it decided.
bool IsPlanned(const pb::Event& event) {
  return event.has_attempt_placed() || event.has_attempt_stopping() || event.has_attempt_lost() ||
         event.has_cluster_opened() || event.has_task_failed() || event.has_reservation();
}

absl::Status Trimmed(uint64_t first) {
  return absl::FailedPreconditionError(
      absl::StrCat("the journal begins with commit ", first,
                   ", older ones were trimmed: what it began from is not "
                   "known (journal_retention keeps more of it)"));
}

std::string RowName(const RowChange& row) {
  return row.id.empty() ? row.kind : absl::StrCat(row.kind, " ", row.id);
}

absl::Status CompareRows(std::vector<RowChange> made, const std::vector<RowChange>& held) {
  std::map<std::pair<std::string, std::string>, std::string> rows;
  for (RowChange& row : made) rows[{row.kind, row.id}] = std::move(*row.bytes);
  for (const RowChange& row : held) {
    const auto it = rows.find({row.kind, row.id});
    if (it == rows.end())
      return absl::DataLossError(
          absl::StrCat("row ", RowName(row), ": the journal doesn't make it"));
    if (it->second != *row.bytes)
      return absl::DataLossError(
          absl::StrCat("row ", RowName(row), ": differs from what the journal makes"));
    rows.erase(it);
  }
  if (rows.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("row ", rows.begin()->first.first, " ",
                                          rows.begin()->first.second, ": missing"));
}

// A backup must not fill the disk under the musterd that serves: its next commit would be its last.
absl::Status HasRoom(const std::string& directory, const std::string& target) {
  const std::filesystem::path store = absl::StrCat(directory, "/", kStoreFile),
                              beside = std::filesystem::absolute(target).parent_path();
  std::error_code failed;
  const uintmax_t bytes = std::filesystem::file_size(store, failed);
  if (failed) return absl::OkStatus();  // opening it says what is the matter
  const std::filesystem::space_info space = std::filesystem::space(beside, failed);
  if (failed) return absl::OkStatus();
  struct stat here, there;
  const bool same = stat(directory.c_str(), &here) == 0 && stat(beside.c_str(), &there) == 0 &&
                    here.st_dev == there.st_dev;
  const uintmax_t needed = bytes + (same ? kBallastBytes : 0);
  if (space.available >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      beside.string(), ": ", space.available >> 20, " MiB are free, and ", needed >> 20,
      " are needed",
      same ? absl::StrCat(", ", kBallastBytes >> 20, " of them for musterd itself") : "",
      ". Name a file on another disk"));
}

// What the journal makes is known for a store of this version only (migrations.cc).
absl::StatusOr<bool> OfThisVersion(sqlite3* db) {
  absl::StatusOr<int64_t> version = QueryInt(db, "PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version <= kSchemaVersion) return *version == kSchemaVersion;
  return absl::FailedPreconditionError(absl::StrCat("the store has version ", *version,
                                                    ", newer than this muster's ", kSchemaVersion,
                                                    ". Use the release that wrote it"));
}

}  // namespace

absl::Status BackupStore(const std::string& directory, const std::string& target) {
  if (access(target.c_str(), F_OK) == 0)
    return absl::AlreadyExistsError(absl::StrCat(target, ": exists; name another file"));
  const std::string temporary = absl::StrCat(target, ".part-", getpid());
  unlink(temporary.c_str());
  if (absl::Status room = HasRoom(directory, target); !room.ok()) return room;
  const auto make = [&]() -> absl::Status {
    absl::StatusOr<Database> source =
        OpenFile(absl::StrCat(directory, "/", kStoreFile), SQLITE_OPEN_READONLY);
    if (!source.ok()) return source.status();
    Statement copy;
    absl::Status status = copy.Prepare(source->get(), "VACUUM INTO ?1");
    if (status.ok()) status = copy.Text(1, temporary).Run();
    if (!status.ok()) return Annotate(status, temporary);
    absl::StatusOr<Database> made = OpenFile(temporary, SQLITE_OPEN_READWRITE);
    if (!made.ok()) return made.status();
    status = Execute(
        made->get(),
        absl::StrCat("PRAGMA synchronous=FULL; UPDATE meta SET instance = '", kBackupMark, "'"));
    if (!status.ok()) return Annotate(status, temporary);
    made->reset();
    if (absl::Status checked = VerifyStore(temporary).status(); !checked.ok()) return checked;
    return SyncPath(temporary);
  };
  absl::Status status = make();
  if (status.ok() && rename(temporary.c_str(), target.c_str()) != 0)
    status = ErrnoStatus(errno, target);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  const size_t slash = target.rfind('/');
  return SyncPath(slash == std::string::npos ? "." : slash == 0 ? "/" : target.substr(0, slash));
}

absl::StatusOr<StoreReport> VerifyStore(const std::string& file) {
  absl::StatusOr<Database> db = OpenFile(file, SQLITE_OPEN_READONLY);
  if (!db.ok()) return db.status();
  const auto check = [&]() -> absl::StatusOr<StoreReport> {
    if (absl::Status status = CheckIntegrity(db->get()); !status.ok()) return status;
    const absl::StatusOr<bool> this_version = OfThisVersion(db->get());
    if (!this_version.ok()) return this_version.status();
    absl::StatusOr<Held> held = ReadHeld(db->get());
    if (!held.ok()) return held.status();
    StoreReport& report = held->report;
    if (absl::Status status = State::Load(held->rows).status(); !status.ok()) return status;
    if (report.first_commit == 0) return report;
    report.replayed = report.first_commit == 1 && *this_version;
    State state;
    uint64_t next = report.first_commit;
    absl::Status status =
        ForEachCommit(db->get(), report,
                      [&](uint64_t commit, const std::vector<std::string>& events) -> absl::Status {
                        if (commit != next) {  // musterd has trimmed it meanwhile
                          report.replayed = false;
                          report.first_commit = commit;
                        }
                        next = commit + 1;
                        report.events += events.size();
                        for (const std::string& bytes : events) {
                          absl::StatusOr<pb::Event> event = Parse(commit, bytes);
                          if (!event.ok()) return event.status();
                          if (report.replayed) Apply(&state, *event);
                        }
                        if (report.replayed) state.TakeChanges();
                        return absl::OkStatus();
                      });
    if (!status.ok()) return status;
    if (report.replayed) {
      if (absl::Status same = CompareRows(state.AllRows(), held->rows); !same.ok()) return same;
    }
    return report;
  };
  absl::StatusOr<StoreReport> report = check();
  if (!report.ok()) return Annotate(report.status(), file);
  return report;
}

absl::StatusOr<ReplayReport> ReplayStore(const std::string& file,
                                         const SchedulingOptions& options) {
  absl::StatusOr<Database> db = OpenFile(file, SQLITE_OPEN_READONLY);
  if (!db.ok()) return db.status();
  const absl::StatusOr<bool> this_version = OfThisVersion(db->get());
  if (!this_version.ok()) return Annotate(this_version.status(), file);
  if (!*this_version)
    return absl::FailedPreconditionError(absl::StrCat(
        file, ": an older release wrote it, and decided by its own rules. Use that release"));
  absl::StatusOr<Held> held = ReadHeld(db->get());
  if (!held.ok()) return Annotate(held.status(), file);
  if (held->report.first_commit > 1) return Annotate(Trimmed(held->report.first_commit), file);
  ReplayReport report;
  if (held->report.first_commit == 0) return report;
  State state;
  Decider decider;
  const absl::Status status = ForEachCommit(
      db->get(), held->report,
      [&](uint64_t commit, const std::vector<std::string>& all) -> absl::Status {
        if (commit != ++report.commits) return Trimmed(commit);
        report.events += all.size();
        std::vector<pb::Event> planned;
        int64_t now_ns = 0;
        for (const std::string& bytes : all) {
          absl::StatusOr<pb::Event> event = Parse(commit, bytes);
          if (!event.ok()) return event.status();
          if (event->has_step()) now_ns = event->step().now_ns();
          if (IsPlanned(*event)) {
            planned.push_back(*std::move(event));
          } else if (!planned.empty()) {
            return absl::AbortedError(
                absl::StrCat("commit ", commit, ": something happens after what was planned"));
          } else {
            Apply(&state, *event);
          }
        }
        if (!state.restoring()) {
          const Plan plan = decider.Decide(state, now_ns, options);
          for (size_t i = 0; i < std::max(plan.events.size(), planned.size()); ++i) {
            const std::string now =
                i < plan.events.size() ? DeterministicBytes(plan.events[i]) : "";
            const std::string then = i < planned.size() ? DeterministicBytes(planned[i]) : "";
            if (now == then) continue;
            return absl::AbortedError(absl::StrCat(
                "commit ", commit, ", event ", i, " of the plan: was\n",
                i < planned.size() ? planned[i].DebugString() : "nothing\n", "and would be\n",
                i < plan.events.size() ? plan.events[i].DebugString() : "nothing\n"));
          }
        }
        if (!planned.empty()) ++report.plans;
        for (const pb::Event& event : planned) Apply(&state, event);
        state.TakeChanges();
        return absl::OkStatus();
      });
  if (!status.ok()) return Annotate(status, file);
  if (absl::Status same = CompareRows(state.AllRows(), held->rows); !same.ok())
    return Annotate(same, file);
  return report;
}

}  // namespace muster
