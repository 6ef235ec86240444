// What agents, shims and programs of simulated hosts do, as a model of a few latencies: the one
// that replays, the sandbox and measurements of the live system share (docs/decisions/096). It
// takes the scheduler's messages and says what agents say.
//
// Nothing is lost on the way, so a repeated command changes nothing and is answered by nothing.
// Deterministic; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "muster/v1/agent.pb.h"
#include "muster/v1/cluster.pb.h"
#include "sim/heap.h"

namespace muster::sim {

namespace pb = ::muster::v1;

struct SimulatedHost {
  std::string cluster, name;
  pb::Inventory inventory;
};

// The listed hosts, with devices UUIDS0, UUIDS1, …; INVALID_ARGUMENT where one's SKU is unknown.
absl::StatusOr<std::vector<SimulatedHost>> HostsOf(const pb::ClusterFile& clusters,
                                                   const std::string& uuids);

// What an attempt has to do.
struct Work {
  int64_t total_ns = 0;       // all of its task, also what earlier attempts did: time x workers
  int64_t checkpoint_ns = 0;  // between checkpoints; 0: only when it is stopped
  std::string directory;      // its checkpoints' paths begin so; empty: it writes none
};

struct HostOptions {
  int64_t latency_ns = 0;  // of commands and reports, one way
  int64_t prepare_ns = 0;  // prepare of a host
  int64_t launch_ns = 0;   // from the last worker's start to the first useful step
  int64_t stop_ns = 0;     // from SIGTERM to a checkpoint and exit
  // A gang tells its progress when its work begins, then at the multiples of this: what all gangs
  // tell fits one step of the engine. kNever: once only; 0: it tells none.
  int64_t progress_ns = 0;
};

class Hosts {
 public:
  using WorkOf = std::function<Work(const pb::Prepare& prepare)>;  // asked once an attempt
  using Say = std::function<void(int32_t host, pb::AgentMessage message)>;

  // `heap` must outlive it. `say` must not call Send.
  Hosts(const HostOptions& options, Heap* heap, WorkOf work_of, Say say)
      : options_(options), heap_(heap), work_of_(std::move(work_of)), say_(std::move(say)) {}

  // A command leaves for a host. Hosts are told apart by number only.
  void Send(int32_t host, const pb::SchedulerMessage& message);

 private:
  // One host's part of an attempt.
  struct Part {
    int32_t host = 0;
    pb::AttemptPhase phase = pb::ATTEMPT_PHASE_UNSPECIFIED;
    int32_t first_rank = 0, ranks = 0;
    bool start_at_once = false;
    bool stop_sent = false, killed = false;
    int64_t start_ns = -1, end_ns = -1;  // of its processes
  };
  // An attempt on all its hosts.
  struct Gang {
    uint64_t id = 0;
    pb::AttemptKey key;
    std::vector<Part> parts;
    int32_t first_host = 0;  // of rank 0: speaks for the gang
    int32_t workers = 1;
    int32_t ranks = 0, ranks_started = 0;  // 0: it was never prepared anywhere
    Work work;
    int64_t done_at_start_ns = 0, work_since_ns = -1;  // -1: it doesn't work yet
    uint64_t checkpoints = 0;
    bool over = false;  // finished, stopped or killed
  };

  // Both, made where they are not there yet.
  std::pair<Gang*, Part*> Make(const pb::AttemptKey& key, int32_t host);
  // nullptr where it isn't known.
  Gang* Find(const pb::AttemptKey& key);
  static Part* Find(Gang* gang, int32_t host);
  void OnPrepare(int32_t host, const pb::Prepare& prepare);
  void OnForget(int32_t host, const pb::AttemptKey& key);

  void Prepared(Gang* gang, Part* part);
  void Start(Gang* gang, Part* part);
  void Launch(Gang* gang, Part* part);
  void Terminate(Gang* gang, Part* part);
  void Kill(Gang* gang, Part* part);
  // False: it was stopped before, or did not run and is gone.
  bool Stop(Gang* gang, Part* part);
  void End(Gang* gang, Part* part);
  void Begin(Gang* gang);
  void Finish(Gang* gang);
  void CheckpointInTime(Gang* gang);
  void Checkpoint(Gang* gang);
  void TellProgress(Gang* gang);
  int64_t DoneNs(const Gang& gang) const;
  void Report(const Gang& gang, const Part& part);
  // While the attempt goes on.
  void After(int64_t delay_ns, const Gang& gang, void (Hosts::*what)(Gang*));
  // Unless the part is gone by then.
  void After(int64_t delay_ns, const Gang& gang, int32_t host, void (Hosts::*what)(Gang*, Part*));

  const HostOptions options_;
  Heap* const heap_;
  const WorkOf work_of_;
  const Say say_;
  uint64_t last_id_ = 0;
  absl::flat_hash_map<std::string, uint64_t>
      ids_;  // by uid/task/attempt, until all hosts forget it
  std::unordered_map<uint64_t, Gang> gangs_;
};

}  // namespace muster::sim
