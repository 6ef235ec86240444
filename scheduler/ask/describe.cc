#include <algorithm>
#include <optional>
#include <ranges>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/job_defaults.h"
#include "common/spec/members.h"
#include "scheduler/ask/ask.h"
#include "scheduler/ask/capacity.h"
#include "scheduler/ask/usage.h"
#include "scheduler/ask/words/failure_text.h"
#include "scheduler/state/directories.h"

namespace muster {
namespace {

bool AnyDeclared(const State& state, const AttemptRow& attempt) {
  return std::any_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    return part.host != kNoHost && state.host(part.host).inventory.declared();
  });
}

pb::Attempt DescribeAttempt(const State& state, const pb::TaskSpec& task, const AttemptRow& row) {
  pb::Attempt attempt;
  attempt.set_number(row.number);
  attempt.set_state(row.state);
  attempt.set_cause(row.cause);
  attempt.set_detail(FailureText(task, row.cause, row.detail));
  if (row.cluster >= 0 && row.cluster < static_cast<int32_t>(state.clusters().size())) {
    attempt.set_cluster(state.clusters()[row.cluster].name);
  }
  attempt.set_flavour(row.flavour);
  attempt.set_declared(AnyDeclared(state, row));
  for (const PartRow& part : row.parts) *attempt.add_placements() = ToPlacement(state, part);
  attempt.set_workers(row.workers);
  attempt.set_place_ns(row.place_ns);
  attempt.set_start_ns(row.start_ns);
  attempt.set_end_ns(row.end_ns);
  attempt.set_stop_ns(row.stop_ns);
  attempt.set_resumed_step(row.resumed_step);
  *attempt.mutable_stragglers() = {row.stragglers.begin(), row.stragglers.end()};
  attempt.set_lost_may_run(std::any_of(row.parts.begin(), row.parts.end(),
                                       [](const PartRow& part) { return part.lost; }));
  if (std::optional<pb::Usage> usage = SumUsage(state, row); usage.has_value())
    *attempt.mutable_usage() = *std::move(usage);
  return attempt;
}

// A success that lacks its export only: no process is left, and the host that staged it must
// publish it.
bool WaitsForExport(const TaskRow& task) {
  return task.current() != nullptr && task.current()->released() && task.export_state == "staged";
}

// Of each attempt the newest `keep`: what is older, the program has removed.
void AddCheckpoints(const TaskRow& row, const pb::TaskSpec& spec, pb::Task* task) {
  const int32_t keep =
      spec.checkpoint().has_keep() ? spec.checkpoint().keep() : kDefaultCheckpointsKept;
  std::map<int32_t, int32_t> of_attempt;
  std::vector<const pb::Checkpoint*> kept;
  for (const pb::Checkpoint& checkpoint : std::views::reverse(row.checkpoints)) {
    if (++of_attempt[checkpoint.attempt()] <= keep) kept.push_back(&checkpoint);
  }
  for (const pb::Checkpoint* one : std::views::reverse(kept)) *task->add_checkpoints() = *one;
}

// What all queues are described from, read once.
struct QueueFigures {
  explicit QueueFigures(const State& state)
      : use(UseByQueue(state)),
        declared(DeclaredFlavours(state)),
        jobs(state.queues().nodes.size()) {
    for (const uint64_t number : state.active_jobs()) {
      const JobRow& job = *state.FindJob(number);
      for (int32_t n = state.queues().Find(job.spec->queue()); n >= 0;
           n = state.queues().nodes[n].parent) {
        ++(job.state == pb::RUNNING ? jobs[n].running : jobs[n].waiting);
      }
    }
  }
  struct Jobs {
    int32_t running = 0, waiting = 0;
  };
  std::vector<std::map<std::string, int64_t>> use;  // these by node, with what is below it
  std::set<std::string> declared;
  std::vector<Jobs> jobs;
};

