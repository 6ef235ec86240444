// One connection of a hostile peer: TLS by OpenSSL, HTTP/2 by frames that are written by hand, as
// no library would send what is to be sent here.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "network/identity.h"

namespace muster {

// A TLS client of one server; with an identity it shows that certificate. Verifies nothing.
class TlsClient {
 public:
  // `identity` may be null.
  explicit TlsClient(const Identity* identity);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  // What a handshake begins with.
  std::string Hello() const;
  SSL_CTX* context() const { return context_; }

 private:
  SSL_CTX* context_;
};

// A TCP connection that is begun, not blocking; -1: it failed at once. Without a linger: its end
// leaves nothing behind. `source`: from this address; empty: any.
int Begin(const std::string& address, const std::string& source);

class HostileConnection {
 public:
  // Connects and shakes hands; open() tells whether that came about.
  HostileConnection(const TlsClient& client, const std::string& address, const std::string& source);
  ~HostileConnection();
  HostileConnection(const HostileConnection&) = delete;
  HostileConnection& operator=(const HostileConnection&) = delete;

  // Sends all of it within the patience; false: the server ended the connection, or takes no more.
  bool Send(std::string_view bytes, int64_t patience_ms = 2000);
  // Takes what has come, for so long at most.
  void Drain(int64_t wait_ms = 0);
  bool open() const { return open_; }
  // Bytes inside TLS that the server sent: an HTTP/2 server begins with its settings.
  uint64_t received() const { return received_; }

 private:
  bool Wait(int error, int64_t until_ms) const;

  int fd_ = -1;
  SSL* tls_ = nullptr;
  bool open_ = false;
  uint64_t received_ = 0;
};

int64_t NowMs();

// ---- HTTP/2 ----

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload);
// The preface with settings; a window of 0 lets the server send no data.
std::string Preface(uint32_t window = 65535);
// The header block of a call of gRPC, nothing of it put into a table.
std::string CallHeaders(std::string_view path);
// A literal header, its name not from a table; `index`: into the table.
std::string Header(std::string_view name, std::string_view value, bool index = false);
std::string BigEndian(uint32_t value);

}  // namespace muster
