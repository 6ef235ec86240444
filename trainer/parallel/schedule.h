// A step's forward and backward as a list of actions. Plain and accumulated training, the stages of
// ZeRO, recompute and pipelines differ only in the schedule; the engine carries out whatever it is
// given.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/parallel/pipeline.h"

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
    kBackwardInput,  // the same, but the gradients of weights that a product gives wait for
    kWeights,        // this
    // With a neighbour in a pipeline. What block `index` takes is asked for, and waited for where
    // it is used; what it made is sent, without waiting.
    kReceiveInput,
    kReceiveGradient,
    kSendOutput,
    kSendGradient,
    kOpen,        // flat `index`'s gradient of this micro-batch begins in its slot
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
  // Other stages hold it, too, which come to their ends at other times: where it is summed once a
  // step, that is after all else.
  bool reduce_last = false;
};
// What a rank of a pipeline has, and when it does what; by default it is alone with all blocks.
struct PipelinePart {
  PipelineKind kind = PipelineKind::k1F1B;
  int stage = 0, stages = 1;
  std::vector<int> stretches = {};  // ModelLayout's; empty: one of all blocks
};
struct ScheduleNeeds {
  std::vector<FlatNeeds> flats;
  bool recompute = false;  // blocks don't keep all that their backward needs
  PipelinePart pipeline = {};
};

// Micro-batches run in the order of the pipeline; without one, one after another. Each flat is
// gathered one block ahead of its first use (of each use, where weights are in slots, unless it is
// still there) and resharded when it isn't used by the next three; its gradient is reduced after
// its last backward (so tied embeddings after the embedding's own), once a step where the stage
// allows, and that is waited for one block later where it is in a slot, else at the end. Messages
// are asked for one block ahead. The model's last block runs forward when its backward is due: its
// derivative comes with the loss. `training` false: forwards alone.
std::vector<Action> MakeSchedule(const BlockFlats& blocks, const ScheduleNeeds& needs,
                                 int micro_batches, bool training = true);

// Schedules that have between them all that any number of micro-batches does at a time.
std::vector<std::vector<Action>> TypicalSchedules(const BlockFlats& blocks,
                                                  const ScheduleNeeds& needs);

// Which flats take turns in which memory: two share a slot if none of `schedules` has both between
// `begin` and `end`. Flats of numel 0, and flats that no schedule begins, have none (-1). First
// fit, the largest first.
struct SlotMap {
  std::vector<int> slot_of;         // by flat
  std::vector<int64_t> slot_numel;  // by slot
};
SlotMap AssignSlots(const std::vector<std::vector<Action>>& schedules, Action::Kind begin,
                    const std::vector<Action::Kind>& end, const std::vector<int64_t>& numel);
// Whether no two flats are in one slot at a time.
bool SlotsHold(const std::vector<Action>& schedule, Action::Kind begin,
               const std::vector<Action::Kind>& end, const std::vector<int>& slot_of);

}  // namespace muster::trainer
