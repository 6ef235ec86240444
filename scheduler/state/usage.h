// What hosts say that attempts used there, as far as it can be true.
#pragma once

#include <memory>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// Without what no host can have used: whatever an agent says, sums of it stay numbers. nullptr:
// nothing is left.
std::shared_ptr<const pb::HostUsage> PlausibleUsage(const pb::HostUsage& told);

// As many slots of busy_permille as are kept of what a host tells.
inline constexpr int kGpuSlotsMax = 64;

}  // namespace muster
