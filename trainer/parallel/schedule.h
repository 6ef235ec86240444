// A step's forward and backward as a list of actions. Plain and accumulated training, the stages of
// ZeRO and recompute differ only in the schedule (pipelining later too); the engine carries out
// whatever it is given.
#pragma once

#include <cstdint>
#include <vector>

namespace muster::trainer {

struct Action {
  enum Kind {
    kUnshard,    // start bringing flat `index`'s weights up to date
    kReshard,    // flat `index`'s gathered weights are not needed until the next kUnshard: its slot
                 // is free
    kForward,    // block `index`, micro-batch `micro`; waits until its flats are whole
    kRecompute,  // block `index`, micro-batch `micro`: compute again what its forward didn't keep;
                 // waits as kForward does
    kBackward,   // block `index`, micro-batch `micro`; waits as kForward does
    kOpen,       // flat `index`'s gradient of this micro-batch begins in its slot
    kAccumulate,  // it is complete and added to the step's; the slot is free
    kReduce,  // start summing flat `index`'s gradient over the ranks (that of the micro-batch where
              // it is in a slot, else the step's)
    kWaitReduce,  // wait for that; the slot is free
  };
  Kind kind;
  int index = 0;
  int micro = 0;
  bool operator==(const Action&) const = default;
};

// Which flats each block uses. The first block's backward reads no weights, as nothing stands below
// it; the last block's forward adds to its gradients already, as the loss's derivative comes with
// the loss.
using BlockFlats = std::vector<std::vector<int>>;

// What a flat is like (trainer/parallel/flat_param.h).
struct FlatNeeds {
  bool trained = true;
  bool weights_in_slot = false;
  bool gradients_in_slot = false;
  bool reduce_each_micro_batch = false;
};
struct ScheduleNeeds {
  std::vector<FlatNeeds> flats;
  bool recompute = false;  // blocks don't keep all that their backward needs
};

// Micro-batches run one after another. Each flat is gathered one block ahead of its first use (of
// each use, where weights are in slots, unless it is still there) and resharded when it isn't used
// by the next three; its gradient is reduced after its last backward (so tied embeddings after the
// embedding's own), once a step where the stage allows, and that is waited for one block later
// where it is in a slot, else at the end. `training` false: forwards alone.
std::vector<Action> MakeSchedule(const BlockFlats& blocks, const ScheduleNeeds& needs,
                                 int micro_batches, bool training = true);

// Which flats take turns in which memory: two share a slot if none of `schedules` has both between
// `begin` and `end`. Flats of numel 0, and flats that no schedule begins, have none (-1). First
// fit, the largest first.
struct SlotMap {
  std::vector<int> slot_of;         // by flat
  std::vector<int64_t> slot_numel;  // by slot
};
SlotMap AssignSlots(const std::vector<std::vector<Action>>& schedules, Action::Kind begin,
                    const std::vector<Action::Kind>& end, const std::vector<int64_t>& numel);

}  // namespace muster::trainer
