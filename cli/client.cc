#include "cli/client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/units.h"
#include "muster/v1/access_service.grpc.pb.h"
#include "muster/v1/cluster_service.grpc.pb.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "muster/v1/pack_service.grpc.pb.h"
#include "muster/v1/queue_service.grpc.pb.h"
#include "muster/v1/secret_service.grpc.pb.h"
#include "muster/v1/trust_service.grpc.pb.h"
#include "network/client.h"

namespace muster {
namespace {

constexpr int kCallSeconds = 30;

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty())
    out.SetPayload(kDetailsUrl, absl::Cord(status.error_details()));
  return out;
}

std::string SocketPath(const std::string& server) {
  return std::string(absl::StripPrefix(server, "unix://"));
}

// Empty: the server is no login's.
std::string LoginPath(const std::string& server) {
  const size_t scheme = sizeof(kLoginScheme) - 1;
  return server.rfind(kLoginScheme, 0) == 0 ? server.substr(scheme) : "";
}

constexpr int64_t kNewsNs = 10 * kMinute;  // so often a login is asked about by its own commands

// The login, renewed where half its life is over or the scheduler asks for it. That it can't be is
// no reason to fail while it is good.
absl::StatusOr<Identity> FreshLogin(const std::string& path) {
  absl::StatusOr<Identity> identity = LoadIdentity(path);
  if (!identity.ok()) return identity.status();
  const int64_t now_s = WallS();
  const Validity& validity = identity->validity;
  if (validity.end_s <= now_s)
    return absl::UnauthenticatedError("your login has expired: muster login");
  struct stat info {};
  const bool asks = stat(path.c_str(), &info) == 0 && now_s - info.st_mtime >= kNewsNs / kSecond;
  bool renew = validity.Due(now_s);
  if (!renew && asks) {
    const absl::StatusOr<bool> news = AskNews(DialWith(*identity, grpc::ChannelArguments()));
    renew = news.ok() && *news;
    if (news.ok()) utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  }
  if (!renew) return identity;
  absl::StatusOr<Identity> renewed = Renew(*identity);
  if (!renewed.ok() || !SaveIdentity(path, *renewed).ok()) return identity;
  // Tells that it has arrived.
  (void)AskNews(DialWith(*renewed, grpc::ChannelArguments()));
  return renewed;
}

absl::Status CheckServed(const Identity& login) {
  const std::string why = WhyNotServed(login);
  return why.empty() ? absl::OkStatus() : absl::UnavailableError("no server at " + why);
}

