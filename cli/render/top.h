// `muster top`: who uses what now. Pure.
#pragma once

#include <string>

#include "cli/render/table.h"
#include "muster/v1/cluster_service.pb.h"

namespace muster {

// Two lines above the table: hosts and jobs; and each flavour's use, with a bar.
std::string TopHead(const pb::TopResponse& top, const Screen& screen);
Table TopTable(const pb::TopResponse& top, pb::TopRequest::By by);

}  // namespace muster
