// What Decide says: the events that carry it out, and why each waiting task waits.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/v1/job.pb.h"
#include "muster/v1/record.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// A task: the job's number and the task's index in its spec.
struct TaskRef {
  uint64_t job = 0;
  int32_t task = 0;
  auto operator<=>(const TaskRef&) const = default;
};

struct Plan {
  // To be applied in this order, in the step that planned them: AttemptStopping, ClusterOpened, TaskFailed, AttemptLost,
  // AttemptPlaced, ReservationChanged.
  std::vector<pb::Event> events;
  // For every task that is WAITING or BLOCKED when the plan's events are applied, and for those placed by it
  // (V_STARTING_NOW). Without `text`: scheduler/ask makes sentences.
  std::map<TaskRef, pb::Verdict> verdicts;
  // When Decide may say something new although nothing happens: Unix time. Never before the step's now.
  int64_t next_look_ns = std::numeric_limits<int64_t>::max();
  // Units of the entitled set: (queue path, flavour or "cpu") -> thousandths. Inner queues hold the sums of their leaves.
  std::map<std::pair<std::string, std::string>, int64_t> entitled_milli;
};

}  // namespace muster
