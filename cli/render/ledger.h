// The ledger as a table: where the slot-time of all devices went, by class; the classes sum to the capacity. Pure.
#pragma once

#include <string>

#include "cli/render/table.h"
#include "muster/v1/cluster_service.pb.h"

namespace muster {

Table LedgerTable(const pb::LedgerResponse& ledger);
std::string LedgerLine(const pb::LedgerResponse& ledger);  // since when, and of how much

}  // namespace muster
