// `--at`: times as people type them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

// RFC 3339 of "03:00" (the next such time by the zone's clocks), "2026-12-24 03:00" (by these),
// "+2h" (after `now_ns`, Unix time), or of what is RFC 3339 already. INVALID_ARGUMENT: it is none.
absl::StatusOr<std::string> InstantOf(const std::string& text, int64_t now_ns,
                                      const absl::TimeZone& zone);

}  // namespace muster
