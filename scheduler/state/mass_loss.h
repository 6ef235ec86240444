// Whether most of a cluster vanished together (contract 11 of docs/contracts.md): then it is the
// network, and nothing there is given up or switched off.
#pragma once

#include <algorithm>
#include <cstdint>

#include "muster/v1/cluster.pb.h"

namespace muster {

// `each` calls what it is given with every host of the cluster that was ever heard: anything with
// the fields state, silent_since_ns and spoke_ns of a HostRow. Called twice.
template <typename Each>
bool MostAreSilent(int64_t now_ns, int64_t lease_ns, const Each& each) {
  int64_t newest_ns = 0;
  each([&](const auto& host) { newest_ns = std::max(newest_ns, host.silent_since_ns); });
  int64_t silent = 0, all = 0;
  each([&](const auto& host) {
    // Long gone when the others fell silent: counts in neither number.
    if (host.state == v1::HOST_UNREACHABLE && host.silent_since_ns + 3 * lease_ns < newest_ns)
      return;
    ++all;
    if (host.state != v1::HOST_UP || (host.spoke_ns != 0 && host.spoke_ns + lease_ns > now_ns))
      ++silent;
  });
  return silent >= 3 && 2 * silent > all;
}

}  // namespace muster
