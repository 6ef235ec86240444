#include "network/client.h"

#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/units.h"
#include "muster/v1/trust_service.grpc.pb.h"
#include "network/peek.h"

namespace muster {
namespace {

namespace pb = ::muster::v1;

constexpr int64_t kConnectNs = 3 * kSecond;
constexpr int kCallSeconds = 20;
constexpr int kJoinPort = 7421;  // in examples, as docs/hosts.md has it
// A scheduler that is gone without a word is given up after both, 35 s: of a lease of 45 s, the
// default, 10 s are left then to connect anew and be heard. No sooner: a stream that ends has all
// told again on the next one, which a scheduler that is only busy can do without.
constexpr int kKeepaliveTimeMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 25'000;

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address, const std::string& trust_id,
                                    const grpc::SslCredentialsOptions& options,
                                    grpc::ChannelArguments arguments) {
  arguments.SetSslTargetNameOverride(ServerName(trust_id));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

// Connected to the first of its addresses that takes it, which *chosen is then; below 0: none does,
// and *why says it of each.
int ConnectToFirst(const Identity& identity, std::string* chosen, std::string* why) {
  for (const std::string& address : identity.addresses) {
    std::string here;
    const int fd = ConnectTo(address, kConnectNs, &here);
    if (fd >= 0) {
      *chosen = address;
      return fd;
    }
    absl::StrAppend(why, why->empty() ? "" : "; ", here);
  }
  return -1;
}

template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Call(const std::shared_ptr<grpc::Channel>& channel,
                              grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                                    const Request&, Response*),
                              const Request& request) {
  typename Service::Stub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kCallSeconds));
  Response response;
  absl::Status status = FromGrpc((stub.*method)(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

// The authority of this fingerprint among certificates of a chain; empty: it isn't there.
absl::StatusOr<std::string> AuthorityIn(const std::string& chain, const std::string& fingerprint) {
  const absl::StatusOr<std::vector<Certificate>> shown = ReadCertificates(chain);
  if (!shown.ok()) return shown.status();
  size_t begin = 0;
  for (const Certificate& certificate : *shown) {
    const size_t end = chain.find("-----END CERTIFICATE-----\n", begin) + 26;
    if (certificate.authority && certificate.fingerprint == fingerprint)
      return chain.substr(begin, end - begin);
    begin = end;
  }
  return "";
}

std::string TimeText(int64_t unix_s) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(unix_s), absl::UTCTimeZone());
}

// `refused`: why the chain isn't the authority's at `now_s`. If it is at another time, then it is
// this machine's clock that is wrong, or the scheduler's.
absl::Status AtThisTime(const std::string& chain, const std::string& authority, int64_t now_s,
                        const absl::Status& refused) {
  const absl::StatusOr<Certificate> shown = ReadCertificate(chain);
  if (!shown.ok() || !VerifyHolder(chain, authority, shown->validity.end_s - 1).ok())
    return refused;
  return absl::UnauthenticatedError(
      absl::StrCat("this machine's clock says ", TimeText(now_s),
                   ", and the scheduler's certificate counts from ",
                   TimeText(shown->validity.begin_s), " to ", TimeText(shown->validity.end_s),
                   ". Set the clock that is wrong (timedatectl set-ntp true). Nothing was sent"));
}

// The server's name, if one of the shown certificates is the authority that the line pins and
// signed the server's.
struct Door {
  std::string authority, trust_id;
};
absl::StatusOr<Door> CheckDoor(const std::string& chain, const std::string& fingerprint,
                               int64_t now_s) {
  const absl::StatusOr<std::string> pem = AuthorityIn(chain, fingerprint);
  if (!pem.ok()) return pem.status();
  if (!pem->empty()) {
    const absl::StatusOr<Holder> server = VerifyHolder(chain, *pem, now_s);
    if (!server.ok()) return AtThisTime(chain, *pem, now_s, server.status());
    if (server->kind != Holder::kServer)
      return absl::UnauthenticatedError("who answers there is no scheduler");
    return Door{*pem, server->trust_id};
  }
  return absl::UnauthenticatedError(absl::StrCat(
      "who answers there has another authority than ", fingerprint,
      ": either the line is older than a rotation (its token still counts: give --ca the "
      "fingerprint that `muster ca show` on musterd's machine says signs), or somebody is in "
      "between. Nothing was sent"));
}

