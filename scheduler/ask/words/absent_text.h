// Hosts that take no work now, in the words of a sentence on why something waits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/state/state.h"

namespace muster {

// "lab/h1 is drained: a fan is replaced": what of these clusters is drained; at most four are
// named.
std::string Drains(const State& state, const std::vector<int32_t>& clusters);
// "; not reached: lab/h1, lab/h2; in quarantine: lab/h4; listed, but no agent came yet: lab/h3":
// hosts of these clusters that would be there for what wants this; at most four of a kind are
// named.
std::string Away(const State& state, const std::vector<int32_t>& clusters,
                 const pb::Resources& wants);
// "lab/h1 takes nothing new: /data has 40MiB left of 64MiB": hosts of the cluster that are short of
// disk; at most four are named.
std::string LowDisks(const State& state, int32_t cluster);

}  // namespace muster
