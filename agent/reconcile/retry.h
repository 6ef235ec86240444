// When an agent tries again to reach its scheduler; muster-agent and the simulator of faults do
// alike.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/units.h"

namespace muster::agent {

// Not thread-safe. Times are of one clock that doesn't jump.
class Retry {
 public:
  explicit Retry(int64_t now_ns) : spoke_ns_(now_ns) {}

  // How long to wait after a try that ended now. `spoke`: the scheduler said something on it other
  // than a refusal. A quarter of the time since it last spoke, so that one that was away for a
  // second is met within another quarter, however many times it came and went unheard; at least 20
  // ms, at most 2 s. While it refuses this agent, as long as it has done so in a row, at most 10 s.
  int64_t After(int64_t now_ns, bool spoke, bool refused) {
    if (spoke) spoke_ns_ = now_ns;
    if (!refused || refused_ns_ < 0) refused_ns_ = refused ? now_ns : -1;
    return refused ? std::clamp(now_ns - refused_ns_, 20 * kMillisecond, 10 * kSecond)
                   : std::clamp((now_ns - spoke_ns_) / 4, 20 * kMillisecond, 2 * kSecond);
  }

 private:
  int64_t spoke_ns_;
  int64_t refused_ns_ = -1;  // since when it has refused; -1: the last try it did not
};

}  // namespace muster::agent
