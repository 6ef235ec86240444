#include "scheduler/ask/holders.h"

#include <algorithm>

namespace muster {
namespace {

constexpr size_t kNamed = 9;            // eight are told, and one of them may be the job that asks

}  // namespace

const std::vector<uint64_t>& CellHolders::Of(int32_t cluster, const std::string& flavour) {
  const auto [known, first] = cells_.try_emplace({cluster, flavour});
  if (!first) return known->second;
  const bool gpus = flavour != "cpu";
  std::map<uint64_t, int64_t> held;
  for (const HostId id : state_.hosts()) {
    const HostRow& host = state_.host(id);
    if (host.cluster != cluster || (gpus && host.inventory.flavour() != flavour)) continue;
    for (const AttemptRef& ref : host.attempts) {
      const AttemptRow* attempt = state_.FindAttempt(ref);
      if (attempt == nullptr || attempt->ended() || (gpus && attempt->flavour != flavour)) continue;
      const pb::TaskSpec& spec = state_.FindJob(ref.job)->task_spec(ref.task);
      const int64_t a_worker = gpus ? spec.resources().gpus_milli() : WorkerDemand(spec, host.inventory).cpus_milli;
      for (const PartRow& part : attempt->parts) {
        if (part.host == id) held[ref.job] += a_worker * part.workers;
      }
    }
  }
  std::vector<std::pair<int64_t, uint64_t>> sorted;
  for (const auto& [number, milli] : held) sorted.emplace_back(-milli, number);
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size() && i < kNamed; ++i) known->second.push_back(sorted[i].second);
  return known->second;
}

}  // namespace muster
