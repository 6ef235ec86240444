#include "trainer/loop/progress.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace muster::trainer {
namespace {

// An unconnected socket can't be waited for.
constexpr std::chrono::milliseconds kBetweenTries{10};
constexpr int kTries = 100, kTriesAtEnd = 500;

}  // namespace

Progress::Progress(std::string socket_path) : path_(std::move(socket_path)) {
  if (path_.empty()) return;
  if (path_.size() >= sizeof(sockaddr_un::sun_path)) {
    std::fprintf(stderr,
                 "MUSTER_PROGRESS_SOCKET is longer than a socket's path may be (%zu bytes); no "
                 "progress is sent\n",
                 path_.size());
    return;
  }
  fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

Progress::~Progress() {
  SendKept(kTriesAtEnd);
  if (fd_ >= 0) ::close(fd_);
}

void Progress::Send(const nlohmann::ordered_json& line, Kind kind) {
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (path_.empty()) {
    if (::isatty(STDOUT_FILENO) == 1) return;
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    return;
  }
  if (fd_ < 0) return;
  if (kind == kDurable) {
    kept_.push_back(text);
    if (kept_.size() > kMostKept) kept_.pop_front();
    SendKept(kTries);
  } else if (SendKept(1)) {
    SendOnce(text);
  }
}

Progress::Outcome Progress::SendOnce(const std::string& text) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  // Unconnected, so that a reader that was restarted is found again.
  while (::sendto(fd_, text.data(), text.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
    if (errno == EINTR) continue;
    return errno == EMSGSIZE ? kNever : errno == EAGAIN || errno == ENOBUFS ? kFull : kAbsent;
  }
  return kSent;
}

bool Progress::SendKept(int tries) {
  while (!kept_.empty()) {
    const Outcome outcome = SendOnce(kept_.front());
    if (outcome == kSent || outcome == kNever) {
      kept_.pop_front();
    } else if (outcome == kFull && --tries > 0) {
      std::this_thread::sleep_for(kBetweenTries);
    } else {
      return false;
    }
  }
  return true;
}

MetricsFile::MetricsFile(const std::string& path) {
  if (path.empty()) return;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsFile::Send(const nlohmann::ordered_json& line) {
  if (fd_ < 0) return;
  const std::string text = (cut_ ? "\n" : "") +
                           line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                           "\n";
  ssize_t written;
  do {
    written = ::write(fd_, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written > 0) cut_ = written < static_cast<ssize_t>(text.size());
}

}  // namespace muster::trainer
