// A step's forward and backward as a list of actions. Plain and accumulated training, and later ZeRO-2/3, recompute,
// offload and pipelining, differ only in the schedule; the engine carries out whatever it is given.
#pragma once

#include <vector>

namespace muster::trainer {

struct Action {
  enum Kind {
    kGather,    // start bringing flat `index` up to date
    kForward,   // block `index`, micro-batch `micro`; waits for the gathers of its flats
    kBackward,  // block `index`, micro-batch `micro`
    kReduce,    // start summing flat `index`'s gradients over the ranks
    kRelease,   // flat `index`'s gathered weights are not needed until the next kGather
  };
  Kind kind;
  int index = 0;
  int micro = 0;
  bool operator==(const Action&) const = default;
};

// Which flats each block uses.
using BlockFlats = std::vector<std::vector<int>>;

// Weights stay gathered for the whole step, micro-batches run one after another, each flat is gathered one block ahead of
// its first use and reduced after its last backward (so tied embeddings after the embedding's own).
std::vector<Action> PlainSchedule(const BlockFlats& blocks, int micro_batches);

}  // namespace muster::trainer
