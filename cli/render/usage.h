// What jobs use, or used, as users see it. What isn't known is left out. Pure.
#pragma once

#include <string>

#include "cli/render/format.h"
#include "cli/render/table.h"

namespace muster {

// "9.1GiB, 2.1 cpus, GPUs 11 %": of the newest attempt that tells something.
std::string ShortUsage(const pb::Job& job);
// A row an attempt that tells something, beside what it had asked for.
Table UsageTable(const pb::Job& job, const Screen& screen);

}  // namespace muster
