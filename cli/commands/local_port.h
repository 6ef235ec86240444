// A port of this machine that leads to one beside a job's worker: `forward` and `dev open`.
#pragma once

#include "absl/status/statusor.h"
#include "cli/interrupt.h"
#include "cli/session.h"
#include "muster/v1/tunnel.pb.h"

namespace muster {

// A socket that listens on 127.0.0.1 only. *port gets the one that was chosen for 0.
absl::StatusOr<int> ListenLocally(int* port);

// Leads each connection to where `start` says, until the interrupt is pending. Closes `listener`.
void CarryConnections(Session& session, Client& client, const pb::TunnelInput& start, int listener,
                      const Interrupt& interrupt);

}  // namespace muster
