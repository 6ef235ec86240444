// How many workers a task may have.
#pragma once

#include <functional>
#include <string>

#include "muster/v1/job.pb.h"

namespace muster {

// `path`: of the field, such as tasks[1].workers. `emit`: a field's path, and what is wrong there.
void CheckWorkers(const v1::Workers& workers, const std::string& path,
                  const std::function<void(const std::string&, const std::string&)>& emit);

}  // namespace muster
