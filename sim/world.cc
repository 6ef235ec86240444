#include "sim/world.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/fnv.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/ask/ask.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/ports.h"
#include "sim/tally.h"

namespace muster::sim {
namespace {

constexpr int64_t kEpochNs =
    1'699'920'000'000'000'000;  // the simulation's zero, as Unix time: a midnight

class VirtualClock : public Clock {
 public:
  explicit VirtualClock(const Heap* heap) : heap_(heap) {}
  int64_t WallNs() override { return heap_->now_ns(); }
  int64_t MonotonicNs() override { return heap_->now_ns() - kEpochNs; }
  int64_t BootNs() override { return heap_->now_ns() - kEpochNs; }

 private:
  const Heap* const heap_;
};

// Commits to nothing but a digest of what was committed.
class DigestStore : public Store {
 public:
  absl::Status Commit(const Transaction& transaction) override {
    MUSTER_CHECK(transaction.commit == last_ + 1);
    last_ = transaction.commit;
    for (const std::string& event : transaction.events) digest_ = Fnv1a(event, digest_);
    return absl::OkStatus();
  }
  bool WantsRows() const override { return false; }
  uint64_t digest() const { return digest_; }

 private:
  uint64_t last_ = 0;
  uint64_t digest_ = kFnv1aBegin;
};

pb::JobSpec SpecOf(const TraceJob& job) {
  pb::JobSpec spec;
  spec.set_name(job.name);
  spec.set_queue(job.queue);
  spec.set_priority(job.priority);
  for (const std::string& cluster : job.clusters) spec.add_clusters(cluster);
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  task->mutable_workers()->set_min(job.workers);
  task->mutable_workers()->set_max(job.max_workers);
  task->mutable_workers()->set_multiple_of(job.multiple_of);
  task->mutable_resources()->set_gpus_milli(job.gpus_milli);
  if (job.gpus_milli > 0) {
    for (const absl::string_view type : absl::StrSplit(job.gpu_type, ';'))
      task->mutable_resources()->add_gpu_types(std::string(type));
  }
  task->mutable_resources()->set_cpus_milli(job.cpus_milli);
  task->mutable_resources()->set_memory_bytes(job.memory_bytes);
  if (job.required != 0)
    task->mutable_topology()->set_required(static_cast<pb::TopologyLevel>(job.required));
  if (job.preferred != 0)
    task->mutable_topology()->set_preferred(static_cast<pb::TopologyLevel>(job.preferred));
  for (const TraceBlock& block : job.blocks) {
    pb::RankBlock* out = task->mutable_topology()->add_blocks();
    out->set_gpus(block.gpus);
    out->set_required(static_cast<pb::TopologyLevel>(block.required));
  }
  task->mutable_run()->add_exec("simulated");
  task->mutable_checkpoint()->set_interval_ns(job.checkpoint_ns);
  task->set_hang_timeout_ns(0);  // a gang here tells its end once and is then silent
  return spec;
}

absl::Status Joined(const std::vector<FieldProblem>& problems) {
  std::string text;
  for (const FieldProblem& problem : problems)
    absl::StrAppend(&text, text.empty() ? "" : "; ", problem.path, ": ", problem.message);
  return absl::InvalidArgumentError(text);
}

// Resolves the jobs of a trace against a fleet and a tree that stay as they are: jobs that differ
// in nothing but the name and the time are resolved once.
class Resolver {
 public:
  explicit Resolver(const Engine* engine) : engine_(engine) {}

  absl::StatusOr<pb::JobSpec> Resolve(const TraceJob& job) {
    const bool plain =
        !job.name.empty() && job.name.size() <= 32 &&
        std::all_of(
            job.name.begin(), job.name.end(),
            [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; }) &&
        job.name[0] != '-';
    if (!plain) return Anew(job);
    std::string key =
        absl::StrCat(job.queue, "\n", absl::StrJoin(job.clusters, ";"), "\n", job.gpu_type, "\n",
                     job.workers, "/", job.max_workers, "/", job.multiple_of, "/", job.gpus_milli,
                     "/", job.cpus_milli, "/", job.memory_bytes, "/", job.priority, "/",
                     job.checkpoint_ns, "/", job.required, "/", job.preferred);
    for (const TraceBlock& block : job.blocks)
      absl::StrAppend(&key, "/", block.gpus, ":", block.required);
    auto known = known_.find(key);
    if (known == known_.end()) known = known_.emplace(key, Anew(job)).first;
    if (!known->second.ok()) return known->second.status();
    pb::JobSpec spec = *known->second;
    spec.set_name(job.name);
    return spec;
  }

 private:
  absl::StatusOr<pb::JobSpec> Anew(const TraceJob& job) const {
    Resolution resolution = ResolveSpec(engine_->Snapshot()->state, SpecOf(job), SpecDefaults{});
    if (!resolution.ok()) return Joined(resolution.problems);
    return std::move(resolution.resolved);
  }

