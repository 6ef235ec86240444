// bench_kueue GENERATOR DATA_DIR [--divide N] [--guarantees]: one of Kueue's performance generators
// (sim/peers/kueue.h) through the real engine with a real store, in real time. Prints one JSON
// line.
//
// Wall time is from the first creation to the commit that ends the last workload. Admission is the
// commit of the placement with which a workload runs to its end, counted from its creation time, so
// an eviction counts against us. Usage is the CPU time that attempts held, from placement to end,
// of nominal quota x wall time.
#include <sys/resource.h>

#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/live_system.h"
#include "bench/simulated_agents.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/api/submit.h"
#include "sim/peers/kueue.h"

namespace muster::bench {
namespace {

struct Class {
  int64_t count = 0;
  int64_t admission_ns = 0;  // sum
};

// What happened to each workload, from the committed events.
class Tally {
 public:
  explicit Tally(const sim::KueueSetup& setup) : setup_(setup), placed_ns_(setup.jobs.size(), 0) {}

  void OnStep(const StepRecord& step) {
    const int64_t now_ns = RealClock()->WallNs();
    std::lock_guard lock(mutex_);
    for (const pb::Event& event : step.events) {
      if (event.has_job_submitted()) {
        index_of_[event.job_submitted().uid()] =
            std::stoul(event.job_submitted().spec().labels().at("index"));
      } else if (event.has_attempt_placed()) {
        placed_ns_[index_of_.at(event.attempt_placed().key().job_uid())] = now_ns;
      } else if (event.has_attempt_stopping()) {
        ++evictions_;
      } else if (event.has_attempt_reported() &&
                 event.attempt_reported().report().phase() == pb::GONE) {
        const std::string& uid = event.attempt_reported().report().key().job_uid();
        const size_t index = index_of_.at(uid);
        const JobRow* job = step.view->state.FindJobByUid(uid);
        const pb::TaskSpec& task = setup_.jobs[index].spec.tasks(0);
        const int64_t milli = task.resources().cpus_milli() * task.workers().min();
        if (placed_ns_[index] == 0)
          continue;  // a repetition, or a part of a gang whose end was counted
        if (job != nullptr && !job->finished() && job->tasks[0].current() != nullptr)
          continue;  // other hosts' parts go on
        used_milli_ns_ += static_cast<__int128>(milli) * (now_ns - placed_ns_[index]);
        if (job == nullptr || job->finished()) {
          if (job != nullptr && job->state != pb::SUCCEEDED)
            Die(absl::StrCat("job ", job->number, " did not succeed: ", job->detail));
          Class& of_class = classes_[setup_.jobs[index].class_name];
          ++of_class.count;
          of_class.admission_ns += placed_ns_[index] - (start_ns_ + setup_.jobs[index].submit_ns);
          end_ns_ = now_ns;
          if (++ended_ == setup_.jobs.size()) done_.notify_all();
        }
        placed_ns_[index] = 0;
      }
    }
    ++steps_;
    const int64_t waiting = static_cast<int64_t>(index_of_.size() - ended_);
    most_unfinished_ = std::max(most_unfinished_, waiting);
  }

  void Begin(int64_t start_ns) { start_ns_ = start_ns; }
  void WaitAllEnded() {
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, std::chrono::seconds(5),
                           [this] { return ended_ == setup_.jobs.size(); })) {
      std::fprintf(stderr, "%.0f s: %zu created, %zu ended, %lld evictions, %lld steps\n",
                   SecondsSince(start_ns_), index_of_.size(), ended_,
                   static_cast<long long>(evictions_), static_cast<long long>(steps_));
      if (SecondsSince(start_ns_) > 1800) Die("not over after half an hour");
    }
  }

