// What a task needs of the agent that starts it beside room: its agent has to know of secrets,
// packed directories and images, or it would start the task without them. Agents say what they know
// in their inventory. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "muster/v1/cluster.pb.h"
#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// A set of these bits.
using Abilities = uint32_t;
inline constexpr Abilities kGivesSecrets = 1, kUnpacks = 2, kEntersImages = 4;
inline constexpr int kAbilityBits = 3;

Abilities NeedsOf(const pb::JobSpec& job, const pb::TaskSpec& task);
Abilities AbilitiesOf(const pb::Inventory& inventory);
constexpr bool Can(Abilities has, Abilities needs) { return (needs & ~has) == 0; }

// What a host doesn't do and a task needs, and what to do about it: "its muster-agent doesn't know
// secrets yet: upgrade it there". Empty: it does all of it.
std::string WhyUnable(const pb::Inventory& inventory, Abilities needs);

}  // namespace muster