template <typename Response, typename Stub, typename Request>
absl::StatusOr<Response> Call(Stub& stub,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kCallSeconds));
  Response response;
  absl::Status status = FromGrpc((stub.*method)(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

// Cancels the call as soon as the interrupt's descriptor is readable, until it goes out of scope.
class CancelOnInterrupt {
 public:
  CancelOnInterrupt(grpc::ClientContext* context, const Interrupt* interrupt) {
    if (interrupt == nullptr) return;
    done_fd_ = eventfd(0, EFD_CLOEXEC);
    MUSTER_CHECK(done_fd_ >= 0);
    thread_ = std::thread([this, context, fd = interrupt->fd()] {
      struct pollfd fds[2] = {{fd, POLLIN, 0}, {done_fd_, POLLIN, 0}};
      while (poll(fds, 2, -1) < 0 && errno == EINTR) {
      }
      if (fds[0].revents != 0) context->TryCancel();
    });
  }
  ~CancelOnInterrupt() {
    if (done_fd_ < 0) return;
    uint64_t one = 1;
    MUSTER_CHECK(write(done_fd_, &one, sizeof one) == sizeof one);
    thread_.join();
    close(done_fd_);
  }

 private:
  int done_fd_ = -1;
  std::thread thread_;
};

template <typename Response, typename Open>
absl::Status ReadStream(const Interrupt* interrupt, const std::function<bool(const Response&)>& on,
                        Open open) {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<Response>> reader = open(&context);
  CancelOnInterrupt cancel(&context, interrupt);
  Response response;
  bool enough = false;
  while (!enough && reader->Read(&response)) enough = !on(response);
  if (enough) context.TryCancel();
  absl::Status status = FromGrpc(reader->Finish());
  if (interrupt != nullptr && interrupt->pending()) return absl::CancelledError("interrupted");
  return enough ? absl::OkStatus() : status;
}

class GrpcTunnel final : public TunnelCall {
 public:
  using Stream = grpc::ClientReaderWriter<pb::TunnelInput, pb::TunnelOutput>;
  GrpcTunnel(const Interrupt* interrupt,
             const std::function<std::unique_ptr<Stream>(grpc::ClientContext*)>& open)
      : stream_(open(&context_)),
        cancel_(std::make_unique<CancelOnInterrupt>(&context_, interrupt)) {}
  bool Write(const pb::TunnelInput& input) override { return stream_->Write(input); }
  bool Read(pb::TunnelOutput* output) override { return stream_->Read(output); }
  void Cancel() override { context_.TryCancel(); }
  absl::Status Finish() override {
    cancel_.reset();
    return FromGrpc(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<CancelOnInterrupt> cancel_;
};

constexpr std::chrono::milliseconds kRepeat(6000), kFirstPause(100), kLongestPauseAway(400);

// Again for some seconds while the server is away, or says that it can't answer yet, or
// (`also_late`) accepts and doesn't answer. For calls that may be repeated. One that is away, as
// when it starts anew, is looked for at short intervals; one that says "later" gets more time after
// each try, and not from all at once.
template <typename Response, typename Attempt>
absl::StatusOr<Response> Repeated(const std::string& server, bool also_late, Attempt call) {
  std::minstd_rand random{std::random_device()()};
  std::optional<std::chrono::steady_clock::time_point> last;
  for (auto pause = kFirstPause;;) {
    absl::StatusOr<Response> response = call();
    const bool late = also_late && absl::IsDeadlineExceeded(response.status());
    if (response.ok() || (!absl::IsUnavailable(response.status()) && !late)) return response;
    const auto now = std::chrono::steady_clock::now();
    if (!last) last = now + kRepeat;
    if (now + pause > *last) return response;
    std::this_thread::sleep_for(pause * std::uniform_int_distribution<int>(50, 100)(random) / 100);
    pause = CheckReachable(server).ok() ? 2 * pause : std::min(2 * pause, kLongestPauseAway);
  }
}

}  // namespace

absl::Status CheckReachable(const std::string& server) {
  if (const std::string login = LoginPath(server); !login.empty()) {
    const absl::StatusOr<Identity> identity = LoadIdentity(login);
    return identity.ok() ? CheckServed(*identity) : identity.status();
  }
  std::string path = SocketPath(server);
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return absl::InvalidArgumentError(
        absl::StrCat(server, ": longer than a socket's path may be (107 bytes)"));
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("socket: ", strerror(errno)));
  int result = connect(fd, reinterpret_cast<struct sockaddr*>(&address), sizeof address);
  int error = errno;
  close(fd);
  // EAGAIN: it listens, and has more callers than it takes just now.
  if (result == 0 || error == EAGAIN) return absl::OkStatus();
  std::string why = error == ENOENT         ? "there is no such socket"
                    : error == ECONNREFUSED ? "nobody listens there any more"
                    : error == EACCES       ? "it belongs to somebody else"
                                            : strerror(error);
  return absl::UnavailableError(absl::StrCat("no server at ", server, ": ", why));
}

struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : jobs(channel),
        queues(channel),
        clusters(channel),
        access(channel),
        trust(channel),
        packs(channel),
        secrets(channel) {}
  pb::JobService::Stub jobs;
  pb::QueueService::Stub queues;
  pb::ClusterService::Stub clusters;
  pb::AccessService::Stub access;
  pb::TrustService::Stub trust;
  pb::PackService::Stub packs;
  pb::SecretService::Stub secrets;
  std::optional<Identity> login;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const std::string& server) {
  const std::string login = LoginPath(server);
  if (server.rfind("unix:///", 0) != 0 && login.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", server,
                     ": must be unix:///path; for one on another machine run muster login once, "
                     "and use its context"));
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(
      GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
      10000);  // a connection's time limit, not a pause: a busy machine needs more than a moment
  if (!login.empty()) {
    const absl::StatusOr<Identity> identity = FreshLogin(login);
    if (!identity.ok()) return identity.status();
    auto stubs = std::make_unique<Stubs>(DialWith(*identity, arguments));
    stubs->login = *identity;
    return std::unique_ptr<Client>(new Client(server, std::move(stubs)));
  }
  auto channel = grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
  return std::unique_ptr<Client>(new Client(server, std::make_unique<Stubs>(channel)));
}

