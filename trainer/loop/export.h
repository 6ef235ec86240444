// The export at the end of a run.
#pragma once

#include "trainer/loop/progress.h"
#include "trainer/loop/setup.h"
#include "trainer/parallel/engine.h"

namespace muster::trainer {

// Brings all weights to rank 0, which writes the model as setup.export_target says. Returns the
// process's exit code. Collective; nothing is trained afterwards.
int ExportModel(const Setup& setup, World& world, Engine& engine, Progress& progress);

}  // namespace muster::trainer
