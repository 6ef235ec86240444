#include "agent/shim/tunnels.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "agent/shim/durable.h"
#include "agent/shim/exec_status.h"
#include "agent/shim/times.h"

namespace muster::shim {
namespace {

constexpr int64_t kGrace = 5'000 * kMillisecond;  // from SIGHUP to SIGKILL
constexpr int64_t kAgain = 100 * kMillisecond;    // between kills
constexpr int64_t kConnectPatience = 10'000 * kMillisecond;
constexpr int kDescriptors = 4;
constexpr const char* kTables[] = {"net/tcp", "net/tcp6"};

void Close(int* fd) {
  if (*fd >= 0) ::close(*fd);
  *fd = -1;
}

// The sockets that listen there, by inode.
std::set<uint64_t> Listeners(int32_t port) {
  std::set<uint64_t> inodes;
  for (const char* table : kTables) {
    std::string text;
    ReadSmallFile(std::string("/proc/self/") + table, &text);
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      uint64_t inode = 0;
      if (ListensOn(std::string_view(text).substr(at, end - at), port, &inode))
        inodes.insert(inode);
      at = end + 1;
    }
  }
  return inodes;
}

// Whether processes that /proc shows have all of these sockets: in the attempt's PID namespace,
// those of the attempt. All, as one of them may listen for IPv6 alone, and the other be reached.
bool AllAreHeld(const std::set<uint64_t>& inodes) {
  std::set<std::string> names;
  for (const uint64_t inode : inodes) names.insert("socket:[" + std::to_string(inode) + "]");
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return false;
  while (const dirent* process = names.empty() ? nullptr : ::readdir(proc)) {
    if (process->d_name[0] < '1' || process->d_name[0] > '9') continue;
    const std::string directory = std::string("/proc/") + process->d_name + "/fd";
    DIR* open = ::opendir(directory.c_str());
    if (open == nullptr) continue;
    while (const dirent* entry = names.empty() ? nullptr : ::readdir(open)) {
      char target[64];
      const std::string link = directory + "/" + entry->d_name;
      const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
      if (size > 0) names.erase(std::string(target, static_cast<size_t>(size)));
    }
    ::closedir(open);
  }
  ::closedir(proc);
  return names.empty();
}

// In a child of the shim's, within the attempt's namespaces. `owned`: others use this host, too, so
// only what the attempt's own processes listen on is connected to. -1, with why.
int ConnectWithin(int32_t port, bool owned, std::string* why) {
  const std::string where = "127.0.0.1:" + std::to_string(port);
  const std::set<uint64_t> before = Listeners(port);
  if (before.empty()) {
    *why = "nothing listens on " + where + " there";
    return -1;
  }
  if (owned && !AllAreHeld(before)) {
    *why = "no process of this job listens on " + where + " there";
    return -1;
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    *why = where + ": " + strerror(errno);
    if (fd >= 0) ::close(fd);
    return -1;
  }
  // The same sockets listen: nobody else's took their place before we were connected.
  if (!owned || (Listeners(port) == before && AllAreHeld(before))) return fd;
  ::close(fd);
  *why = "who listens on " + where + " has just changed; try again";
  return -1;
}

void SendReply(int connection, const TunnelReply& reply, int descriptor) {
  std::string text = FormatTunnelReply(reply);
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ::sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Descriptors that came with the one byte of a request. False: nothing has come yet; *over: nothing
// will.
bool Receive(int connection, std::vector<int>* descriptors, bool* over) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  *over = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  if (got <= 0) return false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    descriptors->resize(count);
    memcpy(descriptors->data(), CMSG_DATA(header), count * sizeof(int));
  }
  return true;
}

}  // namespace

Tunnels::~Tunnels() {
  EndAll();
  StopListening();
}

void Tunnels::StopListening() {
  if (listener_ >= 0) ::unlink(socket_.c_str());
  Close(&listener_);
}

void Tunnels::Listen(const std::string& directory) {
  // Its name may be longer than a socket's address: it is named by the open directory.
  const int place = ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  const std::string path = "/proc/self/fd/" + std::to_string(place) + "/" + kTunnelSocket;
  listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  void* page = ::mmap(nullptr, kCommandsAtOnce * sizeof(pid_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) numbers_ = static_cast<volatile pid_t*>(page);
  ::unlinkat(place, kTunnelSocket, 0);
  socket_ = directory + "/" + kTunnelSocket;
  if (place < 0 || listener_ < 0 || numbers_ == nullptr ||
      ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_, kCommandsAtOnce) != 0) {
    voice_->Say(std::string("no commands beside its workers: ") + kTunnelSocket + ": " +
                strerror(errno));
    Close(&listener_);
  }
  if (place >= 0) ::close(place);
}

