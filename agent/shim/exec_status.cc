#include "agent/shim/exec_status.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent/shim/durable.h"

namespace muster::shim {

void TellLaunchFailure(int fd, const std::string& what, int error) {
  WriteAll(fd, std::string(NamesNothing(error) ? "program: " : "launch: ") + what + ": " +
                   strerror(error));
}

void TellHostFailure(int fd, const std::string& what, int error) {
  WriteAll(fd, "launch: " + what + ": " + strerror(error));
}

void TellImageRefused(int fd, const std::string& what, int error) {
  WriteAll(fd, "image: " + what + ": " + strerror(error));
}

std::optional<std::string> ReadLaunch(int fd, std::string* said) {
  char buffer[512];
  while (true) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return std::nullopt;
    if (got <= 0) return *said;
    said->append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace muster::shim
