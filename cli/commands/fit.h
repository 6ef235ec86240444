// Whether the ranks of a `trainer:` task fit their GPUs. How much a rank needs is asked of the
// muster-trainer beside this program
// (`estimate`), how much a GPU has is in its flavour's name ("h100-80g").
#pragma once

#include <cstdint>
#include <string>

#include "cli/render/format.h"
#include "muster/v1/job_service.pb.h"

namespace muster {

// Bytes of a GPU of this flavour; 0 where the name doesn't say.
int64_t FlavourMemoryBytes(const std::string& flavour);

// Of each task with `trainer:`, those that come after others among them: a line for each flavour
// that it may start on; of `parallel: auto` where there is none that its ranks choose. "" where
// there is nothing to tell: no `trainer:`, parts of GPUs, no trainer here, or one that doesn't know
// (it can't read the model's directory from here).
// Blocks for a second or two.
std::string FitText(const pb::PreviewResponse& preview);

}  // namespace muster
