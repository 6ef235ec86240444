// A rank's part of a micro-batch whose rows ranks share out (context parallelism), cut as
// trainer/parallel/context_plan.h says. Targets and weights go with their tokens, so whatever
// stands behind a token must be its target before.
#pragma once

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/parallel/context_plan.h"

namespace muster::trainer {

// Which part, of how many.
struct ContextShare {
  int rank = 0, ranks = 1;
  ContextSharding sharding = ContextSharding::kAuto;
};

// Of `whole`, on the host. `bounds`: also what FlashAttention needs. With one rank it is `whole`.
BatchMeta TakeContextPart(BatchMeta whole, const ContextShare& share, bool bounds = false);
// Brings what it has of tensors to a device.
void MoveContext(ContextMeta& context, at::Device device);

}  // namespace muster::trainer
