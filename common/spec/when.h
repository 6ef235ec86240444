// When a job may start by its own words: `not_before` and `schedule`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// Unix time of an RFC 3339 text, 2026-12-24T03:00:00Z; nullopt: it is none, or not between 1970 and
// 2262.
std::optional<int64_t> ParseInstantNs(const std::string& text);

// The job may start at once, and runs once.
void ClearTimes(pb::JobSpec* spec);

// The first time of the schedule after that Unix time. 0: there is none in twelve years. nullopt:
// its zone isn't known here (any more), or it can't be read.
std::optional<int64_t> NextTimeNs(const pb::Schedule& schedule, int64_t after_ns);

// Unix time before which nothing of a job that is submitted now starts. 0: it may at once. nullopt:
// its schedule has no such time.
std::optional<int64_t> FirstTimeNs(const pb::JobSpec& spec, int64_t now_ns);

}  // namespace muster
