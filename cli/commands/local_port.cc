#include "cli/commands/local_port.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <list>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"

namespace muster {
namespace {

constexpr size_t kConnections = 128;

// Each local connection, by two threads.
class Forwarder {
 public:
  Forwarder(Session* session, Client* client, pb::TunnelInput start, const Interrupt* interrupt)
      : session_(session), client_(client), start_(std::move(start)), interrupt_(interrupt) {}
  ~Forwarder() {
    for (Connection& connection : connections_) connection.thread.join();
  }
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  void Take(int fd) {
    connections_.remove_if([](Connection& connection) {
      if (connection.done) connection.thread.join();
      return connection.done.load();
    });
    if (connections_.size() >= kConnections) {
      session_->Err(absl::StrCat("muster: ", kConnections,
                                 " connections are open already: one was turned away\n"));
      close(fd);
      return;
    }
    Connection& connection = connections_.emplace_back();
    connection.thread = std::thread([this, fd, &connection] {
      Carry(fd);
      connection.done = true;
    });
  }

 private:
  struct Connection {
    std::thread thread;
    std::atomic<bool> done{false};
  };

  void Carry(int fd) const {
    TunnelEnds ends{fd, fd, fd};
    ends.is_connection = true;
    const std::unique_ptr<TunnelCall> call = client_->Forward(interrupt_);
    const TunnelOutcome outcome = CarryTunnel(call.get(), start_, ends, nullptr);
    close(fd);
    if (interrupt_->pending()) return;
    if (outcome.ended && !outcome.end.error().empty())
      session_->Err(absl::StrCat("muster: ", Plain(outcome.end.error()), "\n"));
    if (outcome.ended || outcome.status.ok()) return;
    const CutOff cut = WhyCutOff(outcome.status);
    if (!cut.may_begin_again) {
      session_->Fail(outcome.status);
      return;
    }
    session_->Err(absl::StrCat("muster: a connection ",
                               outcome.begun ? "was cut off: " : "could not be made: ", cut.why,
                               ". The port stays: connect again\n"));
  }

  Session* const session_;
  Client* const client_;
  const pb::TunnelInput start_;
  const Interrupt* const interrupt_;
  std::list<Connection> connections_;
};

}  // namespace

absl::StatusOr<int> ListenLocally(int* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(*port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      listen(fd, static_cast<int>(kConnections)) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    *port = ntohs(address.sin_port);
    return fd;
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  if (error == EADDRINUSE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "127.0.0.1:", *port,
        " is taken on this machine: name another behind a colon, as in 8888:8889, or --any"));
  }
  return ErrnoStatus(error, absl::StrCat("127.0.0.1:", *port));
}

void CarryConnections(Session& session, Client& client, const pb::TunnelInput& start, int listener,
                      const Interrupt& interrupt) {
  signal(SIGPIPE, SIG_IGN);  // a connection that is gone
  {
    Forwarder forwarder(&session, &client, start, &interrupt);
    while (!interrupt.pending()) {
      pollfd polled[2] = {{listener, POLLIN, 0}, {interrupt.fd(), POLLIN, 0}};
      if (poll(polled, 2, -1) < 0 && errno != EINTR) break;
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) forwarder.Take(fd);
    }
  }
  close(listener);
}

}  // namespace muster
