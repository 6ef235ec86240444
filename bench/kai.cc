// bench_kai DATA_DIR_PREFIX: the scale tests that KAI Scheduler publishes
// (docs/scale-tests/example-results.json of kai-scheduler/KAI-Scheduler), through submission, a
// real store, dispatch to simulated agents and their committed word that all processes have
// started. Prints one JSON line: seconds by test.
//
// Each test has a system and a store of its own: 500 hosts of 8 slots (512 for the single gang, and
// one more where 399 jobs wait in the background). A worker with 8 slots stands for a pod that
// takes a node. Time runs from the first submission, or from the moment that a held queue is
// released, to the commit with which the last worker has started.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/live_system.h"
#include "bench/simulated_agents.h"
#include "bench/slot_fleet.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "muster/v1/queue.pb.h"
#include "scheduler/api/submit.h"
#include "scheduler/ask/ask.h"

namespace muster::bench {
namespace {

constexpr int kNodes = 500;
constexpr int kJobs = kNodes * kSlotsPerHost;
constexpr int64_t kForeverNs = int64_t{1} << 50;  // two weeks
constexpr int kPatienceS = 120;

// A queue with a guarantee in slots; without limit. `held`: nothing of it starts.
pb::QueueSpec Queue(const std::string& name, int64_t guarantee, bool held = false) {
  pb::QueueSpec queue;
  queue.set_name(name);
  queue.set_held(held);
  (*queue.mutable_quota())[kSlotFlavour].set_guarantee_milli(guarantee * 1000);
  return queue;
}

pb::QueueTree Tree(const std::vector<pb::QueueSpec>& queues) {
  pb::QueueTree tree;
  for (const pb::QueueSpec& queue : queues) *tree.add_queues() = queue;
  return tree;
}

// The workers that have started and the hosts' parts that are gone, as committed.
class Progress {
 public:
  void OnStep(const StepRecord& step) {
    std::lock_guard lock(mutex_);
    for (const pb::Event& event : step.events) {
      if (event.has_job_submitted()) {
        last_submitted_ = event.job_submitted().uid();
        name_of_[last_submitted_] = event.job_submitted().spec().name();
        ++submitted_[name_of_[last_submitted_]];
      }
      if (!event.has_attempt_reported()) continue;
      const pb::AttemptReport& report = event.attempt_reported().report();
      const std::string part =
          absl::StrCat(AttemptText(report.key()), "@", event.attempt_reported().host());
      if (report.phase() == pb::STARTED && parts_.insert(part).second)
        ++started_[name_of_.at(report.key().job_uid())];
      if (report.phase() == pb::GONE) gone_.insert(part);
    }
    const JobRow* job = step.view->state.FindJobByUid(last_submitted_);
    has_verdict_ = job != nullptr && step.view->plan->verdicts.Find({job->number, 0}) != nullptr;
    changed_.notify_all();
  }

  // Of the jobs of that name, how many hosts' parts have started so far.
  size_t Started(const std::string& name) {
    std::lock_guard lock(mutex_);
    return started_[name];
  }
  void WaitStarted(const std::string& name, size_t parts) {
    Wait(absl::StrCat(parts, " starts of ", name), [&] { return started_[name] >= parts; });
  }
  void WaitGone(size_t parts) {
    Wait(absl::StrCat(parts, " ends"), [&] { return gone_.size() >= parts; });
  }
  // Until `count` jobs of that name are there and the newest has a verdict: why it waits.
  void WaitVerdict(const std::string& name, size_t count) {
    Wait("verdict", [&] { return submitted_[name] == count && has_verdict_; });
  }

 private:
  void Wait(const std::string& what, const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::seconds(kPatienceS), condition)) return;
    Die(absl::StrCat("no ", what, " after ", kPatienceS, " s: ", parts_.size(), " starts, ",
                     gone_.size(), " ends"));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> parts_, gone_;          // uid/task/attempt@host, started and ended
  std::map<std::string, std::string> name_of_;  // by uid
  std::map<std::string, size_t> submitted_;     // by job name
  std::map<std::string, size_t> started_;       // by job name
  std::string last_submitted_;                  // uid
  bool has_verdict_ = false;
};

// One test's system.
class Cluster {
 public:
  Cluster(
      const std::string& directory, int nodes, const pb::QueueTree& queues,
      const SchedulingOptions& scheduling = SchedulingOptions(),
      SimulatedAgents::RuntimeNs runtime_ns = [](const pb::Prepare&) { return kForeverNs; })
      : clusters_(SlotClusters(nodes)), system_(directory, scheduling) {
    system_.Configure(clusters_, queues);
    system_.Observe([this](const StepRecord& step) { progress_.OnStep(step); });
    system_.Run();
    agents_ =
        std::make_unique<SimulatedAgents>(&system_.sessions(), clusters_, std::move(runtime_ns));
    agents_->WaitWelcomed();
  }

