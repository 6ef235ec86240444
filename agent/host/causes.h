// What ended the processes of an attempt that failed, told from the last lines of their logs (agent/failures).
#pragma once

#include <string>
#include <vector>

#include "muster/v1/agent.pb.h"

namespace muster::agent {

// Sets cause and detail of each exit that is a failure of its own and has no cause yet. `logs`: the folder of its logs
// (agent/host/logs.h); one that is missing says nothing.
void TellCauses(const std::string& logs, std::vector<v1::WorkerExit>* exits);

}  // namespace muster::agent
