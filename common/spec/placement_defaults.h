// Where the ranks of a task lie, and by how many workers it grows, where its file doesn't say.
#pragma once

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// Fills what `task` of `spec` leaves out. Where its trainer says how its ranks share out the model
// (trainer.parallel, but for auto, and shard_size):
// - workers.multiple_of: the workers of one replica of the model, or of several where the blocks
//   ask for it;
// - topology.blocks: that ranks which share out each product (tp) are in one island, else on one
//   host, and those that share out each layer (tp times cp) on one host. These are wishes: nothing
//   waits for them.
// Where there are blocks, and still no multiple_of: the largest block. What is filled in keeps the
// rules of CheckBlocks and CheckWorkers; what can't is left out. A sweep over the layout has one
// placement for all its members, so nothing is filled in then. Idempotent.
void FillPlacement(const pb::JobSpec& spec, pb::TaskSpec* task);

// `task` of `spec` without what FillPlacement would fill in again: as its file may have had it.
pb::TaskSpec WithoutFilledPlacement(const pb::JobSpec& spec, const pb::TaskSpec& task);
// The same of all tasks.
pb::JobSpec WithoutFilledPlacements(const pb::JobSpec& spec);
// `spec` without what was filled in for another layout than that of `changed`, which is
// WithoutFilledPlacements(spec) with changes. All else stays, also where it would be filled in
// again just so: a server of an older release fills in nothing.
pb::JobSpec WithoutOutdatedPlacements(const pb::JobSpec& spec, const pb::JobSpec& changed);

}  // namespace muster
