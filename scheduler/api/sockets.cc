#include "scheduler/api/sockets.h"

#include <linux/tcp.h>  // not beside <netinet/tcp.h>, whose tcp_info is older
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "common/base/files.h"
#include "common/base/log.h"

namespace muster {
namespace {

tcp_info InfoOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return info;
}

}  // namespace

int64_t ReceivedBytes(int fd) { return static_cast<int64_t>(InfoOf(fd).tcpi_bytes_received); }

int64_t DeliveredBytes(int fd) { return static_cast<int64_t>(InfoOf(fd).tcpi_bytes_acked); }

bool LastsAfterAccept(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

void AfterFailedAccept(int error, std::string_view door) {
  if (!LastsAfterAccept(error)) return;
  LogWarn("a connection waits", {{"door", std::string(door)},
                                 {"why", std::string(ErrnoStatus(error, "accept").message())}});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

}  // namespace muster
