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
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/login_lock.h"
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

constexpr std::chrono::seconds kRenewalCall(20), kRenewalConnect(3);
constexpr std::chrono::milliseconds kRenewalTurn(100);  // so often a wait looks whether it is over

// The calls of a renewal. End, from another thread, cancels the one that goes on; no other begins.
class RenewalCalls {
 public:
  void End() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

  // A channel to the first of its addresses that takes a connection; null: none does.
  std::shared_ptr<grpc::Channel> Reach(const Identity& identity) {
    Identity there = identity;
    for (const std::string& address : identity.addresses) {
      there.addresses = {address};  // of one, DialWith waits for nothing
      std::shared_ptr<grpc::Channel> channel = DialWith(there, grpc::ChannelArguments());
      if (Connects(channel.get())) return channel;
    }
    return nullptr;
  }

  absl::StatusOr<bool> AskNews(const std::shared_ptr<grpc::Channel>& channel) {
    const absl::StatusOr<pb::GetNewsResponse> response =
        Ask(channel, &pb::TrustService::Stub::GetNews, pb::GetNewsRequest());
    if (!response.ok()) return response.status();
    return response->renew();
  }

  // As that of network/client.h, which nobody can cancel.
  absl::StatusOr<Identity> Renew(const std::shared_ptr<grpc::Channel>& channel) {
    const std::string key = NewKey();
    const absl::StatusOr<std::string> request = NewRequest(key);
    if (!request.ok()) return request.status();
    pb::RenewRequest renew;
    renew.set_request(*request);
    const absl::StatusOr<pb::CertificateResponse> response =
        Ask(channel, &pb::TrustService::Stub::Renew, renew);
    if (!response.ok()) return response.status();
    return IdentityOf(key, *response);
  }

 private:
  using Time = std::chrono::system_clock::time_point;

  bool Connects(grpc::Channel* channel) {
    const Time until = std::chrono::system_clock::now() + kRenewalConnect;
    for (;;) {
      const grpc_connectivity_state state = channel->GetState(true);
      if (state == GRPC_CHANNEL_READY) return true;
      const Time now = std::chrono::system_clock::now();
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || now >= until || !Begin(nullptr)) return false;
      channel->WaitForStateChange(state, std::min(until, Time(now + kRenewalTurn)));
    }
  }

  // Of the call that goes on from now on; null: of none. False: it has ended.
  bool Begin(grpc::ClientContext* context) {
    std::lock_guard lock(mutex_);
    context_ = context;
    return !ended_;
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(const std::shared_ptr<grpc::Channel>& channel,
                               grpc::Status (pb::TrustService::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&,
                                                                              Response*),
                               const Request& request) {
    pb::TrustService::Stub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kRenewalCall);
    Response response;
    absl::Status status = absl::CancelledError("the command ends");
    if (Begin(&context)) status = FromGrpc((stub.*method)(&context, request, &response));
    Begin(nullptr);
    if (!status.ok()) return status;
    return response;
  }

  std::mutex mutex_;
  bool ended_ = false;
  grpc::ClientContext* context_ = nullptr;
};

// The login, renewed where half its life is over or the scheduler asks for it. That it can't be is
// no reason to fail while it is good. One command at a time renews it, and no other waits: else a
// certificate of before a rotation could be saved over one of after it.
absl::StatusOr<Identity> FreshLogin(const std::string& path, RenewalCalls* calls) {
  const LoginLock lock(path);
  absl::StatusOr<Identity> identity = LoadIdentity(path);
  if (!identity.ok()) return identity.status();
  const int64_t now_s = WallS();
  const Validity& validity = identity->validity;
  if (validity.end_s <= now_s)
    return absl::UnauthenticatedError("your login has expired: muster login");
  if (!lock.held()) return identity;
  struct stat info {};
  const bool asks = stat(path.c_str(), &info) == 0 && now_s - info.st_mtime >= kNewsNs / kSecond;
  bool renew = validity.Due(now_s);
  if (!renew && !asks) return identity;
  // For one that is away, calls would take their whole time limit.
  const std::shared_ptr<grpc::Channel> channel = calls->Reach(*identity);
  if (channel == nullptr) return identity;
  if (!renew) {
    const absl::StatusOr<bool> news = calls->AskNews(channel);
    renew = news.ok() && *news;
    if (news.ok()) utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  }
  if (!renew) return identity;
  absl::StatusOr<Identity> renewed = calls->Renew(channel);
  if (!renewed.ok() || !lock.held() || !SaveIdentity(path, *renewed).ok()) return identity;
  // Tells that it has arrived.
  if (const auto anew = calls->Reach(*renewed); anew != nullptr) (void)calls->AskNews(anew);
  return renewed;
}

