// One run of the fault simulator: a scheduler, hosts, agents, shims and users in one thread on one
// heap, everything from one seed; faults; then none, and everything has to end (docs/contracts.md,
// Simulation of faults).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/faults/checks.h"
#include "sim/faults/config.h"

namespace muster::sim::faults {

struct RunResult {
  std::vector<std::string> violations;  // empty: it held
  Counters counters;
  uint64_t digest = 0;  // of all that was committed and all that ran: equal runs, equal digests
  int64_t virtual_ns = 0;
  int64_t real_ns = 0;
};

// The same configuration, seed and faults give the same result, real_ns apart.
RunResult Run(const Config& config, uint64_t seed, const std::vector<Fault>& faults);

// A shorter list of faults with which the run still fails: deletes as many as it can within `runs`
// runs.
std::vector<Fault> Shrink(const Config& config, uint64_t seed, std::vector<Fault> faults, int runs);

}  // namespace muster::sim::faults
