#include "scheduler/store/history.h"

#include <sqlite3.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/store/store.h"

namespace muster {

absl::StatusOr<std::unique_ptr<StoreHistory>> StoreHistory::Open(const std::string& directory) {
  absl::StatusOr<sqlite3*> db = OpenReadOnly(absl::StrCat(directory, "/", kStoreFile));
  if (!db.ok()) return db.status();
  std::unique_ptr<StoreHistory> history(new StoreHistory(*db));
  if (absl::Status status = history->Prepare(); !status.ok())
    return Annotate(status, absl::StrCat(directory, "/", kStoreFile));
  return history;
}

absl::Status StoreHistory::Prepare() {
  statements_ = std::make_unique<Statements>();
  absl::Status status =
      statements_->by_number.Prepare(db_, "SELECT bytes FROM history WHERE number = ?1");
  if (status.ok())
    status = statements_->by_uid.Prepare(db_, "SELECT bytes FROM history WHERE uid = ?1");
  // `bytes` is the last column: of a row that is passed over nobody reads it.
  if (status.ok()) {
    status = statements_->below.Prepare(
        db_,
        "SELECT number, owner, queue, state, bytes FROM history "
        "WHERE number < ?1 AND number > ?2 AND state != 0 ORDER BY number DESC");
  }
  return status;
}

StoreHistory::~StoreHistory() {
  statements_.reset();
  sqlite3_close(db_);
}

absl::StatusOr<std::string> StoreHistory::Find(std::string_view id) {
  std::lock_guard lock(mutex_);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  const bool by_number = error == std::errc() && end == id.data() + id.size();
  Statement& statement =
      by_number ? statements_->by_number.Int(1, number) : statements_->by_uid.Text(1, id);
  absl::StatusOr<bool> row = statement.Next();
  if (!row.ok()) return row.status();
  std::string bytes = *row ? statement.TextColumn(0) : "";
  statement.Reset();
  return bytes;
}

absl::Status StoreHistory::Scan(uint64_t before, uint64_t above,
                                const std::function<bool(const Row&)>& each) {
  std::lock_guard lock(mutex_);
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  Statement& rows =
      statements_->below.Int(1, std::min(before, kMost)).Int(2, std::min(above, kMost));
  for (;;) {
    const absl::StatusOr<bool> there = rows.Next();
    if (!there.ok()) return there.status();
    if (!*there) return absl::OkStatus();
    const std::string owner = rows.TextColumn(1), queue = rows.TextColumn(2);
    const Row row{static_cast<uint64_t>(rows.IntColumn(0)), owner, queue,
                  static_cast<pb::JobState>(rows.IntColumn(3)),
                  [&rows] { return rows.TextColumn(4); }};
    if (each(row)) continue;
    rows.Reset();
    return absl::OkStatus();
  }
}

}  // namespace muster