Client::Client(std::string server, std::unique_ptr<Stubs> stubs)
    : server_(std::move(server)), stubs_(std::move(stubs)) {}
Client::~Client() = default;

absl::Status Client::Reachable() const {
  return stubs_->login.has_value() ? CheckServed(*stubs_->login) : CheckReachable(server_);
}

absl::StatusOr<pb::PreviewResponse> Client::Preview(const pb::PreviewRequest& request) {
  return Repeated<pb::PreviewResponse>(
      server_, false, [&] { return Call(stubs_->jobs, &pb::JobService::Stub::Preview, request); });
}

absl::StatusOr<pb::SubmitResponse> Client::Submit(const pb::SubmitRequest& request) {
  return Repeated<pb::SubmitResponse>(
      server_, true, [&] { return Call(stubs_->jobs, &pb::JobService::Stub::Submit, request); });
}

absl::StatusOr<pb::PutPackResponse> Client::PutPack(const pb::PutPackRequest& request) {
  return Repeated<pb::PutPackResponse>(
      server_, true, [&] { return Call(stubs_->packs, &pb::PackService::Stub::Put, request); });
}

absl::StatusOr<pb::Job> Client::Get(const std::string& id, WhileAway away) {
  pb::GetJobRequest request;
  request.set_id(id);
  const auto call = [&] { return Call(stubs_->jobs, &pb::JobService::Stub::Get, request); };
  return away == WhileAway::kRepeat ? Repeated<pb::Job>(server_, false, call) : call();
}

absl::StatusOr<pb::ListJobsResponse> Client::List(const pb::ListJobsRequest& request,
                                                  WhileAway away) {
  const auto call = [&] { return Call(stubs_->jobs, &pb::JobService::Stub::List, request); };
  return away == WhileAway::kRepeat ? Repeated<pb::ListJobsResponse>(server_, false, call) : call();
}

absl::StatusOr<pb::Job> Client::Cancel(const std::string& id) {
  pb::CancelJobRequest request;
  request.set_id(id);
  return Call(stubs_->jobs, &pb::JobService::Stub::Cancel, request);
}

absl::Status Client::Watch(const std::string& id, int64_t timeout_ns, const Interrupt* interrupt,
                           const std::function<bool(const pb::WatchJobResponse&)>& on) {
  pb::WatchJobRequest request;
  request.set_id(id);
  return ReadStream<pb::WatchJobResponse>(interrupt, on, [&](grpc::ClientContext* context) {
    if (timeout_ns > 0)
      context->set_deadline(std::chrono::system_clock::now() +
                            std::chrono::nanoseconds(timeout_ns));
    return stubs_->jobs.Watch(context, request);
  });
}

absl::Status Client::Logs(const pb::LogsRequest& request, const Interrupt* interrupt,
                          const std::function<bool(const pb::LogsResponse&)>& on) {
  return ReadStream<pb::LogsResponse>(interrupt, on, [&](grpc::ClientContext* context) {
    return stubs_->jobs.Logs(context, request);
  });
}

absl::StatusOr<pb::ExplainResponse> Client::Explain(const pb::ExplainRequest& request) {
  return Call(stubs_->jobs, &pb::JobService::Stub::Explain, request);
}
absl::StatusOr<pb::SimulateResponse> Client::Simulate(const pb::SimulateRequest& request) {
  return Call(stubs_->jobs, &pb::JobService::Stub::Simulate, request);
}

