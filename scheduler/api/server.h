// Listens on a Unix socket. Connections are accepted here: the kernel says who is at the other end
// (SO_PEERCRED), and the descriptor goes to the gRPC server of that uid, whose services are built
// for it. No call can borrow another's. Who is nobody here shares one server that refuses all.
//
// Of each connection a second descriptor is kept, which tells when it has ended: so one uid has so
// many at most, and a uid without any makes room for another one.
#pragma once

#include <grpcpp/server.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "scheduler/api/context.h"
#include "scheduler/api/watch.h"

namespace muster {

struct SocketLimits {
  // Neither holds for root and for who runs this.
  size_t users = 256;  // distinct uids that have connections
  size_t connections_of_user = 1024;
  // Who has been without connections for so long makes room: by then no question of theirs waits
  // any more, which their server's end would wait for.
  int64_t idle_ns = 10 * kMinute;
};

class ApiServer {
 public:
  // Context, what it points to, and hub must outlive it.
  ApiServer(const ApiContext* context, WatchHub* hub, SocketLimits limits = {});
  ~ApiServer();

  // Binds and serves `path` with this mode. FAILED_PRECONDITION: somebody serves it already, or it
  // is no socket.
  absl::Status Listen(const std::string& path, unsigned mode);
  // Ends all calls and connections; removes the socket. Idempotent.
  void Shutdown();

 private:
  struct User;
  void AcceptLoop();
  void Accept();
  // Of the connection with this other end. Takes it; closes it where it may not be.
  absl::Status Serve(int fd, uint32_t uid);
  void Ended(int watched_fd);
  absl::StatusOr<User*> UserOf(uint32_t uid);
  bool MakeRoom();

  const ApiContext* const context_;
  WatchHub* const hub_;
  const SocketLimits limits_;
  std::string path_;
  int listen_fd_ = -1, epoll_fd_ = -1;
  int wake_fds_[2] = {-1, -1};
  std::thread thread_;
  // The accepting thread's; Shutdown's after that has ended.
  std::map<uint32_t, std::unique_ptr<User>> users_;
  std::map<int, User*> watched_;  // by the second descriptor of a connection
  int64_t told_ns_ = 0;           // when a refusal was last in the log
};

}  // namespace muster
