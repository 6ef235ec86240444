// What a host should be told, from State alone: level-triggered, so that any message may be lost or
// repeated (contracts 4-9 of docs/contracts.md). Pure. Forget and CheckpointAck are no commands:
// they answer one report each, once its event is durable.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "muster/v1/agent.pb.h"
#include "scheduler/state/state.h"

namespace muster {

namespace pb = ::muster::v1;

// Commands that hold now for the host `cluster/host`, by attempt, oldest job first; only `body` is
// set.
//  Prepare  a placed attempt that this host has not prepared (with start_at_once when Starting is
//  committed with the placement) Start    a gang that is Starting, on a host that is prepared Stop
//  an attempt that is being stopped, and one that was lost here, until this host answers Gone
//  Publish  an export that is committed as this attempt's and not published
// An attempt that is bound to another state_id than the host's current one gets Stop alone, if it
// is being stopped.
std::vector<pb::SchedulerMessage> CommandsFor(const State& state, const std::string& cluster,
                                              const std::string& host);

// Those of them that are about this job, with the host that each is for. With `before`, the job as
// it was, without those of parts for which nothing has changed since: what a change of the job may
// have brought about. What a change of the host did, the host's own say.
struct HostCommand {
  HostId host = kNoHost;
  pb::SchedulerMessage message;
};
std::vector<HostCommand> CommandsOf(const State& state, const JobRow& job,
                                    const JobRow* before = nullptr);

// Attempts that State thinks are on the host, not gone, and that `mentioned` (AttemptText form)
// lacks: to be asked about.
std::vector<pb::SchedulerMessage> QueriesFor(const State& state, const std::string& cluster,
                                             const std::string& host,
                                             const std::set<std::string>& mentioned);

// The attempt's export is committed as the task's and not published yet; once the job has ended,
// nobody asks for it any more.
bool AwaitsExport(const State& state, const pb::AttemptKey& key);

}  // namespace muster
