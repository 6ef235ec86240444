// muster-sandbox: a live musterd over simulated hosts. The engine, the sessions and the API are the
// real ones; hosts are simulated (sim/agents), the store keeps nothing. Started by `muster
// sandbox`, which says how to reach it.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include <poll.h>
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/parse_flags.h"
#include "common/base/signals.h"
#include "common/base/units.h"
#include "sandbox/programs.h"
#include "sandbox/scenario.h"
#include "scheduler/access/users.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/api/guard.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/server.h"
#include "scheduler/api/watch.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/top.h"
#include "scheduler/engine/engine.h"

namespace muster::sandbox {
namespace {

constexpr int64_t kHistoryNs = 2 * kHour;          // that has passed when it opens
constexpr int64_t kHistoryBudgetNs = 5 * kSecond;  // of real time to make it
constexpr int64_t kLeastTickNs = 10 * kSecond;     // of history
constexpr int64_t kFeedEveryNs = 20 * kSecond;
constexpr int kJobsAFeed = 8;
constexpr int64_t kLeaseNs = 45 * kSecond, kHeartbeatNs = 5 * kSecond;

// The past goes by as fast as it can; then time is the machine's.
class SandboxClock : public Clock {
 public:
  explicit SandboxClock(int64_t start_ns) : base_ns_(start_ns), set_ns_(start_ns) {}
  void Set(int64_t wall_ns) { set_ns_ = wall_ns; }
  void GoLive() { live_ = true; }
  int64_t WallNs() override {
    return live_ ? std::max<int64_t>(RealClock()->WallNs(), set_ns_) : set_ns_.load();
  }
  int64_t MonotonicNs() override { return WallNs() - base_ns_; }
  int64_t BootNs() override { return WallNs() - base_ns_; }

 private:
  const int64_t base_ns_;
  std::atomic<int64_t> set_ns_;
  std::atomic<bool> live_ = false;
};

class NoStore : public Store {
 public:
  absl::Status Commit(const Transaction&) override { return absl::OkStatus(); }
  bool WantsRows() const override { return false; }
};

SchedulingOptions Scheduling() {
  SchedulingOptions options;
  options.grow_interval_ns = 5 * kMinute;
  options.min_runtime_ns = 2 * kMinute;
  options.starve_after_ns = 15 * kMinute;
  options.lease_ns = kLeaseNs;
  return options;
}

// Keeps a little more work waiting than there is room for, of every flavour.
class Feeder {
 public:
  Feeder(Engine* engine, Programs* programs, uint64_t seed)
      : engine_(engine), programs_(programs), random_(seed) {}

  // `jobs_most`: in one call. On the agents' thread.
  void Feed(int jobs_most) {
    const std::shared_ptr<const View> view = engine_->Snapshot();
    const pb::TopResponse top = DescribeTop(view->state, *view->plan, pb::TopRequest(),
                                            view->now_ns, [](const JobRow&) { return true; });
    for (const auto& total : top.totals()) {
      int64_t wanted_milli =
          total.total_milli() - total.down_milli() + total.total_milli() / 8;  // an eighth waits
      wanted_milli -= total.used_milli() + total.waiting_milli();
      for (int j = 0; j < jobs_most && wanted_milli > 0; ++j) {
        PopulationJob job = DrawJob(total.flavour(), &random_);
        wanted_milli -=
            job.spec.tasks(0).workers().max() * job.spec.tasks(0).resources().gpus_milli();
        Submit(std::move(job));
      }
    }
  }

 private:
  void Submit(const PopulationJob& job) {
    const std::string uid = absl::StrFormat("%016x%016x", random_.Next(), random_.Next());
    programs_->Know(uid, job.duration_ns, job.spec.tasks(0).workers().min());
    engine_->Call(
        [uid, job](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
          const Resolution resolution = ResolveSpec(state, job.spec, SpecDefaults{});
          if (!resolution.ok()) return absl::InvalidArgumentError(resolution.problems[0].message);
          std::vector<pb::Event> events(1);
          pb::JobSubmitted* submitted = events[0].mutable_job_submitted();
          submitted->set_uid(uid);
          submitted->set_number(state.next_job_number());
          submitted->set_owner(job.owner);
          *submitted->mutable_spec() = resolution.resolved;
          return events;
        },
        [](absl::Status status) {
          if (!status.ok() && !absl::IsUnavailable(status))
            LogWarn("a job of the population was refused",
                    {{"why", std::string(status.message())}});
        });
  }

