// What an attempt's end says to people: the host's words, and what of the job file they are about.
#pragma once

#include <string>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// "out of memory", as a sentence's part; "" for what needs no words.
std::string CauseText(pb::Cause cause);

// `detail` as the host told it, with the field of the job file, and its value, that it is about.
std::string FailureText(const pb::TaskSpec& task, pb::Cause cause, const std::string& detail);

}  // namespace muster
