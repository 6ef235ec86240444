// A command beside a job's worker with this process's standard streams: `exec`, `run --pty`.
#pragma once

#include <string>

#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/session.h"
#include "cli/tunnel.h"

namespace muster {

// `start` says which, but for its terminal, which it gets if `terminal`: one of its own, as large
// as this one.
TunnelOutcome CarryHere(Client& client, const Interrupt& interrupt, pb::TunnelInput start,
                        bool terminal);

// That the command has ended by itself.
bool EndedByItself(const TunnelOutcome& outcome);

// The exit code that this process is to have; else than the command's own, why is said. `lost`:
// what a lost connection means.
int TellOutcome(Session& session, const TunnelOutcome& outcome, const std::string& lost);

}  // namespace muster