  Engine* const engine_;
  Programs* const programs_;
  sim::Random random_;
};

void StepAll(Engine* engine) {
  while (engine->Step()) {
  }
}

// The past, in ticks as coarse as the time for it demands.
void MakeHistory(Engine* engine, sim::Agents* agents, Feeder* feeder, SandboxClock* clock) {
  const int64_t begin_ns = RealClock()->MonotonicNs();
  int64_t feed_ns = clock->WallNs();
  bool first = true;
  for (int64_t now_ns = clock->WallNs(); RealClock()->WallNs() - now_ns > kLeastTickNs;) {
    if (now_ns >= feed_ns) {
      feeder->Feed(first ? 400 : kJobsAFeed);
      feed_ns = now_ns + kFeedEveryNs;
      first = false;
    }
    const int64_t step_begin_ns = RealClock()->MonotonicNs();
    StepAll(engine);
    const int64_t cost_ns = RealClock()->MonotonicNs() - step_begin_ns;
    const int64_t left_ns = std::max<int64_t>(
        kHistoryBudgetNs - (RealClock()->MonotonicNs() - begin_ns), kHistoryBudgetNs / 50);
    const int64_t ticks = std::max<int64_t>(1, left_ns / std::max<int64_t>(cost_ns, kMillisecond));
    const int64_t rest_ns = RealClock()->WallNs() - now_ns;
    now_ns += std::min(rest_ns, std::max(kLeastTickNs, rest_ns / ticks));
    agents->TakeMail();
    agents->AdvanceTo(now_ns);
    clock->Set(now_ns);
  }
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "muster-sandbox: %s\n", message.c_str());
  return 2;
}

// What is wrong with our own queues; empty: clusters and queues are configured.
std::string Configure(const pb::ClusterFile& clusters, Engine* engine) {
  pb::Event configured;
  *configured.mutable_clusters_configured()->mutable_file() = clusters;
  engine->Post(std::move(configured));
  StepAll(engine);
  const QueueResolution queues = ResolveQueues(engine->Snapshot()->state, Queues());
  if (!queues.ok()) return absl::StrCat(queues.problems[0].path, ": ", queues.problems[0].message);
  pb::Event applied;
  *applied.mutable_queues_applied()->mutable_tree() = queues.resolved;
  applied.mutable_queues_applied()->set_version(1);
  engine->Post(std::move(applied));
  return "";
}

// The agents' thread.
void Live(sim::Agents* agents, Feeder* feeder, Clock* clock, const std::atomic<bool>& stopping) {
  while (!stopping) {
    feeder->Feed(kJobsAFeed);
    agents->LiveUntil(clock, clock->WallNs() + kFeedEveryNs);
  }
}

int Run(const std::string& directory, uint64_t seed) {
  const int signals = ReadEndSignals();
  umask(077);

  SandboxClock clock(RealClock()->WallNs() - kHistoryNs);
  SessionOptions session_options;
  session_options.store_id = RandomId();
  session_options.epoch = 1;
  session_options.lease_ns = kLeaseNs;
  session_options.heartbeat_ns = kHeartbeatNs;
  Sessions sessions(session_options, &clock);
  NoStore store;
  EngineOptions engine_options;
  engine_options.scheduling = Scheduling();
  Engine engine(engine_options, &clock, &store, &sessions, State());
  sessions.Attach(&engine);

  const pb::ClusterFile clusters = Clusters();
  if (const std::string wrong = Configure(clusters, &engine); !wrong.empty()) return Fail(wrong);
  Programs programs;
  sim::Agents agents(&sessions, sim::HostsOf(clusters, "simulated-").value(), kHosts, &programs,
                     clock.WallNs());
  programs.Attach(&agents);
  agents.Join();
  StepAll(&engine);
  Feeder feeder(&engine, &programs, seed);
  MakeHistory(&engine, &agents, &feeder, &clock);
  clock.GoLive();
  agents.AdvanceTo(clock.WallNs());
  agents.BeginHeartbeats(kHeartbeatNs);
  StepAll(&engine);

  WatchHub hub(&engine);
  engine.Observe(hub.observer());
  Outlook outlook(&engine, &clock, engine_options.scheduling);
  Users users({}, geteuid(), true, &clock);
  Guard guard({&engine, nullptr, &users, nullptr, &clock});
  ApiContext context;
  context.engine = &engine;
  context.guard = &guard;
  context.sessions = &sessions;
  context.outlook = &outlook;
  context.clock = &clock;
  context.scheduling = engine_options.scheduling;
  context.store_id = session_options.store_id;
  context.epoch = 1;
  context.version = absl::StrCat(MUSTER_VERSION, " (sandbox)");
  context.single_user = true;
  ApiServer server(&context, &hub);
  std::atomic<bool> stopping = false;
  std::thread stepping([&engine] { engine.Run(); });
  std::thread living([&] { Live(&agents, &feeder, &clock, stopping); });
  int result = 0;
  if (absl::Status status = server.Listen(directory + "/musterd.sock", 0600); !status.ok()) {
    result = Fail(std::string(status.message()));
  } else {
    pollfd fd{signals, POLLIN, 0};
    while (poll(&fd, 1, 1000) <= 0) sessions.Tick();
  }
  server.Shutdown();
  outlook.Stop();
  stopping = true;
  agents.Wake();
  living.join();
  engine.Stop();
  stepping.join();
  hub.Stop();
  close(signals);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);  // nothing stays behind, whoever ended it
  return result;
}

}  // namespace
}  // namespace muster::sandbox

int main(int argc, char** argv) {
  std::string directory;
  uint64_t seed = 1;
  CLI::App app{"A live musterd over simulated hosts; see: muster sandbox", "muster-sandbox"};
  app.add_option("--directory", directory,
                 "A directory of its own for the socket; removed at the end")
      ->required();
  app.add_option("--seed", seed, "Of the jobs");
  if (const std::optional<int> code = muster::ParseFlags(app, argc, argv); code.has_value())
    return *code;
  muster::SetLogLevel(muster::LogLevel::kWarn);
  return muster::sandbox::Run(directory, seed);
}