pb::Queue DescribeNode(const State& state, const Plan& plan, int32_t node,
                       const QueueFigures& figures) {
  const QueueNode& row = state.queues().nodes[node];
  pb::Queue queue;
  queue.set_path(row.path);
  *queue.mutable_spec() = row.spec;
  queue.mutable_spec()->clear_queues();
  std::set<std::string> flavours;
  for (const auto& [flavour, quota] : row.spec.quota()) flavours.insert(flavour);
  for (const auto& [flavour, held_milli] : figures.use[node]) {
    if (flavour != "cpu") flavours.insert(flavour);
  }
  for (const std::string& flavour : flavours) {
    pb::QueueUse* line = queue.add_use();
    line->set_flavour(flavour);
    line->set_limit_milli(-1);
    line->set_weight(1);
    if (const auto quota = row.spec.quota().find(flavour); quota != row.spec.quota().end()) {
      line->set_guarantee_milli(quota->second.guarantee_milli());
      if (quota->second.has_limit_milli()) line->set_limit_milli(quota->second.limit_milli());
      if (quota->second.has_weight()) line->set_weight(quota->second.weight());
    }
    if (const auto entitled = plan.entitled_milli.find({row.path, flavour});
        entitled != plan.entitled_milli.end()) {
      line->set_entitled_milli(entitled->second);
    }
    if (const auto held = figures.use[node].find(flavour); held != figures.use[node].end())
      line->set_used_milli(held->second);
    line->set_declared(figures.declared.contains(flavour));
  }
  if (row.shortest_first) {  // whichever queue above says so
    queue.mutable_spec()->set_order(pb::SHORTEST);
    queue.mutable_spec()->set_max_wait_ns(row.max_wait_ns);
  }
  queue.set_running_jobs(figures.jobs[node].running);
  queue.set_waiting_jobs(figures.jobs[node].waiting);
  return queue;
}

void AppendBelow(const State& state, const Plan& plan, int32_t node, const QueueFigures& figures,
                 std::vector<pb::Queue>* queues) {
  for (int32_t child : state.queues().nodes[node].children) {
    queues->push_back(DescribeNode(state, plan, child, figures));
    AppendBelow(state, plan, child, figures, queues);
  }
}

// The detail of the task that failed, with what of the job file it is about.
std::string JobDetail(const JobRow& row) {
  for (size_t t = 0; t < row.tasks.size(); ++t) {
    const TaskRow& task = row.tasks[t];
    if (task.state == pb::TASK_FAILED && !task.detail.empty() &&
        row.detail.ends_with(task.detail)) {
      return absl::StrCat(
          row.detail.substr(0, row.detail.size() - task.detail.size()),
          FailureText(row.task_spec(static_cast<int32_t>(t)), row.cause, task.detail));
    }
  }
  return row.detail;
}

}  // namespace

namespace {

int64_t StartOfArray(const State& state, const JobRow& first) {
  int64_t start_ns = first.start_ns;
  const int32_t members = MembersOf(*first.spec);
  for (int32_t m = 1; m < members; ++m) {
    const JobRow* job = state.FindJob(first.number + static_cast<uint64_t>(m));
    if (job == nullptr || job->start_ns == 0) continue;
    if (start_ns == 0 || job->start_ns < start_ns) start_ns = job->start_ns;
  }
  return start_ns;
}

void DescribeOccurrence(const State& state, const JobRow& row, pb::Occurrence* told) {
  const JobRow& first = FirstOf(state, row);
  told->set_previous(first.previous);
  told->set_next(first.next);
  told->set_skipped(row.skipped);
  told->set_no_right(row.no_right);
  if (const JobRow* next = state.FindJob(first.next); next != nullptr)
    told->set_next_ns(next->array == 0 ? next->not_before_ns
                                       : ExplainedMember(state, *next).not_before_ns);
}

}  // namespace

