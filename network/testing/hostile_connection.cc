#include "network/testing/hostile_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "common/base/check.h"

namespace muster {
namespace {

constexpr unsigned char kProtocols[] = "\x02h2";
constexpr int64_t kHandshakeMs = 10'000;

sockaddr_in AddressOf(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  MUSTER_CHECK_MSG(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1, host.c_str());
  return address;
}

// HPACK's number, behind a prefix of so many bits.
std::string Number(uint8_t first, int bits, uint64_t value) {
  const uint64_t most = (1u << bits) - 1;
  if (value < most) return std::string(1, static_cast<char>(first | value));
  std::string out(1, static_cast<char>(first | most));
  for (value -= most; value >= 128; value /= 128) out += static_cast<char>(value % 128 + 128);
  return out + static_cast<char>(value);
}

}  // namespace

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TlsClient::TlsClient(const Identity* identity) : context_(SSL_CTX_new(TLS_client_method())) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to connections that were ended
  SSL_CTX_set_verify(context_, SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_alpn_protos(context_, kProtocols, sizeof kProtocols - 1);
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (identity == nullptr) return;
  BIO* const key_text =
      BIO_new_mem_buf(identity->key.data(), static_cast<int>(identity->key.size()));
  BIO* const text =
      BIO_new_mem_buf(identity->certificate.data(), static_cast<int>(identity->certificate.size()));
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(key_text, nullptr, nullptr, nullptr);
  X509* const certificate = PEM_read_bio_X509(text, nullptr, nullptr, nullptr);
  MUSTER_CHECK(SSL_CTX_use_certificate(context_, certificate) == 1 &&
               SSL_CTX_use_PrivateKey(context_, key) == 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
  BIO_free(text);
  BIO_free(key_text);
}

TlsClient::~TlsClient() { SSL_CTX_free(context_); }

std::string TlsClient::Hello() const {
  SSL* const tls = SSL_new(context_);
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(tls, BIO_new(BIO_s_mem()), out);
  SSL_connect(tls);  // wants the server's answer
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out, &bytes);
  std::string hello(bytes, static_cast<size_t>(size));
  SSL_free(tls);
  return hello;
}

int Begin(const std::string& address, const std::string& source) {
  const size_t colon = address.rfind(':');
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int one = 1;
  const linger none{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!source.empty()) {
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    const sockaddr_in from = AddressOf(source, 0);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0) {
      close(fd);
      return -1;
    }
  }
  const sockaddr_in to = AddressOf(address.substr(0, colon), std::stoi(address.substr(colon + 1)));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 || errno == EINPROGRESS)
    return fd;
  close(fd);
  return -1;
}

HostileConnection::HostileConnection(const TlsClient& client, const std::string& address,
                                     const std::string& source)
    : fd_(Begin(address, source)) {
  if (fd_ < 0) return;
  tls_ = SSL_new(client.context());
  SSL_set_fd(tls_, fd_);
  const int64_t until_ms = NowMs() + kHandshakeMs;
  pollfd connected{fd_, POLLOUT, 0};
  if (poll(&connected, 1, kHandshakeMs) != 1) return;
  while (true) {
    const int done = SSL_connect(tls_);
    if (done == 1) break;
    if (!Wait(SSL_get_error(tls_, done), until_ms)) return;
  }
  open_ = true;
}

HostileConnection::~HostileConnection() {
  if (tls_ != nullptr) SSL_free(tls_);
  if (fd_ >= 0) close(fd_);
}

bool HostileConnection::Wait(int error, int64_t until_ms) const {
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
  const int64_t left_ms = until_ms - NowMs();
  if (left_ms <= 0) return false;
  pollfd fd{fd_, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
  return poll(&fd, 1, static_cast<int>(left_ms)) == 1;
}

bool HostileConnection::Send(std::string_view bytes, int64_t patience_ms) {
  const int64_t until_ms = NowMs() + patience_ms;
  while (open_ && !bytes.empty()) {
    const int sent = SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()));
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (!Wait(SSL_get_error(tls_, sent), until_ms)) {
      open_ = false;
    }
  }
  return open_;
}

void HostileConnection::Drain(int64_t wait_ms) {
  char bytes[16 << 10];
  const int64_t until_ms = NowMs() + wait_ms;
  while (open_) {
    const int got = SSL_read(tls_, bytes, sizeof bytes);
    if (got > 0) {
      received_ += static_cast<uint64_t>(got);
      continue;
    }
    const int error = SSL_get_error(tls_, got);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) open_ = false;
    if (!Wait(error, until_ms)) return;
  }
}

std::string BigEndian(uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
  return out;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string out = BigEndian(static_cast<uint32_t>(payload.size())).substr(1);
  out += static_cast<char>(type);
  out += static_cast<char>(flags);
  out += BigEndian(stream);
  out += payload;
  return out;
}

std::string Preface(uint32_t window) {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
         Frame(kSettings, 0, 0, std::string("\0\4", 2) + BigEndian(window));
}

std::string Header(std::string_view name, std::string_view value, bool index) {
  std::string out(1, index ? '\x40' : '\0');
  out += Number(0, 7, name.size());
  out += name;
  out += Number(0, 7, value.size());
  out += value;
  return out;
}

std::string CallHeaders(std::string_view path) {
  return std::string("\x83\x87", 2) + Header(":path", path) + Header(":authority", "m") +
         Header("content-type", "application/grpc") + Header("te", "trailers");
}

}  // namespace muster
