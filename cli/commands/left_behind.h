// What `muster run` doesn't take along from the shell that it is called in: a job gets neither its
// PATH nor its directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/v1/job.pb.h"

namespace muster {

namespace pb = ::muster::v1;

struct LeftBehind {
  std::string text;    // lines for people; empty: nothing that the command seems to need
  std::string remedy;  // the whole command that takes it along
};

// `given`: all words behind `muster`, of which `command` are the last; `has_directory`:
// --workdir or -C is among them.
LeftBehind WhatStaysBehind(const std::vector<std::string>& given,
                           const std::vector<std::string>& command, bool has_directory,
                           const pb::JobSpec& spec);

// Whether a program's output says that it didn't find something, in the usual words.
bool SaysWhatIsMissing(std::string_view output);

}  // namespace muster
