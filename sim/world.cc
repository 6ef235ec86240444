#include "sim/world.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "scheduler/ask/ask.h"
#include "sim/fleet.h"

namespace muster::sim {
namespace {

constexpr int64_t kEpochNs = 1'700'000'000'000'000'000;  // the simulation's zero, as Unix time

class VirtualClock : public Clock {
 public:
  explicit VirtualClock(const Timeline* timeline) : timeline_(timeline) {}
  int64_t WallNs() override { return timeline_->now_ns(); }
  int64_t MonotonicNs() override { return timeline_->now_ns() - kEpochNs; }
  int64_t BootNs() override { return timeline_->now_ns() - kEpochNs; }

 private:
  const Timeline* const timeline_;
};

// Commits to nothing but a digest of what was committed.
class DigestStore : public Store {
 public:
  absl::Status Commit(const Transaction& transaction) override {
    MUSTER_CHECK(transaction.commit == last_ + 1);
    last_ = transaction.commit;
    for (const std::string& event : transaction.events) digest_ = Fnv1a(digest_, event);
    return absl::OkStatus();
  }
  uint64_t digest() const { return digest_; }
  uint64_t commits() const { return last_; }

 private:
  uint64_t last_ = 0;
  uint64_t digest_ = 0xcbf29ce484222325ull;
};

class SimLink : public AgentLink {
 public:
  SimLink(Timeline* timeline, int64_t latency_ns) : timeline_(timeline), latency_ns_(latency_ns) {}
  void set_fleet(Fleet* fleet) { fleet_ = fleet; }
  void Send(const std::string& cluster, const std::string& host, const pb::SchedulerMessage& message) override {
    timeline_->At(timeline_->now_ns() + latency_ns_, [fleet = fleet_, cluster, host, message] { fleet->Deliver(cluster, host, message); });
  }

 private:
  Timeline* const timeline_;
  const int64_t latency_ns_;
  Fleet* fleet_ = nullptr;
};

std::string UidOf(size_t trace_index) { return absl::StrFormat("%032x", trace_index + 1); }

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
  task->mutable_resources()->set_gpus_milli(job.gpus_milli);
  if (job.gpus_milli > 0) task->mutable_resources()->add_gpu_types(job.gpu_type);
  task->mutable_resources()->set_cpus_milli(job.cpus_milli);
  task->mutable_run()->add_exec("simulated");
  task->mutable_checkpoint()->set_interval_ns(job.checkpoint_ns);
  return spec;
}

pb::Inventory InventoryOf(const pb::Sku& sku) {
  pb::Inventory inventory;
  inventory.set_flavour(sku.flavour());
  for (int i = 0; i < sku.gpus(); ++i) {
    pb::Device* device = inventory.add_devices();
    device->set_index(i);
    device->set_uuid(absl::StrCat("sim-", i));
    device->set_island(sku.nvlink_island() > 0 ? i / sku.nvlink_island() : 0);
    device->set_healthy(true);
  }
  inventory.set_cpus_milli(sku.cpus_milli());
  inventory.set_memory_bytes(sku.memory_bytes());
  inventory.set_disk_bytes(sku.disk_bytes());
  inventory.set_declared(true);
  inventory.set_address("127.0.0.1");
  return inventory;
}

// Watches the committed events and adds up what happened to each job.
class Tally {
 public:
  Tally(const Trace& trace, WorldResult* result) : result_(result) {
    for (size_t i = 0; i < trace.jobs.size(); ++i) {
      JobResult job;
      job.name = trace.jobs[i].name;
      job.queue = trace.jobs[i].queue;
      job.gpus_milli = trace.jobs[i].gpus_milli * trace.jobs[i].workers;
      job.submit_ns = trace.jobs[i].submit_ns;
      result_->jobs.push_back(job);
      by_uid_[UidOf(i)] = i;
    }
  }

  void OnStep(const StepRecord& step) {
    const int64_t now_ns = step.view->now_ns;
    result_->used_device_ns += used_milli_ * ((now_ns - last_ns_) / 1000);
    last_ns_ = now_ns;
    for (const pb::Event& event : step.events) {
      if (event.has_attempt_placed()) {
        JobResult& job = result_->jobs[by_uid_.at(event.attempt_placed().key().job_uid())];
        if (job.start_ns < 0) job.start_ns = now_ns - kEpochNs;
      } else if (event.has_attempt_stopping()) {
        JobResult& job = result_->jobs[by_uid_.at(event.attempt_stopping().key().job_uid())];
        if (event.attempt_stopping().cause() == pb::PREEMPTION) {
          ++job.evictions;
          ++result_->evictions;
        } else if (event.attempt_stopping().cause() == pb::RESIZE) {
          ++job.resizes;
        }
      }
    }
    used_milli_ = 0;
    const State& state = step.view->state;
    for (HostId id : state.hosts()) {
      for (int64_t milli : state.host(id).device_used_milli) used_milli_ += milli;
    }
    for (auto it = running_.begin(); it != running_.end();) {
      const JobRow* job = state.FindJobByUid(it->first);
      if (job != nullptr && !job->finished()) {
        ++it;
        continue;
      }
      result_->jobs[it->second].end_ns = now_ns - kEpochNs;
      result_->end_ns = std::max(result_->end_ns, now_ns - kEpochNs);
      it = running_.erase(it);
    }
  }

  void OnAccepted(size_t index, uint64_t number) {
    result_->jobs[index].number = number;
    running_[UidOf(index)] = index;
  }
  void OnRefused(size_t index, std::string why) {
    result_->jobs[index].refused = std::move(why);
    ++refused_;
  }
  size_t refused() const { return refused_; }
  const std::map<std::string, size_t>& running() const { return running_; }

