// Tunnels that are open, or wait for their host to join, by name (docs/decisions/140-tunnels.md).
// No gRPC here: their two ends are interfaces. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/v1/tunnel.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// One end of a tunnel, as the other one sees it. Calls return at once and are thread-safe. Whoever
// passes a message passes no other before ReadOn.
template <typename Message>
class TunnelEnd {
 public:
  virtual ~TunnelEnd() = default;
  virtual void Pass(Message message) = 0;  // to whoever is there
  virtual void ReadOn() = 0;               // what was passed to the other end is on its way
  virtual void Close(const absl::Status& status) = 0;
};
using TunnelHostEnd = TunnelEnd<pb::TunnelInput>;

class TunnelUserEnd : public TunnelEnd<pb::TunnelOutput> {
 public:
  virtual void Joined(std::shared_ptr<TunnelHostEnd> host) = 0;
};

class OpenTunnels {
 public:
  static constexpr int kCommandsOfJob = 16, kConnectionsOfJob = 128, kOfHost = 256, kOfAll = 1024;

  struct Place {
    uint64_t job = 0;  // its number
    bool command = false;
    std::string cluster, host;
  };
  // A new name, 32 hex digits, that nobody can guess. RESOURCE_EXHAUSTED: too many at once.
  absl::StatusOr<std::string> Add(const Place& place, std::weak_ptr<TunnelUserEnd> user);
  // Its user's end, once, for this host; with empty names for any. Null: none waits for it.
  std::shared_ptr<TunnelUserEnd> Join(const std::string& name, const std::string& cluster,
                                      const std::string& host);
  void Remove(const std::string& name);
  size_t size() const;

 private:
  struct Open {
    Place place;
    std::weak_ptr<TunnelUserEnd> user;
    bool joined = false;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Open> open_;
};

}  // namespace muster
