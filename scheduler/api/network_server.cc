#include "scheduler/api/network_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "scheduler/access/audit.h"
#include "scheduler/access/principal.h"
#include "scheduler/api/all_services.h"
#include "scheduler/api/guard.h"
#include "scheduler/api/sockets.h"

namespace muster {
namespace {

// With what waits in the kernel, less than an address may have unexplained (AllowanceLimits).
constexpr int kMaxMessageBytes = 320 << 10, kMaxJoinBytes = 64 << 10;
constexpr char kJoin[] = "join ";               // before peers that come to that door
constexpr char kConnect[] = "Network/Connect";  // what the audit calls a connection
constexpr size_t kReadMost = 20'000;
constexpr int kStrangersCalls = 4;  // at once, on one connection
// Less than the server's certificate and its authority's take, and more than an alert does.
constexpr int64_t kLeastShownBytes = 512;
// What a connection may send of its own account: a handshake, settings, a request's headers.
constexpr int64_t kFreeBytes = 6 << 10, kBytesOfCall = 1 << 10, kBytesOfMessage = 256;
constexpr int64_t kFewBytes = 64 << 10;       // nobody is ended for less, or has more credit
constexpr int64_t kQuietBytesPerS = 1 << 10;  // pings, window updates: of each connection
// So often a connection that sends is looked at; the second: if it sends what nothing explains.
constexpr int64_t kAskMs = 10, kAskSoonMs = 1;
constexpr uint32_t kSends = EPOLLIN | EPOLLET | EPOLLONESHOT;
constexpr int kLeastPingMs = 5'000, kKeepaliveMs = 20'000;

// As gRPC writes it: "ipv4:10.0.0.2:4711", "ipv6:%5B::1%5D:4711".
std::string PeerOf(const sockaddr_storage& address, std::string* host) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    *host = text;
    return absl::StrCat("ipv4:", text, ":", ntohs(in.sin_port));
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
  *host = text;
  return absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(in.sin6_port));
}

absl::StatusOr<int> Bind(const std::string& listen, int64_t receive_buffer, int* port) {
  const size_t colon = listen.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_INET;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(listen.substr(0, colon).c_str(),
                                    listen.substr(colon + 1).c_str(), &hints, &found);
      error != 0)
    return absl::InvalidArgumentError(absl::StrCat(listen, ": ", gai_strerror(error)));
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const int buffer = static_cast<int>(receive_buffer);  // connections inherit it
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  const bool bound =
      fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, 512) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!bound) {
    if (fd >= 0) close(fd);
    return ErrnoStatus(error, listen);
  }
  sockaddr_in at{};
  socklen_t size = sizeof at;
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
  *port = ntohs(at.sin_port);
  return fd;
}

// Users, as the audit and rates know them: of a certificate, and of an address without one.
std::string UserOf(const Holder& holder) {
  return holder.kind == Holder::kHost ? absl::StrCat("host ", holder.cluster, "/", holder.name)
                                      : holder.name;
}
std::string UserAt(const std::string& peer) {
  const size_t from = peer.starts_with(kJoin) ? sizeof kJoin - 1 : 0;
  return absl::StrCat(kAuditAddress, peer.substr(from, peer.rfind(':') - from));
}

std::string First(const grpc::AuthContext& context, const char* property) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(property);
  return values.size() == 1 ? std::string(values[0].data(), values[0].size()) : "";
}

void CloseAll(std::initializer_list<int*> fds) {
  for (int* fd : fds) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

}  // namespace

// By certificate. What it reads of one is kept: a call costs no signature.
class NetworkServer::CertificateDoor : public Door {
 public:
  explicit CertificateDoor(const NetworkServer* server) : server_(server) {}

