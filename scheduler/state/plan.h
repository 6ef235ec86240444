// What Decide says: the events that carry it out, and why each waiting task waits.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "muster/v1/job.pb.h"
#include "muster/v1/record.pb.h"
#include "scheduler/state/paged.h"

namespace muster {

namespace pb = ::muster::v1;

// A task: the job's number and the task's index in its spec.
struct TaskRef {
  uint64_t job = 0;
  int32_t task = 0;
  auto operator<=>(const TaskRef&) const = default;
};

// Why a task waits, or that it starts now. scheduler/ask adds names, who holds what it waits for,
// and a sentence (DescribeVerdict).
struct Verdict {
  TaskRef task;
  pb::VerdictCode code = pb::VERDICT_UNSPECIFIED;
  int32_t cluster = -1;           // index in State::clusters(); -1: it is about no cluster
  int32_t flavour = -1;           // see Verdicts::FlavourOf; -1: it is about no flavour
  int64_t missing_milli = 0;      // devices short
  int64_t expected_start_ns = 0;  // Unix time; 0 = unknown
};

// Verdicts by task. A step of a large system makes tens of thousands of them, so they are a flat
// table that copies share.
class Verdicts {
 public:
  Verdicts() = default;
  // `verdicts` ascend by task; their flavours are indexes in `flavours`.
  Verdicts(std::vector<Verdict> verdicts, std::vector<std::string> flavours)
      : verdicts_(std::make_shared<std::vector<Verdict>>(std::move(verdicts))),
        flavours_(std::make_shared<const std::vector<std::string>>(std::move(flavours))) {}

  // nullptr: the task has none. Valid until Set or Erase.
  const Verdict* Find(TaskRef task) const {
    const auto [at, found] = Seek(task);
    return found ? &all()[at] : nullptr;
  }
  std::span<const Verdict> OfJob(uint64_t job) const {
    const size_t from = Seek({job, std::numeric_limits<int32_t>::min()}).first;
    size_t to = from;
    while (to < all().size() && all()[to].task.job == job) ++to;
    return std::span<const Verdict>(all()).subspan(from, to - from);
  }
  // "cpu" for work without GPUs; "" where it is about none.
  const std::string& FlavourOf(const Verdict& verdict) const {
    static const std::string none;
    return flavours_ == nullptr || verdict.flavour < 0
               ? none
               : (*flavours_)[static_cast<size_t>(verdict.flavour)];
  }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }
  size_t size() const { return all().size(); }

  // Gives a task another verdict, or takes it away: moves the table, for what is rare.
  void Set(const Verdict& verdict) {
    const auto [at, found] = Seek(verdict.task);
    if (found) {
      Mine()[at] = verdict;
    } else {
      Mine().insert(Mine().begin() + static_cast<ptrdiff_t>(at), verdict);
    }
  }
  void Erase(TaskRef task) {
    if (const auto [at, found] = Seek(task); found)
      Mine().erase(Mine().begin() + static_cast<ptrdiff_t>(at));
  }

 private:
  const std::vector<Verdict>& all() const {
    static const std::vector<Verdict> none;
    return verdicts_ == nullptr ? none : *verdicts_;
  }
  std::pair<size_t, bool> Seek(TaskRef task) const {
    const auto at = std::lower_bound(all().begin(), all().end(), task,
                                     [](const Verdict& v, const TaskRef& t) { return v.task < t; });
    return {static_cast<size_t>(at - all().begin()), at != all().end() && at->task == task};
  }
  std::vector<Verdict>& Mine() {
    if (verdicts_ == nullptr) verdicts_ = std::make_shared<std::vector<Verdict>>();
    return *Own(&verdicts_);
  }

  std::shared_ptr<std::vector<Verdict>> verdicts_;
  std::shared_ptr<const std::vector<std::string>> flavours_;
};

struct Plan {
  // To be applied in this order, in the step that planned them: AttemptStopping, TaskFailed,
  // AttemptLost, AttemptPlaced, ReservationChanged, ClusterOpened. The last is an outside event:
  // what it allows is decided in the next step, which follows at once.
  std::vector<pb::Event> events;
  // For every task that is WAITING or BLOCKED when the plan's events are applied, for those placed
  // by it (V_STARTING_NOW), and for what runs on a host that can't be reached.
  Verdicts verdicts;
  // When Decide may say something new although nothing happens: Unix time. Never before the step's
  // now.
  int64_t next_wake_ns = std::numeric_limits<int64_t>::max();
  // Units of the entitled set: (queue path, flavour or "cpu") -> thousandths. Inner queues hold the
  // sums of their leaves.
  std::map<std::pair<std::string, std::string>, int64_t> entitled_milli;
};

}  // namespace muster