void Tunnels::AddTo(std::vector<pollfd>* polled) const {
  polled->push_back({listener_, POLLIN, 0});
  for (const Tunnel& tunnel : tunnels_) {
    polled->push_back({tunnel.connection, POLLIN, 0});
    polled->push_back({tunnel.status, POLLIN, 0});
  }
}

int64_t Tunnels::Turn(int64_t now_ns) {
  if (listener_ >= 0) Accept();
  int64_t wake_ns = kNever;
  for (auto tunnel = tunnels_.begin(); tunnel != tunnels_.end();) {
    TakeRequest(&*tunnel, now_ns);
    LookAtExec(&*tunnel);
    tunnel = Continue(&*tunnel, now_ns, &wake_ns) ? std::next(tunnel) : tunnels_.erase(tunnel);
  }
  return wake_ns;
}

void Tunnels::Accept() {
  while (true) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) return;
    ucred peer{};
    socklen_t size = sizeof peer;
    // The directory is the agent's alone already.
    if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        peer.uid != ::geteuid() ||
        tunnels_.size() >= size_t{2} * (kCommandsAtOnce + kConnectionsAtOnce)) {
      ::close(connection);
      continue;
    }
    tunnels_.emplace_back().connection = connection;
  }
}

void Tunnels::TakeRequest(Tunnel* tunnel, int64_t now_ns) {
  if (tunnel->connection < 0) return;
  std::vector<int> descriptors;
  bool over = false;
  const bool came = Receive(tunnel->connection, &descriptors, &over);
  if (came && tunnel->pid < 0) Begin(tunnel, descriptors, now_ns);
  for (int fd : descriptors) ::close(fd);
  if (over) HangUp(tunnel, now_ns);
}

