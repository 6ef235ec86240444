// Who uses what now, and who used what since booking began. Thread-safe on snapshots.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/v1/cluster_service.pb.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// Jobs that `sees` refuses count in every sum, but have no row of their own.
using Sees = std::function<bool(const JobRow&)>;

pb::TopResponse DescribeTop(const State& state, const Plan& plan, const pb::TopRequest& request,
                            int64_t now_ns, const Sees& sees);

// Devices' thousandths of one flavour in one cluster, of all hosts that are listed or were seen,
// but for removed ones.
struct PoolUse {
  bool declared = false;
  int64_t total_milli = 0;
  int64_t used_milli = 0;
  int64_t down_milli =
      0;  // not in use, of hosts that are drained or away, and of unhealthy devices
  int64_t quarantined_milli = 0;  // part of down_milli
};
// By cluster (index) and flavour.
std::map<std::pair<int32_t, std::string>, PoolUse> UseByPool(const State& state);

// The rows of a ledger, largest first. QUEUE: the State's own books. USER and JOB: from the
// attempts that are kept, by the same rules (productive, less what was lost since the last
// checkpoint; restart and preemption); whole milliseconds.
std::vector<pb::LedgerResponse::Row> LedgerRows(const State& state, pb::GetLedgerRequest::By by,
                                                const Sees& sees);

// Devices that are free in a pool while an entitled task waits there only because they aren't in
// its shape; and such tasks.
struct Stranded {
  int64_t milli = 0;
  int64_t tasks = 0;
};
Stranded StrandedNow(const State& state, const Plan& plan);

}  // namespace muster
