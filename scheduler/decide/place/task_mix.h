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
  TaskMix(const TaskMix&) = delete;  // its parts point to each other
  TaskMix& operator=(const TaskMix&) = delete;

  void Rebuild(const State& state);
  // The job came, is another one, or is forgotten.
  void Refresh(const State& state, uint64_t job);

  // The tasks that may come to hosts of the flavour in the cluster, at their smallest size, by
  // count: the largest first. Counts are rounded down to powers of two, so that the answer seldom
  // changes; they sum to less than 2^20.
  std::vector<TypicalSlice> Typical(const std::string& cluster, const std::string& flavour) const;
  // Another number than before if some answer of Typical may be another one.
  uint64_t Version() const;

 private:
  struct Group;
  // The hosts of a flavour in a cluster.
  struct Pool {
    std::vector<Group*> groups;  // whose tasks may come there
    bool changed = true;         // some group of them has, since `typical` was made
    std::vector<TypicalSlice> typical;
  };
  // Tasks that may go to the same pools.
  struct Group {
    absl::btree_map<SliceWish, int64_t> counts;
    bool changed = false;  // some count passed a power of two since `typical` was made
    std::vector<TypicalSlice> typical;
    std::vector<Pool*> pools;  // of those that were asked for
  };
  // Names of clusters (none: all), and flavours.
  using Where = std::pair<std::vector<std::string>, std::vector<std::string>>;

  void Count(const pb::JobSpec& spec, int64_t by);
  Group* AddGroup(const Where& where);
  void RemoveGroup(const Where& where);
  void NoteChange(Group* group) const;
  Pool* PoolOf(const std::string& cluster, const std::string& flavour) const;

  // Jobs may name their clusters in thousands of ways, and pools are asked for in each step: each
  // knows its groups, and each group its pools.
  mutable std::map<Where, Group> groups_;
  mutable std::map<std::pair<std::string, std::string>, Pool> pools_;   // by cluster, flavour
  mutable std::vector<Group*> news_;                                    // those that changed
  absl::btree_map<uint64_t, std::shared_ptr<const pb::JobSpec>> jobs_;  // that are counted
  mutable bool changed_ = true;
  mutable uint64_t version_ = 0;
};

}  // namespace muster