void Tunnels::Begin(Tunnel* tunnel, const std::vector<int>& descriptors, int64_t now_ns) {
  std::string content, why;
  TunnelRequest request;
  struct stat info {};
  if (descriptors.empty() || ::fstat(descriptors[0], &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size > static_cast<off_t>(kTunnelRequestBytes) ||
      ::lseek(descriptors[0], 0, SEEK_SET) != 0 || ReadAll(descriptors[0], &content) != 0)
    return Fail(tunnel, "the request can't be read");
  if (!ParseTunnelRequest(content, &request, &why)) return Fail(tunnel, why);
  tunnel->is_command = !request.argv.empty();
  const auto alike = std::count_if(tunnels_.begin(), tunnels_.end(), [&](const Tunnel& other) {
    return other.pid >= 0 && other.is_command == tunnel->is_command;
  });
  if (alike >= (tunnel->is_command ? kCommandsAtOnce : kConnectionsAtOnce)) {
    return Fail(tunnel, std::to_string(alike) +
                            (tunnel->is_command ? " commands run beside this attempt's workers"
                                                : " connections to this job are being made") +
                            " already, and no more are taken at once; end one, or try again later");
  }
  if (!tunnel->is_command) tunnel->kill_at_ns = now_ns + kConnectPatience;
  why = tunnel->is_command ? StartCommand(tunnel, request, descriptors)
                           : StartConnection(tunnel, request.port);
  if (!why.empty()) Fail(tunnel, why);
}

int Tunnels::FreeSlot() const {
  for (int slot = 0; slot < kCommandsAtOnce; ++slot) {
    if (std::none_of(tunnels_.begin(), tunnels_.end(),
                     [&](const Tunnel& tunnel) { return tunnel.slot == slot; }))
      return slot;
  }
  return -1;
}

std::string Tunnels::StartCommand(Tunnel* tunnel, const TunnelRequest& request,
                                  const std::vector<int>& descriptors) {
  Beside beside;
  beside.rank = request.rank;
  beside.argv = request.argv;
  beside.terminal = request.terminal;
  beside.term = request.term;
  int slave = -1;
  if (request.terminal) {
    if (std::string why = OpenTerminal(tunnel, request, &slave); !why.empty()) return why;
    beside.in = beside.out = beside.err = slave;
  } else {
    if (descriptors.size() != kDescriptors) return "the command's descriptors are missing";
    beside.in = descriptors[1];
    beside.out = descriptors[2];
    beside.err = descriptors[3];
  }
  tunnel->slot = FreeSlot();
  if (tunnel->slot < 0) return "there is no room for another command";
  numbers_[tunnel->slot] = 0;
  beside.number = numbers_ + tunnel->slot;
  std::string problem;
  tunnel->pid = processes_->StartBeside(beside, &tunnel->status, &problem);
  Close(&slave);
  return problem;
}

// In the shim's mount namespace, so that the attempt's own /dev/pts has it.
std::string Tunnels::OpenTerminal(Tunnel* tunnel, const TunnelRequest& request, int* slave) const {
  const int unlocked = 0;
  const winsize size{static_cast<unsigned short>(request.rows),
                     static_cast<unsigned short>(request.columns), 0, 0};
  tunnel->master = ::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (tunnel->master < 0 || ::ioctl(tunnel->master, TIOCSPTLCK, &unlocked) != 0)
    return std::string("a terminal: ") + strerror(errno);
  *slave = ::ioctl(tunnel->master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (*slave < 0 || ::ioctl(*slave, TIOCSWINSZ, &size) != 0)
    return std::string("a terminal: ") + strerror(errno);
  return "";
}

std::string Tunnels::StartConnection(Tunnel* tunnel, int32_t port) {
  const bool owned = processes_->user().has_value();
  tunnel->pid = processes_->ForkWithin([connection = tunnel->connection, port, owned] {
    // It may take its time: nobody else's tunnel is to wait for what it holds open.
    const auto own = static_cast<unsigned>(connection);
    if (own > 3) ::close_range(3, own - 1, 0);
    ::close_range(own + 1, ~0U, 0);
    TunnelReply reply;
    const int fd = ConnectWithin(port, owned, &reply.why);
    if (fd < 0) reply.kind = TunnelReply::Kind::kFailed;
    SendReply(connection, reply, fd);
  });
  return tunnel->pid > 0 ? "" : std::string("fork: ") + strerror(errno);
}

void Tunnels::LookAtExec(Tunnel* tunnel) {
  if (tunnel->status < 0) return;
  const std::optional<std::string> said = ReadLaunch(tunnel->status, &tunnel->said);
  if (!said.has_value()) return;
  Close(&tunnel->status);
  if (!said->empty()) {
    Fail(tunnel, said->substr(said->find(": ") + 2));
  } else {
    Reply(*tunnel, TunnelReply(), tunnel->master);
  }
  Close(&tunnel->master);
}

// The agent asks for no more of it: it is gone, or its user is.
void Tunnels::HangUp(Tunnel* tunnel, int64_t now_ns) {
  Close(&tunnel->connection);
  Close(&tunnel->master);
  if (tunnel->pid < 0) return;
  if (tunnel->is_command) processes_->SignalSession(numbers_[tunnel->slot], SIGHUP);
  tunnel->kill_at_ns = tunnel->is_command ? now_ns + kGrace : now_ns;
}

bool Tunnels::Continue(Tunnel* tunnel, int64_t now_ns, int64_t* wake_ns) {
  if (tunnel->pid < 0) return tunnel->connection >= 0;
  if (tunnel->kill_at_ns <= now_ns) {
    if (!tunnel->reaped) ::kill(tunnel->pid, SIGKILL);
    const int left =
        tunnel->is_command ? processes_->SignalSession(numbers_[tunnel->slot], SIGKILL) : 0;
    if (tunnel->reaped && left == 0) {
      Close(&tunnel->connection);
      return false;
    }
    tunnel->kill_at_ns = now_ns + kAgain;
  }
  *wake_ns = std::min(*wake_ns, tunnel->kill_at_ns);
  // One that ended by itself leaves what it started to the attempt.
  return !tunnel->reaped || tunnel->kill_at_ns != kNever;
}

bool Tunnels::Ended(pid_t pid, int exit_code, int signal) {
  const auto tunnel = std::find_if(tunnels_.begin(), tunnels_.end(), [&](const Tunnel& other) {
    return other.pid == pid && !other.reaped;
  });
  if (tunnel == tunnels_.end()) return false;
  LookAtExec(&*tunnel);
  tunnel->reaped = true;
  if (tunnel->is_command && tunnel->connection < 0 &&
      processes_->SignalSession(numbers_[tunnel->slot], 0) == 0)
    tunnel->kill_at_ns = kNever;
  if (tunnel->is_command && tunnel->connection >= 0) {
    TunnelReply reply;
    reply.kind = TunnelReply::Kind::kEnded;
    reply.exit_code = exit_code;
    reply.signal = signal;
    Reply(*tunnel, reply);
  }
  if (tunnel->connection >= 0 || !tunnel->is_command) {
    Close(&tunnel->connection);
    tunnel->kill_at_ns = kNever;
  }
  return true;
}

void Tunnels::EndAll() {
  for (Tunnel& tunnel : tunnels_) {
    for (int* fd : {&tunnel.connection, &tunnel.status, &tunnel.master}) Close(fd);
  }
  tunnels_.clear();
  StopListening();
}

void Tunnels::Reply(const Tunnel& tunnel, const TunnelReply& reply, int descriptor) const {
  if (tunnel.connection >= 0) SendReply(tunnel.connection, reply, descriptor);
}

void Tunnels::Fail(Tunnel* tunnel, const std::string& why) {
  TunnelReply reply;
  reply.kind = TunnelReply::Kind::kFailed;
  reply.why = why;
  Reply(*tunnel, reply);
  Close(&tunnel->connection);
  Close(&tunnel->master);
}

}  // namespace muster::shim
