// The daemon as the commands see it: one method a call, errors as absl::Status with the same code
// as gRPC's and the google.rpc.Status (field paths, preconditions) as payload kDetailsUrl. gRPC is
// known to client.cc only. Thread-safe: `run` watches and reads logs at once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/interrupt.h"
#include "cli/tunnel.h"
#include "muster/v1/access_service.pb.h"
#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/pack_service.pb.h"
#include "muster/v1/queue_service.pb.h"
#include "muster/v1/secret_service.pb.h"
#include "muster/v1/trust_service.pb.h"

namespace muster {

namespace pb = ::muster::v1;

inline constexpr char kDetailsUrl[] = "type.googleapis.com/google.rpc.Status";

// A server is unix:///path, or login:///path: whatever `muster login` wrote there says where it is.
inline constexpr char kLoginScheme[] = "login://";

// UNAVAILABLE, in words, if nobody listens there: no socket, refused, not ours. OK says only that
// somebody listens. Without gRPC: may be called before a fork.
absl::Status CheckReachable(const std::string& server);

// What a call does while the server is away, or can't answer yet.
enum class WhileAway { kFail, kRepeat };  // kRepeat: for some seconds, then it fails

class Client {
 public:
  // Connects lazily. With a login its certificate is renewed first where it is time, and again for
  // as long as this lives; each call shows what is in the login's file by then.
  // INVALID_ARGUMENT: another scheme; UNAUTHENTICATED: the login has expired.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& server);
  ~Client();

  const std::string& server() const { return server_; }
  // CheckReachable of its server, by the login that it has read.
  absl::Status Reachable() const;

  absl::StatusOr<pb::PreviewResponse> Preview(const pb::PreviewRequest& request);
  absl::StatusOr<pb::SubmitResponse> Submit(
      const pb::SubmitRequest&
          request);  // repeats itself with the same key while UNAVAILABLE or late
  absl::StatusOr<pb::PutPackResponse> PutPack(const pb::PutPackRequest& request);  // likewise
  absl::StatusOr<pb::Job> Get(const std::string& id, WhileAway away = WhileAway::kFail);
  absl::StatusOr<pb::ListJobsResponse> List(const pb::ListJobsRequest& request,
                                            WhileAway away = WhileAway::kFail);
  absl::StatusOr<pb::Job> Cancel(const std::string& id);
  // Until the stream ends, `on` returns false (then OK), the interrupt is pending (then CANCELLED)
  // or the time is over (timeout_ns > 0, then DEADLINE_EXCEEDED).
  absl::Status Watch(const std::string& id, int64_t timeout_ns, const Interrupt* interrupt,
                     const std::function<bool(const pb::WatchJobResponse&)>& on);
  absl::Status Logs(const pb::LogsRequest& request, const Interrupt* interrupt,
                    const std::function<bool(const pb::LogsResponse&)>& on);

  // Both are cancelled once the interrupt is pending; it has to outlive the call.
  std::unique_ptr<TunnelCall> Exec(const Interrupt* interrupt);
  std::unique_ptr<TunnelCall> Forward(const Interrupt* interrupt);

  absl::StatusOr<pb::ExplainResponse> Explain(const pb::ExplainRequest& request);
  absl::StatusOr<pb::SimulateResponse> Simulate(const pb::SimulateRequest& request);

  absl::StatusOr<pb::ApplyQueuesResponse> ApplyQueues(const pb::ApplyQueuesRequest& request);
  absl::StatusOr<pb::Queue> GetQueue(const std::string& path);
  absl::StatusOr<pb::ListQueuesResponse> ListQueues();

  absl::StatusOr<pb::Cluster> GetCluster(const std::string& name);
  absl::StatusOr<pb::ListClustersResponse> ListClusters();
  absl::StatusOr<pb::Host> GetHost(const std::string& name);
  absl::StatusOr<pb::ListHostsResponse> ListHosts(const std::string& cluster);
  absl::StatusOr<pb::DrainResponse> Drain(const std::string& target, const std::string& reason);
  absl::Status Resume(const std::string& target);
  absl::StatusOr<pb::ConfirmOffResponse> ConfirmOff(const std::string& host);
  absl::StatusOr<pb::ReleaseQuarantineResponse> ReleaseQuarantine(const std::string& host,
                                                                  std::optional<int32_t> device);
  absl::StatusOr<pb::GetTrainerSchemaResponse> TrainerSchema();
  absl::StatusOr<pb::LedgerResponse> Ledger(const pb::GetLedgerRequest& request = {});
  absl::StatusOr<pb::TopResponse> Top(const pb::TopRequest& request);
  absl::StatusOr<pb::PingResponse> Ping();

  absl::StatusOr<pb::ListAccessResponse> ListAccess();
  absl::StatusOr<pb::GrantResponse> Grant(const pb::Binding& binding);
  absl::StatusOr<pb::RevokeResponse> Revoke(const pb::Binding& binding);
  absl::StatusOr<pb::CheckAccessResponse> CheckAccess(const pb::CheckAccessRequest& request);
  absl::StatusOr<pb::ListAuditResponse> ListAudit(const pb::ListAuditRequest& request);
  absl::StatusOr<pb::VerifyAuditResponse> VerifyAudit(const pb::VerifyAuditRequest& request);

  absl::StatusOr<pb::SetSecretResponse> SetSecret(const pb::SetSecretRequest& request);
  absl::StatusOr<pb::ListSecretsResponse> ListSecrets();
  absl::StatusOr<pb::DeleteSecretResponse> DeleteSecret(const std::string& name);

  absl::StatusOr<pb::GetAuthorityResponse> GetAuthority();
  absl::StatusOr<pb::RotateResponse> Rotate(const pb::RotateRequest& request);
  absl::StatusOr<pb::NewTokenResponse> NewToken(const pb::NewTokenRequest& request);
  absl::StatusOr<pb::NewTokenResponse> CreateToken(const pb::CreateTokenRequest& request);
  absl::StatusOr<pb::ListTokensResponse> ListTokens();
  absl::StatusOr<pb::RevokeTokenResponse> RevokeToken(const pb::RevokeTokenRequest& request);
  absl::StatusOr<pb::ListHoldersResponse> ListHolders(const pb::ListHoldersRequest& request);
  absl::StatusOr<pb::RevokeHolderResponse> RevokeHolder(const pb::RevokeHolderRequest& request);

 private:
  struct Stubs;
  class Login;
  Client(std::string server, std::shared_ptr<Stubs> stubs, std::unique_ptr<Login> login);
  std::shared_ptr<Stubs> stubs();  // for the next call

  std::string server_;
  std::shared_ptr<Stubs> stubs_;  // null: the login has them
  std::unique_ptr<Login> login_;
};

}  // namespace muster
