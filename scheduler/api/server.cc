#include "scheduler/api/server.h"

#include <fcntl.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/api/all_services.h"
#include "scheduler/api/sockets.h"

namespace muster {
namespace {

constexpr int kMaxMessageBytes = 4 << 20;
constexpr int64_t kTellEveryNs = 10 * kSecond;  // of refusals

}  // namespace

struct ApiServer::User {
  User(const ApiContext* context, WatchHub* hub, uint32_t uid)
      : door(context->guard->users(), uid), services(context, hub, &door) {}

  const UidDoor door;
  Services services;
  std::unique_ptr<grpc::Server> server;
  size_t connections = 0;
  int64_t idle_since_ns = 0;  // without connections
};

ApiServer::ApiServer(const ApiContext* context, WatchHub* hub, SocketLimits limits)
    : context_(context), hub_(hub), limits_(limits) {}

ApiServer::~ApiServer() { Shutdown(); }

absl::Status ApiServer::Listen(const std::string& path, unsigned mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a socket's path has at most 107 bytes"));
  }
  path.copy(address.sun_path, path.size());
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode))
      return absl::FailedPreconditionError(absl::StrCat(path, " exists and is no socket"));
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool served = connect(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(probe);
    if (served)
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": another process serves this socket. Stop it, or listen elsewhere"));
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, path);
  }
  listen_fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listen_fd_ < 0) return ErrnoStatus(errno, "socket");
  // Nobody can connect before listen, so the mode is right from the first connection on.
  if (bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return ErrnoStatus(errno, path);
  path_ = path;
  if (chmod(path.c_str(), mode) != 0 || listen(listen_fd_, 128) != 0 ||
      pipe2(wake_fds_, O_CLOEXEC) != 0 || (epoll_fd_ = epoll_create1(EPOLL_CLOEXEC)) < 0)
    return ErrnoStatus(errno, path);
  for (const int fd : {listen_fd_, wake_fds_[0]}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoStatus(errno, path);
  }
  absl::StatusOr<User*> own =
      UserOf(geteuid());  // most calls come from here: ready before the first
  if (!own.ok()) return own.status();
  thread_ = std::thread([this] { AcceptLoop(); });
  return absl::OkStatus();
}

absl::StatusOr<ApiServer::User*> ApiServer::UserOf(uint32_t uid) {
  // Without asking who it is: a directory service may be slow, and all connections wait here. Each
  // call asks, on a thread of its own.
  if (const auto it = users_.find(uid); it != users_.end()) return it->second.get();
  const std::shared_ptr<const Principal> who = context_->guard->users()->Of(uid);
  if (!context_->single_user && !who->known()) uid = kOverflowUid;
  if (context_->single_user && uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("single_user: only uid ", geteuid(), " is served, not ", uid));
  }
  if (const auto it = users_.find(uid); it != users_.end()) return it->second.get();
  if (users_.size() >= limits_.users && !MakeRoom() && !who->trusted)
    return absl::ResourceExhaustedError(
        absl::StrCat(limits_.users, " users have connections to this socket, or had some lately"));
  auto user = std::make_unique<User>(context_, hub_, uid);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  user->services.Register(&builder);
  user->server = builder.BuildAndStart();
  if (user->server == nullptr) return absl::InternalError("gRPC did not start");
  user->idle_since_ns = context_->clock->MonotonicNs();
  return (users_[uid] = std::move(user)).get();
}

// The server of whoever has had no connection for longest goes. False: all have some, or had some
// a while ago.
bool ApiServer::MakeRoom() {
  const int64_t before_ns = context_->clock->MonotonicNs() - limits_.idle_ns;
  auto oldest = users_.end();
  for (auto it = users_.begin(); it != users_.end(); ++it) {
    if (it->second->connections == 0 && it->second->idle_since_ns <= before_ns &&
        (oldest == users_.end() || it->second->idle_since_ns < oldest->second->idle_since_ns))
      oldest = it;
  }
  if (oldest == users_.end()) return false;
  oldest->second->server->Shutdown(std::chrono::system_clock::now());
  users_.erase(oldest);
  return true;
}

void ApiServer::AcceptLoop() {
  while (true) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_fd_, events, 64, -1);
    if (count < 0 && errno != EINTR) {
      LogError("the socket is served no more",
               {{"error", std::string(ErrnoStatus(errno, path_).message())}});
      return;
    }
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_fds_[0]) return;
      fd == listen_fd_ ? Accept() : Ended(fd);
    }
  }
}

void ApiServer::Accept() {
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return AfterFailedAccept(errno, path_);
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    close(fd);
    return;
  }
  const absl::Status status = Serve(fd, peer.uid);
  const int64_t now_ns = context_->clock->MonotonicNs();
  if (status.ok() || (told_ns_ != 0 && now_ns - told_ns_ < kTellEveryNs)) return;
  told_ns_ = now_ns;
  LogWarn("connection refused",
          {{"uid", peer.uid}, {"pid", peer.pid}, {"why", std::string(status.message())}});
}

absl::Status ApiServer::Serve(int fd, uint32_t uid) {
  const auto refuse = [&](const absl::Status& why) {
    close(fd);
    return why;
  };
  absl::StatusOr<User*> user = UserOf(uid);
  if (!user.ok()) return refuse(user.status());
  if ((*user)->connections >= limits_.connections_of_user &&
      !context_->guard->users()->Of(uid)->trusted) {
    return refuse(absl::ResourceExhaustedError(
        absl::StrCat("this user has ", (*user)->connections, " connections, as many as one may")));
  }
  const int watched = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (watched < 0) return refuse(ErrnoStatus(errno, path_));
  epoll_event event{};  // that it has hung up is told in any case
  event.data.fd = watched;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, watched, &event) != 0) {
    const absl::Status status = ErrnoStatus(errno, path_);
    close(watched);
    return refuse(status);
  }
  watched_[watched] = *user;
  ++(*user)->connections;
  grpc::AddInsecureChannelFromFd((*user)->server.get(), fd);
  return absl::OkStatus();
}

void ApiServer::Ended(int watched_fd) {
  const auto it = watched_.find(watched_fd);
  if (it == watched_.end()) return;
  if (--it->second->connections == 0) it->second->idle_since_ns = context_->clock->MonotonicNs();
  // Explicitly: gRPC may still have its descriptor of it.
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, watched_fd, nullptr);
  close(watched_fd);
  watched_.erase(it);
}

void ApiServer::Shutdown() {
  if (thread_.joinable()) {
    const char byte = 0;
    while (write(wake_fds_[1], &byte, 1) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  for (auto& [uid, user] : users_)
    user->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  for (const auto& [fd, user] : watched_) close(fd);
  watched_.clear();
  users_.clear();
  for (int* fd : {&listen_fd_, &epoll_fd_, &wake_fds_[0], &wake_fds_[1]}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
}

}  // namespace muster