absl::StatusOr<pb::ApplyQueuesResponse> Client::ApplyQueues(const pb::ApplyQueuesRequest& request) {
  return Call(stubs_->queues, &pb::QueueService::Stub::Apply, request);
}

std::unique_ptr<TunnelCall> Client::Exec(const Interrupt* interrupt) {
  return std::make_unique<GrpcTunnel>(
      interrupt, [this](grpc::ClientContext* context) { return stubs_->jobs.Exec(context); });
}

std::unique_ptr<TunnelCall> Client::Forward(const Interrupt* interrupt) {
  return std::make_unique<GrpcTunnel>(
      interrupt, [this](grpc::ClientContext* context) { return stubs_->jobs.Forward(context); });
}

absl::StatusOr<pb::Queue> Client::GetQueue(const std::string& path) {
  pb::GetQueueRequest request;
  request.set_path(path);
  return Call(stubs_->queues, &pb::QueueService::Stub::Get, request);
}

absl::StatusOr<pb::ListQueuesResponse> Client::ListQueues() {
  return Call(stubs_->queues, &pb::QueueService::Stub::List, pb::ListQueuesRequest());
}

absl::StatusOr<pb::Cluster> Client::GetCluster(const std::string& name) {
  pb::GetClusterRequest request;
  request.set_name(name);
  return Call(stubs_->clusters, &pb::ClusterService::Stub::GetCluster, request);
}

absl::StatusOr<pb::ListClustersResponse> Client::ListClusters() {
  return Call(stubs_->clusters, &pb::ClusterService::Stub::ListClusters, pb::ListClustersRequest());
}

absl::StatusOr<pb::Host> Client::GetHost(const std::string& name) {
  pb::GetHostRequest request;
  request.set_name(name);
  return Call(stubs_->clusters, &pb::ClusterService::Stub::GetHost, request);
}

absl::StatusOr<pb::ListHostsResponse> Client::ListHosts(const std::string& cluster) {
  pb::ListHostsRequest request;
  request.set_cluster(cluster);
  return Call(stubs_->clusters, &pb::ClusterService::Stub::ListHosts, request);
}

absl::StatusOr<pb::DrainResponse> Client::Drain(const std::string& target,
                                                const std::string& reason) {
  pb::DrainRequest request;
  request.set_target(target);
  request.set_reason(reason);
  return Call(stubs_->clusters, &pb::ClusterService::Stub::Drain, request);
}

absl::Status Client::Resume(const std::string& target) {
  pb::ResumeRequest request;
  request.set_target(target);
  return Call(stubs_->clusters, &pb::ClusterService::Stub::Resume, request).status();
}

absl::StatusOr<pb::ConfirmOffResponse> Client::ConfirmOff(const std::string& host) {
  pb::ConfirmOffRequest request;
  request.set_host(host);
  return Call(stubs_->clusters, &pb::ClusterService::Stub::ConfirmOff, request);
}

absl::StatusOr<pb::ReleaseQuarantineResponse> Client::ReleaseQuarantine(
    const std::string& host, std::optional<int32_t> device) {
  pb::ReleaseQuarantineRequest request;
  request.set_host(host);
  if (device.has_value()) request.set_device(*device);
  return Call(stubs_->clusters, &pb::ClusterService::Stub::ReleaseQuarantine, request);
}

absl::StatusOr<pb::GetTrainerSchemaResponse> Client::TrainerSchema() {
  return Call(stubs_->clusters, &pb::ClusterService::Stub::GetTrainerSchema,
              pb::GetTrainerSchemaRequest());
}
absl::StatusOr<pb::LedgerResponse> Client::Ledger(const pb::GetLedgerRequest& request) {
  return Call(stubs_->clusters, &pb::ClusterService::Stub::GetLedger, request);
}
absl::StatusOr<pb::TopResponse> Client::Top(const pb::TopRequest& request) {
  return Call(stubs_->clusters, &pb::ClusterService::Stub::Top, request);
}
absl::StatusOr<pb::PingResponse> Client::Ping() {
  return Call(stubs_->clusters, &pb::ClusterService::Stub::Ping, pb::PingRequest());
}

