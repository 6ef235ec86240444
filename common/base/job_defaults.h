// What a task's spec leaves open and both the scheduler and the hosts have to read alike.
#pragma once

#include <cstdint>

#include "common/base/units.h"

namespace muster {

inline constexpr int32_t kDefaultMaxRestarts = 3;
inline constexpr int64_t kDefaultRetryFaultsForNs = 30 * kMinute;
inline constexpr int64_t kDefaultCheckpointIntervalNs = 10 * kMinute;
inline constexpr int32_t kDefaultCheckpointsKept = 2;
inline constexpr int64_t kDefaultGraceNs = 2 * kMinute;       // SIGTERM to SIGKILL
inline constexpr int64_t kDefaultFenceAfterNs = 5 * kMinute;  // with when_unreachable: fence

}  // namespace muster