 private:
  WorldResult* const result_;
  std::map<std::string, size_t> by_uid_;
  std::map<std::string, size_t> running_;  // accepted, not ended
  size_t refused_ = 0;
  int64_t used_milli_ = 0;
  int64_t last_ns_ = kEpochNs;
};

absl::Status Joined(const std::vector<FieldProblem>& problems) {
  std::string text;
  for (const FieldProblem& problem : problems) absl::StrAppend(&text, text.empty() ? "" : "; ", problem.path, ": ", problem.message);
  return absl::InvalidArgumentError(text);
}

}  // namespace

uint64_t Fnv1a(uint64_t digest, const std::string& bytes) {
  for (unsigned char c : bytes) digest = (digest ^ c) * 0x100000001b3ull;
  return digest;
}

absl::StatusOr<WorldResult> RunWorld(const pb::ClusterFile& clusters, const pb::QueueTree& queues, const Trace& trace,
                                     const WorldOptions& options) {
  WorldResult result;
  Timeline timeline;
  timeline.AdvanceTo(kEpochNs);
  VirtualClock clock(&timeline);
  DigestStore store;
  SimLink link(&timeline, options.latency_ns);
  EngineOptions engine_options;
  engine_options.scheduling = options.scheduling;
  Engine engine(engine_options, &clock, &store, &link, State());
  Tally tally(trace, &result);

  std::map<std::string, const TraceJob*> by_uid;
  for (size_t i = 0; i < trace.jobs.size(); ++i) by_uid[UidOf(i)] = &trace.jobs[i];
  Fleet fleet(
      options, &timeline,
      [&](pb::Event event) {
        if (event.has_progress_seen()) {
          engine.PostProgress(event.progress_seen());
        } else {
          engine.Post(std::move(event));
        }
      },
      [&](const std::string& uid) { return by_uid.at(uid); });
  link.set_fleet(&fleet);

  // The fleet: clusters, hosts, queues.
  {
    pb::Event event;
    *event.mutable_clusters_configured()->mutable_file() = clusters;
    engine.Post(event);
  }
  int64_t capacity_devices = 0;
  for (const pb::ClusterSpec& cluster : clusters.clusters()) {
    for (const pb::HostSpec& host : cluster.hosts()) {
      const auto sku = clusters.skus().find(host.sku().empty() ? cluster.sku() : host.sku());
      if (sku == clusters.skus().end()) return absl::InvalidArgumentError(absl::StrCat("host ", host.name(), " has an unknown SKU"));
      pb::Event event;
      auto* hello = event.mutable_host_hello();
      hello->set_cluster(cluster.name());
      hello->set_host(host.name());
      hello->set_state_id(absl::StrCat("state-", cluster.name(), "/", host.name()));
      hello->set_boot_id("boot");
      *hello->mutable_inventory() = InventoryOf(sku->second);
      capacity_devices += sku->second.gpus();
      engine.Post(event);
    }
  }
  while (engine.Step()) {
  }
  {
    const QueueResolution resolution = ResolveQueues(engine.Snapshot()->state, queues);
    if (!resolution.ok()) return Joined(resolution.problems);
    pb::Event event;
    *event.mutable_queues_applied()->mutable_tree() = resolution.resolved;
    event.mutable_queues_applied()->set_version(1);
    engine.Post(event);
  }
  while (engine.Step()) {
  }
  engine.Observe([&](const StepRecord& step) { tally.OnStep(step); });

  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    timeline.At(kEpochNs + trace.jobs[i].submit_ns, [&, i] {
      auto number = std::make_shared<uint64_t>(0);
      engine.Call(
          [&, i, number](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
            Resolution resolution = ResolveSpec(state, SpecOf(trace.jobs[i]), SpecDefaults{});
            if (!resolution.ok()) return Joined(resolution.problems);
            pb::Event event;
            auto* submitted = event.mutable_job_submitted();
            submitted->set_uid(UidOf(i));
            submitted->set_number(*number = state.next_job_number());
            submitted->set_owner("sim");
            *submitted->mutable_spec() = std::move(resolution.resolved);
            submitted->set_idempotency_key(UidOf(i));
            tally.OnAccepted(i, *number);
            return std::vector<pb::Event>{event};
          },
          [&, i](absl::Status status) {
            if (!status.ok()) tally.OnRefused(i, std::string(status.message()));
          });
    });
  }

  const auto real_now = [] { return std::chrono::steady_clock::now(); };
  size_t submitted = 0;
  while (true) {
    const auto begin = real_now();
    while (engine.Step()) ++result.steps;
    result.decide_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(real_now() - begin).count();
    submitted = 0;
    for (const JobResult& job : result.jobs) submitted += job.number != 0 || !job.refused.empty();
    if (submitted == trace.jobs.size() && tally.running().empty()) break;
    const int64_t next_ns = std::min(timeline.NextNs(), engine.NextLookNs());
    if (next_ns == std::numeric_limits<int64_t>::max()) break;
    if (options.horizon_ns > 0 && next_ns > kEpochNs + options.horizon_ns) break;
    timeline.AdvanceTo(std::max(next_ns, timeline.now_ns()));
    timeline.RunDue();
  }
  for (const auto& [uid, index] : tally.running()) {
    result.stuck.push_back(absl::StrCat("job ", result.jobs[index].number, " ", result.jobs[index].name));
  }
  result.capacity_device_ns = capacity_devices * result.end_ns;
  result.digest = store.digest();
  return result;
}

}  // namespace muster::sim
