// For processes that hold what nobody else may read.
#pragma once

#include <sys/resource.h>

namespace muster {

// From now on this process leaves no core behind; what it starts may raise the limit again.
inline void LeaveNoCore() {
  rlimit core{};
  if (getrlimit(RLIMIT_CORE, &core) != 0) return;
  core.rlim_cur = 0;
  setrlimit(RLIMIT_CORE, &core);
}

}  // namespace muster
