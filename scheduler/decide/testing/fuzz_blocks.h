// Gangs whose ranks stay together by blocks: which the fuzzer submits, and the rule that it asserts
// from outside, GPU by GPU, by what specs say and events have.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/decide/testing/dice.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

struct RankBlocks {
  int64_t tasks = 0;       // that were submitted
  int64_t spread = 0;      // starts of them over several hosts
  int64_t wishes = 0;      // blocks whose wish was kept, although they may be farther apart
  int64_t in_islands = 0;  // blocks of several GPUs that have to be in one
  int64_t resizes = 0;     // to another size
};

// The racks and blocks of the topology that a cluster's hosts are in.
struct Racks {
  int rack = 2;           // hosts of one
  int block = 0;          // likewise; 0: there are no blocks
  bool numbered = false;  // racks have names of their block alone: "r0" is in each of them
  void Put(int number, pb::HostSpec* host) const;
};
Racks DrawRacks(Dice* dice);

// Some gangs of the job get blocks, and sizes that go into them; returns how many do. None of an
// array, or on another job's devices. `islands`: in islands, too.
int64_t DrawBlocks(Dice* dice, bool islands, pb::JobSpec* spec);

// Before a plan is applied: in whatever it starts or keeps devices for each required block is in
// one domain. "" or what broke.
std::string CheckRankBlocks(const State& state, const Plan& plan, RankBlocks* seen);

}  // namespace muster
