// Small builders for tests of state, decide and ask: systems that read like sentences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/state/state.h"
#include "scheduler/state/validate.h"

namespace muster::testing {

inline constexpr Abilities kAllAbilities = (Abilities{1} << kAbilityBits) - 1;

inline void Announce(Abilities abilities, pb::Inventory* inventory) {
  inventory->set_gives_secrets((abilities & kGivesSecrets) != 0);
  inventory->set_unpacks((abilities & kUnpacks) != 0);
  inventory->set_enters_images((abilities & kEntersImages) != 0);
}

// What the host said of itself last, to be changed and said again.
inline pb::Event HelloAgain(const State& state, const std::string& cluster,
                            const std::string& host) {
  const HostRow& row = state.host(state.FindHost(cluster, host));
  pb::Event event;
  pb::HostHello& hello = *event.mutable_host_hello();
  hello.set_cluster(cluster);
  hello.set_host(host);
  hello.set_state_id(row.state_id);
  hello.set_boot_id(row.boot_id);
  *hello.mutable_inventory() = row.inventory;
  return event;
}

// Clusters, queues and hosts, one call each; every host answers a Hello of its own.
class SystemBuilder {
 public:
  SystemBuilder() { Step(0); }

  SystemBuilder& Cluster(const std::string& name, const std::string& storage = "") {
    pb::ClusterSpec* cluster = file_.add_clusters();
    cluster->set_name(name);
    cluster->set_open(true);
    if (!storage.empty()) {
      cluster->set_job_storage(storage);
      (*file_.mutable_storages())[storage].add_clusters(name);
    }
    return Configure();
  }
  SystemBuilder& OnlyFor(const std::string& cluster, const std::string& user) {
    for (pb::ClusterSpec& spec : *file_.mutable_clusters()) {
      if (spec.name() == cluster) spec.set_only_user(user);
    }
    return Configure();
  }
  // Not open any more: hosts that the file doesn't list aren't welcome.
  SystemBuilder& Close(const std::string& cluster) {
    for (pb::ClusterSpec& spec : *file_.mutable_clusters()) {
      if (spec.name() == cluster) spec.set_open(false);
    }
    return Configure();
  }
  SystemBuilder& Hosts(const std::string& cluster, int count, int gpus,
                       const std::string& flavour = "gpu", const std::string& rack = "",
                       int64_t cpus = 64) {
    for (int i = 0; i < count; ++i) {
      const std::string name = absl::StrCat("h", absl::StrCat(100 + hosts_++).substr(1));
      if (!rack.empty()) {
        for (pb::ClusterSpec& spec : *file_.mutable_clusters()) {
          if (spec.name() != cluster) continue;
          pb::HostSpec* host = spec.add_hosts();
          host->set_name(name);
          host->set_rack(rack);
        }
        Configure();
      }
      Hello(cluster, name, gpus, flavour, cpus);
    }
    return *this;
  }
  void Hello(const std::string& cluster, const std::string& name, int gpus,
             const std::string& flavour = "gpu", int64_t cpus = 64,
             const std::string& state_id = "s1", Abilities abilities = kAllAbilities) {
    pb::Event event;
    pb::HostHello* hello = event.mutable_host_hello();
    hello->set_cluster(cluster);
    hello->set_host(name);
    hello->set_state_id(state_id);
    hello->set_boot_id("b1");
    pb::Inventory* inventory = hello->mutable_inventory();
    if (gpus > 0) inventory->set_flavour(flavour);
    for (int d = 0; d < gpus; ++d) {
      inventory->add_devices()->set_index(d);
      inventory->mutable_devices(d)->set_healthy(true);
    }
    inventory->set_cpus_milli(cpus * 1000);
    inventory->set_memory_bytes(int64_t{256} << 30);
    inventory->set_disk_bytes(int64_t{1} << 40);
    Announce(abilities, inventory);
    inventory->set_address("127.0.0.1");
    Do(event);
  }
  // The host comes back with another inventory.
  void LowDisk(const std::string& cluster, const std::string& name, const std::string& low) {
    pb::Event event = HelloAgain(state, cluster, name);
    event.mutable_host_hello()->mutable_inventory()->set_low_disk(low);
    Do(event);
  }
  // A leaf below the root, or below a parent that is a queue already ("research/nlp").
  SystemBuilder& Queue(const std::string& path, int64_t guarantee = 0, int64_t limit = -1,
                       int64_t weight = 1, const std::string& flavour = "gpu") {
    google::protobuf::RepeatedPtrField<pb::QueueSpec>* level = tree_.mutable_queues();
    std::string rest = path;
    for (size_t slash; (slash = rest.find('/')) != std::string::npos;
         rest = rest.substr(slash + 1)) {
      for (pb::QueueSpec& queue : *level) {
        if (queue.name() == rest.substr(0, slash)) level = queue.mutable_queues();
      }
    }
    pb::QueueSpec* queue = level->Add();
    queue->set_name(rest);
    pb::Quota& quota = (*queue->mutable_quota())[flavour];
    quota.set_guarantee_milli(guarantee * 1000);
    if (limit >= 0) quota.set_limit_milli(limit * 1000);
    quota.set_weight(weight);
    return ApplyTree();
  }
  // The leaf below the root takes the shortest first.
  SystemBuilder& ShortestFirst(const std::string& leaf, int64_t max_wait_s = 0) {
    for (pb::QueueSpec& queue : *tree_.mutable_queues()) {
      if (queue.name() != leaf) continue;
      queue.set_order(pb::SHORTEST);
      queue.set_max_wait_ns(max_wait_s * kSecond);
    }
    return ApplyTree();
  }
  SystemBuilder& GuaranteeIn(const std::string& leaf, const std::string& cluster, int64_t guarantee,
                             const std::string& flavour = "gpu") {
    for (pb::QueueSpec& queue : *tree_.mutable_queues()) {
      if (queue.name() == leaf)
        (*(*queue.mutable_quota())[flavour].mutable_guarantee_per_cluster())[cluster] =
            guarantee * 1000;
    }
    return ApplyTree();
  }

