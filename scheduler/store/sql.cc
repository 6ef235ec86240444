#include "scheduler/store/sql.h"

#include <sqlite3.h>

#include "absl/strings/str_cat.h"

namespace muster {

absl::Status SqlError(sqlite3* db, std::string_view doing) {
  const std::string text =
      absl::StrCat(absl::string_view(doing.data(), doing.size()), ": ", sqlite3_errmsg(db));
  switch (sqlite3_errcode(db) & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(text);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(text);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return absl::PermissionDeniedError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(absl::string_view(prefix.data(), prefix.size()),
                                                  ": ", status.message()));
}

absl::Status Execute(sqlite3* db, const std::string& sql) {
  if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK)
    return absl::OkStatus();
  return SqlError(db, std::string_view(sql).substr(0, 60));
}

absl::StatusOr<int64_t> QueryInt(sqlite3* db, const std::string& sql) {
  Statement statement;
  if (absl::Status status = statement.Prepare(db, sql); !status.ok()) return status;
  absl::StatusOr<bool> row = statement.Next();
  if (!row.ok()) return row.status();
  if (!*row) return absl::NotFoundError(absl::StrCat(sql, ": no row"));
  return statement.IntColumn(0);
}

absl::StatusOr<std::string> QueryText(sqlite3* db, const std::string& sql) {
  Statement statement;
  if (absl::Status status = statement.Prepare(db, sql); !status.ok()) return status;
  absl::StatusOr<bool> row = statement.Next();
  if (!row.ok()) return row.status();
  if (!*row) return absl::NotFoundError(absl::StrCat(sql, ": no row"));
  return statement.TextColumn(0);
}

absl::StatusOr<sqlite3*> OpenReadOnly(const std::string& file) {
  sqlite3* db = nullptr;
  if (sqlite3_open_v2(file.c_str(), &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, nullptr) !=
      SQLITE_OK) {
    absl::Status status = Annotate(SqlError(db, "open"), file);
    sqlite3_close(db);
    return status;
  }
  sqlite3_busy_timeout(db, 2000);
  if (absl::Status status =
          Execute(db, "PRAGMA mmap_size=0; PRAGMA trusted_schema=OFF; PRAGMA query_only=ON");
      !status.ok()) {
    sqlite3_close(db);
    return Annotate(status, file);
  }
  return db;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

absl::Status Statement::Prepare(sqlite3* db, std::string_view sql) {
  sqlite3_finalize(statement_);
  statement_ = nullptr;
  db_ = db;
  if (sqlite3_prepare_v3(db, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                         &statement_, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return SqlError(db, sql.substr(0, 60));
}

Statement& Statement::Int(int index, int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
  return *this;
}

Statement& Statement::Text(int index, std::string_view value) {
  sqlite3_bind_text64(statement_, index, value.data() == nullptr ? "" : value.data(), value.size(),
                      SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

Statement& Statement::Blob(int index, std::string_view value) {
  sqlite3_bind_blob64(statement_, index, value.data() == nullptr ? "" : value.data(), value.size(),
                      SQLITE_STATIC);
  return *this;
}

absl::Status Statement::Run() {
  const int code = sqlite3_step(statement_);
  absl::Status status = absl::OkStatus();
  if (code != SQLITE_DONE)
    status = code == SQLITE_ROW ? absl::InternalError("unexpected row")
                                : SqlError(db_, sqlite3_sql(statement_));
  Reset();
  return status;
}

absl::StatusOr<bool> Statement::Next() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  absl::Status status = absl::OkStatus();
  if (code != SQLITE_DONE) status = SqlError(db_, sqlite3_sql(statement_));
  Reset();
  if (!status.ok()) return status;
  return false;
}

int64_t Statement::IntColumn(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::TextColumn(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  return std::string(static_cast<const char*>(data == nullptr ? "" : data),
                     sqlite3_column_bytes(statement_, column));
}

void Statement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

}  // namespace muster
