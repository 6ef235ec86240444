#include "agent/shim/exec_status.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "agent/shim/durable.h"
#include "agent/shim/times.h"

namespace muster::shim {
namespace {

constexpr int64_t kMeanwhile = 100 * kMillisecond;

}  // namespace

void TellLaunchFailure(int fd, const std::string& what, int error) {
  WriteAll(fd, std::string(NamesNothing(error) ? "program: " : "launch: ") + what + ": " +
                   strerror(error));
}

std::string AwaitExec(int fd, const std::string& program, int64_t patience_ns, bool* late,
                      const std::function<void()>& meanwhile) {
  std::string said;
  char buffer[512];
  const int64_t until_ns = SteadyNs() + patience_ns;
  while (true) {
    pollfd ready{fd, POLLIN, 0};
    const int64_t left_ns = std::max<int64_t>(0, until_ns - SteadyNs());
    const int polled =
        ::poll(&ready, 1,
               static_cast<int>((std::min(left_ns, kMeanwhile) + kMillisecond - 1) / kMillisecond));
    if (polled < 0 && errno == EINTR) continue;
    if (polled == 0 && left_ns > kMeanwhile) {
      meanwhile();
      continue;
    }
    if (polled == 0) {
      *late = true;
      return "launch: exec " + program +
             ": not begun in time; does its file system answer, and its workdir's?";
    }
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return said;
    said.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace muster::shim