// A channel to the join door at this address, once its authority is checked.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ReachDoor(const std::string& address,
                                                         const std::string& fingerprint) {
  for (const std::string& why : {WhyNoAddress(address, kJoinPort), WhyNoFingerprint(fingerprint)}) {
    if (!why.empty()) return absl::InvalidArgumentError(why);
  }
  const absl::StatusOr<std::string> chain = PeekChain(address, kConnectNs);
  if (!chain.ok()) {
    return absl::UnavailableError(
        absl::StrCat(chain.status().message(),
                     ". `muster ca show` on musterd's machine names the door to join at: does "
                     "musterd run there, and is that port open from here?"));
  }
  const absl::StatusOr<Door> door = CheckDoor(*chain, fingerprint, WallS());
  if (!door.ok()) return door.status();
  return Dial(address, door->trust_id, {door->authority, "", ""}, grpc::ChannelArguments());
}

absl::Status WhyNotJoined(const std::string& address, const absl::Status& status) {
  if (!EndedBeforeAnyCall(status.message())) return status;
  return absl::FailedPreconditionError(absl::StrCat(
      address, " is the scheduler's and is not the join door, as it takes nobody without a ",
      "certificate. The join door is at the port of `tls: join:` in musterd.yaml, 7421 where "
      "docs/hosts.md is followed; on musterd's machine `muster ca show` names it. Nothing was "
      "spent"));
}

}  // namespace

bool EndedBeforeAnyCall(absl::string_view said) {
  return absl::StrContains(said, "failed to connect to all addresses") &&
         (absl::StrContains(said, "Socket closed") || absl::StrContains(said, "reset by peer") ||
          absl::StrContains(said, "Broken pipe") || absl::StrContains(said, "andshake"));
}

std::string WhyNotTaken(const Identity& identity, const std::string& said) {
  if (!EndedBeforeAnyCall(said)) return said;
  return absl::StrCat(
      identity.addresses.front(),
      ": who answers there doesn't take this certificate: its authority was dropped in a rotation, "
      "or the address is another scheduler's by now, or this address has too many connections "
      "there (",
      said, ")");
}

std::shared_ptr<grpc::Channel> DialWith(const Identity& identity,
                                        const grpc::ChannelArguments& arguments) {
  std::string chosen = identity.addresses.front(), why;
  if (identity.addresses.size() > 1) {
    const int fd = ConnectToFirst(identity, &chosen, &why);
    if (fd >= 0) close(fd);
  }
  return Dial(chosen, identity.holder.trust_id,
              {identity.authorities, identity.key, identity.certificate}, arguments);
}

std::string WhyNotServed(const Identity& identity) {
  std::string chosen, why;
  const int fd = ConnectToFirst(identity, &chosen, &why);
  if (fd < 0) return why;
  close(fd);
  return "";
}

absl::StatusOr<Identity> Join(const JoinLine& line, std::string key, int64_t* clock_ns) {
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
      ReachDoor(line.address, line.fingerprint);
  if (!channel.ok()) return channel.status();
  if (key.empty()) key = NewKey();
  const absl::StatusOr<std::string> request = NewRequest(key);
  if (!request.ok()) return request.status();
  pb::JoinRequest join;
  join.set_token(line.token);
  join.set_request(*request);
  const absl::StatusOr<pb::CertificateResponse> response =
      Call<pb::JoinService>(*channel, &pb::JoinService::Stub::Join, join);
  if (!response.ok()) return WhyNotJoined(line.address, response.status());
  if (clock_ns != nullptr) *clock_ns = response->now_ns();
  return IdentityOf(key, *response);
}

