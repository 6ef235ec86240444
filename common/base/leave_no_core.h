// For processes that hold what nobody else may read.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace muster {

// From now on this process leaves no core behind, nor does what it starts; that may raise the limit
// again. A limit of 0 bytes doesn't hold for a core that is piped to a program
// (/proc/sys/kernel/core_pattern), one of 1 byte does: core(5).
inline void LeaveNoCore() {
  rlimit core{};
  if (getrlimit(RLIMIT_CORE, &core) != 0) return;
  core.rlim_cur = std::min<rlim_t>(1, core.rlim_max);
  setrlimit(RLIMIT_CORE, &core);
}

}  // namespace muster
