// What an operator does with a store's file, whether musterd runs on it or not: copy it, check it,
// decide all of it again (contracts 23, 24 of docs/contracts.md). Read-only connections of their
// own.
//
// Thread-safety: none needed; nothing is shared.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/state/options.h"

namespace muster {

// Copies the store of `directory` into the new file `target`, as of one commit: VACUUM INTO,
// checked, synced, renamed. The copy is marked: musterd serves it only with --adopt-restored.
// ALREADY_EXISTS if there is such a file; nothing is left of what failed.
absl::Status BackupStore(const std::string& directory, const std::string& target);

struct StoreReport {
  std::string store_id;
  uint64_t epoch = 0;
  uint64_t first_commit = 0, last_commit = 0;  // in the journal; 0: none
  uint64_t events = 0;
  uint64_t rows = 0;
  bool replayed =
      false;  // the journal begins with the first commit, so the rows were made again from it
};

// SQLite's whole integrity_check, each journal row's checksum, contiguous commits, rows that make a
// State, and, where the journal is whole, that its events make exactly these rows. DATA_LOSS says
// what is wrong first. `file`: a database, such as a backup.
absl::StatusOr<StoreReport> VerifyStore(const std::string& file);

struct ReplayReport {
  uint64_t commits = 0;
  uint64_t events = 0;
  uint64_t plans = 0;  // that started, stopped or kept something
};

// Decides every step of the journal again, with these options, and compares the plan with what was
// committed, bit for bit. FAILED_PRECONDITION if the journal's beginning was trimmed; ABORTED names
// the first commit that differs.
absl::StatusOr<ReplayReport> ReplayStore(const std::string& file, const SchedulingOptions& options);

}  // namespace muster
