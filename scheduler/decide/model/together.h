// Tasks that start together, as the model has them (docs/scheduling.md §4, Together).
//
// A group is one unit of the entitled set: its leader stands for all of it, with what all of them
// want, so that S and its charges know nothing of groups. What starts, runs and stops are the
// tasks: each has a gang of its own, and the leader's part of S. Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/decide/model/model.h"

namespace muster {

// Makes groups of the job's gangs, one a task, that want or hold devices. A group of which one is
// left is none. `counts_cpus`: a queue above it lists cpu.
void JoinTogether(const JobRow& job, const Model& model, bool counts_cpus,
                  std::vector<Gang>* gangs);

// The gangs of the group, ascending; of one that starts alone itself.
std::vector<int32_t> GroupOf(const Model& model, int32_t gang);

// The pool of a gang whose group is in this pool of its leader: of work without devices that
// stands beside such with devices the CPUs there. -1: there is none.
int32_t PoolBeside(const Model& model, const Gang& gang, int32_t pool);

}  // namespace muster
