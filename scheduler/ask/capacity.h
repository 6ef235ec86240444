// What hosts have, seen or only listed: for checks that must hold before the hosts are there.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "scheduler/state/state.h"

namespace muster {

// The host's inventory if its agent has ever been seen, else its SKU's. Without flavour: no GPUs.
// Empty once it is removed (IsRemoved).
pb::Inventory ShapeOf(const State& state, const HostRow& host);
// The same without a copy where there is one to point to; `made` holds it otherwise. For loops over
// all hosts.
const pb::Inventory& ShapeOf(const State& state, const HostRow& host, pb::Inventory* made);

// Thousandths of devices by cluster (index) of one flavour, of all hosts that are listed or were
// seen, but for removed ones; "cpu": of cores.
std::map<int32_t, int64_t> PoolCapacity(const State& state, const std::string& flavour);

// Flavours of which some are stand-ins, on hosts that were seen or by the clusters file.
std::set<std::string> DeclaredFlavours(const State& state);

// Thousandths that the attempt holds of its flavour, or of cores without GPUs.
int64_t HeldMilli(const JobRow& job, int32_t task, const AttemptRow& attempt);

// What the queue's jobs hold now, with those of the queues below it: flavour (or "cpu") ->
// thousandths, by queue node.
std::vector<std::map<std::string, int64_t>> UseByQueue(const State& state);

}  // namespace muster
