// The store's history, read through a read-only connection of its own beside the one that writes.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "scheduler/engine/history.h"
#include "scheduler/store/sql.h"

struct sqlite3;

namespace muster {

class StoreHistory : public History {
 public:
  // Of the store that is open in `directory`. Errors name the path.
  static absl::StatusOr<std::unique_ptr<StoreHistory>> Open(const std::string& directory);
  ~StoreHistory() override;
  absl::StatusOr<std::string> Find(std::string_view id) override;
  absl::Status Scan(uint64_t before, uint64_t above,
                    const std::function<bool(const Row&)>& each) override;

 private:
  explicit StoreHistory(sqlite3* db) : db_(db) {}
  absl::Status Prepare();

  std::mutex mutex_;  // one question at a time
  sqlite3* const db_;
  struct Statements {
    Statement by_number, by_uid, below;
  };
  std::unique_ptr<Statements> statements_;
};

}  // namespace muster
