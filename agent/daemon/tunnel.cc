#include "agent/daemon/tunnel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "common/base/files.h"

namespace muster::agent {
namespace {

constexpr size_t kPiece = 64 << 10;
constexpr int64_t kTellAfter = kTunnelWindowBytes / 4;
constexpr size_t kMostMessages = 4096;  // that wait, however short
constexpr int kBeginMs = 30'000;
constexpr int kConnectS = 10;
constexpr int kNotFound = 127;   // as shells say it
constexpr char kEndOfInput = 4;  // to a terminal

void Close(int* fd) {
  if (*fd >= 0) ::close(*fd);
  *fd = -1;
}

void DoNotBlock(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// The shim's socket, by the open directory: its own name may be longer than an address.
absl::StatusOr<int> Connect(const std::string& directory) {
  const int place = ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  const std::string path = absl::StrCat("/proc/self/fd/", place, "/", shim::kTunnelSocket);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const timeval most{kConnectS, 0};  // where its queue is full, and it stands still
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  const bool there = place >= 0 && fd >= 0 &&
                     ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  if (place >= 0) ::close(place);
  if (there) return fd;
  if (fd >= 0) ::close(fd);
  if (error == ENOENT &&
      ::access(absl::StrCat(directory, "/", shim::kExitsFile).c_str(), F_OK) == 0)
    return absl::FailedPreconditionError("the attempt has ended");
  if (error == ENOENT) {
    return absl::FailedPreconditionError(
        "this attempt was started by an older muster-shim, which can't; its next one can");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the attempt's shim doesn't answer: ", strerror(error)));
}

// One reply, and the descriptor that came with it. nullopt: the connection is over.
std::optional<shim::TunnelReply> ReadReply(int connection, int* descriptor) {
  char text[8192];
  iovec part{text, sizeof text};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  *descriptor = -1;
  if (got <= 0) return std::nullopt;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS)
    memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  shim::TunnelReply reply;
  if (shim::ParseTunnelReply({text, static_cast<size_t>(got)}, &reply)) return reply;
  Close(descriptor);
  return std::nullopt;
}

shim::TunnelRequest RequestOf(const v1::OpenTunnel& open) {
  shim::TunnelRequest request;
  if (open.has_forward()) {
    request.rank = open.forward().rank();
    request.port = open.forward().port();
    return request;
  }
  const v1::ExecStart& exec = open.exec();
  request.rank = exec.rank();
  request.argv.assign(exec.command().begin(), exec.command().end());
  request.terminal = exec.terminal();
  request.rows = exec.size().rows();
  request.columns = exec.size().columns();
  request.term = exec.term();
  return request;
}

}  // namespace

Tunnel::Tunnel(Write write)
    : write_(std::move(write)), rung_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Tunnel::~Tunnel() {
  for (int* fd : {&connection_, &in_, &out_, &err_, &rung_}) Close(fd);
}

void Tunnel::OnInput(v1::TunnelInput input) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_bytes_ += static_cast<int64_t>(input.data().size());
    too_much_ = too_much_ || inbox_.messages.size() >= kMostMessages ||
                inbox_bytes_ > kTunnelWindowBytes + static_cast<int64_t>(kPiece);
    if (too_much_) return;
    // Short ones become one: who types or follows a log may send thousands in a window.
    if (input.has_data() && !inbox_.messages.empty() && inbox_.messages.back().has_data() &&
        inbox_.messages.back().data().size() < kPiece)
      inbox_.messages.back().mutable_data()->append(input.data());
    else
      inbox_.messages.push_back(std::move(input));
  }
  const uint64_t one = 1;
  if (::write(rung_, &one, sizeof one) < 0) return;  // full: it is ready anyway
}

void Tunnel::OnOver() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_.over = true;
  }
  const uint64_t one = 1;
  if (::write(rung_, &one, sizeof one) < 0) return;
}

void Tunnel::Run(const v1::OpenTunnel& open, const std::string& directory) {
  command_ = open.has_exec();
  terminal_ = command_ && open.exec().terminal();
  if (const absl::Status asked = Ask(open, directory); !asked.ok()) {
    Say(0, 0, std::string(asked.message()));
    return;
  }
  while (Turn()) {
  }
  // The shim ends the command when it sees this.
  for (int* fd : {&connection_, &in_, &out_, &err_}) Close(fd);
}