  absl::StatusOr<std::shared_ptr<const Principal>> WhoCalls(
      const grpc::CallbackServerContext& call) const override {
    const std::shared_ptr<const grpc::AuthContext> shown = call.auth_context();
    if (shown == nullptr || !shown->IsPeerAuthenticated())
      return absl::UnauthenticatedError("come with a certificate");
    const absl::StatusOr<Presented> presented =
        server_->Read(First(*shown, GRPC_X509_PEM_CERT_PROPERTY_NAME));
    if (!presented.ok()) {
      server_->Tell(call.peer(), UserAt(call.peer()), presented.status().code(),
                    std::string(presented.status().message()));
      return presented.status();
    }
    const int64_t now_s = server_->context_->clock->WallNs() / kSecond;
    if (presented->certificate.validity.end_s <= now_s) {
      server_->Tell(call.peer(), UserOf(presented->holder), absl::StatusCode::kUnauthenticated,
                    "its certificate has expired");
      return absl::UnauthenticatedError("your certificate has expired");
    }
    server_->Called(call.peer(), *presented);
    auto who = std::make_shared<Principal>();
    const Holder& holder = presented->holder;
    const std::shared_ptr<const View> view = server_->context_->engine->Snapshot();
    if (WasRevoked(view->state.trust(), holder, presented->certificate)) {
      server_->Tell(call.peer(), UserOf(holder), absl::StatusCode::kUnauthenticated,
                    "the host was revoked after it got its certificate");
      return absl::UnauthenticatedError("your certificate was revoked");
    }
    who->user = UserOf(holder);
    who->serial = presented->certificate.serial;
    who->authority = presented->authority;
    if (holder.kind == Holder::kHost) {
      who->cluster = holder.cluster;
      who->host = holder.name;
      who->only_user = holder.only_user;
      return who;
    }
    const auto& users = view->state.trust().users;
    if (const auto row = users.find(holder.name); row != users.end())
      who->groups.assign(row->second.groups().begin(), row->second.groups().end());
    who->token = holder.token;
    const auto& tokens = view->state.trust().tokens;
    if (const auto row = tokens.find(holder.token); row != tokens.end())
      who->scopes.assign(row->second.scopes().begin(), row->second.scopes().end());
    return who;
  }
  void Explain(const grpc::CallbackServerContext& call,
               const google::protobuf::Message& request) const override {
    server_->Explain(call.peer(), kBytesOfCall, request.ByteSizeLong());
  }
  std::function<void(size_t)> Explainer(const grpc::CallbackServerContext& call) const override {
    return [server = server_, peer = call.peer()](size_t bytes) {
      server->Explain(peer, kBytesOfMessage, bytes);
    };
  }

 private:
  const NetworkServer* const server_;
};

// By address alone.
class NetworkServer::StrangersDoor : public Door {
 public:
  explicit StrangersDoor(const NetworkServer* server) : server_(server) {}

  absl::StatusOr<std::shared_ptr<const Principal>> WhoCalls(
      const grpc::CallbackServerContext& call) const override {
    server_->StrangerCalled(kJoin + call.peer());
    auto who = std::make_shared<Principal>();
    who->user = UserAt(call.peer());
    who->stranger = true;
    return who;
  }
  void Explain(const grpc::CallbackServerContext& call,
               const google::protobuf::Message& request) const override {
    server_->Explain(kJoin + call.peer(), kBytesOfCall, request.ByteSizeLong());
  }

 private:
  const NetworkServer* const server_;
};

// Servers that show one certificate and trust certain authorities.
struct NetworkServer::Generation {
  Generation(const NetworkServer* owner, const ApiContext* context, WatchHub* hub)
      : door(owner), strangers(owner), services(context, hub, &door), join(context, &strangers) {}
  ~Generation() {
    const auto at_once = std::chrono::system_clock::now() + std::chrono::milliseconds(200);
    for (std::unique_ptr<grpc::Server>* server : {&main_server, &join_server}) {
      if (*server != nullptr) (*server)->Shutdown(at_once);
    }
  }

  const CertificateDoor door;
  const StrangersDoor strangers;
  Services services;
  JoinServiceImpl join;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor, join_acceptor;
  std::unique_ptr<grpc::Server> main_server, join_server;
  std::string trusted;  // PEM
  uint64_t signer = 0;
  // Unix time: when the server's own certificate was made, and when it is old.
  int64_t made_ns = 0, renew_ns = 0;
};

NetworkServer::NetworkServer(const ApiContext* context, WatchHub* hub, NetworkLimits limits)
    : context_(context), hub_(hub), limits_(limits), allowance_(limits.allowance) {}

NetworkServer::~NetworkServer() { Shutdown(); }