  void Do(const pb::Event& event) { Apply(&state, event); }
  void Step(int64_t seconds) {
    now_ns = kStart + seconds * kSecond;
    pb::Event event;
    event.mutable_step()->set_now_ns(now_ns);
    event.mutable_step()->set_epoch(1);
    Do(event);
  }
  void Drain(const std::string& target, bool drained = true) {
    pb::Event event;
    event.mutable_drain_changed()->set_target(target);
    event.mutable_drain_changed()->set_drained(drained);
    Do(event);
  }
  void Cancel(uint64_t job) {
    pb::Event event;
    event.mutable_job_cancel()->set_number(job);
    Do(event);
  }
  SystemBuilder& Rule(const std::string& cluster, const pb::QuarantineRule& rule) {
    for (pb::ClusterSpec& spec : *file_.mutable_clusters()) {
      if (spec.name() == cluster) *spec.mutable_quarantine() = rule;
    }
    return Configure();
  }
  void HostState(const std::string& cluster, const std::string& host, pb::HostState to) {
    pb::Event event;
    event.mutable_host_state()->set_cluster(cluster);
    event.mutable_host_state()->set_host(host);
    event.mutable_host_state()->set_state(to);
    Do(event);
  }

  State state;
  int64_t now_ns = 0;
  static constexpr int64_t kStart = int64_t{1'700'000'000} * kSecond;

 private:
  SystemBuilder& Configure() {
    pb::Event event;
    *event.mutable_clusters_configured()->mutable_file() = file_;
    Do(event);
    return *this;
  }
  SystemBuilder& ApplyTree() {
    pb::Event event;
    *event.mutable_queues_applied()->mutable_tree() = tree_;
    Do(event);
    return *this;
  }

  pb::ClusterFile file_;
  pb::QueueTree tree_;
  int hosts_ = 0;
};

// JobBuilder("research").Workers(2, 4).Gpus(1).In({"lab"}).SubmitTo(&system) gives the job's
// number.
class JobBuilder {
 public:
  explicit JobBuilder(const std::string& queue) {
    spec.set_queue(queue);
    spec.set_name("job");
    Task("main");
  }
  JobBuilder& Task(const std::string& name, const std::vector<std::string>& after = {}) {
    if (first_) {
      first_ = false;
      task_ = spec.add_tasks();
    } else if (name != "main") {
      task_ = renamed_ ? spec.add_tasks() : task_;
      renamed_ = true;
    }
    task_->set_name(name);
    for (const std::string& before : after) task_->add_after(before);
    task_->mutable_workers()->set_min(1);
    task_->mutable_workers()->set_max(1);
    task_->mutable_resources()->set_gpus_milli(1000);
    task_->mutable_resources()->add_gpu_types("gpu");
    task_->mutable_resources()->set_cpus_milli(1000);
    task_->mutable_resources()->set_memory_bytes(1 << 20);
    task_->set_max_restarts(3);
    task_->set_grace_ns(10 * kSecond);
    return *this;
  }
  JobBuilder& Workers(int min, int max = 0) {
    task_->mutable_workers()->set_min(min);
    task_->mutable_workers()->set_max(max == 0 ? min : max);
    return *this;
  }
  JobBuilder& MultipleOf(int workers) {
    task_->mutable_workers()->set_multiple_of(workers);
    return *this;
  }
  JobBuilder& Gpus(int64_t gpus) { return GpusMilli(gpus * 1000); }
  JobBuilder& GpusMilli(int64_t milli) {
    task_->mutable_resources()->set_gpus_milli(milli);
    if (milli == 0) task_->mutable_resources()->clear_gpu_types();
    return *this;
  }
  JobBuilder& Cpus(int64_t cpus) {
    task_->mutable_resources()->set_cpus_milli(cpus * 1000);
    return *this;
  }
  JobBuilder& Flavours(const std::vector<std::string>& types) {
    task_->mutable_resources()->clear_gpu_types();
    for (const std::string& type : types) task_->mutable_resources()->add_gpu_types(type);
    return *this;
  }
  JobBuilder& In(const std::vector<std::string>& clusters) {
    for (const std::string& cluster : clusters) spec.add_clusters(cluster);
    return *this;
  }
  JobBuilder& Priority(int priority) {
    spec.set_priority(priority);
    return *this;
  }
  JobBuilder& After(const std::string& job) {
    spec.add_after(job);
    return *this;
  }
  JobBuilder& AfterAny(const std::string& job) {
    spec.add_after_any(job);
    return *this;
  }
  JobBuilder& TimeLimit(int64_t seconds) {
    task_->set_time_limit_ns(seconds * kSecond);
    return *this;
  }
  JobBuilder& Owner(const std::string& user) {
    owner_ = user;
    return *this;
  }
  JobBuilder& NotBefore(int64_t unix_ns) {
    not_before_ns_ = unix_ns;
    return *this;
  }
  pb::TaskSpec* task() { return task_; }