// Changes whenever the file is replaced; {0, 0}: there is none.
using FileVersion = std::pair<ino_t, int64_t>;
FileVersion VersionOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec};
}

grpc::ChannelArguments ArgumentsOfChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(
      GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
      10000);  // a connection's time limit, not a pause: a busy machine needs more than a moment
  return arguments;
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

// That there is no job `id`, with how jobs are named where it is neither a number nor a uid.
absl::Status OfJob(const std::string& id, const absl::Status& status) {
  if (!absl::IsNotFound(status) || id.find_first_not_of("0123456789abcdef_") == std::string::npos)
    return status;
  absl::Status told(status.code(),
                    absl::StrCat(status.message(), ". Jobs go by number, such as 7; ",
                                 "members of an array as 7_3"));
  status.ForEachPayload(
      [&told](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

template <typename Response>
absl::StatusOr<Response> OfJob(const std::string& id, absl::StatusOr<Response> response) {
  if (!response.ok()) return OfJob(id, response.status());
  return response;
}

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
};

// A login for as long as a command lasts, which may be longer than a certificate does. Its thread
// renews the file when it is time; what is in the file, from here or from another command, counts
// for the next call. A call that goes on keeps its connection until the server ends it.
class Client::Login {
 public:
  // `version`: of the file, from before it was read.
  Login(std::string path, FileVersion version, Identity identity)
      : path_(std::move(path)),
        version_(version),
        identity_(std::move(identity)),
        stubs_(std::make_shared<Stubs>(DialWith(identity_, ArgumentsOfChannel()))),
        renewing_([this] { KeepFresh(); }) {}
  // Waits for no server.
  ~Login() {
    calls_.End();
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      end_.notify_all();
    }
    renewing_.join();
  }

  std::shared_ptr<Stubs> Newest() {
    std::lock_guard lock(mutex_);
    const FileVersion version = VersionOf(path_);
    if (version == version_) return stubs_;
    absl::StatusOr<Identity> read = LoadIdentity(path_);
    if (!read.ok()) return stubs_;  // the next call looks again
    version_ = version;
    // A login of somebody else, or to another scheduler, is for commands that begin.
    if (read->holder != identity_.holder || read->certificate == identity_.certificate)
      return stubs_;
    identity_ = *std::move(read);
    stubs_ = std::make_shared<Stubs>(DialWith(identity_, ArgumentsOfChannel()));
    return stubs_;
  }
  Identity identity() const {
    std::lock_guard lock(mutex_);
    return identity_;
  }

 private:
  void KeepFresh() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const int64_t pause_ns =
          std::clamp(identity_.validity.life_s() * kSecond / 8, kSecond, kMinute);
      if (end_.wait_for(lock, std::chrono::nanoseconds(pause_ns), [this] { return ended_; }))
        return;
      lock.unlock();
      (void)FreshLogin(path_, &calls_);  // one that fails is tried again after the next pause
      lock.lock();
    }
  }

  const std::string path_;
  mutable std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  FileVersion version_;
  Identity identity_;  // what stubs_ show
  std::shared_ptr<Stubs> stubs_;
  RenewalCalls calls_;  // of the thread
  std::thread renewing_;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const std::string& server) {
  const std::string login = LoginPath(server);
  if (server.rfind("unix:///", 0) != 0 && login.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", server,
                     ": must be unix:///path; for one on another machine run muster login once, "
                     "and use its context"));
  }
  if (!login.empty()) {
    const FileVersion version = VersionOf(login);
    RenewalCalls calls;
    absl::StatusOr<Identity> identity = FreshLogin(login, &calls);
    if (!identity.ok()) return identity.status();
    return std::unique_ptr<Client>(
        new Client(server, nullptr, std::make_unique<Login>(login, version, *std::move(identity))));
  }
  auto channel =
      grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), ArgumentsOfChannel());
  return std::unique_ptr<Client>(new Client(server, std::make_shared<Stubs>(channel), nullptr));
}

