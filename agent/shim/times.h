// The shim's clocks, in nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace muster::shim {

inline constexpr int64_t kMillisecond = 1'000'000;

inline int64_t ClockNs(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
inline int64_t WallNs() { return ClockNs(CLOCK_REALTIME); }
inline int64_t SteadyNs() { return ClockNs(CLOCK_BOOTTIME); }

}  // namespace muster::shim
