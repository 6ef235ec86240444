// Listens on a Unix socket. Connections are accepted here: the kernel says who is at the other end
// (SO_PEERCRED), and the descriptor goes to the gRPC server of that uid, whose services are built
// for it. No call can borrow another's. Who is nobody here shares one server that refuses all.
#pragma once

#include <grpcpp/server.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/api/context.h"
#include "scheduler/api/watch.h"

namespace muster {

inline constexpr size_t kMaxUsers = 256;  // distinct uids served

class ApiServer {
 public:
  // Context, what it points to, and hub must outlive it.
  ApiServer(const ApiContext* context, WatchHub* hub);
  ~ApiServer();

  // Binds and serves `path` with this mode. FAILED_PRECONDITION: somebody serves it already, or it
  // is no socket.
  absl::Status Listen(const std::string& path, unsigned mode);
  // Ends all calls and connections; removes the socket. Idempotent.
  void Shutdown();

 private:
  struct User;
  void AcceptLoop();
  absl::StatusOr<User*> UserOf(uint32_t uid);

  const ApiContext* const context_;
  WatchHub* const hub_;
  std::string path_;
  int listen_fd_ = -1;
  int wake_fds_[2] = {-1, -1};
  std::thread thread_;
  std::map<uint32_t, std::unique_ptr<User>>
      users_;  // the accepting thread's; Shutdown's after that has ended
};

}  // namespace muster
