#include "scheduler/api/server.h"

#include <fcntl.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "scheduler/api/all_services.h"
#include "scheduler/api/sockets.h"

namespace muster {
namespace {

constexpr int kMaxMessageBytes = 4 << 20;

}  // namespace

struct ApiServer::User {
  User(const ApiContext* context, WatchHub* hub, uint32_t uid)
      : door(context->guard->users(), uid), services(context, hub, &door) {}

  const UidDoor door;
  Services services;
  std::unique_ptr<grpc::Server> server;
};

ApiServer::ApiServer(const ApiContext* context, WatchHub* hub) : context_(context), hub_(hub) {}

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
      pipe2(wake_fds_, O_CLOEXEC) != 0)
    return ErrnoStatus(errno, path);
  absl::StatusOr<User*> own =
      UserOf(geteuid());  // most calls come from here: ready before the first
  if (!own.ok()) return own.status();
  thread_ = std::thread([this] { AcceptLoop(); });
  return absl::OkStatus();
}

absl::StatusOr<ApiServer::User*> ApiServer::UserOf(uint32_t uid) {
  if (!context_->single_user && !context_->guard->users()->Of(uid)->known()) uid = kOverflowUid;
  if (context_->single_user && uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("single_user: only uid ", geteuid(), " is served, not ", uid));
  }
  if (const auto it = users_.find(uid); it != users_.end()) return it->second.get();
  if (users_.size() >= kMaxUsers) return absl::ResourceExhaustedError("too many users at once");
  auto user = std::make_unique<User>(context_, hub_, uid);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  user->services.Register(&builder);
  user->server = builder.BuildAndStart();
  if (user->server == nullptr) return absl::InternalError("gRPC did not start");
  return (users_[uid] = std::move(user)).get();
}

void ApiServer::AcceptLoop() {
  while (true) {
    pollfd fds[2] = {{listen_fd_, POLLIN, 0}, {wake_fds_[0], POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) {
      LogError("poll of the socket failed",
               {{"error", std::string(ErrnoStatus(errno, path_).message())}});
      return;
    }
    if (fds[1].revents != 0) return;
    if ((fds[0].revents & POLLIN) == 0) continue;
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      AfterFailedAccept(errno, path_);
      continue;
    }
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
      close(fd);
      continue;
    }
    absl::StatusOr<User*> user = UserOf(peer.uid);
    if (!user.ok()) {
      LogWarn(
          "connection refused",
          {{"uid", peer.uid}, {"pid", peer.pid}, {"why", std::string(user.status().message())}});
      close(fd);
      continue;
    }
    grpc::AddInsecureChannelFromFd((*user)->server.get(), fd);
  }
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
  users_.clear();
  for (int* fd : {&listen_fd_, &wake_fds_[0], &wake_fds_[1]}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
}

}  // namespace muster
