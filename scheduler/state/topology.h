// Domains of the topology: a host, a rack, a block of a cluster.
#pragma once

#include <string>

#include "muster/v1/job.pb.h"
#include "scheduler/state/rows.h"

namespace muster {

// Whether the level keeps a gang closer together than within one cluster, where it is anyhow.
bool Binds(pb::TopologyLevel level);
// Name of the domain of the level that the host is in; racks of two blocks may have one name. An
// island is part of a host, which stands for it. "": the level is no less than the cluster.
std::string DomainOf(pb::TopologyLevel level, const HostRow& host);
// Whether two hosts of one cluster are in one domain of the level.
bool InOneDomain(pb::TopologyLevel level, const HostRow& one, const HostRow& other);

}  // namespace muster
