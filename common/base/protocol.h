// The version of what musterd and its agents say to each other (proto/muster/v1/agent.proto): one
// more whenever a message that older ones send means something else, or something that they don't
// send is needed.
#pragma once

#include <cstdint>

namespace muster {

inline constexpr int32_t kAgentProtocolVersion = 1;

// In place of a rank where logs are asked for: what rank 0 reported (LogRequest, LogsRequest).
inline constexpr int32_t kReportsRank = -2;

}  // namespace muster