pb::Job DescribeJob(const State& state, const Plan& plan, const JobRow& row, PoolHolders* holders) {
  pb::Job job;
  job.set_uid(row.uid);
  job.set_number(row.number);
  *job.mutable_spec() = *row.spec;
  job.set_owner(row.owner);
  job.set_state(row.state);
  job.set_cause(row.cause);
  job.set_detail(JobDetail(row));
  job.set_submit_ns(row.submit_ns);
  job.set_start_ns(row.start_ns);
  job.set_end_ns(row.end_ns);
  job.set_cluster(row.cluster);
  job.set_directory(JobDirectory(state, row));
  job.set_version(row.version);
  job.set_not_before_ns(row.not_before_ns);
  if (row.spec->has_schedule()) DescribeOccurrence(state, row, job.mutable_occurrence());
  if (row.array != 0) {
    pb::ArrayMember* member = job.mutable_member();
    // Member 0 has the array's uid, by which the whole is cancelled.
    if (row.member == 0) job.set_uid(absl::StrCat(row.uid, "_", IndexOfMember(*row.spec, 0)));
    member->set_array(row.array);
    member->set_index(IndexOfMember(*row.spec, row.member));
    member->set_id(MemberId(*row.spec, row.array, row.member));
    for (const auto& [name, value] : ValuesOfMember(*row.spec, row.member)) {
      pb::SweepValues* own = member->add_values();
      own->set_name(name);
      own->add_values(value);
    }
  }
  for (size_t t = 0; t < row.tasks.size(); ++t) {
    const TaskRow& task_row = row.tasks[t];
    pb::Task* task = job.add_tasks();
    task->set_name(row.task_spec(static_cast<int32_t>(t)).name());
    task->set_state(task_row.state);
    // What runs on a host that can't be reached has one, too: what it waits for.
    const Verdict* told = plan.verdicts.Find({row.number, static_cast<int32_t>(t)});
    const bool unreachable = told != nullptr && told->code == pb::V_UNREACHABLE;
    if (task_row.state == pb::TASK_WAITING || task_row.state == pb::TASK_BLOCKED || unreachable) {
      pb::Verdict verdict = DescribeVerdict(state, plan, row, static_cast<int32_t>(t), holders);
      if (verdict.code() != pb::VERDICT_UNSPECIFIED) *task->mutable_verdict() = std::move(verdict);
    }
    if (WaitsForExport(task_row)) {
      task->mutable_verdict()->set_code(pb::V_EXPORT);
      task->mutable_verdict()->set_text(
          VerdictText(state, row, static_cast<int32_t>(t), task->verdict()));
    }
    for (const AttemptRow& attempt : task_row.attempts)
      *task->add_attempts() =
          DescribeAttempt(state, row.task_spec(static_cast<int32_t>(t)), attempt);
    task->set_restarts_used(task_row.restarts_used);
    *task->mutable_progress() = task_row.progress;
    AddCheckpoints(task_row, row.task_spec(static_cast<int32_t>(t)), task);
    for (std::string& sentence : AdviceOf(state, row.task_spec(static_cast<int32_t>(t)), task_row))
      task->add_advice(std::move(sentence));
    task->set_backoff_until_ns(task_row.backoff_until_ns);
    task->set_spill_reason(SpillText(state, row, static_cast<int32_t>(t)));
  }
  return job;
}

pb::Job DescribeArray(const State& state, const JobRow& first, pb::Job telling) {
  pb::Job job = std::move(telling);
  const std::string id = job.member().id();
  *job.mutable_array() = ArrayStatusOf(state, first);
  job.set_uid(first.uid);
  job.set_number(first.number);
  job.set_state(StateOfArray(job.array()));
  job.set_end_ns(job.array().end_ns());
  job.set_start_ns(StartOfArray(state, first));
  job.clear_member();
  if (job.cause() == pb::PREDECESSOR && job.state() == pb::CANCELLED) return job;
  job.set_cause(job.state() == pb::CANCELLED ? pb::CANCEL : job.cause());
  if (job.state() != pb::CANCELLED && !job.detail().empty())
    job.set_detail(absl::StrCat("job ", id, ": ", job.detail()));
  if (job.state() == pb::SUCCEEDED) {
    job.clear_cause();
    job.clear_detail();
  }
  return job;
}

