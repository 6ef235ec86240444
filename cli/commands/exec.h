// A command beside a job's worker with this process's standard streams: `exec`, `run --pty`.
#pragma once

#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/session.h"

namespace muster {

// `start` says which, but for its terminal, which it gets if `terminal`: one of its own, as large
// as this one. The exit code that this process is to have; *ended: it is the command's.
int ExecHere(Session& session, Client& client, const Interrupt& interrupt, pb::TunnelInput start,
             bool terminal, bool* ended);

}  // namespace muster