absl::Status NetworkServer::Listen(const std::string& listen, const std::string& join) {
  MUSTER_CHECK(context_->office != nullptr);
  const std::string* addresses[2] = {&listen, &join};
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<int> fd = Bind(*addresses[i], limits_.receive_buffer, &doors_[i].port);
    if (!fd.ok()) return fd.status();
    doors_[i].fd = *fd;
  }
  if (absl::Status status = Renew(); !status.ok()) return status;
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (epoll_ < 0 || wake_ < 0) return ErrnoStatus(errno, "epoll");
  for (const int fd : {doors_[0].fd, doors_[1].fd, wake_}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoStatus(errno, "epoll");
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status NetworkServer::Renew() {
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const Trust& trust = view->state.trust();
  const int64_t now_ns = context_->clock->WallNs();
  const absl::StatusOr<std::string> identity = context_->office->ServerIdentity(trust, now_ns);
  if (!identity.ok()) return identity.status();
  const size_t chain = identity->find("-----BEGIN CERTIFICATE-----");
  auto next = std::make_shared<Generation>(this, context_, hub_);
  next->trusted = TrustedPem(trust);
  next->signer = trust.signer;
  next->made_ns = now_ns;
  next->renew_ns = now_ns + context_->office->lives().server_ns / 2;
  for (const bool join : {false, true}) {
    grpc::SslServerCredentialsOptions tls(
        join ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
             : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_key_cert_pairs.push_back({identity->substr(0, chain), identity->substr(chain)});
    if (!join) tls.pem_root_certs = next->trusted;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(join ? kMaxJoinBytes : kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                               join ? kStrangersCalls : limits_.calls_of_connection);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // windows stay small
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, limits_.handshake_ms);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, limits_.idle_ms);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastPingMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    (join ? next->join_acceptor : next->acceptor) =
        builder.experimental().AddExternalConnectionAcceptor(
            grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
            grpc::SslServerCredentials(tls));
    if (join) {
      builder.RegisterService(&next->join);
    } else {
      next->services.Register(&builder);
    }
    std::unique_ptr<grpc::Server>& server = join ? next->join_server : next->main_server;
    server = builder.BuildAndStart();
    if (server == nullptr) return absl::InternalError("gRPC did not start with TLS");
  }
  generation_ = std::move(next);
  std::lock_guard lock(mutex_);
  read_.clear();
  return absl::OkStatus();
}

bool NetworkServer::Outdated() const {
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const Trust& trust = view->state.trust();
  const int64_t now_ns = context_->clock->WallNs();
  // After a step of the clock backwards its certificate may begin in the future.
  return trust.signer != generation_->signer || now_ns >= generation_->renew_ns ||
         now_ns < generation_->made_ns - kMinute || TrustedPem(trust) != generation_->trusted;
}

void NetworkServer::Accept(bool join) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const int fd = accept4(doors_[join ? 1 : 0].fd, reinterpret_cast<sockaddr*>(&address), &size,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    AfterFailedAccept(errno, join ? "join" : "listen");
    return;
  }
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  Connection connection;
  // A port of a client may come to both doors.
  const std::string peer = (join ? kJoin : "") + PeerOf(address, &connection.address);
  connection.begun_ns = connection.counted_ns = context_->clock->MonotonicNs();
  connection.generation = generation_;
  {
    std::lock_guard lock(mutex_);
    if (connections_.size() >= static_cast<size_t>(limits_.connections) ||
        by_address_[connection.address].connections >= limits_.connections_of_address ||
        !allowance_.Connect(connection.address, connection.begun_ns) ||
        !RoomForSilent(connection.address)) {
      if (by_address_[connection.address].connections == 0) by_address_.erase(connection.address);
      ++counts_.refused;
      close(fd);
      return;
    }
    connection.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    epoll_event event{};
    event.events = kSends;
    event.data.fd = connection.fd;
    if (connection.fd < 0 || connections_.count(peer) != 0 ||
        epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.fd, &event) != 0) {
      if (by_address_[connection.address].connections == 0) by_address_.erase(connection.address);
      CloseAll({&connection.fd});
      close(fd);
      return;
    }
    Address& address_row = by_address_[connection.address];
    ++address_row.connections;
    address_row.silent.emplace(connection.begun_ns, peer);
    ++silent_;
    connection.silent = true;
    by_fd_[connection.fd] = peer;
    connections_[peer] = connection;
    ++counts_.accepted;
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = fd;
  (join ? connection.generation->join_acceptor : connection.generation->acceptor)
      ->HandleNewConnection(&parameters);
}