  void Print(const EngineStats& stats) {
    std::lock_guard lock(mutex_);
    std::string classes;
    for (const auto& [name, of_class] : classes_) {
      absl::StrAppendFormat(&classes, "%s\"%s\": %.0f", classes.empty() ? "" : ", ", name,
                            static_cast<double>(of_class.admission_ns) / 1e6 / of_class.count);
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double cpu_s = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
                         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    const double wall_s = static_cast<double>(end_ns_ - start_ns_) / 1e9;
    std::printf(
        "{\"wall_s\": %.2f, \"usage_percent\": %.1f, \"admission_ms\": {%s}, \"evictions\": %lld, "
        "\"steps\": %lld, \"most_unfinished\": %lld, "
        "\"step_ms_p99\": %.2f, \"decide_ms_p99\": %.2f, \"commit_ms_p99\": %.2f, \"cpu_s\": %.1f, "
        "\"work_s\": %.1f}\n",
        wall_s, static_cast<double>(used_milli_ns_) / 1e9 / wall_s / setup_.nominal_milli * 100,
        classes.c_str(), static_cast<long long>(evictions_), static_cast<long long>(steps_),
        static_cast<long long>(most_unfinished_), Milliseconds(stats.step),
        Milliseconds(stats.decide), Milliseconds(stats.commit), cpu_s, WorkSeconds());
  }

 private:
  // How long the whole would take if quota were never idle.
  double WorkSeconds() const {
    __int128 milli_ns = 0;
    for (const sim::KueueJob& job : setup_.jobs) {
      milli_ns += static_cast<__int128>(job.spec.tasks(0).resources().cpus_milli()) *
                  job.spec.tasks(0).workers().min() * job.runtime_ns;
    }
    return static_cast<double>(milli_ns) / 1e9 / setup_.nominal_milli;
  }

  const sim::KueueSetup& setup_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::map<std::string, size_t> index_of_;  // by uid
  std::vector<int64_t> placed_ns_;          // of the attempt that runs; 0: none does
  std::map<std::string, Class> classes_;
  size_t ended_ = 0;
  int64_t evictions_ = 0, steps_ = 0, most_unfinished_ = 0;
  int64_t start_ns_ = 0, end_ns_ = 0;
  __int128 used_milli_ns_ = 0;
};

int Main(int argc, char** argv) {
  CLI::App app{"Kueue's performance generators through the real engine and store, in real time.",
               "kueue"};
  std::string generator, rangespec, data_dir;
  sim::KueueOptions options;
  app.add_option("generator", generator)->required();
  app.add_option("data-dir", data_dir)->required();
  app.add_option("--divide", options.divide, "Divides the counts of workloads, for short runs");
  app.add_flag("--guarantees", options.guarantees,
               "nominalQuota becomes a guarantee, which evicts, instead of an equal weight");
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);
  absl::StatusOr<std::string> text = ReadFile(generator);
  if (!text.ok()) Die(std::string(text.status().message()));
  absl::StatusOr<sim::KueueSetup> setup = sim::ParseKueueGenerator(*text, generator, options);
  if (!setup.ok()) Die(std::string(setup.status().message()));

  std::map<std::string, int64_t> runtime_ns;  // by job name, which is class and number
  for (const sim::KueueJob& job : setup->jobs) runtime_ns[job.class_name] = job.runtime_ns;

  Tally tally(*setup);
  LiveSystem system(data_dir, SchedulingOptions());
  system.Configure(setup->clusters, setup->queues);
  system.Observe([&tally](const StepRecord& step) { tally.OnStep(step); });
  system.Run();
  SimulatedAgents agents(&system.sessions(), setup->clusters, [&](const pb::Prepare& prepare) {
    const std::string& name = prepare.job_name();
    return runtime_ns.at(name.substr(0, name.rfind('-')));
  });
  agents.WaitWelcomed();

  const SpecDefaults defaults;
  const int64_t start_ns = RealClock()->WallNs();
  tally.Begin(start_ns);
  for (size_t i = 0; i < setup->jobs.size(); ++i) {
    const int64_t due_ns = start_ns + setup->jobs[i].submit_ns;
    if (const int64_t early_ns = due_ns - RealClock()->WallNs(); early_ns > 0)
      std::this_thread::sleep_for(std::chrono::nanoseconds(early_ns));
    const auto request = std::make_shared<pb::SubmitRequest>();
    *request->mutable_spec() = setup->jobs[i].spec;
    (*request->mutable_spec()->mutable_labels())["index"] = absl::StrCat(i);
    request->set_idempotency_key(absl::StrCat("workload-", i));
    Submit(&system.engine(), defaults, "kueue", request, [](const SubmitOutcome& outcome) {
      if (outcome.status.ok()) return;
      Die(absl::StrCat(std::string(outcome.status.message()),
                       outcome.resolution.problems.empty()
                           ? ""
                           : ": " + outcome.resolution.problems[0].message));
    });
  }
  tally.WaitAllEnded();
  tally.Print(system.engine().Stats());
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
