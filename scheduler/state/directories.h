// Where a job's files lie: the one formula for MUSTER_JOB_DIR and what is below it.
#pragma once

#include <string>

#include "scheduler/state/state.h"

namespace muster {

// <path or URL of the storage>/jobs/<number>-<first 8 of the uid>; empty if the storage is unknown
// or has neither. "{user}" in the path or URL stands for the job's owner.
std::string DirectoryIn(const State& state, const std::string& storage, const JobRow& job);
// The same in the job's own storage (JobStorage): MUSTER_JOB_DIR.
std::string JobDirectory(const State& state, const JobRow& job);

// The storage that a path or URL lies in, whoever's part of it; "": in none.
std::string StorageOfPath(const State& state, const std::string& path);

}  // namespace muster
