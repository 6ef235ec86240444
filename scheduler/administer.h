// musterd backup, verify, replay: beside the daemon or without one.
#pragma once

#include <string>

#include "common/spec/config_files.h"

namespace muster {

// `what` of them, with `file` as docs/commands.md has it. Its exit status; says why on stderr.
int Administer(const std::string& what, const std::string& file, const MusterdConfig& config);

}  // namespace muster
