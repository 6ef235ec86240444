// What `explain` says of tasks that run beyond their queue's guarantee.
#pragma once

#include <cstdint>
#include <string>

#include "muster/v1/job_service.pb.h"
#include "scheduler/state/options.h"
#include "scheduler/state/state.h"

namespace muster {

// Nothing where the text is empty.
void AddBorrowed(const std::string& text, const std::string& task, pb::ExplainResponse* response);
// Of the job's tasks that run.
void FillBorrowed(const State& state, const JobRow& job, int64_t now_ns,
                  const SchedulingOptions& scheduling, pb::ExplainResponse* response);

}  // namespace muster
