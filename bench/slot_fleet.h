// A fleet of simulated hosts with eight slots each, as measurements of the live system want one.
#pragma once

#include <string>

#include "muster/v1/cluster.pb.h"
#include "muster/v1/job.pb.h"

namespace muster::bench {

namespace pb = ::muster::v1;

inline constexpr char kSlotFlavour[] = "cpu-slot";
inline constexpr int kSlotsPerHost = 8;

// Cluster `lab`: hosts h0000, h0001, … in racks of 16, blocks of 8 racks.
pb::ClusterFile SlotClusters(int hosts);

// One task of `workers` workers with `slots` slots each.
pb::JobSpec SlotJob(const std::string& name, const std::string& queue, int workers, int slots);

}  // namespace muster::bench
