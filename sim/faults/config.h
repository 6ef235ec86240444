// What a run of the fault simulator is made of: a configuration, and the faults that a seed draws
// for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/units.h"

namespace muster::sim::faults {

// A file of lines `name: value`; what is left out has these values.
struct Config {
  int32_t hosts = 100;  // in two clusters, three to two
  int32_t gpus = 4;     // a host
  int32_t jobs = 200;
  int32_t faults = 120;
  int32_t sqlite = 8;       // each seed that this divides has the real store; 0: none
  int32_t long_leases = 3;  // each seed that this divides has leases three times as long; 0: none
  int32_t arrays = 14;      // of each seed that this divides some jobs are arrays; 0: none
  int32_t successors = 13;  // of each seed that this divides some jobs come after others; 0: none
  int32_t timed = 10;       // of each seed that this divides some jobs wait for a time; 0: none
  int32_t hosted = 9;  // of each seed that this divides some jobs run on others' devices; 0: none
  int32_t together = 11;  // of each seed that this divides some jobs' tasks start together; 0: none
  int32_t multiples = 22;    // of each seed that this divides some gangs grow by steps; 0: none
  int32_t schedules = 29;    // of each seed that this divides some jobs have a schedule; 0: none
  int32_t final_exits = 26;  // of each seed that this divides some programs end for good; 0: none
  int32_t only_user = 27;    // of each seed that this divides a cluster is one user's; 0: none
  int64_t duration_ns =
      20 * kMinute;  // faults and submissions; then they stop, and everything has to end
  int64_t patience_ns = 60 * kMinute;  // for that
  int64_t lease_ns = 12 * kSecond;
  int64_t heartbeat_ns = 3 * kSecond;
  int64_t work_ns = 2 * kMinute;          // of a job, at most
  int64_t latency_ns = 4 * kMillisecond;  // of a message, at most
};
// As it is for a seed.
Config ForSeed(Config config, uint64_t seed);
absl::StatusOr<Config> ParseConfig(const std::string& text);
std::string ConfigText(const Config& config);

enum class FaultKind {
  kCut,                // no message to or from the host gets through, for a time
  kCutUp,              // none from the host
  kCutDown,            // none to the host
  kReset,              // its stream breaks
  kLossy,              // some messages are lost, some come twice
  kSlow,               // messages take up to `value`
  kMassCut,            // most of a cluster at once
  kCrashBeforeCommit,  // the scheduler dies before its `value`th next commit
  kCrashAfterCommit,   // or right after it, before anybody hears of it
  kCommitFails,        // an error from the commit, which did not happen
  kCommitFailsDone,    // an error from the commit, which did happen
  kStoreFull,          // every commit fails for a time
  kPauseScheduler,
  kTakeover,        // a second scheduler opens the store while the first still runs
  kSchedulerClock,  // its wall clock jumps by `value`
  kCrashAgent,      // the agent dies at its `value`th next use of its files
  kDiskFull,        // of a host
  kKillShim,        // `value` 1: the next one that claims its attempt, before it starts it
  kReboot,
  kRebootMany,   // a rack
  kLoseState,    // reboot with an empty state directory
  kHostClock,    // a host's wall clock jumps by `value`
  kLaunchFails,  // prepares and spawns on a host fail for a time
  kLateShims,    // shims of a host need up to `value` from their spawn to their claim
  kDrain,
  kRestore,     // the store is as it was `duration` ago: a backup, adopted; `value` 1: as a gang's
                // hosts prepared it, when they are told to start
  kPowerOff,    // as reboot, and somebody says that the host is off
  kAgentAway,   // the agent dies, and nobody starts it again for a time
  kOldStreams,  // what the scheduler sends on the host's streams takes up to `value`, while the
                // agent opens new ones, and again
  kPauseAgent,  // SIGSTOP, for a time
  kPauseShims,  // of a host; one with a fence once, and for a second at most
  kEditQueues,  // other guarantees, limits and weights, drawn from `value`
  kRebootAtMarker,  // as reboot, when the host's next marker is written and not synced yet
  kSleep,           // of a machine: nothing runs on it for a time
  kClone,  // a copy of the store is adopted, and the scheduler of the original goes on with it, and
           // with some hosts, for a time
  kStagger,  // `value` of a hundred hosts of a cluster fall silent, one after the other, within a
             // lease
  kHoldAck,  // the acknowledgement of the host's next heartbeat that renews something is on its way
             // for `value`, and meanwhile the host isn't heard any more
  kDeviceFault,     // a host's driver tells of a device
  kLoseStateAlone,  // a host's agent dies, and its state directory is empty when it comes back;
                    // what ran there goes on meanwhile
  kStorageHangs,    // the shared storage answers nobody for a time
  kLast = kStorageHangs,
};

struct Fault {
  int64_t at_ns = 0;  // since the beginning
  FaultKind kind = FaultKind::kCut;
  int32_t host = 0;
  int64_t duration_ns = 0;
  int64_t value = 0;
};
std::string FaultText(const Fault& fault);

// In order of time. Each seed uses some of the kinds only, half of the seeds few (swarm testing:
// Groce et al., ISSTA 2012, §2), and a quarter of the faults meet the one before on its host,
// within a lease: so rare meetings of two of them become frequent.
std::vector<Fault> DrawFaults(const Config& config, uint64_t seed);

}  // namespace muster::sim::faults
