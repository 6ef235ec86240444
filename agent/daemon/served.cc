#include "agent/daemon/served.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/descriptor.h"

namespace muster::agent {
namespace {

constexpr timeval kPatience{1, 0};  // with a musterd that takes no connections

constexpr char kStandsStill[] =
    "musterd takes no connections: it stands still, or has too much to do. See what it does (ps -o "
    "pid,stat,pcpu -C musterd) and its log (journalctl -u musterd; of muster up: logs/musterd.log)";

std::string WhyNotObey(const std::string& path, const Trust& trust, uid_t server) {
  if (trust.single_user && server != ::geteuid())
    return absl::StrCat(path, ": served by another user (uid ", server,
                        "); refused with --single-user");
  if (server != 0 && server >= trust.system_below)
    return absl::StrCat(
        path, ": served by uid ", server,
        ", whom jobs may run as; refused, as it would say what runs as whom. Run "
        "musterd as root or a system account (useradd --system), or raise --min-uid");
  return "";
}

}  // namespace

std::string WhyNotServedLocally(const std::string& path, const Trust& trust) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return "the socket's path is longer than 107 bytes";
  memcpy(address.sun_path, path.data(), path.size());
  const Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return strerror(errno);
  ucred peer{};
  socklen_t size = sizeof peer;
  // connect() waits where nobody takes connections and there is no room for one more: no longer
  // than a send may.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return absl::StrCat(path, ": ", errno == EAGAIN ? kStandsStill : strerror(errno));
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return absl::StrCat(path, ": who serves it can't be told: ", strerror(errno));
  return WhyNotObey(path, trust, peer.uid);
}

}  // namespace muster::agent
