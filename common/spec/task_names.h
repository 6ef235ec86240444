// What is said where a name is none of a job's tasks.
#pragma once

#include <string>
#include <string_view>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// "job 7 has no task trian; it has prepare, train". `job` is how the sentence begins.
std::string NoSuchTask(std::string_view job, const pb::JobSpec& spec, std::string_view name);

}  // namespace muster
