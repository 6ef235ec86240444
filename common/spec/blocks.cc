#include "common/spec/blocks.h"

#include <algorithm>

namespace muster {
namespace {

// As RankUnitsOf; of the wishes only the first `of_islands` may be for an island, and the others
// are for a host then.
RankUnits UnitsOf(const v1::TaskSpec& task, int wishes, int of_islands) {
  RankUnits units;
  int seen = 0;
  for (const v1::RankBlock& block : task.topology().blocks()) {
    v1::TopologyLevel level = block.required();
    if (++seen <= wishes && block.preferred() != v1::TOPOLOGY_LEVEL_UNSPECIFIED)
      level = block.preferred() == v1::ISLAND && seen > of_islands ? v1::HOST : block.preferred();
    if (level == v1::TOPOLOGY_LEVEL_UNSPECIFIED || level > v1::BLOCK) continue;
    // What is together on a host is so in a rack, and in a block.
    const int64_t workers = WorkersOf(block, task);
    if (level == v1::ISLAND) units.island_gpus = std::max<int64_t>(units.island_gpus, block.gpus());
    if (level <= v1::HOST) units.host = std::max(units.host, workers);
    if (level <= v1::RACK) units.rack = std::max(units.rack, workers);
    units.block = std::max(units.block, workers);
  }
  return units;
}

}  // namespace

int64_t WorkersOf(const v1::RankBlock& block, const v1::TaskSpec& task) {
  const int64_t gpus = task.resources().gpus_milli() / 1000;
  return gpus == 0 ? 1 : std::max<int64_t>(1, block.gpus() / gpus);
}

RankUnits RankUnitsOf(const v1::TaskSpec& task, int wishes) {
  return UnitsOf(task, wishes, /*of_islands=*/wishes);
}

std::vector<RankUnits> RankUnitsInTurn(const v1::TaskSpec& task, bool islands) {
  std::vector<RankUnits> turns;
  for (int wishes = task.topology().blocks_size(); wishes >= 0; --wishes) {
    for (int of_islands = islands ? wishes : 0; of_islands >= 0; --of_islands) {
      const RankUnits units = UnitsOf(task, wishes, of_islands);
      if (std::find(turns.begin(), turns.end(), units) == turns.end()) turns.push_back(units);
    }
  }
  return turns;
}

int64_t InWholeIslands(const RankUnits& units, const std::map<int32_t, int64_t>& by_island) {
  int64_t gpus = 0;
  for (const auto& [island, has] : by_island) gpus += has - has % units.island_gpus;
  return gpus;
}

int64_t LargestBlockOf(const v1::TaskSpec& task) {
  int64_t most = 1;
  for (const v1::RankBlock& block : task.topology().blocks())
    most = std::max(most, WorkersOf(block, task));
  return most;
}

}  // namespace muster
