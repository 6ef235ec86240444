// What an agent may send at all: shapes and bounds, before anything is looked up.
#pragma once

#include "absl/status/status.h"
#include "muster/v1/agent.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// INVALID_ARGUMENT names the field.
absl::Status CheckHello(const pb::Hello& hello);
absl::Status CheckAgentMessage(const pb::AgentMessage& message);

}  // namespace muster
