// All tunnels of this host: each on a stream and two threads of its own, over a connection that
// the agent's own stream doesn't share. So none of them delays a heartbeat, or another.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "agent/daemon/fetcher.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

class TunnelCarrier {
 public:
  static constexpr size_t kAtOnce = 256;

  explicit TunnelCarrier(Source source);
  // Ends all of them.
  ~TunnelCarrier();

  // Joins the tunnel and carries it to the attempt of this directory, or says there why not.
  // Returns at once. Not thread-safe.
  void Open(const v1::OpenTunnel& open, absl::StatusOr<std::string> directory);

 private:
  struct Carried;

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Channel();
  void Carry(Carried* carried, const v1::OpenTunnel& open,
             const absl::StatusOr<std::string>& directory);

  const Source source_;
  std::mutex mutex_;
  std::weak_ptr<grpc::Channel> channel_;  // guarded by mutex_; as long as a tunnel uses it
  std::list<std::unique_ptr<Carried>> carried_;
};

}  // namespace muster::agent
