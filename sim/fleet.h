// Simulated hosts and the gangs that run on them: what agents, shims and programs do, as a model of a few latencies.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "muster/v1/agent.pb.h"
#include "muster/v1/record.pb.h"
#include "sim/trace.h"
#include "sim/world.h"

namespace muster::sim {

// The heap of things that will happen, in order of time, ties in order of scheduling.
class Timeline {
 public:
  int64_t now_ns() const { return now_ns_; }
  void At(int64_t when_ns, std::function<void()> what);
  int64_t NextNs() const;                     // INT64_MAX when empty
  void AdvanceTo(int64_t when_ns);            // sets the clock; runs nothing
  void RunDue();                              // everything due now, in order

 private:
  struct Entry {
    std::function<void()> what;
  };
  int64_t now_ns_ = 0;
  uint64_t sequence_ = 0;
  std::map<std::pair<int64_t, uint64_t>, Entry> entries_;
};

class Fleet {
 public:
  using Post = std::function<void(pb::Event)>;
  // `job_of` finds the trace job of a job's uid.
  Fleet(const WorldOptions& options, Timeline* timeline, Post post, std::function<const TraceJob*(const std::string&)> job_of);

  // A command reaches a host. Commands may be repeated; a repeated one changes nothing.
  void Deliver(const std::string& cluster, const std::string& host, const pb::SchedulerMessage& message);

 private:
  // One host's part of an attempt.
  struct Part {
    pb::AttemptPhase phase = pb::ATTEMPT_PHASE_UNSPECIFIED;
    bool busy = false;                        // preparing or launching
    bool stop_sent = false;
    int32_t first_rank = 0;
    int32_t ranks = 0;
    pb::AttemptReport gone;                   // what is repeated once it is gone
  };
  // An attempt over all its hosts. Work is in worker-nanoseconds.
  struct Gang {
    pb::AttemptKey key;
    const TraceJob* job = nullptr;
    int32_t workers = 0;
    int32_t processes = 0;
    std::map<std::string, Part> parts;        // by cluster/host
    int32_t workers_started = 0;
    bool working = false;
    bool over = false;                        // finished, stopped or killed
    int64_t work_since_ns = 0;
    int64_t done_at_start = 0;
    int64_t checkpointed = 0;
    uint64_t generation = 0;                  // of timers: older ones do nothing
  };

  static std::string GangId(const pb::AttemptKey& key);
  void OnPrepare(const std::string& host, const pb::Prepare& prepare);
  void OnStart(const std::string& host, const pb::AttemptKey& key);
  void OnStop(const std::string& host, const pb::Stop& stop);
  void Launch(const std::string& host, Gang* gang);
  void BeginWork(Gang* gang);
  int64_t DoneNow(const Gang& gang) const;
  void Checkpoint(Gang* gang, int64_t done);
  void ScheduleCheckpoint(Gang* gang);
  void ScheduleProgress(Gang* gang);
  void Finish(Gang* gang);
  void End(Gang* gang, const std::string& host, int signal);
  void Report(const std::string& host, const pb::AttemptReport& report);
  void After(int64_t delay_ns, Gang* gang, void (Fleet::*what)(Gang*));

  const WorldOptions options_;
  Timeline* const timeline_;
  const Post post_;
  const std::function<const TraceJob*(const std::string&)> job_of_;
  std::map<std::string, Gang> gangs_;
  std::map<std::string, int64_t> work_at_checkpoint_;  // by checkpoint path
};

}  // namespace muster::sim
