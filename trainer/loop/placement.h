// Which neighbouring ranks of a layout belong together, for whoever places them on hosts. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/loop/parallel_config.h"

namespace muster::trainer {

// Each run of so many ranks, from rank 0 on, has whole groups of this kind.
struct RankGroup {
  std::string name;  // "tp", "tp·cp", "cp", "ep", "shard" or "pp"
  int64_t ranks = 0;
  std::string level;  // where a run had best lie: in one island, host, rack or cluster
};

// In the order in which the mesh (parallel/mesh.h) numbers ranks: each a multiple of the one
// before. Groups that are no larger than one before are left out. Of a layout that can be.
// `shard_size`: ranks that share one copy; 0: all of a stage.
std::vector<RankGroup> PlacementOf(const ParallelConfig& config, int64_t shard_size, int64_t ranks);

// A run in this layout has a multiple of so many ranks. With more of them it takes more rows at
// once, and nothing else changes.
int64_t RanksMultiple(const ParallelConfig& config, int64_t shard_size);

}  // namespace muster::trainer
