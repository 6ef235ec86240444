// Listens on TCP, for hosts and users of other machines: one address with mutual TLS, where no byte
// of a caller without a certificate of this scheduler gets past the handshake, and one with the
// server's certificate alone, where one can only join (JoinService).
//
// Connections are accepted here and counted by address. Of each a second descriptor is kept, which
// ends it when its certificate is revoked or expires: so all its calls and streams end at once.
// gRPC can't change a server's certificates, so that another server is built when the authorities
// change or its own certificate grows old; the one before goes on with the connections that it has.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/status.h"
#include "scheduler/api/context.h"
#include "scheduler/api/door.h"
#include "scheduler/api/watch.h"
#include "scheduler/trust/office.h"

namespace muster {

struct NetworkLimits {
  int connections = 10'000;
  int connections_of_address = 256;
  int handshake_ms = 5'000;
  int idle_ms = 300'000;                  // without a call
  int64_t silent_ns = 30 * kSecond;       // from the connection to its first call
  int64_t sweep_ns = 500 * kMillisecond;  // at revoked and expired certificates
};

class NetworkServer {
 public:
  // Context (with an office), what it points to, and hub must outlive it.
  NetworkServer(const ApiContext* context, WatchHub* hub, NetworkLimits limits = {});
  ~NetworkServer();

  // Binds both addresses (ADDRESS:PORT; port 0: any that is free) and serves. There has to be an
  // authority.
  absl::Status Listen(const std::string& listen, const std::string& join);
  // Ends all calls and connections. Idempotent.
  void Shutdown();

  int port() const { return doors_[0].port; }
  int join_port() const { return doors_[1].port; }
  // Whether a call came with this certificate since the start. Thread-safe.
  bool InUse(const std::string& serial) const;
  size_t connections() const;

 private:
  class CertificateDoor;
  class StrangersDoor;
  struct Generation;
  struct Listener {
    int fd = -1, port = 0;
  };
  struct Connection {
    int fd = -1;
    std::string address;
    std::shared_ptr<Generation> generation;
    int64_t begun_ns = 0;
    // Once a call came: whose it is.
    bool called = false;
    Holder holder;
    std::string serial;
    uint64_t authority = 0;
    int64_t end_s = 0;
  };

  void Run();
  absl::Status Renew();  // another generation
  bool Outdated() const;
  void Accept(bool join);
  void Look();
  // What the door knows of a call's connection; under mutex_.
  void Called(const std::string& peer, const Presented& presented) const;
  absl::StatusOr<Presented> Read(const std::string& pem) const;
  void Forget(const std::string& peer);

  const ApiContext* const context_;
  WatchHub* const hub_;
  const NetworkLimits limits_;
  Listener doors_[2];
  int epoll_ = -1, wake_ = -1;
  std::thread thread_;
  // The thread's; Shutdown's after that has ended.
  std::shared_ptr<Generation> generation_;

  mutable std::mutex mutex_;
  mutable std::map<std::string, Connection>
      connections_;  // by peer, as gRPC writes it; those of strangers with "join " before it
  std::map<std::string, int> by_address_;
  std::map<int, std::string> by_fd_;
  mutable std::set<std::string> in_use_;                     // serials
  mutable std::unordered_map<std::string, Presented> read_;  // by PEM
};

}  // namespace muster
