#include "sim/shape_room.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace muster::sim {
namespace {

// What of the host's devices the attempt leaves.
void TakeParts(const AttemptRow& attempt, HostId host, std::vector<int64_t>* free_milli) {
  for (const PartRow& part : attempt.parts) {
    if (part.host != host || part.over()) continue;
    for (size_t d = 0; d < part.devices.size(); ++d)
      (*free_milli)[static_cast<size_t>(part.devices[d])] -=
          d < part.device_milli.size() ? part.device_milli[d] : 1000;
  }
}

int64_t Sum(const std::vector<int64_t>& milli) {
  return std::accumulate(milli.begin(), milli.end(), int64_t{0});
}

// One worker; false: the host has no room for it.
bool TakeWorker(int64_t gpus_milli, std::vector<int64_t>* free_milli) {
  if (gpus_milli < 1000) {
    const auto device = std::find_if(free_milli->begin(), free_milli->end(),
                                     [&](int64_t milli) { return milli >= gpus_milli; });
    if (device == free_milli->end()) return false;
    *device -= gpus_milli;
    return true;
  }
  if (std::count(free_milli->begin(), free_milli->end(), 1000) < gpus_milli / 1000) return false;
  int64_t wanted = gpus_milli / 1000;
  for (int64_t& milli : *free_milli) {
    if (milli != 1000 || wanted == 0) continue;
    milli = 0;
    --wanted;
  }
  return true;
}

}  // namespace

ShapeRoom::ShapeRoom(const State& state, int32_t cluster, const std::string& flavour,
                     const std::function<bool(uint64_t job)>& stays) {
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.cluster != cluster || host.inventory.flavour() != flavour || !host.usable()) continue;
    std::vector<int64_t> free_milli;
    for (const pb::Device& device : host.inventory.devices())
      free_milli.push_back(device.healthy() ? 1000 : 0);
    for (const AttemptRef& ref : host.attempts) {
      if (stays(ref.job)) TakeParts(*state.FindAttempt(ref), id, &free_milli);
    }
    at_[id] = hosts_.size();
    hosts_.push_back(std::move(free_milli));
  }
}

void ShapeRoom::Keep(const Reservation& reservation) {
  for (const HostSlice& part : reservation.parts) {
    const auto at = at_.find(part.host);
    if (at == at_.end()) continue;
    for (size_t d = 0; d < part.devices.size(); ++d) {
      int64_t& milli = hosts_[at->second][static_cast<size_t>(part.devices[d])];
      milli = std::max<int64_t>(
          0, milli - (d < part.device_milli.size() ? part.device_milli[d] : 1000));
    }
  }
}

bool ShapeRoom::Take(int32_t workers, int64_t gpus_milli) {
  std::vector<size_t> order(hosts_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return Sum(hosts_[a]) < Sum(hosts_[b]); });
  std::vector<std::vector<int64_t>> left = hosts_;
  for (const size_t host : order) {
    while (workers > 0 && TakeWorker(gpus_milli, &left[host])) --workers;
  }
  if (workers > 0) return false;
  hosts_ = std::move(left);
  return true;
}

}  // namespace muster::sim
