// Clocks as ports: the daemon's are real, the simulator's are virtual.
#pragma once

#include <cstdint>

namespace muster {

// Unix time and a steady time in nanoseconds. Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t WallNs() = 0;       // may jump
  virtual int64_t MonotonicNs() = 0;  // CLOCK_MONOTONIC; never stored across boots
  virtual int64_t BootNs() = 0;       // CLOCK_BOOTTIME: goes on while the machine sleeps
};

// The machine's own clocks; lives for ever.
Clock* RealClock();
int64_t WallS();  // its Unix time in whole seconds, as certificates count

}  // namespace muster
