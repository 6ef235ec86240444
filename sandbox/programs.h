// What the sandbox's hosts seem to run: programs that work for as long as they say, with figures
// and output that are made up. The agents' thread calls all functions.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "sim/agents/agents.h"

namespace muster::sandbox {

namespace pb = ::muster::v1;

inline constexpr sim::HostOptions kHosts = {.prepare_ns = 200'000'000,
                                            .launch_ns = 8'000'000'000,
                                            .stop_ns = 3'000'000'000,
                                            .progress_ns = 20'000'000'000};

class Programs : public sim::Programs {
 public:
  // Before the first job. `agents` must outlive it.
  void Attach(sim::Agents* agents) { agents_ = agents; }
  // How long the job's task `main` works with so many workers; else that is read off what it runs
  // (sleep N, max_steps).
  void Know(const std::string& job_uid, int64_t duration_ns, int32_t workers);

  sim::Work WorkOf(const pb::Prepare& prepare) override;
  void Told(int32_t host, const pb::SchedulerMessage& message) override;
  void Saying(int32_t host, pb::AgentMessage* message) override;

 private:
  // Of an attempt, on the host of its rank 0.
  struct Output {
    int32_t host = 0;
    int64_t gpus = 1;
    std::deque<std::string> lines;  // the newest
    std::set<uint64_t> followers;   // log requests that go on
  };

  void OnPrepare(int32_t host, const pb::Prepare& prepare);
  void OnForget(int32_t host, const pb::AttemptKey& key);
  void OnLogs(int32_t host, const pb::LogRequest& request);
  void Print(const pb::AttemptKey& key, const std::string& line);
  void SayLogs(int32_t host, uint64_t request, const std::string& data, bool end);

  sim::Agents* agents_ = nullptr;
  std::map<std::string, int64_t> work_;  // by uid/task: all of it; until no attempt comes any more
  std::map<std::string, Output> outputs_;  // by uid/task/attempt, until the host forgets it
};

}  // namespace muster::sandbox