  // Returns once the newest of them is durable.
  void Submit(const pb::JobSpec& spec, int count = 1) {
    std::mutex mutex;
    std::condition_variable all;
    int answered = 0;
    for (int i = 0; i < count; ++i) {
      const auto request = std::make_shared<pb::SubmitRequest>();
      *request->mutable_spec() = spec;
      request->set_idempotency_key(absl::StrCat("kai-", ++submitted_));
      while (system_.engine().Full()) std::this_thread::yield();
      muster::Submit(&system_.engine(), SpecDefaults(), "bench", request,
                     [&](const SubmitOutcome& outcome) {
                       if (!outcome.status.ok()) Die(std::string(outcome.status.message()));
                       std::lock_guard lock(mutex);
                       if (++answered == count) all.notify_all();
                     });
    }
    std::unique_lock lock(mutex);
    all.wait(lock, [&] { return answered == count; });
  }

  // Other queues from now on; durable when it returns.
  void Apply(const pb::QueueTree& queues) {
    const QueueResolution resolution = ResolveQueues(system_.engine().Snapshot()->state, queues);
    if (!resolution.ok()) Die(resolution.problems[0].message);
    pb::Event event;
    *event.mutable_queues_applied()->mutable_tree() = resolution.resolved;
    event.mutable_queues_applied()->set_version(++version_);
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    system_.engine().Post(event, [&](const absl::Status& status) {
      if (!status.ok()) Die(std::string(status.message()));
      std::lock_guard lock(mutex);
      done = true;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }

  Progress& progress() { return progress_; }

 private:
  const pb::ClusterFile clusters_;
  Progress progress_;
  LiveSystem system_;
  std::unique_ptr<SimulatedAgents> agents_;
  int submitted_ = 0;
  uint64_t version_ = 1;
};

// Seconds until `parts` more workers than now have started, from the submission of `count` jobs.
double SecondsToStart(Cluster* cluster, const pb::JobSpec& spec, int count, size_t parts) {
  const size_t before = cluster->progress().Started(spec.name());
  const int64_t begin_ns = RealClock()->WallNs();
  cluster->Submit(spec, count);
  cluster->progress().WaitStarted(spec.name(), before + parts);
  return SecondsSince(begin_ns);
}

// A cluster that one-slot jobs of `lent`, which is guaranteed nothing, fill.
std::unique_ptr<Cluster> Lent(const std::string& directory) {
  auto cluster =
      std::make_unique<Cluster>(directory, kNodes, Tree({Queue("lent", 0), Queue("owner", kJobs)}));
  SecondsToStart(cluster.get(), SlotJob("borrows", "lent", 1, 1), kJobs, kJobs);
  return cluster;
}

double OneGang(const std::string& directory, bool topology) {
  constexpr int kGang = 512;
  Cluster cluster(directory, kGang, Tree({Queue("all", kGang * kSlotsPerHost)}));
  pb::JobSpec spec = SlotJob("gang", "all", kGang, kSlotsPerHost);
  spec.mutable_tasks(0)->mutable_topology()->set_preferred(topology ? pb::RACK : pb::CLUSTER);
  return SecondsToStart(&cluster, spec, 1, kGang);
}

double FillHeld(const std::string& directory) {
  Cluster cluster(directory, kNodes, Tree({Queue("all", kJobs, /*held=*/true)}));
  cluster.Submit(SlotJob("one", "all", 1, 1), kJobs);
  const int64_t begin_ns = RealClock()->WallNs();
  cluster.Apply(Tree({Queue("all", kJobs)}));
  cluster.progress().WaitStarted("one", kJobs);
  return SecondsSince(begin_ns);
}

double Fill(const std::string& directory) {
  Cluster cluster(directory, kNodes, Tree({Queue("all", kJobs)}));
  return SecondsToStart(&cluster, SlotJob("one", "all", 1, 1), kJobs, kJobs);
}

// 399 jobs wait behind their queue's limit, of which one more runs.
double FillBesidePending(const std::string& directory) {
  constexpr int kPending = 400;
  pb::QueueSpec background = Queue("background", 0);
  (*background.mutable_quota())[kSlotFlavour].set_limit_milli(kSlotsPerHost * 1000);
  Cluster cluster(directory, kNodes + 1, Tree({Queue("all", kJobs), background}));
  SecondsToStart(&cluster, SlotJob("pending", "background", 1, kSlotsPerHost), kPending, 1);
  return SecondsToStart(&cluster, SlotJob("one", "all", 1, 1), kJobs, kJobs);
}

// Until a gang that finds no room has its verdict, the mean of twenty.
double Unschedulable(const std::string& directory) {
  constexpr int kTimes = 20;
  Cluster cluster(directory, kNodes, Tree({Queue("all", kJobs)}));
  SecondsToStart(&cluster, SlotJob("one", "all", 1, 1), kJobs, kJobs);
  double sum_s = 0;
  for (int i = 0; i < kTimes; ++i) {
    const int64_t begin_ns = RealClock()->WallNs();
    cluster.Submit(SlotJob("gang", "all", 10, kSlotsPerHost));
    cluster.progress().WaitVerdict("gang", static_cast<size_t>(i) + 1);
    sum_s += SecondsSince(begin_ns);
  }
  return sum_s / kTimes;
}

double ReclaimGang(const std::string& directory, int workers) {
  return SecondsToStart(Lent(directory).get(), SlotJob("large", "owner", workers, kSlotsPerHost), 1,
                        static_cast<size_t>(workers));
}

double ReclaimOne(const std::string& directory) {
  constexpr int kTimes = 20;
  const std::unique_ptr<Cluster> cluster = Lent(directory);
  double sum_s = 0;
  for (int i = 0; i < kTimes; ++i)
    sum_s += SecondsToStart(cluster.get(), SlotJob("claims", "owner", 1, 1), 1, 1);
  return sum_s / kTimes;
}

double ReclaimAll(const std::string& directory) {
  return SecondsToStart(Lent(directory).get(), SlotJob("claims", "owner", 1, 1), kJobs, kJobs);
}

double ReclaimGangs(const std::string& directory) {
  return SecondsToStart(Lent(directory).get(), SlotJob("claims", "owner", 10, kSlotsPerHost), 50,
                        500);
}

// One-slot jobs stand on every host, so that no gang finds a whole one; 41 gangs of ten hosts fit
// once the small jobs have moved together. All are within their queues' guarantees.
double Consolidate(const std::string& directory) {
  SchedulingOptions scheduling;
  scheduling.min_runtime_ns = kMillisecond;  // a claim may move others at once
  const auto first_slot_stays = [](const pb::Prepare& prepare) {
    return prepare.here().devices(0) == 0 ? kForeverNs : 2 * kSecond;
  };
  Cluster cluster(directory, kNodes, Tree({Queue("small", kNodes), Queue("large", kJobs - kNodes)}),
                  scheduling, [&](const pb::Prepare& prepare) {
                    return prepare.job_name() == "small" ? first_slot_stays(prepare) : kForeverNs;
                  });
  SecondsToStart(&cluster, SlotJob("small", "small", 1, 1), kJobs, kJobs);
  cluster.progress().WaitGone(kJobs - kNodes);
  return SecondsToStart(&cluster, SlotJob("large", "large", 10, kSlotsPerHost), 41, 410);
}

int Main(int argc, char** argv) {
  if (argc != 2) Die("bench_kai DATA_DIR_PREFIX");
  SetLogLevel(LogLevel::kError);
  const std::vector<std::pair<std::string, std::function<double(const std::string&)>>> tests = {
      {"gang_512_topology", [](const std::string& dir) { return OneGang(dir, true); }},
      {"gang_512", [](const std::string& dir) { return OneGang(dir, false); }},
      {"fill_then_schedule", FillHeld},
      {"fill", Fill},
      {"fill_beside_pending", FillBesidePending},
      {"unschedulable", Unschedulable},
      {"reclaim_gang_250", [](const std::string& dir) { return ReclaimGang(dir, 250); }},
      {"reclaim_gang_500", [](const std::string& dir) { return ReclaimGang(dir, 500); }},
      {"reclaim_one", ReclaimOne},
      {"reclaim_4000", ReclaimAll},
      {"reclaim_50_gangs", ReclaimGangs},
      {"consolidate_41_gangs", Consolidate},
  };
  std::string line;
  for (const auto& [name, test] : tests) {
    const double seconds = test(absl::StrCat(argv[1], "-", name));
    std::fprintf(stderr, "%s: %.3f s\n", name.c_str(), seconds);
    absl::StrAppendFormat(&line, "%s\"%s\": %.4f", line.empty() ? "" : ", ", name, seconds);
  }
  std::printf("{%s}\n", line.c_str());
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