absl::Status Tunnel::Ask(const v1::OpenTunnel& open, const std::string& directory) {
  absl::StatusOr<int> connection = Connect(directory);
  if (!connection.ok()) return connection.status();
  connection_ = *connection;
  int theirs[3] = {-1, -1, -1};
  if (command_ && !terminal_) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    const bool made =
        ::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0 && ::pipe2(err, O_CLOEXEC) == 0;
    const int error = errno;
    in_ = in[1];
    out_ = out[0];
    err_ = err[0];
    theirs[0] = in[0];
    theirs[1] = out[1];
    theirs[2] = err[1];
    for (const int fd : {in_, out_, err_}) {
      if (fd >= 0) DoNotBlock(fd);
    }
    if (!made) {
      for (int& fd : theirs) Close(&fd);
      return ErrnoStatus(error, "pipes");
    }
  }
  const absl::Status sent = SendRequest(RequestOf(open), theirs);
  for (int& fd : theirs) Close(&fd);
  return sent;
}

absl::Status Tunnel::SendRequest(const shim::TunnelRequest& request, const int (&theirs)[3]) {
  int told[4] = {::memfd_create("request", MFD_CLOEXEC), theirs[0], theirs[1], theirs[2]};
  const int unwritten =
      told[0] < 0 ? errno : shim::WriteAll(told[0], shim::FormatTunnelRequest(request));
  if (unwritten != 0) {
    Close(&told[0]);
    return ErrnoStatus(unwritten, "request");
  }
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof told)] = {};
  const size_t bytes = (theirs[0] >= 0 ? 4 : 1) * sizeof(int);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(header), told, bytes);
  const bool sent = ::sendmsg(connection_, &message, MSG_NOSIGNAL) == 1;
  const int error = errno;
  Close(&told[0]);
  return sent ? absl::OkStatus() : ErrnoStatus(error, "the attempt's shim");
}

bool Tunnel::Turn() {
  pollfd polled[] = {{rung_, POLLIN, 0},
                     {connection_, POLLIN, 0},
                     {begun_ ? out_ : -1, POLLIN, 0},
                     {begun_ ? err_ : -1, POLLIN, 0},
                     {begun_ && !pending_.empty() ? in_ : -1, POLLOUT, 0}};
  const int ready = ::poll(polled, 5, begun_ ? -1 : kBeginMs);
  if (ready < 0 && errno != EINTR) return false;
  if (ready == 0)
    return Say(0, 0, "it was not begun in time; does the file system of its program answer?");
  if (ready < 0) return true;
  if (polled[0].revents != 0 && !TakeInbox()) return false;
  if (begun_ && !Feed()) return false;
  bool more = false;
  if (polled[2].revents != 0 && !ReadFrom(&out_, /*is_error=*/false, &more)) return false;
  if (polled[3].revents != 0 && !ReadFrom(&err_, /*is_error=*/true, &more)) return false;
  if (polled[1].revents != 0 && !TakeReply()) return false;
  // Of a connection: both directions have ended.
  if (begun_ && !command_ && out_ < 0 && in_ < 0) return Say(0, 0, "");
  return true;
}

bool Tunnel::TakeInbox() {
  uint64_t times = 0;
  if (::read(rung_, &times, sizeof times) < 0) return true;
  Inbox taken;
  bool too_much = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken.messages.swap(inbox_.messages);
    taken.over = inbox_.over;
    too_much = too_much_;
  }
  if (taken.over) return false;
  if (too_much) return Say(0, 0, "more input came than the tunnel's window takes");
  return std::all_of(taken.messages.begin(), taken.messages.end(),
                     [this](v1::TunnelInput& input) { return Take(&input); });
}

bool Tunnel::Take(v1::TunnelInput* input) {
  switch (input->body_case()) {
    case v1::TunnelInput::kData:
      pending_ += input->data();
      break;
    case v1::TunnelInput::kEnd:
      end_pending_ = true;
      break;
    case v1::TunnelInput::kSize:
      if (terminal_ && in_ >= 0) {
        const winsize size{static_cast<unsigned short>(input->size().rows()),
                           static_cast<unsigned short>(input->size().columns()), 0, 0};
        ::ioctl(in_, TIOCSWINSZ, &size);
      }
      break;
    default:
      break;
  }
  return true;
}

