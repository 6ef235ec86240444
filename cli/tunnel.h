// The user's end of a tunnel (docs/exec.md): standard input and output of a command, or of one
// local connection, on a call's stream.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "muster/v1/tunnel.pb.h"

namespace muster {

namespace pb = ::muster::v1;

// The stream of one call. One thread may write while another reads.
class TunnelCall {
 public:
  virtual ~TunnelCall() = default;
  virtual bool Write(const pb::TunnelInput& input) = 0;  // false: it is over
  virtual bool Read(pb::TunnelOutput* output) = 0;
  virtual void Cancel() = 0;          // thread-safe
  virtual absl::Status Finish() = 0;  // after the last Read
};

// How far a sender may be ahead of what the other end has taken. Thread-safe.
class TunnelWindow {
 public:
  static constexpr int64_t kBytes = 1 << 20;

  // Waits for room; false: Close was called.
  bool Take(int64_t bytes);
  void Taken(int64_t in_all);
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t sent_bytes_ = 0, taken_bytes_ = 0;
  bool closed_ = false;
};

struct TunnelEnds {
  int in = -1, out = -1, err = -1;
  bool terminal = false;  // `in` is one: its size is passed on
  // So many signals that the window changed have come, as a descriptor that is readable then; -1:
  // nobody says.
  int resized = -1;
  bool is_connection = false;  // in == out: half-closes are passed on
};

struct TunnelOutcome {
  bool begun = false, ended = false;
  pb::TunnelEnd end;
  absl::Status status;  // of the call, where there was no end
};

// Why a call ended without the other end's last word.
struct CutOff {
  std::string why;
  // Musterd, the host's agent or the network failed it: the same may be begun again.
  bool may_begin_again = false;
};
CutOff WhyCutOff(const absl::Status& status);

// Sends `start` and carries until the call is over. `on_begun` is called once, when what it leads
// to is there.
TunnelOutcome CarryTunnel(TunnelCall* call, const pb::TunnelInput& start, const TunnelEnds& ends,
                          const std::function<void()>& on_begun);

pb::TerminalSize SizeOf(int terminal);

}  // namespace muster
