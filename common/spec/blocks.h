// Blocks of ranks (topology.blocks), in workers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "muster/v1/job.pb.h"

namespace muster {

// How many workers, in the order of RANK and from the first on, are together on a host, in a rack,
// in a block of the topology. Each divides the next. 1: any may be apart.
struct RankUnits {
  int64_t host = 1, rack = 1, block = 1;
  // And how many GPUs in an island of a host: whole workers, or a divisor of one worker's.
  int64_t island_gpus = 1;
  bool operator==(const RankUnits&) const = default;
};

// Workers of one of its blocks; 1 where a worker has as many GPUs or more.
int64_t WorkersOf(const v1::RankBlock& block, const v1::TaskSpec& task);

// What the constraints of all its blocks ask for, and the wishes of the first (smallest) `wishes`
// blocks.
RankUnits RankUnitsOf(const v1::TaskSpec& task, int wishes);

// What is tried one after the other, each once: all wishes, then without that of the largest block,
// and so on, at last the constraints alone. Before a wish is given up, hosts do in place of the
// islands that are wished, those of the largest block first; without `islands` (no host has more
// than one) they do from the beginning.
std::vector<RankUnits> RankUnitsInTurn(const v1::TaskSpec& task, bool islands);

// Of a host's GPUs, as many as there are in each of its islands, those that make whole runs of
// `units.island_gpus`.
int64_t InWholeIslands(const RankUnits& units, const std::map<int32_t, int64_t>& by_island);

// Workers of its largest block; 1: it has none that is larger than a worker. By so many it grows.
int64_t LargestBlockOf(const v1::TaskSpec& task);

}  // namespace muster