absl::StatusOr<Presented> NetworkServer::Read(const std::string& pem) const {
  {
    std::lock_guard lock(mutex_);
    if (const auto it = read_.find(pem); it != read_.end()) return it->second;
  }
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  absl::StatusOr<Presented> presented = ReadPresented(view->state.trust(), pem);
  if (!presented.ok()) return presented;
  std::lock_guard lock(mutex_);
  if (read_.size() >= kReadMost) read_.clear();
  read_[pem] = *presented;
  return presented;
}

void NetworkServer::Called(const std::string& peer, const Presented& presented) const {
  std::lock_guard lock(mutex_);
  in_use_.insert(presented.certificate.serial);
  const auto it = connections_.find(peer);
  if (it == connections_.end() || it->second.called) return;
  Connection& connection = it->second;
  NoLongerSilent(peer, &connection);
  connection.called = connection.certified = true;
  connection.holder = presented.holder;
  connection.certificate = presented.certificate;
  connection.authority = presented.authority;
  if (++by_holder_[UriOf(connection.holder)] <= limits_.connections_of_holder) return;
  LogWarn("connection ended: its holder has too many",
          {{"peer", peer}, {"holder", UriOf(connection.holder)}});
  End(peer, &connection, &NetworkCounts::holders, absl::StatusCode::kResourceExhausted,
      "its holder has too many connections");
}

void NetworkServer::StrangerCalled(const std::string& peer) const {
  std::lock_guard lock(mutex_);
  if (const auto it = connections_.find(peer); it != connections_.end()) it->second.called = true;
}

void NetworkServer::Tell(const std::string& peer, const std::string& user, absl::StatusCode outcome,
                         const std::string& why) const {
  Audit* const audit = context_->guard == nullptr ? nullptr : context_->guard->audit();
  if (audit == nullptr) return;
  pb::AuditRecord record;
  record.set_at_ns(context_->clock->WallNs());
  record.set_user(user);
  record.set_uid(Principal().uid);
  record.set_method(kConnect);
  record.set_object(peer);
  record.set_outcome(absl::StatusCodeToString(outcome));
  record.set_detail(why);
  audit->AddConnection(std::move(record));
}

void NetworkServer::End(const std::string& peer, Connection* connection,
                        uint64_t NetworkCounts::*count, absl::StatusCode outcome,
                        const std::string& why) const {
  if (!connection->ended) {
    ++(counts_.*count);
    Tell(peer, connection->certified ? UserOf(connection->holder) : UserAt(peer), outcome, why);
  }
  connection->ended = true;
  shutdown(connection->fd, SHUT_RDWR);
}

void NetworkServer::NoLongerSilent(const std::string& peer, Connection* connection) const {
  if (!connection->silent) return;
  connection->silent = false;
  by_address_[connection->address].silent.erase({connection->begun_ns, peer});
  --silent_;
}

bool NetworkServer::RoomForSilent(const std::string& address) {
  const size_t own = by_address_[address].silent.size();
  if (own >= static_cast<size_t>(limits_.silent_of_address)) return false;
  if (silent_ < static_cast<size_t>(limits_.silent)) return true;
  const auto most = std::max_element(
      by_address_.begin(), by_address_.end(),
      [](const auto& a, const auto& b) { return a.second.silent.size() < b.second.silent.size(); });
  if (most->second.silent.size() <= own + 1) return false;
  const std::string oldest = most->second.silent.begin()->second;
  Connection& connection = connections_.at(oldest);
  End(oldest, &connection, &NetworkCounts::silent,
      connection.called ? absl::StatusCode::kResourceExhausted
                        : absl::StatusCode::kDeadlineExceeded,
      connection.called ? "it has no certificate, and others wait"
                        : "no call came, and others wait");
  NoLongerSilent(oldest, &connection);
  return true;
}

