// What an attempt's processes use: measured every few seconds and at their end, kept as the most or
// the sum. Pure but for Measure. Part of the shim: no dependencies beyond the standard library.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/shim/cgroup.h"
#include "agent/shim/format.h"

namespace muster::shim {

// One look. -1: it can't be told.
struct Measured {
  int64_t cpu_us = -1;        // CPU time until now
  int64_t memory_bytes = -1;  // now, what could not be given back: without cached files
  // It never used more than this, by the kernel's own count; that counts cached files, too.
  int64_t memory_bound_bytes = -1;
  int64_t process_peak_bytes = -1;  // the most that one of its ended processes used at any one time
};

// Whose processes are measured: those in the groups, and where there are none those below `shim`.
struct Measurable {
  Cgroups cgroups;
  pid_t shim = 0;
  pid_t keeper = -1;  // isn't the attempt's
};
// `live`: processes of it may be there. Of ended ones less has to be read.
Measured Measure(const Measurable& what, bool live);

// What the looks come to.
class UsageMeter {
 public:
  // `ran_ns` since the start; looks come in the order of time. `last`: of what has ended.
  void Add(const Measured& measured, int64_t ran_ns, bool last = false);
  const Used& used() const { return used_; }

 private:
  Used used_;
  int64_t window_ns_ = 0, window_cpu_us_ = 0;  // where the present stretch of CPU time begins
};

// Looks are kept so far apart that they cost a hundredth of a core at most.
int64_t NextMeasureNs(int64_t ran_ns, int64_t took_ns);

}  // namespace muster::shim