absl::StatusOr<pb::Queue> DescribeQueue(const State& state, const Plan& plan,
                                        const std::string& path) {
  const int32_t node = state.queues().Find(path);
  if (node < 0) {
    std::string known;
    for (const QueueNode& row : state.queues().nodes) {
      if (!row.path.empty()) absl::StrAppend(&known, known.empty() ? "" : ", ", row.path);
    }
    return absl::NotFoundError(absl::StrCat("no queue \"", path, "\"; there are ", known));
  }
  return DescribeNode(state, plan, node, QueueFigures(state));
}

std::vector<pb::Queue> DescribeQueues(const State& state, const Plan& plan) {
  std::vector<pb::Queue> queues;
  AppendBelow(state, plan, 0, QueueFigures(state), &queues);
  return queues;
}

pb::Host DescribeHost(const State& state, HostId id) {
  const HostRow& row = state.host(id);
  pb::Host host;
  host.set_name(state.HostName(id));
  host.set_cluster(state.clusters()[row.cluster].name);
  host.set_only_user(state.clusters()[row.cluster].spec.only_user());
  host.set_block(row.block);
  host.set_rack(row.rack);
  host.set_state(row.state);
  host.set_drained(row.drained);
  host.set_drain_reason(row.drain_reason);
  // Of a removed host what was known of it.
  *host.mutable_inventory() =
      row.state == pb::HOST_NEVER_SEEN ? ShapeOf(state, row) : row.inventory;
  host.mutable_inventory()->clear_trainer_schema_json();
  host.set_last_heard_ns(row.spoke_ns);
  for (size_t d = 0; d < row.device_used_milli.size(); ++d) {
    pb::DeviceUse* use = host.add_use();
    use->set_index(row.inventory.devices(static_cast<int>(d)).index());
    use->set_used_milli(row.device_used_milli[d]);
    std::set<uint64_t> jobs;
    for (const AttemptRef& ref : row.attempts) {
      const AttemptRow* attempt = state.FindAttempt(ref);
      if (attempt == nullptr) continue;
      for (const PartRow& part : attempt->parts) {
        if (part.host == id && !part.over() &&
            std::count(part.devices.begin(), part.devices.end(), use->index()) > 0)
          jobs.insert(ref.job);
      }
    }
    for (uint64_t number : jobs) use->add_jobs(number);
  }
  host.set_cpus_free_milli(host.inventory().cpus_milli() - row.cpus_used_milli);
  host.set_memory_free_bytes(host.inventory().memory_bytes() - row.memory_used_bytes);
  *host.mutable_quarantines() = {row.quarantines.begin(), row.quarantines.end()};
  *host.mutable_blames() = {row.blames.begin(), row.blames.end()};
  host.set_confirmed_off_by(row.confirmed_off_by);
  host.set_fence_detail(row.fence_detail);
  return host;
}

namespace {

// Devices' thousandths of a host that is up on which nothing starts, as it is drained.
int64_t FreeOnDrained(const HostRow& host) {
  if (!host.drained || (host.state != pb::HOST_UP && host.state != pb::HOST_SILENT)) return 0;
  int64_t free_milli = 0;
  for (int d = 0; d < host.inventory.devices_size(); ++d) {
    const size_t device = static_cast<size_t>(d);
    const int64_t used_milli =
        device < host.device_used_milli.size() ? host.device_used_milli[device] : 0;
    if (host.inventory.devices(d).healthy()) free_milli += std::max<int64_t>(0, 1000 - used_milli);
  }
  return free_milli;
}

}  // namespace

