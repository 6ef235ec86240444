// The loopback address that a browser is sent back to after a login (RFC 8252, 7.3).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace muster {

// The parameters of "GET /callback?A=B&… HTTP/1.1", decoded; empty: it is another request.
std::map<std::string, std::string> CallbackParameters(std::string_view request_line);

class Loopback {
 public:
  // On 127.0.0.1. UNAVAILABLE: the port is taken.
  static absl::StatusOr<Loopback> Open(int port);
  Loopback(Loopback&& other) noexcept;
  ~Loopback();

  std::string url() const;  // http://127.0.0.1:PORT/callback
  // What the browser brings with this state; other requests get an error and are forgotten.
  // DEADLINE_EXCEEDED: it didn't come.
  absl::StatusOr<std::map<std::string, std::string>> Wait(const std::string& state,
                                                          int64_t timeout_ns);

 private:
  Loopback(int fd, int port) : fd_(fd), port_(port) {}

  int fd_ = -1, port_ = 0;
};

}  // namespace muster
