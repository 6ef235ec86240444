#include "agent/shim/serve.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "agent/shim/shim.h"

namespace muster::shim {
namespace {

constexpr int kAgent = 0;  // the socket

// A request: the directory, and its spec's descriptor. Its length; 0: the agent is gone.
ssize_t Receive(char* directory, size_t room, int* spec) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec part{directory, room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  while ((got = ::recvmsg(kAgent, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  *spec = -1;
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
    memcpy(spec, CMSG_DATA(header), sizeof *spec);
  return got < 0 ? 0 : got;
}

// As fork, but the child is our parent's: the agent waits for its shims as if it had spawned them.
pid_t ForkSibling() {
  return static_cast<pid_t>(::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
}

}  // namespace

int ServeShims(char* words, size_t bytes) {
  constexpr char kName[] = "muster-shim";
  std::string directory(bytes, '\0');
  while (true) {
    int spec = -1;
    const ssize_t length = Receive(directory.data(), directory.size(), &spec);
    if (length == 0) return 0;
    int32_t answer = spec < 0                                              ? -EBADMSG
                     : sizeof kName + static_cast<size_t>(length) >= bytes ? -ENAMETOOLONG
                                                                           : ForkSibling();
    if (answer == 0) {
      memset(words, 0, bytes);
      memcpy(words, kName, sizeof kName);
      memcpy(words + sizeof kName, directory.data(), static_cast<size_t>(length));
      ::dup2(spec, kAgent);  // without close-on-exec; the shim replaces it before it makes anything
      ::close(spec);
      ::_exit(RunShim(directory.substr(0, static_cast<size_t>(length))));
    }
    if (answer == -1) answer = -errno;
    if (spec >= 0) ::close(spec);
    if (::send(kAgent, &answer, sizeof answer, MSG_NOSIGNAL) < 0) return 0;
  }
}

}  // namespace muster::shim
