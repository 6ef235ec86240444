#include "network/peek.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "network/identity.h"

namespace muster {
namespace {

constexpr unsigned char kHttp2[] = {2, 'h', '2'};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeTls {
  void operator()(SSL* tls) const { SSL_free(tls); }
};
struct FreeBio {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
};

// OpenSSL writes to a socket that its server may have closed: no signal comes of that meanwhile.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

// Connected within the time, or -1 with errno.
int ConnectOne(const addrinfo& at, int64_t timeout_ns) {
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int error = connect(fd, at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{fd, POLLOUT, 0};
    socklen_t size = sizeof error;
    if (poll(&ready, 1, static_cast<int>(timeout_ns / kMillisecond)) <= 0) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  if (error == 0 && fcntl(fd, F_SETFL, 0) == 0) return fd;  // it may block from here on
  close(fd);
  errno = error;
  return -1;
}

std::string ToPem(STACK_OF(X509) * chain) {
  const std::unique_ptr<BIO, FreeBio> bio(BIO_new(BIO_s_mem()));
  for (int i = 0; i < sk_X509_num(chain); ++i)
    PEM_write_bio_X509(bio.get(), sk_X509_value(chain, i));
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

}  // namespace

int ConnectTo(const std::string& address, int64_t timeout_ns, std::string* why) {
  *why = WhyNoAddress(address);
  if (!why->empty()) return -1;
  const size_t colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(address.substr(0, colon).c_str(),
                                    address.substr(colon + 1).c_str(), &hints, &found);
      error != 0) {
    *why = absl::StrCat(address, ": ", gai_strerror(error));
    return -1;
  }
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (const int fd = ConnectOne(*at, timeout_ns); fd >= 0) return fd;
    *why = absl::StrCat(address, ": ", strerror(errno));
  }
  return -1;
}

absl::StatusOr<std::string> PeekChain(const std::string& address, int64_t timeout_ns) {
  std::string why;
  const int fd = ConnectTo(address, timeout_ns, &why);
  if (fd < 0) return absl::UnavailableError(why);
  // The handshake blocks, each read and write of it for so long at most.
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(timeout_ns / kSecond);
  limit.tv_usec = static_cast<suseconds_t>(timeout_ns % kSecond / 1000);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  std::string pem;
  {
    const NoBrokenPipe no_signal;
    const std::unique_ptr<SSL_CTX, FreeContext> context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
    SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
    const std::unique_ptr<SSL, FreeTls> tls(SSL_new(context.get()));
    SSL_set_alpn_protos(tls.get(), kHttp2, sizeof kHttp2);
    SSL_set_fd(tls.get(), fd);
    if (SSL_connect(tls.get()) == 1) {
      if (STACK_OF(X509)* chain = SSL_get_peer_cert_chain(tls.get()); chain != nullptr)
        pem = ToPem(chain);
    }
    ERR_clear_error();
  }
  close(fd);
  if (pem.empty())
    return absl::UnavailableError(absl::StrCat(address, ": nobody speaks TLS 1.3 there"));
  return pem;
}

}  // namespace muster
