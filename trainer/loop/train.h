// `muster-trainer train`.
#pragma once

#include <string>

namespace muster::trainer {

struct TrainOptions {
  std::string config_path;  // JSON: the `trainer:` map
  std::string dump_tokens;  // rank 0 appends every step's ids (int32, little-endian) to this file;
                            // empty: not
  std::string metrics;      // rank 0 appends every progress line to this file, as JSON; empty: not
  std::string profile;      // steps to profile, instead of profile_steps; empty: as that says
};

// Trains as the configuration and the environment (torchrun's and MUSTER_*) say. Returns the
// process's exit code: 0 done or stopped on request after a checkpoint, 1 failed (said on stderr),
// 2 bad configuration (all problems on stderr).
int Train(const TrainOptions& options);

}  // namespace muster::trainer