void NetworkServer::Explain(const std::string& peer, int64_t base, size_t bytes) const {
  std::lock_guard lock(mutex_);
  const auto it = connections_.find(peer);
  if (it == connections_.end()) return;
  const int64_t size = static_cast<int64_t>(bytes);
  it->second.explained += base + size + size / 8;  // with what frames and TLS add
}

void NetworkServer::Count(const std::string& peer, Connection* connection, int64_t now_ns) {
  const int64_t received = ReceivedBytes(connection->fd);
  if (received == 0) return;  // nothing is known of it
  const int64_t quiet_ns = std::min(now_ns - connection->counted_ns, kMinute);
  connection->counted_ns = now_ns;
  connection->quiet += kQuietBytesPerS * (quiet_ns / kMillisecond);
  connection->explained =
      std::min(connection->explained + connection->quiet / 1000, received + kFewBytes);
  connection->quiet %= 1000;
  const int64_t unexplained = std::max<int64_t>(0, received - kFreeBytes - connection->explained);
  const int64_t more = unexplained - connection->unexplained;  // below 0: by now it is explained
  connection->unexplained = unexplained;
  if (more == 0 || allowance_.Take(connection->address, more, now_ns) || unexplained < kFewBytes ||
      connection->ended)
    return;
  LogWarn("connection ended: no call explains what it sends",
          {{"peer", peer},
           {"holder", connection->certified ? UriOf(connection->holder) : "unknown"},
           {"bytes", unexplained}});
  End(peer, connection, &NetworkCounts::unexplained, absl::StatusCode::kResourceExhausted,
      absl::StrCat("no call explains ", unexplained, " bytes that it sent"));
}

bool NetworkServer::InUse(const std::string& serial) const {
  std::lock_guard lock(mutex_);
  return in_use_.count(serial) != 0;
}

size_t NetworkServer::connections() const {
  std::lock_guard lock(mutex_);
  return connections_.size();
}

NetworkCounts NetworkServer::Counts() const {
  std::lock_guard lock(mutex_);
  NetworkCounts counts = counts_;
  counts.open = static_cast<int64_t>(connections_.size());
  return counts;
}

bool NetworkServer::OnlyLooked(const std::string& peer, const Connection& connection) const {
  // Who got the certificate and then stood still until gRPC ended the handshake is another matter.
  const int64_t lasted_ns = context_->clock->MonotonicNs() - connection.begun_ns;
  return peer.starts_with(kJoin) && DeliveredBytes(connection.fd) >= kLeastShownBytes &&
         lasted_ns < limits_.handshake_ms * kMillisecond;
}

void NetworkServer::Forget(const std::string& peer) {
  const auto it = connections_.find(peer);
  if (it == connections_.end()) return;
  const int64_t received = ReceivedBytes(it->second.fd);
  // Whoever sends nothing only looks whether somebody listens, as agents and commands do before
  // they call. The kernel counts an end as a byte.
  if (!it->second.called && !it->second.ended && received > 1 && !OnlyLooked(peer, it->second)) {
    ++counts_.without_call;
    // gRPC tells nobody which connection's handshake failed, nor why: the log has its words.
    Tell(peer, UserAt(peer), absl::StatusCode::kUnauthenticated,
         absl::StrCat("it ended before a call, in the handshake or by itself, after ", received,
                      " bytes"));
  }
  NoLongerSilent(peer, &it->second);
  if (--by_address_[it->second.address].connections <= 0) by_address_.erase(it->second.address);
  if (it->second.certified) {
    const auto holder = by_holder_.find(UriOf(it->second.holder));
    if (--holder->second <= 0) by_holder_.erase(holder);
  }
  by_fd_.erase(it->second.fd);
  close(it->second.fd);  // leaves epoll with it
  connections_.erase(it);
}

