// Fetches what attempts need of the scheduler, packed directories and secrets, on connections of
// their own: the agent's stream is for commands.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/daemon/served.h"
#include "agent/host/processes.h"

namespace muster::agent {

// Of whom it is fetched.
struct Source {
  std::string server;  // unix:///absolute/path
  Trust trust;         // who may serve that
  // Else the scheduler is reached over the network, as the file says by then: it is renewed now and
  // again. Empty: it isn't.
  std::string identity_file;
  int64_t patience_ns = kFetchPatienceNs;
};

// UNAVAILABLE: nobody serves there that may be talked to. FAILED_PRECONDITION: this host can't ask.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const Source& source);

FetchPack PackFetcher(Source source);
FetchSecrets SecretFetcher(Source source);

}  // namespace muster::agent
