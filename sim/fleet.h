// Simulated hosts and the gangs that run on them: what agents, shims and programs do, as a model of
// a few latencies.
//
// Nothing is lost on this network, so a repeated command changes nothing and is answered by
// nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "muster/v1/agent.pb.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/record.pb.h"
#include "sim/timeline.h"
#include "sim/trace.h"

namespace muster::sim {

namespace pb = ::muster::v1;

struct FleetOptions {
  int64_t latency_ns = 5'000'000;      // of every message, one way
  int64_t prepare_ns = 200'000'000;    // prepare of a host
  int64_t launch_ns = 20'000'000'000;  // from Start to the first useful step: what a restart costs
  int64_t stop_ns = 5'000'000'000;     // from SIGTERM to a checkpoint and exit
  bool tells_end =
      true;  // progress is reported: the first report of an attempt tells its expected end
};

// Uid of the job at this index of the trace, and back; -1 for a uid that TraceUid didn't make.
std::string TraceUid(size_t index);
int32_t TraceIndex(std::string_view uid);

class Fleet {
 public:
  // An event for the engine. `urgent` says that a decision may depend on it: not a start, progress
  // or a checkpoint.
  using Post = std::function<void(pb::Event event, bool urgent)>;

  // Hosts are the listed ones of `clusters`. `trace` and `timeline` must outlive the fleet.
  Fleet(const FleetOptions& options, const pb::ClusterFile& clusters, const Trace* trace,
        Timeline* timeline, Post post);

  // A command leaves for a host.
  void Send(const std::string& cluster, const std::string& host,
            const pb::SchedulerMessage& message);
  // An item of the timeline that Send, or the fleet itself, put there.
  void Run(const Item& item);

 private:
  struct Host {
    std::string cluster, name, state_id;
  };
  // One host's part of an attempt.
  struct Part {
    int32_t host = -1;
    pb::AttemptPhase phase = pb::ATTEMPT_PHASE_UNSPECIFIED;
    bool stop_sent = false;
    int32_t first_rank = 0;
    int32_t ranks = 0;
    int32_t signal = 0;    // that ended it
    bool started = false;  // its processes ran
  };
  // The newest attempt of a job. Work is in worker-nanoseconds.
  struct Gang {
    int32_t attempt = 0;
    int32_t workers = 0;
    int32_t processes = 1;  // a worker
    std::vector<Part> parts;
    int32_t workers_started = 0;
    bool working = false;
    bool over = false;  // finished, stopped or killed
    int64_t work_since_ns = 0;
    int64_t done_at_start = 0;
  };

  Gang* GangOf(const Item& item);  // nullptr: an older attempt's
  Part* PartOf(Gang* gang, int32_t host);
  void OnPrepare(const Item& item);
  void OnPrepared(const Item& item);
  void OnStop(const Item& item);
  void Launch(const Item& item, Gang* gang, Part* part);
  void Finish(const Item& item, Gang* gang);
  void End(const Item& item, Part* part, int32_t signal);
  void Report(const Item& item, pb::AttemptPhase phase);
  void PostReport(const Item& item);
  void PostCheckpoint(const Item& item);
  void PostProgress(const Item& item);
  void After(int64_t delay_ns, Item::Kind kind, Item item) {
    item.kind = kind;
    timeline_->Add(timeline_->now_ns() + delay_ns, item);
  }
  int64_t WorkOf(int32_t job) const {
    return trace_.jobs[job].duration_ns * trace_.jobs[job].workers;
  }
  int64_t DoneNow(int32_t job, const Gang& gang) const;
  void SetKey(const Item& item, pb::AttemptKey* key) const;

  const FleetOptions options_;
  const Trace& trace_;
  Timeline* const timeline_;
  const Post post_;
  std::vector<Host> hosts_;
  std::map<std::string, int32_t, std::less<>> host_of_;  // by cluster/host
  std::vector<Gang> gangs_;                              // by index in the trace
};

}  // namespace muster::sim
