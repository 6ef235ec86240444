// `muster-agent join`: buys this host's certificate with a token, once.
#pragma once

#include <cstdint>
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
// that was lost succeeds. A host whose clock is wrong is refused, and joins by the same line once
// it is right. With `as_me` it has to be a host for one user's jobs alone: what is kept is replaced
// if it isn't, and nothing else is bought. The state directory has to be there.
absl::StatusOr<Identity> JoinHost(const std::string& state_directory, const JoinLine& line,
                                  bool as_me, bool* joined);

// Why muster-agent's first word, `first`, is no command; empty: it is `join`, or a flag.
std::string WhyNoCommand(const std::string& first);

// Why a host with this identity doesn't join `--as-me`; empty: it may.
std::string WhyNotAsMe(const Identity& identity);

// Why a host whose clock says `here_ns` doesn't join a scheduler whose clock says `scheduler_ns`
// (Unix times), with the remedy; empty: it may. More than 5 minutes are too many: certificates are
// refused from an hour on.
std::string WhyClocksDiffer(int64_t here_ns, int64_t scheduler_ns);

// Why the scheduler refuses this host, and what lets it in again.
std::string WithRemedy(const Identity& identity, const std::string& why);

}  // namespace muster::agent