// Writes what the command takes now. Input that nobody reads any more counts as taken.
bool Tunnel::Feed() {
  size_t done = 0;
  while (in_ >= 0 && done < pending_.size()) {
    const ssize_t wrote = ::write(in_, pending_.data() + done, pending_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) break;
    if (wrote < 0) Close(&in_);
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
  if (in_ < 0) done = pending_.size();
  pending_.erase(0, done);
  if (end_pending_ && pending_.empty()) EndInput();
  return TellTaken(static_cast<int64_t>(done));
}

void Tunnel::EndInput() {
  end_pending_ = false;
  if (in_ < 0) return;
  if (terminal_) {
    if (::write(in_, &kEndOfInput, 1) < 0) Close(&in_);
    return;
  }
  if (!command_) ::shutdown(in_, SHUT_WR);
  Close(&in_);
}

bool Tunnel::TellTaken(int64_t bytes) {
  untold_bytes_ += bytes;
  taken_bytes_ += bytes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_bytes_ -= bytes;
  }
  if (untold_bytes_ == 0 || (untold_bytes_ < kTellAfter && !pending_.empty())) return true;
  untold_bytes_ = 0;
  v1::TunnelOutput output;
  output.set_taken_bytes(taken_bytes_);
  return write_(output);
}

bool Tunnel::ReadFrom(int* fd, bool is_error, bool* more) {
  *more = false;
  if (*fd < 0) return true;
  v1::TunnelOutput output;
  std::string* data = is_error ? output.mutable_err() : output.mutable_out();
  data->resize(kPiece);
  const ssize_t got = ::read(*fd, data->data(), data->size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {  // of a terminal EIO: no process has it open
    Close(fd);
    if (command_) return true;
    output.set_out_end(true);
    return write_(output);
  }
  *more = true;
  data->resize(static_cast<size_t>(got));
  return write_(output);
}

bool Tunnel::TakeReply() {
  int descriptor = -1;
  const std::optional<shim::TunnelReply> reply = ReadReply(connection_, &descriptor);
  if (!reply.has_value()) {
    Close(&connection_);
    if (!command_ && begun_) return true;  // it has done its work
    if (!begun_)
      return Say(0, 0,
                 "its host did not take it: the attempt has ended, or too many begin at once");
    return Drain() && Say(0, 0, "the attempt has ended, and what ran beside it");
  }
  if (reply->kind == shim::TunnelReply::Kind::kBegun) return Began(descriptor);
  Close(&descriptor);
  return Finish(*reply);
}

bool Tunnel::Began(int descriptor) {
  begun_ = true;
  if (terminal_ || !command_) {
    in_ = descriptor;
    out_ = descriptor < 0 ? -1 : ::fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
    if (out_ < 0) return Say(0, 0, "no descriptor is left for it on its host");
    DoNotBlock(in_);
  }
  v1::TunnelOutput output;
  output.set_begun(true);
  return write_(output) && Feed();
}

// What lies there, and no more: what the command left behind may go on writing.
bool Tunnel::Drain() {
  for (int* fd : {&out_, &err_}) {
    for (bool more = true; more;) {
      if (!ReadFrom(fd, fd == &err_, &more)) return false;
    }
  }
  return true;
}

bool Tunnel::Finish(const shim::TunnelReply& reply) {
  if (reply.kind == shim::TunnelReply::Kind::kEnded)
    return Drain() && Say(reply.exit_code, reply.signal, "");
  return Say(command_ ? kNotFound : 0, 0, reply.why);
}

// The last word.
bool Tunnel::Say(int32_t exit_code, int32_t signal, const std::string& error) {
  v1::TunnelOutput output;
  output.mutable_end()->set_exit_code(exit_code);
  output.mutable_end()->set_signal(signal);
  output.mutable_end()->set_error(error);
  write_(output);
  return false;
}

}  // namespace muster::agent
