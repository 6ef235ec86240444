// Whom a job takes devices from, and what becomes of them, as a Future has it.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/v1/job_service.pb.h"
#include "scheduler/ask/future.h"

namespace muster {

// What becomes of a task that is stopped to go on with so many workers (0: as soon as it gets a place), as far as the stop says it.
std::string Outcome(int32_t workers, bool starts_over);
// The same as the future has it: "goes on with 2 workers", "goes on in dal", "waits 36m, then goes on from its checkpoint": what becomes of what is stopped at turns()[turn].
std::string OutcomeOf(const Future& future, size_t turn);
// One entry for each task that is stopped or shrunk for the job.
std::vector<pb::PreviewResponse::Taken> TakenFor(const Future& future, uint64_t job);

}  // namespace muster
