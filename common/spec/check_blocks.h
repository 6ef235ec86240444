// Which blocks of ranks a task may name.
#pragma once

#include <functional>
#include <string>

#include "muster/v1/job.pb.h"

namespace muster {

constexpr int kMaxRankBlocks = 8;

// `path`: of the task; "" at the top. `emit`: a field's path, and what is wrong there.
void CheckBlocks(const v1::TaskSpec& task, const std::string& path,
                 const std::function<void(const std::string&, const std::string&)>& emit);

}  // namespace muster
