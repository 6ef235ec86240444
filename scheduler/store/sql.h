// A thin layer over SQLite's C interface: errors as absl::Status, statements that finalize
// themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace muster {

// Code by the kind of error: DATA_LOSS corrupt or not a database, RESOURCE_EXHAUSTED full,
// UNAVAILABLE busy, else INTERNAL.
absl::Status SqlError(sqlite3* db, std::string_view doing);
absl::Status Annotate(const absl::Status& status, std::string_view prefix);

absl::Status Execute(sqlite3* db, const std::string& sql);
absl::StatusOr<int64_t> QueryInt(sqlite3* db, const std::string& sql);
absl::StatusOr<std::string> QueryText(sqlite3* db, const std::string& sql);

// For questions beside the writer: read-only, waits 2 s for a lock, never trusts the schema. Errors
// name the file. sqlite3_close it.
absl::StatusOr<sqlite3*> OpenReadOnly(const std::string& file);

// A prepared statement. Bind from index 1; text and blobs must outlive the next Reset.
class Statement {
 public:
  Statement() = default;
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  absl::Status Prepare(sqlite3* db, std::string_view sql);
  Statement& Int(int index, int64_t value);
  Statement& Text(int index, std::string_view value);
  Statement& Blob(int index, std::string_view value);
  // Runs to the end, then resets; rows are not expected.
  absl::Status Run();
  // True while there is a row; resets at the end.
  absl::StatusOr<bool> Next();
  int64_t IntColumn(int column) const;
  std::string TextColumn(int column) const;  // also of blobs
  void Reset();

 private:
  sqlite3* db_ = nullptr;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace muster