Client::Client(std::string server, std::shared_ptr<Stubs> stubs, std::unique_ptr<Login> login)
    : server_(std::move(server)), stubs_(std::move(stubs)), login_(std::move(login)) {}
Client::~Client() = default;

std::shared_ptr<Client::Stubs> Client::stubs() {
  return login_ != nullptr ? login_->Newest() : stubs_;
}

absl::Status Client::Reachable() const {
  return login_ != nullptr ? CheckServed(login_->identity()) : CheckReachable(server_);
}

absl::StatusOr<pb::PreviewResponse> Client::Preview(const pb::PreviewRequest& request) {
  return Repeated<pb::PreviewResponse>(
      server_, false, [&] { return Call(stubs()->jobs, &pb::JobService::Stub::Preview, request); });
}

absl::StatusOr<pb::SubmitResponse> Client::Submit(const pb::SubmitRequest& request) {
  return Repeated<pb::SubmitResponse>(
      server_, true, [&] { return Call(stubs()->jobs, &pb::JobService::Stub::Submit, request); });
}

absl::StatusOr<pb::PutPackResponse> Client::PutPack(const pb::PutPackRequest& request) {
  return Repeated<pb::PutPackResponse>(
      server_, true, [&] { return Call(stubs()->packs, &pb::PackService::Stub::Put, request); });
}

absl::StatusOr<pb::Job> Client::Get(const std::string& id, WhileAway away) {
  pb::GetJobRequest request;
  request.set_id(id);
  const auto call = [&] { return Call(stubs()->jobs, &pb::JobService::Stub::Get, request); };
  return OfJob(id, away == WhileAway::kRepeat ? Repeated<pb::Job>(server_, false, call) : call());
}

absl::StatusOr<pb::ListJobsResponse> Client::List(const pb::ListJobsRequest& request,
                                                  WhileAway away) {
  const auto call = [&] { return Call(stubs()->jobs, &pb::JobService::Stub::List, request); };
  return away == WhileAway::kRepeat ? Repeated<pb::ListJobsResponse>(server_, false, call) : call();
}

absl::StatusOr<pb::Job> Client::Cancel(const std::string& id) {
  pb::CancelJobRequest request;
  request.set_id(id);
  return OfJob(id, Call(stubs()->jobs, &pb::JobService::Stub::Cancel, request));
}

absl::Status Client::Watch(const std::string& id, int64_t timeout_ns, const Interrupt* interrupt,
                           const std::function<bool(const pb::WatchJobResponse&)>& on) {
  pb::WatchJobRequest request;
  request.set_id(id);
  const auto open = [&](grpc::ClientContext* context) {
    if (timeout_ns > 0)
      context->set_deadline(std::chrono::system_clock::now() +
                            std::chrono::nanoseconds(timeout_ns));
    return stubs()->jobs.Watch(context, request);
  };
  return OfJob(id, ReadStream<pb::WatchJobResponse>(interrupt, on, open));
}

absl::Status Client::Logs(const pb::LogsRequest& request, const Interrupt* interrupt,
                          const std::function<bool(const pb::LogsResponse&)>& on) {
  return ReadStream<pb::LogsResponse>(interrupt, on, [&](grpc::ClientContext* context) {
    return stubs()->jobs.Logs(context, request);
  });
}

absl::StatusOr<pb::ExplainResponse> Client::Explain(const pb::ExplainRequest& request) {
  return OfJob(request.id(), Call(stubs()->jobs, &pb::JobService::Stub::Explain, request));
}
absl::StatusOr<pb::SimulateResponse> Client::Simulate(const pb::SimulateRequest& request) {
  return Call(stubs()->jobs, &pb::JobService::Stub::Simulate, request);
}

