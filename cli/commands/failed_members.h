// `muster rerun --failed`: which members of an array are to run again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"

namespace muster {

// Its members that have failed, in their order. FAILED_PRECONDITION if it is no array, or if none
// has.
absl::StatusOr<std::vector<pb::ArrayMember>> FailedMembers(Client* client, const pb::Job& array);

// `array:` for these indices alone (ascending); several where one would be longer than it may be.
// They share out what stands behind % in `as_before`, of which each has one at least.
std::vector<std::string> ArraysOf(const std::vector<pb::ArrayMember>& members,
                                  const std::string& as_before);

}  // namespace muster
