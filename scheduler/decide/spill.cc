// Spill: opening another cluster of a waiting task's list.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/decide/round.h"

namespace muster {

// Opens the next cluster of a waiting task's list when that starts it sooner by more than spill_cost; once per attempt.
void Round::Spill() {
  std::vector<int32_t> waiting;
  std::merge(entitled_.begin(), entitled_.end(), outside_.begin(), outside_.end(), std::back_inserter(waiting));
  for (const int32_t b : waiting) {
    const Base& base = m_.bases[b];
    if (!base.wants_place() || served_[b] || base.row->opened_attempt == base.row->next_attempt) continue;
    if (base.row->backoff_until_ns > now_ns_) continue;
    int32_t next = -1;
    for (size_t i = 0; i < base.cells.size() && next < 0; ++i) {
      const bool holds = m_.cells[base.cells[i]].capacity_milli >= base.worker_milli * base.min_workers;
      if (!base.opened[i] && holds) next = base.cells[i];
    }
    if (next < 0) continue;
    const int64_t there_ns = EarliestStart(b, next);
    if (there_ns == 0) continue;
    int64_t here_ns = kUnbounded;
    int32_t here = -1;
    for (size_t i = 0; i < base.cells.size(); ++i) {
      if (!base.opened[i]) continue;
      if (here < 0) here = base.cells[i];
      const int64_t start_ns = EarliestStart(b, base.cells[i]);
      if (start_ns != 0) here_ns = std::min(here_ns, start_ns);
    }
    if (here_ns != kUnbounded && there_ns + options_.spill_cost_ns >= here_ns) continue;
    pb::ClusterOpened* opened = opened_.emplace_back().mutable_cluster_opened();
    opened->set_job_uid(base.job->uid);
    opened->set_task(base.spec->name());
    opened->set_cluster(CellName(next));
    const std::string full = here < 0 ? "no cluster before it has such devices"
                             : here_ns == kUnbounded
                                 ? absl::StrCat(CellName(here), " is full, until when is unknown")
                                 : absl::StrCat(CellName(here), " is full for about ", FormatDuration((here_ns - now_ns_) / kSecond * kSecond));
    opened->set_reason(absl::StrCat(full, "; ", CellName(next), " has room ",
                                    there_ns <= now_ns_ ? std::string("now")
                                                        : absl::StrCat("in about ", FormatDuration((there_ns - now_ns_) / kSecond * kSecond))));
  }
}

}  // namespace muster
