// Simulated agents in this process, for a live scheduler: each speaks the agents' protocol with the
// real Sessions, and programs are a model of a few latencies that checkpoints, reports progress,
// writes output and stops when told to. (sim's Fleet replays traces on a virtual clock, many times
// faster, and without the protocol.)
//
// Time comes from outside: AdvanceTo(t) lets everything happen up to t. One thread calls all
// functions; a stream's Send may come from any thread and only fills the inbox.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "muster/v1/cluster.pb.h"
#include "scheduler/agents/sessions.h"

namespace muster::sandbox {

struct AgentOptions {
  int64_t prepare_ns = 200'000'000;      // of a host
  int64_t launch_ns = 8'000'000'000;     // from the last worker's start to the first useful step
  int64_t stop_ns = 3'000'000'000;       // from SIGTERM to a checkpoint and exit
  int64_t progress_ns = 20'000'000'000;  // between reports of a gang
};

class Agents {
 public:
  // `sessions` must outlive it.
  Agents(Sessions* sessions, const pb::ClusterFile& clusters, const AgentOptions& options,
         int64_t start_ns);
  ~Agents();

  // Every host says Hello. What they are answered arrives once the engine has stepped.
  void Join();
  // How long the job's task `main` works with so many workers; else that is read off what it runs
  // (sleep N, max_steps).
  void Know(const std::string& job_uid, int64_t duration_ns, int32_t workers);
  // From now on every host sends heartbeats, the first ones spread over the first interval.
  void BeginHeartbeats(int64_t interval_ns);

  // Everything due up to `now_ns`; first what was sent to the hosts since the last call.
  void AdvanceTo(int64_t now_ns);
  // Unix time of the next thing that AdvanceTo would do by itself; INT64_MAX if there is none.
  int64_t NextNs() const {
    return timers_.empty() ? std::numeric_limits<int64_t>::max() : timers_.begin()->first;
  }
  // Waits until something was sent to a host, at most so long.
  void WaitForMail(int64_t timeout_ns);
  // Ends WaitForMail for good. Thread-safe.
  void Wake();

 private:
  class Stream;
  struct Host {
    std::string cluster, name;
    pb::Inventory inventory;
    std::shared_ptr<Stream> stream;
    pb::SessionKey session;  // as the newest message gave it
    uint64_t heartbeats = 0;
  };
  // One host's part of an attempt.
  struct Part {
    pb::AttemptPhase phase = pb::ATTEMPT_PHASE_UNSPECIFIED;
    bool busy = false;  // preparing
    bool stop_sent = false;
    int32_t first_rank = 0, ranks = 0;
    pb::AttemptReport gone;  // what is repeated once it is gone
  };
  // An attempt over all its hosts. Work is in worker-nanoseconds.
  struct Gang {
    pb::AttemptKey key;
    std::map<size_t, Part> parts;  // by host
    size_t first_host = 0;         // of rank 0: speaks for the gang
    int32_t workers = 1, gpus = 1;
    int64_t work = 0, done_at_start = 0, work_since_ns = 0;
    int64_t checkpoint_ns = 0;  // between checkpoints
    int32_t ranks = 1, ranks_started = 0;
    bool working = false;
    bool over = false;  // finished, stopped or killed
    bool last = false;  // finished or cancelled: no other attempt of its task comes
    uint64_t checkpoints = 0;
    std::deque<std::string> lines;         // its output, the newest
    std::map<uint64_t, size_t> followers;  // log requests that go on, and their hosts
  };
  struct Mail {
    size_t host;
    pb::SchedulerMessage message;
  };

  void Deliver(const Mail& mail);
  void OnPrepare(size_t host, const pb::Prepare& prepare);
  void OnStart(size_t host, const pb::AttemptKey& key);
  void OnStop(size_t host, const pb::Stop& stop);
  void OnQuery(size_t host, const pb::AttemptKey& key);
  void OnForget(size_t host, const pb::AttemptKey& key);
  void OnLogs(size_t host, const pb::LogRequest& request);
  void Launch(size_t host, Gang* gang);
  void BeginWork(Gang* gang);
  int64_t DoneNow(const Gang& gang) const;
  void Checkpoint(Gang* gang);
  void TellProgress(Gang* gang);
  void End(size_t host, Gang* gang, int signal);
  void Report(size_t host, const Gang& gang, pb::AttemptPhase phase);
  void Say(Gang* gang, const std::string& line);
  void EndFollowers(Gang* gang);
  void Beat(size_t host, int64_t interval_ns);
  void FlushProgress();
  void Send(size_t host, pb::AgentMessage message);
  Gang* Find(const pb::AttemptKey& key);
  void After(int64_t delay_ns, std::function<void()> what) {
    timers_.emplace(now_ns_ + delay_ns, std::move(what));
  }
  // The same, while the attempt goes on.
  void After(int64_t delay_ns, const Gang& gang, void (Agents::*what)(Gang*));

  Sessions* const sessions_;
  const AgentOptions options_;
  int64_t now_ns_;
  std::multimap<int64_t, std::function<void()>>
      timers_;  // equal times in the order in which they were made
  std::vector<Host> hosts_;
  std::map<std::string, int64_t> work_;                          // by uid/task: all of it
  std::map<std::string, Gang> gangs_;                            // by uid/task/attempt
  std::map<std::string, int64_t> done_at_;                       // by a checkpoint's path
  std::vector<std::pair<size_t, pb::ProgressReport>> progress_;  // told together, every few seconds

  std::mutex mutex_;
  std::condition_variable mailed_;
  std::vector<Mail> inbox_;
  bool awake_ = false;
};

}  // namespace muster::sandbox
