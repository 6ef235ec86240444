// How a run begins: from the newest good checkpoint, from a Hugging Face directory, or from drawn
// weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/loop/progress.h"
#include "trainer/loop/setup.h"
#include "trainer/parallel/engine.h"

namespace muster::trainer {

// Where a run stands between two steps, beside weights and moments.
struct RunState {
  int64_t step = 0, next_sequence = 0;
  std::vector<double> recent_losses;  // trainer/loop/guard.h
};

struct Beginning {
  RunState state;
  std::string path;   // of the checkpoint; empty: none
  Problems problems;  // why the checkpoint isn't one of this run, the same on every rank
};

// Fills weights and optimizer state, and says on stderr and in `progress` from where. Collective.
Beginning LoadWeights(const Setup& setup, World& world, Engine& engine, Progress& progress);

}  // namespace muster::trainer
