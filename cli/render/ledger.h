// The ledger as a table: where the slot-time of all devices went, by class; the classes sum to the
// capacity. Pure.
#pragma once

#include <string>

#include "cli/render/table.h"
#include "muster/v1/cluster_service.pb.h"

namespace muster {

Table LedgerTable(const pb::LedgerResponse& ledger);
// By queue, user or job: a column a class; a row's devices are all that it held.
Table LedgerRowsTable(const pb::LedgerResponse& ledger, pb::GetLedgerRequest::By by);
std::string LedgerLine(
    const pb::LedgerResponse& ledger);  // since when, and what is free in the wrong shape now

}  // namespace muster
