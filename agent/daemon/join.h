// `muster-agent join`: buys this host's certificate with a token, once.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "network/client.h"

namespace muster::agent {

inline constexpr char kIdentityFile[] = "identity";  // in the state directory

inline constexpr char kOldIdentityFile[] = "identity.old";  // the one before

// The host's identity: what is kept there already (*joined is false then), else what the line buys.
// It also buys a new one in the place of one that its scheduler refuses, or that is of another
// authority than the line names. The key is kept before it is used, so that a repeat after a reply
// that was lost succeeds. The state directory has to be there.
absl::StatusOr<Identity> JoinHost(const std::string& state_directory, const JoinLine& line,
                                  bool* joined);

// Why the scheduler refuses this host, and what lets it in again.
std::string WithRemedy(const Identity& identity, const std::string& why);

}  // namespace muster::agent
