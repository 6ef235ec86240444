#include "trainer/loop/placement.h"

#include <algorithm>
#include <numeric>

namespace muster::trainer {

std::vector<RankGroup> PlacementOf(const ParallelConfig& config, int64_t shard_size,
                                   int64_t ranks) {
  std::vector<RankGroup> groups;
  const auto add = [&](const char* name, int64_t together, const char* level) {
    const int64_t before = groups.empty() ? 1 : groups.back().ranks;
    if (together > before) groups.push_back({name, together, level});
  };
  const int64_t layer = config.tp * config.cp;
  add("tp", config.tp, "island");
  add(config.tp > 1 ? "tp·cp" : "cp", layer, "host");
  // Groups of ep needn't be whole ones of tp and cp, nor these of them.
  add("ep", std::lcm(layer, config.ep), "host");
  add("shard", shard_size, "rack");
  if (config.pp > 1) add("pp", ranks, "cluster");  // it changes slowest: one has ranks of all
  return groups;
}

int64_t RanksMultiple(const ParallelConfig& config, int64_t shard_size) {
  const int64_t in_stage = std::lcm(config.tp * config.cp, config.ep);
  return std::lcm(in_stage, std::max<int64_t>(1, shard_size)) * config.pp;
}

}  // namespace muster::trainer
