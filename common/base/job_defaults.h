// What a task's spec leaves open and both the scheduler and the hosts have to read alike.
#pragma once

#include <cstdint>

namespace muster {

inline constexpr int32_t kDefaultMaxRestarts = 3;
inline constexpr int64_t kDefaultRetryFaultsForNs = int64_t{1800} * 1'000'000'000;
inline constexpr int64_t kDefaultCheckpointIntervalNs = int64_t{600} * 1'000'000'000;
inline constexpr int32_t kDefaultCheckpointsKept = 2;
inline constexpr int64_t kDefaultGraceNs = int64_t{120} * 1'000'000'000;  // SIGTERM to SIGKILL
inline constexpr int64_t kDefaultFenceAfterNs =
    int64_t{300} * 1'000'000'000;  // with when_unreachable: fence

}  // namespace muster