pb::Cluster DescribeCluster(const State& state, int32_t index) {
  const ClusterRow& row = state.clusters()[index];
  pb::Cluster cluster;
  cluster.set_name(row.name);
  *cluster.mutable_spec() = row.spec;
  cluster.set_drained(row.drained);
  cluster.set_drain_reason(row.drain_reason);
  std::map<std::string, pb::Capacity> capacity;
  for (HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.cluster != index || IsRemoved(state, host)) continue;
    cluster.set_hosts_known(cluster.hosts_known() + 1);
    if (host.state == pb::HOST_UP) cluster.set_hosts_up(cluster.hosts_up() + 1);
    if (host.quarantined()) cluster.set_hosts_quarantined(cluster.hosts_quarantined() + 1);
    for (const pb::Quarantine& row : host.quarantines) {
      if (row.withheld()) {
        cluster.set_quarantines_withheld(cluster.quarantines_withheld() + 1);
      } else if (row.device() >= 0 && !host.quarantined()) {
        cluster.set_devices_quarantined(cluster.devices_quarantined() + 1);
      }
    }
    if (host.inventory.flavour().empty()) continue;
    pb::Capacity& line = capacity[host.inventory.flavour()];
    line.set_flavour(host.inventory.flavour());
    line.set_declared(line.declared() || host.inventory.declared());
    if (host.state == pb::HOST_UP || host.state == pb::HOST_SILENT) {
      for (const pb::Device& device : host.inventory.devices())
        line.set_total_milli(line.total_milli() + (device.healthy() ? 1000 : 0));
    }
    for (int64_t used_milli : host.device_used_milli)
      line.set_used_milli(line.used_milli() + used_milli);
    line.set_drained_milli(line.drained_milli() + FreeOnDrained(host));
  }
  for (const auto& [flavour, line] : capacity) *cluster.add_capacity() = line;
  return cluster;
}

pb::LedgerResponse DescribeLedger(const State& state) {
  pb::LedgerResponse response;
  response.set_since_ns(state.ledger_since_ns());
  response.set_until_ns(state.ledger_until_ns());
  response.set_capacity_device_us(state.ledger_capacity_device_us());
  constexpr int kClasses = sizeof(kLedgerClasses) / sizeof(kLedgerClasses[0]);
  for (int c = 0; c < kClasses; ++c) {
    pb::LedgerResponse::Entry* entry = response.add_entries();
    entry->set_class_(kLedgerClasses[c]);
    for (const auto& [key, device_us] : state.ledger()) {
      if (key.second == c) entry->set_device_us(entry->device_us() + device_us);
    }
  }
  return response;
}

std::vector<uint64_t> JobsOn(const State& state, const std::string& target) {
  std::vector<uint64_t> jobs;
  const size_t slash = target.find('/');
  if (slash == std::string::npos) {
    const int32_t cluster = state.FindCluster(target);
    for (const uint64_t number : state.active_jobs()) {
      const std::vector<TaskRow>& tasks = state.FindJob(number)->tasks;
      const auto there = [&](const TaskRow& task) {
        return task.current() != nullptr && task.current()->cluster == cluster;
      };
      if (std::any_of(tasks.begin(), tasks.end(), there)) jobs.push_back(number);
    }
    return jobs;
  }
  const HostId id = state.FindHost(target.substr(0, slash), target.substr(slash + 1));
  if (id == kNoHost) return jobs;
  for (const AttemptRef& ref : state.host(id).attempts) {  // by job
    const std::vector<PartRow>& parts = state.FindAttempt(ref)->parts;
    const auto there = [&](const PartRow& part) { return part.host == id && !part.over(); };
    if ((jobs.empty() || jobs.back() != ref.job) && std::any_of(parts.begin(), parts.end(), there))
      jobs.push_back(ref.job);
  }
  return jobs;
}

}  // namespace muster
