// `muster-trainer train` and `muster-trainer export`.
#pragma once

#include <string>

namespace muster::trainer {

struct TrainOptions {
  std::string config_path;  // JSON: the `trainer:` map
  std::string dump_tokens;  // rank 0 appends every step's ids (int32, little-endian) to this file; empty: not
};

// Trains as the configuration and the environment (torchrun's and MUSTER_*) say. Returns the process's exit code: 0 done or
// stopped on request after a checkpoint, 1 failed (said on stderr), 2 bad configuration (all problems on stderr).
int Train(const TrainOptions& options);

struct ExportOptions {
  std::string checkpoint, output, tokenizer;
  std::string init;  // of a LoRA run: where its frozen weights are now; empty: where they were
};
// Writes a checkpoint as a Hugging Face directory. The same exit codes.
int Export(const ExportOptions& options);

}  // namespace muster::trainer
