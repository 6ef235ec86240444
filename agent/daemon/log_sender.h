// Answers the scheduler's LogRequests from the files of attempts' logs. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "agent/daemon/ports.h"
#include "agent/host/logs.h"
#include "agent/host/state_dir.h"
#include "agent/reconcile/reconciler.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

class LogSender {
 public:
  // All outlive this object.
  LogSender(const StateDirectory* state, const Reconciler* attempts, Link* link, Sender* sender)
      : state_(state), attempts_(attempts), link_(link), sender_(sender) {}

  void Start(const v1::LogRequest& request);
  void Cancel(uint64_t request) { readers_.erase(request); }
  void CancelAll() { readers_.clear(); }
  // Sends what there is, as far as the stream takes it, if it is time for that; so much at a time.
  void Turn(int64_t now_ns);
  int64_t next_ns() const { return readers_.empty() ? INT64_MAX : next_ns_; }  // of Turn

 private:
  // One LogRequest being answered.
  struct Reader {
    AttemptId id;
    int32_t rank = -1;
    bool follow = false;
    int64_t tail_lines = 0;
    int64_t left_bytes = INT64_MAX;   // that may be sent
    std::map<int32_t, int64_t> from;  // by rank: where to begin
    std::map<int32_t, LogCursor> cursors;
  };

  v1::AgentMessage ChunkOf(uint64_t request) const;
  // False: it has been answered.
  bool Pump(uint64_t request, Reader* reader);
  // True: there is more than the stream, or this turn, takes.
  bool PumpRank(uint64_t request, int32_t rank, LogCursor* cursor, int64_t* left_bytes);

  const StateDirectory* const state_;
  const Reconciler* const attempts_;
  Link* const link_;
  Sender* const sender_;
  std::map<uint64_t, Reader> readers_;  // by request
  uint64_t served_ = 0;                 // whose turn was last
  int64_t turn_bytes_ = 0;              // that may still be read in this turn
  int64_t next_ns_ = 0;
};

}  // namespace muster::agent
