// durable_rates DATA_DIR [--jobs N] [--outstanding N] [--hosts N] [--runtime-ms N] [--wait-ends]
// [--unchecked]: how many one-slot jobs a second the real engine with a real store takes, and how
// many it starts on simulated agents. Prints one JSON line.
//
// Each submission goes the way of an RPC behind gRPC: idempotency key, resolution, event, commit
// with synchronous=FULL, answer. Submitters keep `outstanding` unanswered at any time. A start
// counts when the agent's word of it is committed.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/live_system.h"
#include "bench/simulated_agents.h"
#include "bench/slot_fleet.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/api/submit.h"

namespace muster::bench {
namespace {

struct Counts {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t placed = 0, started = 0, ended = 0, steps = 0, step_events_most = 0;
  int64_t last_start_ns = 0, last_end_ns = 0;

  void See(const StepRecord& step) {
    const int64_t now_ns = RealClock()->WallNs();
    std::lock_guard lock(mutex);
    ++steps;
    step_events_most =
        std::max<int64_t>(step_events_most, static_cast<int64_t>(step.events.size()));
    for (const pb::Event& event : step.events) {
      placed += event.has_attempt_placed();
      if (!event.has_attempt_reported()) continue;
      if (event.attempt_reported().report().phase() == pb::STARTED) {
        ++started;
        last_start_ns = now_ns;
      } else if (event.attempt_reported().report().phase() == pb::GONE) {
        ++ended;
        last_end_ns = now_ns;
      }
    }
    changed.notify_all();
  }
};

// Submits from several threads, with so many unanswered at any time.
class Submissions {
 public:
  Submissions(LiveSystem* system, int outstanding) : system_(system), room_(outstanding) {}

  // When the last answer came.
  int64_t Run(int jobs, int threads) {
    std::vector<std::thread> submitters;
    for (int t = 0; t < threads; ++t) submitters.emplace_back([this, jobs] { Submit(jobs); });
    for (std::thread& submitter : submitters) submitter.join();
    for (int seen = answered_; seen < jobs; seen = answered_) answered_.wait(seen);
    return last_answer_ns_;
  }

 private:
  void Submit(int jobs) {
    for (int i = next_++; i < jobs; i = next_++) {
      room_.acquire();
      const auto request = std::make_shared<pb::SubmitRequest>();
      *request->mutable_spec() = spec_;
      request->set_idempotency_key(absl::StrCat("rate-", i));
      muster::Submit(&system_->engine(), defaults_, "bench", request,
                     [this, jobs](const SubmitOutcome& outcome) {
                       if (!outcome.status.ok()) Die(std::string(outcome.status.message()));
                       last_answer_ns_ = RealClock()->WallNs();
                       room_.release();
                       if (++answered_ == jobs) answered_.notify_all();
                     });
    }
  }

  LiveSystem* const system_;
  const SpecDefaults defaults_;
  const pb::JobSpec spec_ = SlotJob("rate", "research", 1, 1);
  std::counting_semaphore<> room_;
  std::atomic<int> next_ = 0, answered_ = 0;
  std::atomic<int64_t> last_answer_ns_ = 0;
};

int Main(int argc, char** argv) {
  CLI::App app{"Durable submissions and starts a second through the real engine and store.",
               "durable_rates"};
  std::string data_dir;
  int jobs = 40'000, outstanding = 1024, hosts = 100, submitters = 4;
  int64_t runtime_ms = 3'600'000;
  bool wait_ends = false, unchecked = false;
  app.add_option("data-dir", data_dir)->required();
  app.add_option("--jobs", jobs);
  app.add_option("--outstanding", outstanding,
                 "Submissions that wait for their answer at any time");
  app.add_option("--submitters", submitters, "Threads that submit");
  app.add_option("--hosts", hosts, "Simulated hosts of 8 slots");
  app.add_option("--runtime-ms", runtime_ms, "Of each job");
  app.add_flag("--wait-ends", wait_ends, "Go on until every job has ended");
  app.add_flag("--unchecked", unchecked, "Without Validate: what the check costs");
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);

  Counts counts;
  LiveSystem system(data_dir, SchedulingOptions(), !unchecked);
  const pb::ClusterFile clusters = SlotClusters(hosts);
  pb::QueueTree queues;
  queues.add_queues()->set_name("research");
  system.Configure(clusters, queues);
  system.Observe([&](const StepRecord& step) { counts.See(step); });
  system.Run();
  SimulatedAgents agents(&system.sessions(), clusters,
                         [&](const pb::Prepare&) { return runtime_ms * kMillisecond; });
  agents.WaitWelcomed();

  Submissions submissions(&system, outstanding);
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  const int64_t start_ns = RealClock()->WallNs();
  const int64_t answered_ns = submissions.Run(jobs, submitters);
  const double submitted_s = static_cast<double>(answered_ns - start_ns) / 1e9;
  {
    std::unique_lock lock(counts.mutex);
    const int64_t slots = int64_t{kSlotsPerHost} * hosts;
    counts.changed.wait(lock, [&] {
      return wait_ends ? counts.ended >= jobs : counts.started >= std::min<int64_t>(jobs, slots);
    });
  }
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  const auto cpu = [](const timeval& a, const timeval& b) {
    return static_cast<double>(b.tv_sec - a.tv_sec) +
           static_cast<double>(b.tv_usec - a.tv_usec) / 1e6;
  };
  std::lock_guard lock(counts.mutex);
  const EngineStats stats = system.engine().Stats();
  const double starts_s = static_cast<double>(counts.last_start_ns - start_ns) / 1e9;
  std::printf(
      "{\"jobs\": %d, \"submissions_per_s\": %.0f, \"submitted_s\": %.2f, \"started\": %lld, "
      "\"starts_per_s\": %.0f, \"ended\": %lld, "
      "\"steps\": %lld, \"most_events_a_step\": %lld, \"step_ms_p99\": %.2f, \"decide_ms_p99\": "
      "%.2f, \"commit_ms_p99\": %.2f, "
      "\"cpu_user_s\": %.2f, \"cpu_system_s\": %.2f}\n",
      jobs, jobs / submitted_s, submitted_s, static_cast<long long>(counts.started),
      static_cast<double>(counts.started) / starts_s, static_cast<long long>(counts.ended),
      static_cast<long long>(counts.steps), static_cast<long long>(counts.step_events_most),
      Milliseconds(stats.step), Milliseconds(stats.decide), Milliseconds(stats.commit),
      cpu(before.ru_utime, after.ru_utime), cpu(before.ru_stime, after.ru_stime));
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
