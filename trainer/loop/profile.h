// `muster-trainer train --profile STEPS`, and `profile_steps` of a job: some steps as a Chrome
// trace (chrome://tracing, Perfetto), by Kineto, which libtorch has inside: our ranges
// (trainer/parallel/range.h), ATen's operations and, on GPUs, their kernels.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster::trainer {

// One process's. Not thread-safe; used by the thread that trains.
class Profile {
 public:
  // Of `steps` steps (0: none) out of `left` that are to come: the first two of a process, which
  // warm up, aren't among them if there are enough others. The trace goes to
  // DIRECTORY/step-NNNNNNNN.rank-R.json, named after its first step.
  Profile(int64_t steps, int64_t left, std::string directory, int rank, bool gpu);

  // So many more, from the next one on, unless some are to come already.
  void Ask(int64_t steps, int64_t left);

  // Step `step` (from 1) begins; starts to record where it is time.
  void Begin(int64_t step);
  // It is over. The file, once it is written after the last step of the profile, or "" before that
  // and afterwards; an error if it couldn't be written.
  absl::StatusOr<std::string> End();
  // The same for a run that ends early.
  absl::StatusOr<std::string> Finish();

 private:
  int64_t skip_ = 0, left_ = 0;
  int64_t first_step_ = 0;
  const std::string directory_;
  const int rank_;
  const bool gpu_;
  bool recording_ = false;
};

}  // namespace muster::trainer
