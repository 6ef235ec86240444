// Jobs that begin from another one's checkpoints: `muster resume JOB`, and `muster submit
// --resume-from`. Paths are filled in; whether the new job's owner may read them is the file
// system's to say, or the object store's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cli/client.h"

namespace muster {

// The step of one that a task has told. Of one that its job began from, which an earlier job told,
// it is in the name where muster-trainer wrote it (step-00001200); nothing: it isn't known.
std::optional<int64_t> StepOf(const pb::Checkpoint& checkpoint);

// Each task of the ended job's own spec begins from the checkpoints that it told, the newest first,
// and behind them from what it had begun from itself. Otherwise FAILED_PRECONDITION or
// INVALID_ARGUMENT, with what to do.
absl::Status BeginWhereItEnded(const pb::Job& job, pb::JobSpec* spec);

// `from`: JOB, JOB/TASK or JOB/TASK/STEP. Each task of `spec` begins from the checkpoints of the
// job's task of its name, the newest first; of two jobs with one task each the names don't matter,
// and TASK is for the only task of `spec`, else for the one of that name. What the spec had named
// before is replaced where the job has something, and it must have something.
absl::Status BeginFromJob(Client& client, const std::string& from, pb::JobSpec* spec);

// A line for each task that begins from checkpoints: from which, and how many it tries after that.
std::string BeginsFromText(const pb::JobSpec& spec);

}  // namespace muster
