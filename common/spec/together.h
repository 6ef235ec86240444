// Tasks that start together (`with`): who belongs to whom, and what they share
// (docs/decisions/137-tasks-that-start-together.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// Indexes of the tasks that start together with `task`, itself among them, ascending: all that
// `with` joins, in whichever direction and through whomever. One alone: only itself. Names that no
// task has are skipped.
std::vector<int> TogetherWith(const pb::JobSpec& spec, int task);

// Has each task name all that it starts together with, and come after all that one of them comes
// after. Idempotent.
void JoinTasks(pb::JobSpec* spec);

// The variable in which the others find the address of a task: MUSTER_TASK_SERVER_ADDRESS of
// `server`. What a variable's name can't have is '_' there.
std::string AddressVariable(std::string_view task);

}  // namespace muster
