// What ranks tell each other beside the model: once a step, and while they wait for one that does
// something long.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "trainer/checkpoint/writer.h"
#include "trainer/model/pairs.h"
#include "trainer/ops/cuda/squares.h"
#include "trainer/parallel/groups.h"

namespace muster::trainer {

// What every rank tells every other once a step; the sums are taken in rank order, so all ranks see
// the same bits.
struct StepExchange {
  double loss = 0, z_loss = 0, aux_loss = 0;
  kernels::ExactSum squared_norm;
  bool stop = false, checkpoint = false;
  bool unsynced = false;  // Saving's
  int profile_steps = 0;  // that are to be recorded from the next one on
  PairMeans pairs = {};
  std::vector<CheckpointWriter::Report> writers;  // one of each rank
};

// Collective.
StepExchange Exchange(World& world, const StepExchange& mine,
                      const CheckpointWriter::Report& writer);

// Whether `mine` is true on any rank. Collective.
bool OnAny(World& world, bool mine);

// Returns true once `done`, which waits for that long at most, is true on every rank, or false if
// `stop` (null: nothing) is on any first. No rank waits for another much longer than that, however
// long it takes all in all, and one that dies is noticed. Collective.
bool Await(World& world, const std::function<bool(std::chrono::milliseconds)>& done,
           const std::function<bool()>& stop);

}  // namespace muster::trainer