// Ends connections whose certificate counts no longer, and those that say nothing.
void NetworkServer::Look() {
  const std::shared_ptr<const View> view = context_->engine->Snapshot();
  const Trust& trust = view->state.trust();
  const int64_t now_s = context_->clock->WallNs() / kSecond;
  const int64_t now_ns = context_->clock->MonotonicNs();
  std::lock_guard lock(mutex_);
  for (auto& [peer, connection] : connections_) {
    if (connection.ended) continue;  // its end is on the way
    std::string why;
    if (!connection.called) {
      if (connection.begun_ns < now_ns - limits_.silent_ns) why = "no call came";
    } else if (!connection.certified) {
      if (connection.begun_ns < now_ns - limits_.stranger_ns)
        why = "nobody who joins or logs in takes so long";
    } else if (connection.certificate.validity.end_s <= now_s) {
      why = "its certificate has expired";
    } else {
      why = WasRevoked(trust, connection.holder, connection.certificate)
                ? "your certificate was revoked"
                : WhyNotTrusted(trust, connection.holder, connection.certificate.serial,
                                connection.authority);
    }
    if (why.empty()) continue;
    LogInfo("connection ended",
            {{"peer", peer}, {"holder", UriOf(connection.holder)}, {"why", why}});
    if (connection.certified) {
      End(peer, &connection, &NetworkCounts::untrusted, absl::StatusCode::kUnauthenticated, why);
    } else {
      End(peer, &connection, &NetworkCounts::silent, absl::StatusCode::kDeadlineExceeded, why);
    }
  }
  std::erase_if(in_use_, [&](const std::string& serial) {
    return trust.certificates.count(serial) == 0 && in_use_.size() > kReadMost;
  });
}

void NetworkServer::On(int fd, uint32_t events) {
  std::shared_ptr<Generation> last;  // may end here, without the lock
  std::lock_guard lock(mutex_);
  const auto peer = by_fd_.find(fd);
  if (peer == by_fd_.end()) return;
  Connection& connection = connections_[peer->second];
  Count(peer->second, &connection, context_->clock->MonotonicNs());
  if ((events & (EPOLLHUP | EPOLLERR)) == 0) {
    sent_.push_back(fd);
    ask_soon_ |= connection.unexplained > kFewBytes / 4;
    return;
  }
  last = connection.generation;
  Forget(std::string(peer->second));
}

void NetworkServer::AskAgain() {
  std::lock_guard lock(mutex_);
  for (const int fd : sent_) {
    if (by_fd_.count(fd) == 0) continue;
    epoll_event event{};
    event.events = kSends;
    event.data.fd = fd;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
  }
  sent_.clear();
  ask_soon_ = false;
}

void NetworkServer::Run() {
  int64_t sweep_ns = 0, asked_ns = 0;
  absl::Status renewal;  // how the last one went: the same error is logged once
  while (true) {
    epoll_event events[64];
    const int64_t ask_ms = ask_soon_ ? kAskSoonMs : kAskMs;
    const int64_t wait_ms = sent_.empty() ? limits_.sweep_ns / kMillisecond : ask_ms;
    const int count = epoll_wait(epoll_, events, 64, static_cast<int>(wait_ms));
    if (count < 0 && errno != EINTR) {
      LogError("the network is served no more", {{"error", strerror(errno)}});
      return;
    }
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_) return;
      if (fd == doors_[0].fd || fd == doors_[1].fd) {
        Accept(fd == doors_[1].fd);
      } else {
        On(fd, events[i].events);
      }
    }
    const int64_t now_ns = context_->clock->MonotonicNs();
    if (now_ns - asked_ns >= (ask_soon_ ? kAskSoonMs : kAskMs) * kMillisecond) {
      asked_ns = now_ns;
      AskAgain();
    }
    if (now_ns - sweep_ns < limits_.sweep_ns) continue;
    sweep_ns = now_ns;
    Look();
    if (!Outdated()) continue;
    const absl::Status status = Renew();
    if (!status.ok() && status != renewal)
      LogError("the network is served with an old certificate",
               {{"error", std::string(status.message())}});
    renewal = status;
  }
}

void NetworkServer::Shutdown() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  std::map<std::string, Connection> connections;
  {
    std::lock_guard lock(mutex_);
    connections.swap(connections_);
    by_fd_.clear();
    by_address_.clear();
    by_holder_.clear();
    silent_ = 0;
  }
  for (auto& [peer, connection] : connections) {
    shutdown(connection.fd, SHUT_RDWR);
    close(connection.fd);
  }
  connections.clear();  // generations that only they held
  generation_.reset();
  CloseAll({&doors_[0].fd, &doors_[1].fd, &epoll_, &wake_});
}

}  // namespace muster
