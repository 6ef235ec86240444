// Fetches what attempts need of the scheduler, packed directories and secrets, on connections of
// their own: the agent's stream is for commands.
#pragma once

#include <string>

#include "agent/host/processes.h"

namespace muster::agent {

// `server` is unix:///absolute/path; with `identity_file` the scheduler is reached over the network
// as the file says by then: it is renewed now and again.
FetchPack PackFetcher(std::string server, std::string identity_file);
FetchSecrets SecretFetcher(std::string server, std::string identity_file);

}  // namespace muster::agent
