// gRPC's own log as events of ours: one a line, with fields.
#pragma once

#include <cstdint>

namespace muster {

// What one place of gRPC's source says again within this time is counted, not told: strangers can
// have it say the same as often as they connect.
inline constexpr int64_t kGrpcLogNs = int64_t{60} * 1'000'000'000;

// From now on, for the whole process.
void RouteGrpcLog();

}  // namespace muster