absl::StatusOr<pb::ApplyQueuesResponse> Client::ApplyQueues(const pb::ApplyQueuesRequest& request) {
  return Call(stubs()->queues, &pb::QueueService::Stub::Apply, request);
}

std::unique_ptr<TunnelCall> Client::Exec(const Interrupt* interrupt) {
  return std::make_unique<GrpcTunnel>(
      interrupt, [this](grpc::ClientContext* context) { return stubs()->jobs.Exec(context); });
}

std::unique_ptr<TunnelCall> Client::Forward(const Interrupt* interrupt) {
  return std::make_unique<GrpcTunnel>(
      interrupt, [this](grpc::ClientContext* context) { return stubs()->jobs.Forward(context); });
}

absl::StatusOr<pb::Queue> Client::GetQueue(const std::string& path) {
  pb::GetQueueRequest request;
  request.set_path(path);
  return Call(stubs()->queues, &pb::QueueService::Stub::Get, request);
}

absl::StatusOr<pb::ListQueuesResponse> Client::ListQueues() {
  return Call(stubs()->queues, &pb::QueueService::Stub::List, pb::ListQueuesRequest());
}

absl::StatusOr<pb::Cluster> Client::GetCluster(const std::string& name) {
  pb::GetClusterRequest request;
  request.set_name(name);
  return Call(stubs()->clusters, &pb::ClusterService::Stub::GetCluster, request);
}

absl::StatusOr<pb::ListClustersResponse> Client::ListClusters() {
  return Call(stubs()->clusters, &pb::ClusterService::Stub::ListClusters,
              pb::ListClustersRequest());
}

absl::StatusOr<pb::Host> Client::GetHost(const std::string& name) {
  pb::GetHostRequest request;
  request.set_name(name);
  return Call(stubs()->clusters, &pb::ClusterService::Stub::GetHost, request);
}

absl::StatusOr<pb::ListHostsResponse> Client::ListHosts(const std::string& cluster) {
  pb::ListHostsRequest request;
  request.set_cluster(cluster);
  return Call(stubs()->clusters, &pb::ClusterService::Stub::ListHosts, request);
}

absl::StatusOr<pb::DrainResponse> Client::Drain(const std::string& target,
                                                const std::string& reason) {
  pb::DrainRequest request;
  request.set_target(target);
  request.set_reason(reason);
  return Call(stubs()->clusters, &pb::ClusterService::Stub::Drain, request);
}

absl::Status Client::Resume(const std::string& target) {
  pb::ResumeRequest request;
  request.set_target(target);
  return Call(stubs()->clusters, &pb::ClusterService::Stub::Resume, request).status();
}

absl::StatusOr<pb::ConfirmOffResponse> Client::ConfirmOff(const std::string& host) {
  pb::ConfirmOffRequest request;
  request.set_host(host);
  return Call(stubs()->clusters, &pb::ClusterService::Stub::ConfirmOff, request);
}

absl::StatusOr<pb::ReleaseQuarantineResponse> Client::ReleaseQuarantine(
    const std::string& host, std::optional<int32_t> device) {
  pb::ReleaseQuarantineRequest request;
  request.set_host(host);
  if (device.has_value()) request.set_device(*device);
  return Call(stubs()->clusters, &pb::ClusterService::Stub::ReleaseQuarantine, request);
}

absl::StatusOr<pb::GetTrainerSchemaResponse> Client::TrainerSchema() {
  return Call(stubs()->clusters, &pb::ClusterService::Stub::GetTrainerSchema,
              pb::GetTrainerSchemaRequest());
}
absl::StatusOr<pb::LedgerResponse> Client::Ledger(const pb::GetLedgerRequest& request) {
  return Call(stubs()->clusters, &pb::ClusterService::Stub::GetLedger, request);
}
absl::StatusOr<pb::TopResponse> Client::Top(const pb::TopRequest& request) {
  return Call(stubs()->clusters, &pb::ClusterService::Stub::Top, request);
}
absl::StatusOr<pb::PingResponse> Client::Ping() {
  return Call(stubs()->clusters, &pb::ClusterService::Stub::Ping, pb::PingRequest());
}

