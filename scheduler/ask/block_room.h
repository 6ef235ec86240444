// Blocks of ranks (topology.blocks) counted, and in words.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/spec/blocks.h"
#include "scheduler/state/state.h"

namespace muster {

// How many workers fit where the blocks that a task requires stay together.
class BlockRoom {
 public:
  explicit BlockRoom(const pb::TaskSpec& task) : units_(RankUnitsOf(task, 0)) {}

  // The task requires blocks that are larger than a worker, or in islands.
  bool asks() const { return units_ != RankUnits(); }
  const RankUnits& units() const { return units_; }
  // Counts a host that holds so many workers. By how many more fit by that in its rack, its block
  // or the cluster (or, with an island or a host, there), with what was counted before.
  int64_t Add(const HostRow& host, int64_t workers, pb::TopologyLevel within);

 private:
  const RankUnits units_;
  std::map<std::pair<std::string, std::string>, int64_t> racks_;
  std::map<std::string, int64_t> blocks_;
};

// Whether its blocks would be whole workers, or parts of one, if each had so many GPUs.
bool HasBlocksFor(const pb::TaskSpec& task, int64_t gpus);

// "in blocks of 8 GPUs within one host each, as topology.blocks says"; "": none is required.
std::string BlocksText(const pb::TaskSpec& task);

}  // namespace muster
