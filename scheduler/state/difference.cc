// What two States that should be equal differ in: for tests, replays and the simulator.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "scheduler/state/state.h"

namespace muster {

State State::Rebuilt() const {
  absl::StatusOr<State> state = Load(AllRows());
  MUSTER_CHECK_MSG(state.ok(), std::string(state.status().message()).c_str());
  return *std::move(state);
}

std::string State::Difference(const State& a, const State& b) {
  const std::vector<RowChange> rows_a = a.AllRows(), rows_b = b.AllRows();
  if (rows_a.size() != rows_b.size())
    return absl::StrCat("rows: ", rows_a.size(), " and ", rows_b.size());
  for (size_t i = 0; i < rows_a.size(); ++i) {
    if (rows_a[i].kind != rows_b[i].kind || rows_a[i].id != rows_b[i].id)
      return absl::StrCat("row ids at ", i);
    if (rows_a[i].bytes != rows_b[i].bytes)
      return absl::StrCat("row ", rows_a[i].kind, " ", rows_a[i].id);
  }
  if (*a.active_ != *b.active_) return "active jobs";
  if (*a.finished_ != *b.finished_) return "finished jobs";
  if (a.finished_members_ != b.finished_members_) return "finished members";
  if (*a.arrays_ != *b.arrays_) return "arrays that go on";
  if (*a.awaited_ != *b.awaited_) return "who waits for whom";
  if (*a.due_ != *b.due_) return "who waits for a time";
  if (*a.hosted_ != *b.hosted_) return "who runs on whose devices";
  if (*a.staged_exports_ != *b.staged_exports_) return "staged exports";
  if (*a.reserved_ != *b.reserved_) return "tasks with reservations";
  if (*a.waiting_ != *b.waiting_) return "waiting tasks";
  if (*a.queue_use_ != *b.queue_use_) return "use of queues";
  if (a.newest_done_.Entries() != b.newest_done_.Entries()) return "newest finished by name";
  if (a.job_by_uid_.Entries() != b.job_by_uid_.Entries()) return "index by uid";
  if (a.job_by_key_.Entries() != b.job_by_key_.Entries()) return "index by idempotency key";
  if (*a.ledger_rate_ != *b.ledger_rate_) return "ledger rates";
  if (*a.idle_ != *b.idle_) return "idle devices of pools";
  if (a.capacity_milli_ != b.capacity_milli_) return "capacity";
  if (a.host_order_->size() != b.host_order_->size()) return "number of hosts";
  for (size_t i = 0; i < a.host_order_->size(); ++i) {
    const HostRow& x = a.host((*a.host_order_)[i]);
    const HostRow& y = b.host((*b.host_order_)[i]);
    if (x.name != y.name || x.cluster != y.cluster) return absl::StrCat("order of hosts at ", i);
    if (x.attempts != y.attempts || x.reserved != y.reserved ||
        x.device_used_milli != y.device_used_milli || x.cpus_used_milli != y.cpus_used_milli ||
        x.memory_used_bytes != y.memory_used_bytes || x.disk_used_bytes != y.disk_used_bytes ||
        x.shares != y.shares) {
      return absl::StrCat("use of host ", x.name);
    }
  }
  return "";
}

}  // namespace muster
