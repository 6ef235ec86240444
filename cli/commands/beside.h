// Programs that lie beside this one and do a command's work in its place.
#pragma once

#include <string>
#include <vector>

#include "cli/session.h"

namespace muster {

// Empty if the program is there; else the sentence that says so and how to get it.
std::string MissingBeside(const std::string& name);

// Becomes that program with these arguments: its output and its exit code are this command's.
// Returns only if it can't be started.
int BecomeBeside(Session& session, const std::string& name, std::vector<std::string> arguments);

}  // namespace muster