absl::StatusOr<pb::ListAccessResponse> Client::ListAccess() {
  return Call(stubs_->access, &pb::AccessService::Stub::List, pb::ListAccessRequest());
}
absl::StatusOr<pb::GrantResponse> Client::Grant(const pb::Binding& binding) {
  pb::GrantRequest request;
  *request.mutable_binding() = binding;
  return Call(stubs_->access, &pb::AccessService::Stub::Grant, request);
}
absl::StatusOr<pb::RevokeResponse> Client::Revoke(const pb::Binding& binding) {
  pb::RevokeRequest request;
  *request.mutable_binding() = binding;
  return Call(stubs_->access, &pb::AccessService::Stub::Revoke, request);
}
absl::StatusOr<pb::CheckAccessResponse> Client::CheckAccess(const pb::CheckAccessRequest& request) {
  return Call(stubs_->access, &pb::AccessService::Stub::Check, request);
}
absl::StatusOr<pb::ListAuditResponse> Client::ListAudit(const pb::ListAuditRequest& request) {
  return Call(stubs_->access, &pb::AccessService::Stub::ListAudit, request);
}
absl::StatusOr<pb::VerifyAuditResponse> Client::VerifyAudit(const pb::VerifyAuditRequest& request) {
  return Call(stubs_->access, &pb::AccessService::Stub::VerifyAudit, request);
}

absl::StatusOr<pb::SetSecretResponse> Client::SetSecret(const pb::SetSecretRequest& request) {
  return Call(stubs_->secrets, &pb::SecretService::Stub::Set, request);
}

absl::StatusOr<pb::ListSecretsResponse> Client::ListSecrets() {
  return Call(stubs_->secrets, &pb::SecretService::Stub::List, pb::ListSecretsRequest());
}

absl::StatusOr<pb::DeleteSecretResponse> Client::DeleteSecret(const std::string& name) {
  pb::DeleteSecretRequest request;
  request.set_name(name);
  return Call(stubs_->secrets, &pb::SecretService::Stub::Delete, request);
}

absl::StatusOr<pb::GetAuthorityResponse> Client::GetAuthority() {
  return Call(stubs_->trust, &pb::TrustService::Stub::GetAuthority, pb::GetAuthorityRequest());
}
absl::StatusOr<pb::RotateResponse> Client::Rotate(const pb::RotateRequest& request) {
  return Call(stubs_->trust, &pb::TrustService::Stub::Rotate, request);
}
absl::StatusOr<pb::NewTokenResponse> Client::CreateToken(const pb::CreateTokenRequest& request) {
  return Call(stubs_->trust, &pb::TrustService::Stub::CreateToken, request);
}
absl::StatusOr<pb::ListTokensResponse> Client::ListTokens() {
  return Call(stubs_->trust, &pb::TrustService::Stub::ListTokens, pb::ListTokensRequest());
}
absl::StatusOr<pb::RevokeTokenResponse> Client::RevokeToken(const pb::RevokeTokenRequest& request) {
  return Call(stubs_->trust, &pb::TrustService::Stub::RevokeToken, request);
}
absl::StatusOr<pb::NewTokenResponse> Client::NewToken(const pb::NewTokenRequest& request) {
  return Call(stubs_->trust, &pb::TrustService::Stub::NewToken, request);
}
absl::StatusOr<pb::ListHoldersResponse> Client::ListHolders(const pb::ListHoldersRequest& request) {
  return Call(stubs_->trust, &pb::TrustService::Stub::ListHolders, request);
}
absl::StatusOr<pb::RevokeHolderResponse> Client::RevokeHolder(
    const pb::RevokeHolderRequest& request) {
  return Call(stubs_->trust, &pb::TrustService::Stub::RevokeHolder, request);
}

}  // namespace muster
