#include "sim/peers/free_gpus.h"

#include <algorithm>
#include <numeric>

namespace muster::sim {

FreeGpus::FreeGpus(const State& state, bool empty) : clusters_(state.clusters().size()) {
  for (const HostId id : state.hosts()) {
    const HostRow& row = state.host(id);
    if (!row.usable() || state.clusters()[row.cluster].drained) continue;
    Host host;
    host.id = id;
    for (int d = 0; d < row.inventory.devices_size(); ++d) {
      const int64_t used_milli = empty ? 0 : row.device_used_milli[d];
      host.free_milli.push_back(row.inventory.devices(d).healthy() ? 1000 - used_milli : 0);
      host.whole += host.free_milli.back() == 1000;
    }
    if (static_cast<size_t>(id) >= index_.size()) index_.resize(static_cast<size_t>(id) + 1, -1);
    index_[id] = static_cast<int32_t>(hosts_.size());
    cluster_of_.push_back(row.cluster);
    Cluster& cluster = clusters_[row.cluster];
    cluster.hosts.push_back(index_[id]);
    cluster.free_milli +=
        std::accumulate(host.free_milli.begin(), host.free_milli.end(), int64_t{0});
    if (cluster.by_whole.size() <= host.free_milli.size())
      cluster.by_whole.resize(host.free_milli.size() + 1);
    ++cluster.by_whole[host.whole];
    hosts_.push_back(std::move(host));
  }
}

void FreeGpus::Change(const std::vector<Taken>& gang, int64_t sign) {
  for (const Taken& part : gang) {
    Host& host = hosts_[index_[part.host]];
    Cluster& cluster = clusters_[cluster_of_[index_[part.host]]];
    --cluster.by_whole[host.whole];
    for (size_t d = 0; d < part.devices.size(); ++d) {
      int64_t& free_milli = host.free_milli[part.devices[d]];
      const int64_t change = sign * (d < part.device_milli.size() ? part.device_milli[d] : 1000);
      host.whole -= free_milli == 1000;
      free_milli += change;
      host.whole += free_milli == 1000;
      cluster.free_milli += change;
    }
    ++cluster.by_whole[host.whole];
  }
}

bool FreeGpus::Has(const std::vector<Taken>& gang) const {
  for (const Taken& part : gang) {
    const Host& host = hosts_[index_[part.host]];
    for (size_t d = 0; d < part.devices.size(); ++d) {
      if (host.free_milli[part.devices[d]] <
          (d < part.device_milli.size() ? part.device_milli[d] : 1000))
        return false;
    }
  }
  return true;
}

Taken FreeGpus::TakeFrom(const Host& host, int32_t workers, int64_t gpus_milli) const {
  Taken part;
  part.host = host.id;
  part.workers = workers;
  if (gpus_milli >= 1000) {
    const int64_t count = workers * (gpus_milli / 1000);
    for (int32_t d = 0; static_cast<int64_t>(part.devices.size()) < count; ++d) {
      if (host.free_milli[d] == 1000) part.devices.push_back(d);
    }
    return part;
  }
  int32_t best = -1;
  for (int32_t d = 0; d < static_cast<int32_t>(host.free_milli.size()); ++d) {
    if (host.free_milli[d] >= gpus_milli &&
        (best < 0 || host.free_milli[d] < host.free_milli[best]))
      best = d;
  }
  part.devices.push_back(best);
  part.device_milli.push_back(gpus_milli);
  return part;
}

std::optional<std::vector<Taken>> FreeGpus::Place(const std::vector<int32_t>& clusters,
                                                  int32_t workers, int64_t gpus_milli) const {
  const auto each = static_cast<int32_t>(gpus_milli / 1000);
  for (const int32_t c : clusters) {
    const Cluster& cluster = clusters_[c];
    if (cluster.free_milli < workers * gpus_milli) continue;
    if (each == 0) {  // a share of one device
      const Host* best = nullptr;
      int64_t best_left = 0;
      for (const int32_t h : cluster.hosts) {
        for (const int64_t free_milli : hosts_[h].free_milli) {
          if (free_milli < gpus_milli || (best != nullptr && free_milli >= best_left)) continue;
          best = &hosts_[h];
          best_left = free_milli;
        }
      }
      if (best != nullptr && workers == 1)
        return std::vector<Taken>{TakeFrom(*best, 1, gpus_milli)};
      continue;
    }
    int64_t fit = 0;
    int32_t tightest = -1;  // fewest whole devices that hold all of it
    for (int32_t whole = each; whole < static_cast<int32_t>(cluster.by_whole.size()); ++whole) {
      if (cluster.by_whole[whole] == 0) continue;
      fit += int64_t{cluster.by_whole[whole]} * (whole / each);
      if (tightest < 0 && whole >= workers * each) tightest = whole;
    }
    if (fit < workers) continue;
    std::vector<Taken> gang;
    if (tightest >= 0) {
      for (const int32_t h : cluster.hosts) {
        if (hosts_[h].whole == tightest)
          return std::vector<Taken>{TakeFrom(hosts_[h], workers, gpus_milli)};
      }
    }
    std::vector<int32_t> order;
    for (const int32_t h : cluster.hosts) {
      if (hosts_[h].whole >= each) order.push_back(h);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t x, int32_t y) { return hosts_[x].whole > hosts_[y].whole; });
    int32_t rest = workers;
    for (size_t i = 0; rest > 0; ++i) {
      size_t use = i;  // the last host is the tightest that holds the rest
      if (hosts_[order[i]].whole / each >= rest) {
        while (use + 1 < order.size() && hosts_[order[use + 1]].whole / each >= rest) ++use;
      }
      const int32_t here = std::min(rest, hosts_[order[use]].whole / each);
      gang.push_back(TakeFrom(hosts_[order[use]], here, gpus_milli));
      rest -= here;
    }
    return gang;
  }
  return std::nullopt;
}

}  // namespace muster::sim
