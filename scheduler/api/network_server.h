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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/api/allowance.h"
#include "scheduler/api/context.h"
#include "scheduler/api/door.h"
#include "scheduler/api/network_counts.h"
#include "scheduler/api/watch.h"
#include "scheduler/trust/office.h"

namespace muster {

struct NetworkLimits {
  int connections = 10'000;
  int connections_of_address = 256;
  int connections_of_holder = 64;
  int silent = 512;             // without a call yet, or at the join door
  int silent_of_address = 128;  // of whom a few have room when others fill it
  int calls_of_connection = 256;
  int64_t receive_buffer = 32 << 10;  // bytes that wait for being read, about half of them
  AllowanceLimits allowance;
  int handshake_ms = 5'000;
  int idle_ms = 300'000;                  // without a call
  int64_t silent_ns = 30 * kSecond;       // from the connection to its first call
  int64_t stranger_ns = 30 * kMinute;     // at the join door, where people log in by a browser
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
  NetworkCounts Counts() const;  // thread-safe

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
    // Bytes that calls and messages explain, and those that nothing does and that were counted.
    int64_t explained = 0, unexplained = 0;
    int64_t counted_ns = 0, quiet = 0;  // when; thousandths of bytes that its age explains
    bool called = false;                // a call came
    bool silent = false;                // is among its address's silent ones
    bool ended = false;                 // by us
    // Once a call came to the certificates' door: whose it is.
    bool certified = false;
    Holder holder;
    Certificate certificate;
    uint64_t authority = 0;
  };

  void Run();
  absl::Status Renew();  // another generation
  bool Outdated() const;
  void Accept(bool join);
  void Look();
  // Of a connection that sent something; under mutex_.
  void Count(const std::string& peer, Connection* connection, int64_t now_ns);
  void Explain(const std::string& peer, int64_t base, size_t bytes) const;
  // Whether another connection that says nothing yet may come from there; may end one for it.
  bool RoomForSilent(const std::string& address);
  void NoLongerSilent(const std::string& peer, Connection* connection) const;
  // gRPC closes its own descriptor of it, then epoll tells us. Counted, and told to the audit,
  // once.
  void End(const std::string& peer, Connection* connection, uint64_t NetworkCounts::*count,
           absl::StatusCode outcome, const std::string& why) const;
  // To the audit, of a connection of this user or address (UserAt).
  void Tell(const std::string& peer, const std::string& user, absl::StatusCode outcome,
            const std::string& why) const;
  // Something came over the connection with this descriptor, or it has ended.
  void On(int fd, uint32_t events);
  void AskAgain();
  // What the doors know of a call's connection. A stranger's stays among the silent ones, whose
  // number is bounded for all: else strangers could take every place.
  void Called(const std::string& peer, const Presented& presented) const;
  void StrangerCalled(const std::string& peer) const;
  // Whether its peer only looked whose certificate is shown at the join door, as all who join do
  // before they send anything.
  bool OnlyLooked(const std::string& peer, const Connection& connection) const;
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
  struct Address {
    int connections = 0;
    std::set<std::pair<int64_t, std::string>> silent;  // since when, peer: the oldest first
  };
  mutable std::map<std::string, Address> by_address_;
  mutable size_t silent_ = 0;
  mutable NetworkCounts counts_;
  mutable std::map<std::string, int> by_holder_;
  Allowance allowance_;
  std::vector<int> sent_;  // descriptors that are asked about again: they sent something
  bool ask_soon_ = false;
  std::map<int, std::string> by_fd_;
  mutable std::set<std::string> in_use_;                     // serials
  mutable std::unordered_map<std::string, Presented> read_;  // by PEM
};

}  // namespace muster
