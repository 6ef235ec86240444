// gRPC's own log as events of ours: one a line, with fields.
#pragma once

#include <cstdint>

#include "common/base/units.h"

namespace muster {

// What one place of gRPC's source says again within this time is counted, not told: strangers can
// have it say the same as often as they connect.
inline constexpr int64_t kGrpcLogNs = kMinute;

// From now on, for the whole process.
void RouteGrpcLog();

}  // namespace muster