  const Engine* const engine_;
  std::map<std::string, absl::StatusOr<pb::JobSpec>> known_;
};

absl::Status Configure(const pb::ClusterFile& clusters, const pb::QueueTree& queues, Engine* engine,
                       Fleet* fleet) {
  const auto settle = [engine] {
    while (engine->Step()) {
    }
  };
  pb::Event configured;
  *configured.mutable_clusters_configured()->mutable_file() = clusters;
  engine->Post(std::move(configured));
  fleet->Join();
  settle();
  const QueueResolution resolution = ResolveQueues(engine->Snapshot()->state, queues);
  if (!resolution.ok()) return Joined(resolution.problems);
  pb::Event applied;
  *applied.mutable_queues_applied()->mutable_tree() = resolution.resolved;
  applied.mutable_queues_applied()->set_version(1);
  engine->Post(std::move(applied));
  settle();
  return absl::OkStatus();
}

}  // namespace

int64_t DevicesOf(const pb::ClusterFile& clusters, const std::string& flavour) {
  int64_t devices = 0;
  for (const pb::ClusterSpec& cluster : clusters.clusters()) {
    for (const pb::HostSpec& host : cluster.hosts()) {
      const pb::Sku* const sku = SkuOf(clusters, cluster, host);
      if (sku != nullptr && (flavour.empty() || sku->flavour() == flavour)) devices += sku->gpus();
    }
  }
  return devices;
}

namespace {

// A trace's jobs as events, resolved against the State as it is when they come.
class Submitter {
 public:
  using Post = std::function<void(pb::Event event, bool urgent)>;
  Submitter(const Trace& trace, Engine* engine, Tally* tally, Post post)
      : trace_(trace), resolver_(engine), tally_(tally), post_(std::move(post)) {}

  void Submit(size_t i) {
    absl::StatusOr<pb::JobSpec> spec = resolver_.Resolve(trace_.jobs[i]);
    if (!spec.ok()) return tally_->OnRefused(i, std::string(spec.status().message()));
    pb::Event event;
    auto* submitted = event.mutable_job_submitted();
    submitted->set_uid(TraceUid(i));
    submitted->set_number(++number_);
    submitted->set_owner("sim");
    *submitted->mutable_spec() = *std::move(spec);
    submitted->set_idempotency_key(TraceUid(i));
    tally_->OnAccepted(i, number_);
    post_(std::move(event), true);
  }

 private:
  const Trace& trace_;
  Resolver resolver_;
  Tally* const tally_;
  const Post post_;
  uint64_t number_ = 0;
};

int64_t AtRound(int64_t when_ns, int64_t round_ns) {
  if (round_ns <= 0 || when_ns == kNever) return when_ns;
  return kEpochNs + (when_ns - kEpochNs + round_ns - 1) / round_ns * round_ns;
}

}  // namespace

absl::StatusOr<WorldResult> RunWorld(const pb::ClusterFile& clusters, const pb::QueueTree& queues,
                                     const Trace& trace, const WorldOptions& options) {
  const auto real_now = [] { return std::chrono::steady_clock::now(); };
  const auto since = [&](std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(real_now() - begin).count();
  };
  const auto began = real_now();
  WorldResult result;
  Heap heap(kEpochNs);
  VirtualClock clock(&heap);
  DigestStore store;
  EngineOptions engine_options;
  engine_options.scheduling = options.scheduling;
  engine_options.decide = options.decide;
  engine_options.check_plans = options.check_plans;
  absl::StatusOr<std::vector<SimulatedHost>> hosts = HostsOf(clusters, "sim-");
  if (!hosts.ok()) return hosts.status();
  int64_t due_ns = kNever;  // when the engine has to take what was posted
  Engine* posts_to = nullptr;
  const auto post = [&](pb::Event event, bool urgent) {
    due_ns = std::min(due_ns, heap.now_ns() + (urgent ? 0 : options.report_ns));
    posts_to->Post(std::move(event));
  };
  Fleet fleet(options.hosts, *std::move(hosts), &trace, &heap, post);
  Engine engine(engine_options, &clock, &store, &fleet, State());
  posts_to = &engine;
  Tally tally(trace, kEpochNs, options.patience_ns, &result);

  if (absl::Status status = Configure(clusters, queues, &engine, &fleet); !status.ok())
    return status;
  due_ns = kNever;  // that was taken
  tally.Begin(engine.Snapshot()->state);
  engine.Observe([&](const StepRecord& step) { tally.OnStep(step); });

  Submitter submitter(trace, &engine, &tally, post);
  for (size_t i = 0; i < trace.jobs.size(); ++i)
    heap.At(kEpochNs + trace.jobs[i].submit_ns, [&submitter, i] { submitter.Submit(i); });

  const auto at_round = [&](int64_t when_ns) { return AtRound(when_ns, options.round_ns); };
  while (true) {
    heap.RunUntil(heap.now_ns());
    if (at_round(std::min(due_ns, engine.NextWakeNs())) <= heap.now_ns()) {
      due_ns = kNever;
      const auto begin = real_now();
      while (engine.Step()) ++result.steps;
      result.step_ns += since(begin);
    }
    if (tally.AllOver()) break;
    const int64_t wake_ns = at_round(std::min(due_ns, engine.NextWakeNs()));
    const int64_t next_ns = std::max(std::min(heap.next_ns(), wake_ns), heap.now_ns());
    if (next_ns == kNever) break;
    if (options.horizon_ns > 0 && next_ns > kEpochNs + options.horizon_ns) break;
    heap.RunUntil(next_ns);
  }
  tally.Finish(heap.now_ns());
  for (const JobResult& job : result.jobs) {
    if (job.refused.empty() && job.end_ns < 0 && job.number != 0)
      result.stuck.push_back(absl::StrCat("job ", job.number, " ", job.name));
  }
  result.capacity_device_us = DevicesOf(clusters, "") * (result.last_submit_ns / 1000);
  result.digest = store.digest();
  result.real_ns = since(began);
  return result;
}

}  // namespace muster::sim