absl::StatusOr<pb::ListAccessResponse> Client::ListAccess() {
  return Call(stubs()->access, &pb::AccessService::Stub::List, pb::ListAccessRequest());
}
absl::StatusOr<pb::GrantResponse> Client::Grant(const pb::Binding& binding) {
  pb::GrantRequest request;
  *request.mutable_binding() = binding;
  return Call(stubs()->access, &pb::AccessService::Stub::Grant, request);
}
absl::StatusOr<pb::RevokeResponse> Client::Revoke(const pb::Binding& binding) {
  pb::RevokeRequest request;
  *request.mutable_binding() = binding;
  return Call(stubs()->access, &pb::AccessService::Stub::Revoke, request);
}
absl::StatusOr<pb::CheckAccessResponse> Client::CheckAccess(const pb::CheckAccessRequest& request) {
  return Call(stubs()->access, &pb::AccessService::Stub::Check, request);
}
absl::StatusOr<pb::ListAuditResponse> Client::ListAudit(const pb::ListAuditRequest& request) {
  return Call(stubs()->access, &pb::AccessService::Stub::ListAudit, request);
}
absl::StatusOr<pb::VerifyAuditResponse> Client::VerifyAudit(const pb::VerifyAuditRequest& request) {
  return Call(stubs()->access, &pb::AccessService::Stub::VerifyAudit, request);
}

absl::StatusOr<pb::SetSecretResponse> Client::SetSecret(const pb::SetSecretRequest& request) {
  return Call(stubs()->secrets, &pb::SecretService::Stub::Set, request);
}

absl::StatusOr<pb::ListSecretsResponse> Client::ListSecrets() {
  return Call(stubs()->secrets, &pb::SecretService::Stub::List, pb::ListSecretsRequest());
}

absl::StatusOr<pb::DeleteSecretResponse> Client::DeleteSecret(const std::string& name) {
  pb::DeleteSecretRequest request;
  request.set_name(name);
  return Call(stubs()->secrets, &pb::SecretService::Stub::Delete, request);
}

absl::StatusOr<pb::GetAuthorityResponse> Client::GetAuthority() {
  return Call(stubs()->trust, &pb::TrustService::Stub::GetAuthority, pb::GetAuthorityRequest());
}
absl::StatusOr<pb::RotateResponse> Client::Rotate(const pb::RotateRequest& request) {
  return Call(stubs()->trust, &pb::TrustService::Stub::Rotate, request);
}
absl::StatusOr<pb::NewTokenResponse> Client::CreateToken(const pb::CreateTokenRequest& request) {
  return Call(stubs()->trust, &pb::TrustService::Stub::CreateToken, request);
}
absl::StatusOr<pb::ListTokensResponse> Client::ListTokens() {
  return Call(stubs()->trust, &pb::TrustService::Stub::ListTokens, pb::ListTokensRequest());
}
absl::StatusOr<pb::RevokeTokenResponse> Client::RevokeToken(const pb::RevokeTokenRequest& request) {
  return Call(stubs()->trust, &pb::TrustService::Stub::RevokeToken, request);
}
absl::StatusOr<pb::NewTokenResponse> Client::NewToken(const pb::NewTokenRequest& request) {
  return Call(stubs()->trust, &pb::TrustService::Stub::NewToken, request);
}
absl::StatusOr<pb::ListHoldersResponse> Client::ListHolders(const pb::ListHoldersRequest& request) {
  return Call(stubs()->trust, &pb::TrustService::Stub::ListHolders, request);
}
absl::StatusOr<pb::RevokeHolderResponse> Client::RevokeHolder(
    const pb::RevokeHolderRequest& request) {
  return Call(stubs()->trust, &pb::TrustService::Stub::RevokeHolder, request);
}

}  // namespace muster
