#include "scheduler/api/received_bytes.h"

#include <linux/tcp.h>  // not beside <netinet/tcp.h>, whose tcp_info is older
#include <netinet/in.h>
#include <sys/socket.h>

namespace muster {

int64_t ReceivedBytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

}  // namespace muster
