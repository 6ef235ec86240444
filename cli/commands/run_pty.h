// `muster run --pty`: a command as a job of its own, in a terminal of this one's. The job's own
// program holds its devices, and the command runs beside it, as `muster exec` runs one.
#pragma once

#include <string>
#include <vector>

#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/session.h"

namespace muster {

// Puts in the place of the job's command the program that holds, which ends as that command does:
// with its exit code, or without a terminal.
void HoldForTerminal(pb::JobSpec* spec);

// That this was done to it. To submit it again makes a job that no terminal comes to.
bool HoldsForTerminal(const pb::JobSpec& spec);

// Of a job with such a spec: waits until it runs, runs the command in a terminal, waits for the
// job's end. The command's exit code. Where the command is cut off or never begins, the job is
// cancelled.
int RunInTerminal(Session& session, Client& client, const std::string& id,
                  const std::vector<std::string>& command, const Interrupt& interrupt);

}  // namespace muster
