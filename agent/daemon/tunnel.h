// The host's end of one tunnel: bytes between the scheduler's stream and a command that runs beside
// a worker, or a connection to one of its ports (docs/decisions/140-tunnels.md).
//
// Output is read no faster than the stream takes it, 64 KiB at a time. Input is taken from the
// stream at once, so that its end is always heard; a sender may be 1 MiB ahead of what the command
// has read, and no more.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "agent/shim/tunnel_format.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

inline constexpr int64_t kTunnelWindowBytes = 1 << 20;

class Tunnel {
 public:
  // `write` sends on the stream and waits until it takes that; false: it is over.
  using Write = std::function<bool(const v1::TunnelOutput&)>;

  explicit Tunnel(Write write);
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  // From the stream's reader, on another thread. `over`: nothing more comes, and all is to end.
  void OnInput(v1::TunnelInput input);
  void OnOver();
  // Asks the shim whose attempt has this directory, and carries until either end is over. Says so
  // on the stream, as its last word. Once.
  void Run(const v1::OpenTunnel& open, const std::string& directory);

 private:
  // What came from the stream, and wasn't looked at yet.
  struct Inbox {
    std::deque<v1::TunnelInput> messages;
    bool over = false;
  };

  absl::Status Ask(const v1::OpenTunnel& open, const std::string& directory);
  absl::Status SendRequest(const shim::TunnelRequest& request, const int (&theirs)[3]);
  // False: the tunnel is over.
  bool Turn();
  bool TakeInbox();
  bool Take(v1::TunnelInput* input);
  bool Feed();
  void EndInput();
  bool TellTaken(int64_t bytes);
  // Reads once; false: the stream is over. *more: there may be more now.
  bool ReadFrom(int* fd, bool is_error, bool* more);
  bool TakeReply();
  bool Began(int descriptor);
  bool Drain();
  bool Finish(const shim::TunnelReply& reply);
  bool Say(int32_t exit_code, int32_t signal, const std::string& error);

  const Write write_;
  bool command_ = false, terminal_ = false;
  bool begun_ = false;
  int connection_ = -1;                // to the shim
  int in_ = -1, out_ = -1, err_ = -1;  // of the command or the connection
  std::string pending_;                // input that it has yet to take
  bool end_pending_ = false;           // behind that
  int64_t untold_bytes_ = 0, taken_bytes_ = 0;
  int rung_ = -1;
  std::mutex mutex_;
  Inbox inbox_;              // guarded by mutex_
  int64_t inbox_bytes_ = 0;  // guarded by mutex_: in the inbox and in pending_
  bool too_much_ = false;    // guarded by mutex_
};

}  // namespace muster::agent
