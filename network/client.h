// The other end of the scheduler's doors: joining, renewing, and channels for whoever has joined.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/v1/trust_service.pb.h"
#include "network/identity.h"

namespace muster {

// Whether gRPC says by this that somebody accepts connections there and ends them before any call:
// who asks for another certificate, or for one at all.
bool EndedBeforeAnyCall(absl::string_view said);
// That, and who doesn't take it, in words with the remedy; else `said`.
std::string WhyNotTaken(const Identity& identity, const std::string& said);

// A channel to the first of the scheduler's addresses that accepts a connection, or to the first at
// all. It speaks TLS, shows the identity's certificate and takes no other scheduler's.
std::shared_ptr<grpc::Channel> DialWith(const Identity& identity,
                                        const grpc::ChannelArguments& arguments);
// Empty: somebody accepts connections at one of the addresses. Else why none does.
std::string WhyNotServed(const Identity& identity);

struct JoinLine {
  std::string address;  // of the join door
  std::string token;
  std::string fingerprint;  // of the authority, "sha256:…"
};

// Makes a key, checks the authority by its fingerprint, and buys a certificate for the token.
// `key`: one of an earlier try whose reply was lost; empty: a new one. *clock_ns gets the
// scheduler's time. UNAUTHENTICATED: another authority is served there, or the token is refused.
// FAILED_PRECONDITION: the scheduler is there, and no join door. UNAVAILABLE: nobody is there.
// INVALID_ARGUMENT: the line's address or fingerprint is none.
absl::StatusOr<Identity> Join(const JoinLine& line, std::string key, int64_t* clock_ns);

// A scheduler's join door, whose authority was checked by its fingerprint, for users of identity
// providers.
class JoinDoor {
 public:
  // As Join.
  static absl::StatusOr<JoinDoor> Reach(const std::string& address, const std::string& fingerprint);
  absl::StatusOr<v1::ListProvidersResponse> ListProviders() const;
  // A certificate for the key's public part, by an ID token whose nonce is this key's.
  absl::StatusOr<Identity> LogIn(const std::string& key, const std::string& id_token) const;

 private:
  JoinDoor(std::string address, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)), channel_(std::move(channel)) {}

  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
};

// What was answered, beside the key that it was asked for; looked at as a file of it would be.
absl::StatusOr<Identity> IdentityOf(const std::string& key,
                                    const v1::CertificateResponse& response);
// Another certificate for the same holder, with a new key.
absl::StatusOr<Identity> Renew(const Identity& identity);
// Whether the scheduler wants that now. Also tells it that this certificate has arrived.
absl::StatusOr<bool> AskNews(const std::shared_ptr<grpc::Channel>& channel);
// The address of this machine that the scheduler is reached from; empty: it isn't reached.
std::string OwnAddress(const Identity& identity);
// Of a host whose certificate expired: with the same key.
absl::StatusOr<Identity> RenewExpired(const Identity& identity);
// Whether the authority of this fingerprint signed its certificate.
bool IsSignedBy(const Identity& identity, const std::string& fingerprint);

}  // namespace muster
