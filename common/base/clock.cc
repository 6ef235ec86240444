#include "common/base/clock.h"

#include <time.h>

namespace muster {
namespace {

int64_t Read(clockid_t id) {
  timespec now;
  clock_gettime(id, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

class MachineClock : public Clock {
 public:
  int64_t WallNs() override { return Read(CLOCK_REALTIME); }
  int64_t MonotonicNs() override { return Read(CLOCK_MONOTONIC); }
  int64_t BootNs() override { return Read(CLOCK_BOOTTIME); }
};

}  // namespace

Clock* RealClock() {
  static MachineClock* const clock = new MachineClock;
  return clock;
}

int64_t WallS() { return RealClock()->WallNs() / 1'000'000'000; }

}  // namespace muster
