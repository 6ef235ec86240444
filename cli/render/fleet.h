// Queues, clusters and hosts as tables. Declared devices are marked in every row. Pure.
#pragma once

#include <vector>

#include "cli/render/table.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/queue.pb.h"

namespace muster {

Table QueuesTable(const std::vector<pb::Queue>& queues);  // a row for each queue and flavour
Table ClustersTable(
    const std::vector<pb::Cluster>& clusters);  // a row for each cluster and flavour
Table HostsTable(const std::vector<pb::Host>& hosts, int64_t now_ns);
Table DevicesTable(const pb::Host& host);  // `host show`
// What speaks against the host and its devices, and what ends attempts there; "" if there is
// nothing to say.
std::string HostNotes(const pb::Host& host, int64_t now_ns);

}  // namespace muster
