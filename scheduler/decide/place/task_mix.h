// What tasks come: those of every job that State knows, which wait, run or ran. From it a pool of
// hosts learns the typical tasks that its scorer expects (docs/decisions/061-rare-shapes.md).
//
// Built once from a State, then kept: Refresh reads a job again that an event touched. What it says
// follows from State alone. Inside of scheduler/decide. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "scheduler/decide/place/score.h"
#include "scheduler/state/state.h"

namespace muster {

class TaskMix {
 public:
  // As many different tasks as a pool's scorer knows: those that count most.
  static constexpr size_t kMostTasks = 256;

  TaskMix() = default;
  TaskMix(const TaskMix&) = delete;  // `news_` points into it
  TaskMix& operator=(const TaskMix&) = delete;

  void Rebuild(const State& state);
  // The job came, is another one, or is forgotten.
  void Refresh(const State& state, uint64_t job);

  // The hosts of a flavour in a cluster. A pool's number is the same as long as the mix lives.
  int32_t PoolOf(const std::string& cluster, const std::string& flavour) const;
  // The tasks that may come to the pool, at their smallest size, by count: the largest first.
  // Counts are rounded down to powers of two, so that the answer seldom changes; they sum to less
  // than 2^20. Good until the mix changes.
  const std::vector<TypicalSlice>& Typical(int32_t pool) const;
  // Another number than before where Typical has another answer for the pool.
  uint64_t Version(int32_t pool) const;

 private:
  struct Pool {
    std::string cluster, flavour;
    absl::btree_map<SliceWish, int64_t> counts;  // of all groups whose tasks may come there
    bool changed = false;                        // `counts`, since `typical` was made
    std::vector<TypicalSlice> typical;
    uint64_t version = 1;  // of `typical`
  };
  // Tasks that may go to the same pools.
  struct Group {
    absl::btree_map<SliceWish, int64_t> counts;
    bool changed = false;               // some count passed a power of two since `typical` was made
    std::vector<TypicalSlice> typical;  // as the pools count it
    std::vector<int32_t> pools;         // of those that were asked for
  };
  // Names of clusters (none: all), and flavours.
  using Where = std::pair<std::vector<std::string>, std::vector<std::string>>;

  void Count(const pb::JobSpec& spec, int64_t by);
  Group* AddGroup(const Where& where);
  void RemoveGroup(const Where& where);
  void CountAnew(Group* group, std::vector<TypicalSlice> typical) const;
  void Settle() const;

  // Jobs may name their clusters in thousands of ways, and pools are asked for in each step: so
  // each pool has its sums, which what changed in a group is added to.
  mutable std::map<Where, Group> groups_;
  mutable std::vector<Pool> pools_;
  mutable std::map<std::pair<std::string, std::string>, int32_t> pool_of_;  // by cluster, flavour
  mutable std::vector<Group*> news_;                                        // those that changed
  absl::btree_map<uint64_t, std::shared_ptr<const pb::JobSpec>> jobs_;      // that are counted
};

}  // namespace muster
