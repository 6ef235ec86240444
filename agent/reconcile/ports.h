// Every effect of the agent's logic. muster-agent has the real ones (agent/host), the simulator its
// own. Called from the one thread that owns the Reconciler. Nothing here may call back into it.
//
// What needs a job's storage may answer UNAVAILABLE, which says that it is under way. The command
// then counts as not yet received, and whoever drives the Reconciler gives it once more when the
// work is done.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/reconcile/record.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

// The state directory. Each call is durable when it returns OK, unless it says otherwise; after an
// error the old or the new content is there.
class Files {
 public:
  virtual ~Files() = default;
  // Spec, devices, port and boot id, the marker last (contract 5). Not `durable`: power loss may
  // leave the old content, the new or a damaged one, which counts as no marker.
  virtual absl::Status PersistPrepared(const AttemptRecord& record, bool durable) = 0;
  // Contract 3: tries to write the claim "stopped" (making the attempt's directory if it is
  // unknown); says who has it.
  virtual absl::StatusOr<Claim> ClaimStopped(const AttemptRecord& record) = 0;
  // The cause of a stop, before its SIGTERM (contract 13).
  virtual absl::Status PersistStop(const AttemptRecord& record) = 0;
  // Puts the fence off to record.renewed_ns, for the shim. Need not be durable: it is of this boot
  // only.
  virtual absl::Status Renew(const AttemptRecord& record) = 0;
  // What Hello needs of an attempt that ended without exit records, acknowledged checkpoints,
  // publishing.
  virtual absl::Status PersistOutcome(const AttemptRecord& record) = 0;
  // record.gpus, for after a restart. Need not be durable: it is lost with the power.
  virtual absl::Status KeepGpus(const AttemptRecord& record) = 0;
  // Not `synced`: it outlives this process at once, and a loss of power as soon as an attempt is
  // claimed, prepared durably or forgotten here.
  virtual absl::Status PersistSeen(const Seen& seen, bool synced) = 0;
  // Removes all but the logs.
  virtual absl::Status Forget(const AttemptId& id) = 0;
  // Renames an export to its target; done before counts as done. UNAVAILABLE: it is under way. What
  // lay there and is no export of before is kept.
  virtual absl::Status Publish(const AttemptRecord& record, const std::string& staged,
                               const std::string& target) = 0;
};

// Processes and what they need of the host.
class Processes {
 public:
  virtual ~Processes() = default;
  // Directories and, on the host of rank 0, a rendezvous port (0 if none is wanted). An error is a
  // failed launch; INVALID_ARGUMENT: the job asks for what isn't there (its workdir), so that a
  // restart spends its budget. ABORTED: what the scheduler has for it didn't come, for which no
  // host is to blame. UNAVAILABLE: it is under way.
  virtual absl::StatusOr<int32_t> Prepare(const v1::Prepare& prepare) = 0;
  // Starts the shim for a prepared attempt. The claim decides whether anything runs; what happens
  // comes as ShimNews. Errors as of Prepare.
  virtual absl::Status SpawnShim(const AttemptRecord& record) = 0;
  // Tells a live shim to read the stop order again.
  virtual void SignalShim(const AttemptId& id) = 0;
  // Whether a shim holds the attempt.
  virtual bool ShimLives(const AttemptId& id) = 0;
};

class Sender {
 public:
  virtual ~Sender() = default;
  // To the scheduler, if there is a session; else it is lost, and the next Hello says it again.
  virtual void Send(v1::AgentMessage message) = 0;
};

}  // namespace muster::agent
