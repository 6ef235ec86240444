#include "agent/host/shim_server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/shim/serve.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int kMostFailures = 6;     // in a row; then it isn't asked for a minute
constexpr int kPatienceSeconds = 2;  // for an answer; the server has nothing else to do

}  // namespace

ShimServer::ShimServer(std::string program, std::string log)
    : program_(std::move(program)), log_(std::move(log)) {}

ShimServer::~ShimServer() { End(); }

absl::StatusOr<pid_t> ShimServer::Spawn(const std::string& first, const std::string& second,
                                        int in) const {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 2, log_.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  ::posix_spawnattr_init(&attributes);
  // Everything blocked until the shim listens: a SIGUSR1 that comes at once must wait, not kill.
  sigset_t blocked, defaults;
  ::sigfillset(&blocked);
  ::sigfillset(&defaults);
  ::posix_spawnattr_setsigmask(&attributes, &blocked);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  char* const last = second.empty() ? nullptr : const_cast<char*>(second.c_str());
  char* const argv[] = {const_cast<char*>("muster-shim"), const_cast<char*>(first.c_str()), last,
                        nullptr};
  char* const environment[] = {nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program_.c_str(), &actions, &attributes, argv, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, program_);
  return pid;
}

bool ShimServer::Begin() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  const absl::StatusOr<pid_t> pid =
      Spawn(shim::kServeFlag, std::string(shim::kServeRoom, ' '), ends[1]);
  ::close(ends[1]);
  if (!pid.ok()) {
    ::close(ends[0]);
    return false;
  }
  const timeval patience{kPatienceSeconds, 0};
  ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  socket_ = ends[0];
  server_ = *pid;
  return true;
}

void ShimServer::End() {
  if (socket_ < 0) return;
  ::close(socket_);
  socket_ = -1;
  ::kill(server_, SIGKILL);
  while (::waitpid(server_, nullptr, 0) < 0 && errno == EINTR) {
  }
  server_ = -1;
}

bool ShimServer::Ask(const std::string& directory, int spec, int32_t* answer) const {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{const_cast<char*>(directory.data()), directory.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &spec, sizeof spec);
  ssize_t done = 0;
  while ((done = ::sendmsg(socket_, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  if (done < 0) return false;
  while ((done = ::recv(socket_, answer, sizeof *answer, 0)) < 0 && errno == EINTR) {
  }
  return done == sizeof *answer;
}

// A server that died after it had made a shim and before it said so may leave two of one attempt:
// the lock lets one of them begin.
absl::StatusOr<pid_t> ShimServer::Start(const std::string& directory, int spec) {
  for (int tries = 0; tries < 2 && RealClock()->MonotonicNs() >= rests_until_ns_; ++tries) {
    int32_t answer = 0;
    ::lseek(spec, 0, SEEK_SET);  // a shim that has read it may have died of it
    if ((socket_ >= 0 || Begin()) && Ask(directory, spec, &answer)) {
      failures_ = 0;
      if (answer > 0) return answer;
      LogWarn("the server of shims couldn't make one", {{"error", strerror(-answer)}});
      break;
    }
    End();
    if (++failures_ < kMostFailures) continue;
    failures_ = 0;
    rests_until_ns_ = RealClock()->MonotonicNs() + kMinute;
    LogWarn("the server of shims doesn't answer: for a minute each is spawned");
  }
  ::lseek(spec, 0, SEEK_SET);
  return Spawn(directory, "", spec);
}

}  // namespace muster::agent
