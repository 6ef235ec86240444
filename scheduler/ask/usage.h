// What attempts used, over their hosts, and what it says for the next time. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/v1/job.pb.h"
#include "scheduler/state/state.h"

namespace muster {

// By the name of the host inside the attempt's cluster.
using UsageByHost = std::map<std::string, pb::HostUsage>;

// Of an attempt, with what its hosts told when it ended there, or else in `live`. nullopt: nothing
// is known.
std::optional<pb::Usage> SumUsage(const State& state, const AttemptRow& attempt,
                                  const UsageByHost& live = {});

// What its owner should ask for next time, one sentence each: by what its attempts used that have
// ended. Nothing where that says too little: of what ran shortly, or failed.
std::vector<std::string> AdviceOf(const State& state, const pb::TaskSpec& spec,
                                  const TaskRow& task);

}  // namespace muster