  uint64_t SubmitTo(SystemBuilder* system, const std::string& key = "") {
    pb::Event event;
    pb::JobSubmitted* submitted = event.mutable_job_submitted();
    submitted->set_number(system->state.next_job_number());
    submitted->set_uid(absl::StrCat("uid", submitted->number()));
    submitted->set_owner(owner_);
    submitted->set_idempotency_key(key);
    submitted->set_not_before_ns(not_before_ns_);
    *submitted->mutable_spec() = spec;
    SetPredecessors(system->state, submitted);
    system->Do(event);
    return submitted->number();
  }

  pb::JobSpec spec;

 private:
  pb::TaskSpec* task_ = nullptr;
  bool first_ = true, renamed_ = false;
  int64_t not_before_ns_ = 0;
  std::string owner_ = "ann";
};

inline const TaskRow& TaskOf(const State& state, uint64_t job, int task = 0) {
  return state.FindJob(job)->tasks[task];
}

// What the host says of an attempt. `exit_code` >= 0 gives every worker of the part that exit.
inline pb::Event Report(const State& state, uint64_t job, int task, int32_t attempt, size_t part,
                        pb::AttemptPhase phase, int exit_code = -1, bool stop_sent = false) {
  const JobRow& row = *state.FindJob(job);
  const AttemptRow& a = *state.FindAttempt(AttemptRef{job, task, attempt});
  const HostRow& host = state.host(a.parts[part].host);
  pb::Event event;
  pb::AttemptReported* e = event.mutable_attempt_reported();
  e->set_cluster(state.clusters()[host.cluster].name);
  e->set_host(host.name);
  e->set_state_id(host.state_id);
  *e->mutable_report()->mutable_key() = KeyOf(row, task, attempt);
  e->mutable_report()->set_phase(phase);
  e->mutable_report()->set_stop_sent(stop_sent);
  if (phase == pb::PREPARED) e->mutable_report()->set_rendezvous_port(20'000);
  for (int w = 0; exit_code >= 0 && w < a.parts[part].workers; ++w) {
    pb::WorkerExit* exit = e->mutable_report()->add_exits();
    exit->set_rank(a.parts[part].first_group_rank + w);
    exit->set_exit_code(exit_code);
  }
  return event;
}

// Every host of the task's unfinished attempt reports this, gangs passing through GangPrepared.
inline void ReportAll(SystemBuilder* system, uint64_t job, pb::AttemptPhase phase,
                      int exit_code = -1, bool stop_sent = false, int task = 0) {
  const int32_t number = TaskOf(system->state, job, task).attempts.back().number;
  const size_t parts = TaskOf(system->state, job, task).attempts.back().parts.size();
  for (size_t p = 0; p < parts; ++p)
    system->Do(Report(system->state, job, task, number, p, phase, exit_code, stop_sent));
}
inline void StartAll(SystemBuilder* system, uint64_t job, int task = 0) {
  if (TaskOf(system->state, job, task).state == pb::TASK_PREPARING) {
    ReportAll(system, job, pb::PREPARED, -1, false, task);
    pb::Event event;
    *event.mutable_gang_prepared()->mutable_key() = KeyOf(
        *system->state.FindJob(job), task, TaskOf(system->state, job, task).attempts.back().number);
    event.mutable_gang_prepared()->set_master_address("127.0.0.1");
    event.mutable_gang_prepared()->set_master_port(20'000);
    system->Do(event);
  }
  ReportAll(system, job, pb::STARTED, -1, false, task);
}

// The program of the task's unfinished attempt says when it will end.
inline void TellEnd(SystemBuilder* system, uint64_t job, int64_t in_seconds, int task = 0) {
  pb::Event event;
  pb::ProgressSeen* e = event.mutable_progress_seen();
  *e->mutable_key() = KeyOf(*system->state.FindJob(job), task,
                            TaskOf(system->state, job, task).attempts.back().number);
  e->mutable_progress()->set_at_ns(system->now_ns);
  e->mutable_progress()->set_expected_end_ns(system->now_ns + in_seconds * kSecond);
  system->Do(event);
}

// A placement by hand, for tests of Apply and Validate: workers on hosts, devices by index.
struct On {
  std::string host;
  std::vector<int32_t> devices;
  int32_t workers = 1;
};
inline pb::Event Placed(const State& state, uint64_t job, const std::string& cluster,
                        const std::vector<On>& parts, int task = 0,
                        const std::string& flavour = "gpu") {
  pb::Event event;
  pb::AttemptPlaced* e = event.mutable_attempt_placed();
  *e->mutable_key() = KeyOf(*state.FindJob(job), task, TaskOf(state, job, task).next_attempt);
  e->set_cluster(cluster);
  e->set_flavour(flavour);
  int32_t rank = 0;
  for (const On& part : parts) {
    pb::Placement* placement = e->add_placements();
    placement->set_host(part.host);
    placement->set_first_group_rank(rank);
    placement->set_workers(part.workers);
    for (const int32_t device : part.devices) placement->add_devices(device);
    rank += part.workers;
  }
  e->set_workers(rank);
  e->set_at_once(parts.size() == 1);
  return event;
}
inline pb::Event Stopping(const State& state, uint64_t job, pb::Cause cause,
                          int32_t next_workers = 0, int task = 0) {
  pb::Event event;
  pb::AttemptStopping* e = event.mutable_attempt_stopping();
  *e->mutable_key() =
      KeyOf(*state.FindJob(job), task, TaskOf(state, job, task).attempts.back().number);
  e->set_cause(cause);
  e->set_next_workers(next_workers);
  e->set_grace_ns(kSecond);
  return event;
}

}  // namespace muster::testing
