// Makes shims: through a server that forks them (agent/shim/serve.h), and by spawning each where
// that doesn't work. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster::agent {

class ShimServer {
 public:
  // `program`: muster-shim. What it and its shims have to say is appended to the file `log`.
  ShimServer(std::string program, std::string log);
  ~ShimServer();  // the server ends; its shims go on
  ShimServer(const ShimServer&) = delete;
  ShimServer& operator=(const ShimServer&) = delete;

  // Starts a shim for the attempt in `directory`, a child of this process; it reads its spec from
  // the descriptor `spec`. The server is begun with the first, and anew when it has died.
  absl::StatusOr<pid_t> Start(const std::string& directory, int spec);

  pid_t server() const { return server_; }  // -1: none

 private:
  absl::StatusOr<pid_t> Spawn(const std::string& first, const std::string& second, int in) const;
  bool Begin();
  void End();
  // False: no answer. It is the pid, or an errno, negative.
  bool Ask(const std::string& directory, int spec, int32_t* answer) const;

  const std::string program_, log_;
  pid_t server_ = -1;
  int socket_ = -1;
  int failures_ = 0;            // in a row
  int64_t rests_until_ns_ = 0;  // monotonic
};

}  // namespace muster::agent
