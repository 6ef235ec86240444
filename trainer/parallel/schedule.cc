#include "trainer/parallel/schedule.h"

#include <algorithm>
#include <set>

namespace muster::trainer {

std::vector<Action> PlainSchedule(const BlockFlats& blocks, int micro_batches) {
  std::vector<Action> actions;
  const int n = static_cast<int>(blocks.size());
  std::set<int> gathered;
  const auto gather = [&](int block) {
    if (block >= n) return;
    for (const int flat : blocks[block]) {
      if (gathered.insert(flat).second) actions.push_back({Action::kGather, flat});
    }
  };
  gather(0);
  for (int micro = 0; micro < micro_batches; ++micro) {
    for (int block = 0; block < n; ++block) {
      gather(block + 1);
      actions.push_back({Action::kForward, block, micro});
    }
    for (int block = n - 1; block >= 0; --block) {
      actions.push_back({Action::kBackward, block, micro});
      if (micro + 1 < micro_batches) continue;
      for (const int flat : blocks[block]) {
        const bool used_below = std::any_of(blocks.begin(), blocks.begin() + block, [&](const std::vector<int>& flats) {
          return std::find(flats.begin(), flats.end(), flat) != flats.end();
        });
        if (!used_below) actions.push_back({Action::kReduce, flat});
      }
    }
  }
  return actions;
}

}  // namespace muster::trainer
