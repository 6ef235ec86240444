#include "trainer/loop/progress.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace muster::trainer {

Progress::Progress(std::string socket_path) : path_(std::move(socket_path)) {
  if (path_.empty()) return;
  if (path_.size() >= sizeof(sockaddr_un::sun_path)) {
    std::fprintf(stderr, "MUSTER_PROGRESS_SOCKET is longer than a socket's path may be (%zu bytes); no progress is sent\n", path_.size());
    return;
  }
  fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

Progress::~Progress() {
  if (fd_ >= 0) ::close(fd_);
}

void Progress::Send(const nlohmann::ordered_json& line) {
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (path_.empty()) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    return;
  }
  if (fd_ < 0) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  // Unconnected, so that a reader that was restarted is found again.
  ::sendto(fd_, text.data(), text.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

}  // namespace muster::trainer
