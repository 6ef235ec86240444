// What the agent's loop (loop.h) acts through, beside the Reconciler's own ports. muster-agent has
// gRPC and the kernel behind it (daemon.cc), the simulator of faults a model of both. Called from
// the loop's one thread; nothing here calls back into the loop.
#pragma once

#include <cstddef>
#include <cstdint>

#include "agent/reconcile/record.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

class AgentClock {
 public:
  virtual ~AgentClock() = default;
  virtual int64_t WallNs() = 0;  // Unix time
  virtual int64_t BootNs() = 0;  // CLOCK_BOOTTIME
};

// The stream to the scheduler. It comes back by itself; each new one is told by Loop::OnOpened.
class Link {
 public:
  virtual ~Link() = default;
  // Dropped where the stream of this generation is over.
  virtual void Send(uint64_t generation, v1::AgentMessage message) = 0;
  // Ends the present stream; a new one follows. Loop::OnClosed brings `why` back.
  virtual void Restart(const std::string& why) = 0;
  virtual size_t queued_bytes() = 0;  // given to Send and not sent yet
};

// The shims of this host, as the kernel knows them.
class Shims {
 public:
  virtual ~Shims() = default;
  // From now on Loop::OnFiles and OnShimEnded tell of this attempt; where the kernel can't, the
  // loop's sweeps are enough. Again and again is once.
  virtual void Watch(const AttemptId& id) = 0;
  virtual void Unwatch(const AttemptId& id) = 0;
  // Whether a shim holds the attempt; asked before its files are read, so that what a shim that is
  // gone wrote is all there. Whoever is found is watched for its end.
  virtual bool Lives(const AttemptId& id) = 0;
  // Kills what a dead shim may have left behind; true if there still was something, so look again.
  // `ended`: it said that nothing is left.
  virtual bool KillStrays(const AttemptId& id, bool ended) = 0;
  // Its last word has been taken in.
  virtual void Ended(const AttemptId& id) = 0;
  // Of an attempt that is gone.
  virtual void RemoveCgroup(const AttemptId& id) = 0;
  virtual void ReleasePort(const AttemptId& id) = 0;
};

}  // namespace muster::agent
