#include "sim/faults/run.h"

#include <algorithm>

#include "sim/faults/world.h"

namespace muster::sim::faults {

RunResult Run(const Config& config, uint64_t seed, const std::vector<Fault>& faults) {
  return World(config, seed, faults).Run();
}

std::vector<Fault> Shrink(const Config& config, uint64_t seed, std::vector<Fault> faults,
                          int runs) {
  size_t chunk = std::max<size_t>(1, faults.size() / 2);
  while (runs > 0) {
    bool shorter = false;
    for (size_t at = 0; at < faults.size() && runs > 0;) {
      std::vector<Fault> fewer = faults;
      fewer.erase(fewer.begin() + static_cast<int64_t>(at),
                  fewer.begin() + static_cast<int64_t>(std::min(at + chunk, fewer.size())));
      --runs;
      if (!Run(config, seed, fewer).violations.empty()) {
        faults = std::move(fewer);
        shorter = true;
      } else {
        at += chunk;
      }
    }
    if (chunk == 1 && !shorter) break;
    chunk = std::max<size_t>(1, chunk / 2);
  }
  return faults;
}

}  // namespace muster::sim::faults