absl::StatusOr<JoinDoor> JoinDoor::Reach(const std::string& address,
                                         const std::string& fingerprint) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = ReachDoor(address, fingerprint);
  if (!channel.ok()) return channel.status();
  return JoinDoor(address, *std::move(channel));
}

absl::StatusOr<pb::ListProvidersResponse> JoinDoor::ListProviders() const {
  absl::StatusOr<pb::ListProvidersResponse> response = Call<pb::JoinService>(
      channel_, &pb::JoinService::Stub::ListProviders, pb::ListProvidersRequest());
  if (!response.ok()) return WhyNotJoined(address_, response.status());
  return response;
}

absl::StatusOr<Identity> JoinDoor::LogIn(const std::string& key,
                                         const std::string& id_token) const {
  const absl::StatusOr<std::string> request = NewRequest(key);
  if (!request.ok()) return request.status();
  pb::LogInRequest log_in;
  log_in.set_id_token(id_token);
  log_in.set_request(*request);
  const absl::StatusOr<pb::CertificateResponse> response =
      Call<pb::JoinService>(channel_, &pb::JoinService::Stub::LogIn, log_in);
  if (!response.ok()) return WhyNotJoined(address_, response.status());
  return IdentityOf(key, *response);
}

absl::StatusOr<Identity> IdentityOf(const std::string& key,
                                    const pb::CertificateResponse& response) {
  Identity identity;
  identity.key = key;
  identity.certificate = response.certificate();
  identity.authorities = response.authorities();
  identity.addresses.assign(response.addresses().begin(), response.addresses().end());
  identity.join_address = response.join_address();
  return ReadIdentity(WriteIdentity(identity));  // whatever came is looked at as a file would be
}

absl::StatusOr<Identity> Renew(const Identity& identity) {
  const std::string key = NewKey();
  const absl::StatusOr<std::string> request = NewRequest(key);
  if (!request.ok()) return request.status();
  pb::RenewRequest renew;
  renew.set_request(*request);
  const absl::StatusOr<pb::CertificateResponse> response = Call<pb::TrustService>(
      DialWith(identity, grpc::ChannelArguments()), &pb::TrustService::Stub::Renew, renew);
  if (!response.ok()) return response.status();
  return IdentityOf(key, *response);
}

std::string OwnAddress(const Identity& identity) {
  std::string chosen, why;
  const int fd = ConnectToFirst(identity, &chosen, &why);
  if (fd < 0) return "";
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST) != 0)
    text[0] = '\0';
  close(fd);
  return text;
}

absl::StatusOr<bool> AskNews(const std::shared_ptr<grpc::Channel>& channel) {
  const absl::StatusOr<pb::GetNewsResponse> response =
      Call<pb::TrustService>(channel, &pb::TrustService::Stub::GetNews, pb::GetNewsRequest());
  if (!response.ok()) return response.status();
  return response->renew();
}

absl::StatusOr<Identity> RenewExpired(const Identity& identity) {
  const absl::StatusOr<std::string> request = NewRequest(identity.key);
  if (!request.ok()) return request.status();
  pb::RenewExpiredRequest renew;
  renew.set_certificate(identity.certificate);
  renew.set_request(*request);
  const absl::StatusOr<pb::CertificateResponse> response =
      Call<pb::JoinService>(Dial(identity.join_address, identity.holder.trust_id,
                                 {identity.authorities, "", ""}, grpc::ChannelArguments()),
                            &pb::JoinService::Stub::RenewExpired, renew);
  if (!response.ok()) return response.status();
  return IdentityOf(identity.key, *response);
}

bool IsSignedBy(const Identity& identity, const std::string& fingerprint) {
  const absl::StatusOr<std::string> pem = AuthorityIn(identity.authorities, fingerprint);
  return pem.ok() && !pem->empty() &&
         VerifyHolder(identity.certificate, *pem, identity.validity.begin_s).ok();
}

}  // namespace muster
