#include "cli/provider/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr std::string_view kBegin = "GET /callback?";
constexpr size_t kMaxRequestBytes = 16 << 10;
constexpr int64_t kRequestNs = 2 * kSecond;  // a browser sends at once

int Hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string Decoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && Hex(text[i + 1]) >= 0 && Hex(text[i + 2]) >= 0) {
      decoded += static_cast<char>(Hex(text[i + 1]) * 16 + Hex(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

bool ReadableWithin(int fd, int64_t until_ns) {
  const int64_t left_ns = until_ns - RealClock()->MonotonicNs();
  pollfd ready{fd, POLLIN, 0};
  return left_ns > 0 && poll(&ready, 1, static_cast<int>(left_ns / kMillisecond) + 1) > 0;
}

// A request's first line, of who sends it within the time; else nothing.
std::string RequestLine(int fd) {
  const int64_t until_ns = RealClock()->MonotonicNs() + kRequestNs;
  std::string text;
  while (text.find("\r\n\r\n") == text.npos && text.size() < kMaxRequestBytes) {
    char buffer[4096];
    if (!ReadableWithin(fd, until_ns)) return "";
    const ssize_t size = recv(fd, buffer, sizeof buffer, 0);
    if (size <= 0) return "";
    text.append(buffer, static_cast<size_t>(size));
  }
  return text.substr(0, text.find("\r\n"));
}

void Answer(int fd, const char* status, absl::string_view said) {
  const std::string text =
      absl::StrCat("HTTP/1.1 ", status,
                   "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: ", said.size(),
                   "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", said);
  send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
}

}  // namespace

std::map<std::string, std::string> CallbackParameters(std::string_view request_line) {
  std::map<std::string, std::string> parameters;
  if (request_line.substr(0, kBegin.size()) != kBegin) return parameters;
  request_line.remove_prefix(kBegin.size());
  const size_t end = request_line.find(' ');
  if (end == request_line.npos) return parameters;
  const std::vector<std::string> pairs =
      absl::StrSplit(std::string(request_line.substr(0, end)), '&');
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == pair.npos) continue;
    // Whoever says something twice says nothing.
    const auto [at, first] =
        parameters.emplace(Decoded(absl::string_view(pair).substr(0, equals)),
                           Decoded(absl::string_view(pair).substr(equals + 1)));
    if (!first) at->second.clear();
  }
  return parameters;
}

absl::StatusOr<Loopback> Loopback::Open(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof at;
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(fd, 16) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return absl::UnavailableError(
        absl::StrCat("127.0.0.1:", port, ": ", strerror(error), ". Another port: --redirect-port"));
  }
  return Loopback(fd, ntohs(at.sin_port));
}

Loopback::Loopback(Loopback&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}

Loopback::~Loopback() {
  if (fd_ >= 0) close(fd_);
}

std::string Loopback::url() const { return absl::StrCat("http://127.0.0.1:", port_, "/callback"); }

absl::StatusOr<std::map<std::string, std::string>> Loopback::Wait(const std::string& state,
                                                                  int64_t timeout_ns) {
  const int64_t until_ns = RealClock()->MonotonicNs() + timeout_ns;
  while (ReadableWithin(fd_, until_ns)) {
    const int connection = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    std::map<std::string, std::string> parameters = CallbackParameters(RequestLine(connection));
    // Other pages of the browser reach this address, too: only who has the state is heard.
    const bool ours = parameters["state"] == state;
    const bool good = ours && !parameters["code"].empty();
    Answer(connection, good ? "200 OK" : "400 Bad Request",
           good   ? "You may close this page: muster login goes on.\n"
           : ours ? "The login was refused: muster login says why.\n"
                  : "This is no answer to the login that is under way.\n");
    close(connection);
    if (ours) return parameters;
  }
  return absl::DeadlineExceededError(
      "nobody logged in within the time. On a machine without a browser: muster login --device");
}

}  // namespace muster
