#include "scheduler/ask/top.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "common/base/units.h"
#include "scheduler/ask/capacity.h"
#include "scheduler/ask/future.h"

namespace muster {
namespace {

// An array is one row.
uint64_t RowNumber(const JobRow& job) { return job.array != 0 ? job.array : job.number; }

using Top = pb::TopResponse;
using Key = std::pair<std::string, std::string>;  // name, flavour ("" without GPUs)

constexpr int kDefaultRows = 50;
constexpr size_t kClasses = std::size(kLedgerClasses);

// The flavour that a task counts for while it waits: the first that it allows.
std::string WantedFlavour(const pb::TaskSpec& task) {
  return task.resources().gpus_milli() > 0 && task.resources().gpu_types_size() > 0
             ? task.resources().gpu_types(0)
             : "";
}

int64_t WantedMilli(const pb::TaskSpec& task) {
  const pb::Resources& wants = task.resources();
  return task.workers().min() * (wants.gpus_milli() > 0
                                     ? wants.gpus_milli()
                                     : WorkerDemand(task, pb::Inventory()).cpus_milli);
}

// The first cluster that the job may use with devices of this flavour; any, without.
std::string FirstWith(const State& state, const JobRow& job, const std::string& flavour,
                      const std::map<std::string, std::set<int32_t>>& flavours_in) {
  const auto there = flavours_in.find(flavour);
  for (const int32_t cluster : AllowedClusters(state, job)) {
    if (flavour.empty() || (there != flavours_in.end() && there->second.contains(cluster)))
      return state.clusters()[cluster].name;
  }
  return "";
}

std::vector<Top::Total> Totals(const State& state) {
  std::map<std::string, Top::Total> totals;
  for (const auto& [pool, use] : UseByPool(state)) {
    Top::Total& total = totals[pool.second];
    total.set_flavour(pool.second);
    total.set_declared(total.declared() || use.declared);
    total.set_total_milli(total.total_milli() + use.total_milli);
    total.set_used_milli(total.used_milli() + use.used_milli);
    total.set_down_milli(total.down_milli() + use.down_milli);
    total.set_quarantined_milli(total.quarantined_milli() + use.quarantined_milli);
  }
  std::vector<Top::Total> out;
  for (auto& [flavour, total] : totals) out.push_back(std::move(total));
  return out;
}

// Adds up rows; a job counts once in each row that one of its tasks touches.
class Rows {
 public:
  Top::Row& At(const std::string& name, const std::string& flavour) {
    Top::Row& row = rows_[{name, flavour}];
    row.set_name(name);
    row.set_flavour(flavour);
    return row;
  }
  // A job of which any task holds something of the row runs there, whatever its others wait for.
  void CountJob(const std::string& name, const std::string& flavour, uint64_t job, bool running) {
    const auto [counted, added] = counted_.try_emplace({{name, flavour}, job}, running);
    if (!added && (counted->second || !running)) return;
    Top::Row& row = At(name, flavour);
    if (!added) row.set_waiting_jobs(row.waiting_jobs() - 1);
    counted->second = running;
    running ? row.set_running_jobs(row.running_jobs() + 1)
            : row.set_waiting_jobs(row.waiting_jobs() + 1);
  }
  std::map<Key, Top::Row>& rows() { return rows_; }

 private:
  std::map<Key, Top::Row> rows_;
  std::map<std::pair<Key, uint64_t>, bool> counted_;
};

}  // namespace

std::map<std::pair<int32_t, std::string>, PoolUse> UseByPool(const State& state) {
  std::map<std::pair<int32_t, std::string>, PoolUse> pools;
  pb::Inventory made;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    const pb::Inventory& shape = ShapeOf(state, host, &made);
    if (shape.flavour().empty()) continue;
    PoolUse& pool = pools[{host.cluster, shape.flavour()}];
    pool.declared = pool.declared || shape.declared();
    const bool up = (host.state == pb::HOST_UP || host.state == pb::HOST_SILENT) && !host.drained &&
                    !state.clusters()[host.cluster].drained;
    for (int d = 0; d < shape.devices_size(); ++d) {
      const int64_t used_milli =
          d < static_cast<int>(host.device_used_milli.size()) ? host.device_used_milli[d] : 0;
      pool.total_milli += 1000;
      pool.used_milli += used_milli;
      const bool out =
          host.quarantined() || std::any_of(host.quarantines.begin(), host.quarantines.end(),
                                            [&](const pb::Quarantine& row) {
                                              return row.device() == d && !row.withheld();
                                            });
      if (out) pool.quarantined_milli += 1000 - used_milli;
      if (!up || !shape.devices(d).healthy()) pool.down_milli += 1000 - used_milli;
    }
  }
  return pools;
}

namespace {

using By = pb::TopRequest::By;
using Clusters = std::map<std::string, std::set<int32_t>>;  // flavour -> clusters that have it

// A task that runs or waits, as the rows count it.
struct Counted {
  const JobRow& job;
  int32_t t;
  const TaskRow& task;
  const AttemptRow* held;  // null: it waits
  std::string flavour;

  const pb::TaskSpec& spec() const { return job.task_spec(t); }
};

// Counts the hosts; by cluster, their devices have rows of their own.
Clusters CountHosts(const State& state, By by, Rows* rows, Top* top) {
  Clusters flavours_in;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (IsRemoved(state, host)) continue;
    top->set_hosts_known(top->hosts_known() + 1);
    if (host.state == pb::HOST_UP) top->set_hosts_up(top->hosts_up() + 1);
    if (by != pb::TopRequest::CLUSTER) continue;
    const pb::Inventory shape = ShapeOf(state, host);
    if (shape.flavour().empty()) continue;
    flavours_in[shape.flavour()].insert(host.cluster);
    Top::Row& row = rows->At(state.clusters()[host.cluster].name, shape.flavour());
    row.set_total_milli(row.total_milli() + 1000 * static_cast<int64_t>(shape.devices_size()));
  }
  return flavours_in;
}

// The rows that a task counts in: its queue and those above it, its cluster, its owner, its job.
std::vector<std::string> RowsOf(const State& state, const Counted& counted, By by,
                                const Clusters& flavours_in) {
  const JobRow& job = counted.job;
  std::vector<std::string> names;
  switch (by) {
    case pb::TopRequest::QUEUE:
      for (int32_t n = state.queues().Find(job.spec->queue()); n > 0;
           n = state.queues().nodes[n].parent)
        names.push_back(state.queues().nodes[n].path);
      break;
    case pb::TopRequest::CLUSTER:
      if (counted.held != nullptr) return {state.clusters()[counted.held->cluster].name};
      if (std::string first = FirstWith(state, job, counted.flavour, flavours_in); !first.empty())
        names.push_back(std::move(first));
      break;
    case pb::TopRequest::USER:
      return {job.owner};
    default:
      return {std::to_string(RowNumber(job))};
  }
  return names;
}

void Add(const Counted& counted, int64_t now_ns, Top::Row* row) {
  const TaskRow& task = counted.task;
  if (counted.held == nullptr) {
    row->set_waiting_tasks(row->waiting_tasks() + 1);
    if (counted.job.holder == 0)
      row->set_waiting_milli(row->waiting_milli() + WantedMilli(counted.spec()));
    row->set_oldest_wait_ns(std::max(row->oldest_wait_ns(), now_ns - task.waiting_since_ns));
    return;
  }
  row->set_running_tasks(row->running_tasks() + 1);
  row->set_used_milli(row->used_milli() + HeldMilli(counted.job, counted.t, *counted.held));
  if (task.progress.attempt() == counted.held->number)
    row->set_tokens_per_s(row->tokens_per_s() + task.progress.tokens_per_s());
}

// What a row of one job says besides its sums.
void DescribeJob(const State& state, const Counted& counted, Top::Row* row) {
  row->set_job(RowNumber(counted.job));
  row->set_queue(counted.job.spec->queue());
  row->set_owner(counted.job.owner);
  if (counted.held == nullptr) return;
  const AttemptRow& attempt = *counted.held;
  std::vector<HostId> hosts;
  for (const PartRow& part : attempt.parts) hosts.push_back(part.host);
  row->set_place(PlaceText(state, hosts));
  row->set_since_ns(attempt.start_ns != 0 ? attempt.start_ns : attempt.place_ns);
  if (counted.task.progress.attempt() == attempt.number)
    *row->mutable_progress() = counted.task.progress;
}

// Every queue and flavour with a quota or a row, in configured order.
std::vector<Top::Row> QueueRows(const State& state, const Plan& plan, Rows* rows) {
  std::vector<Top::Row> out;
  for (size_t n = 1; n < state.queues().nodes.size(); ++n) {
    const QueueNode& node = state.queues().nodes[n];
    std::set<std::string> flavours;
    for (const auto& [flavour, quota] : node.spec.quota())
      flavours.insert(flavour == "cpu" ? "" : flavour);
    for (const auto& [key, row] : rows->rows()) {
      if (key.first == node.path) flavours.insert(key.second);
    }
    for (const std::string& flavour : flavours) {
      Top::Row row = rows->At(node.path, flavour);
      const std::string listed = flavour.empty() ? "cpu" : flavour;
      if (const auto quota = node.spec.quota().find(listed); quota != node.spec.quota().end()) {
        row.set_guarantee_milli(quota->second.guarantee_milli());
        if (quota->second.has_limit_milli()) row.set_limit_milli(quota->second.limit_milli());
      }
      if (const auto entitled = plan.entitled_milli.find({node.path, listed});
          entitled != plan.entitled_milli.end()) {
        row.set_entitled_milli(entitled->second);
      }
      out.push_back(std::move(row));
    }
  }
  return out;
}

std::vector<Top::Row> ClusterRows(const State& state, Rows* rows) {
  std::vector<Top::Row> out;
  for (const ClusterRow& cluster : state.clusters()) {
    for (auto& [key, row] : rows->rows()) {
      if (key.first == cluster.name) out.push_back(row);
    }
  }
  return out;
}

// Rows of users or jobs: who uses, and then who wants, most first.
std::vector<Top::Row> LargestFirst(const State& state, By by, Rows* rows) {
  std::vector<Top::Row> out;
  for (auto& [key, row] : rows->rows()) {
    if (by == pb::TopRequest::JOB) row.set_name(state.FindJob(row.job())->spec->name());
    out.push_back(row);
  }
  std::stable_sort(out.begin(), out.end(), [](const Top::Row& a, const Top::Row& b) {
    return std::make_pair(a.used_milli(), a.waiting_milli()) >
           std::make_pair(b.used_milli(), b.waiting_milli());
  });
  return out;
}

}  // namespace

Top DescribeTop(const State& state, const Plan& plan, const pb::TopRequest& request, int64_t now_ns,
                const Sees& sees) {
  Top top;
  top.set_now_ns(now_ns);
  const By by = request.by();
  std::vector<Top::Total> totals = Totals(state);
  Rows rows;
  const Clusters flavours_in = CountHosts(state, by, &rows, &top);
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    if ((by == pb::TopRequest::JOB || by == pb::TopRequest::USER) && !sees(job)) continue;
    for (size_t i = 0; i < job.tasks.size(); ++i) {
      const int32_t t = static_cast<int32_t>(i);
      const AttemptRow* held = job.tasks[i].current();
      if (held != nullptr && held->released()) held = nullptr;
      if (held == nullptr && !job.tasks[i].waiting()) continue;
      const Counted counted{job, t, job.tasks[i], held,
                            held != nullptr ? held->flavour : WantedFlavour(job.task_spec(t))};
      for (Top::Total& total : totals) {
        if (held == nullptr && total.flavour() == counted.flavour)
          total.set_waiting_milli(total.waiting_milli() + WantedMilli(counted.spec()));
      }
      for (const std::string& name : RowsOf(state, counted, by, flavours_in)) {
        rows.CountJob(name, counted.flavour, number, held != nullptr);
        Top::Row& row = rows.At(name, counted.flavour);
        Add(counted, now_ns, &row);
        if (by == pb::TopRequest::JOB) DescribeJob(state, counted, &row);
      }
    }
    // As `muster jobs` and `muster queue list` count them.
    job.state == pb::RUNNING ? top.set_running_jobs(top.running_jobs() + 1)
                             : top.set_waiting_jobs(top.waiting_jobs() + 1);
  }
  for (Top::Total& total : totals) *top.add_totals() = std::move(total);

  std::vector<Top::Row> out = by == pb::TopRequest::QUEUE     ? QueueRows(state, plan, &rows)
                              : by == pb::TopRequest::CLUSTER ? ClusterRows(state, &rows)
                                                              : LargestFirst(state, by, &rows);
  const size_t limit = static_cast<size_t>(request.limit() > 0 ? request.limit() : kDefaultRows);
  for (size_t i = 0; i < out.size() && i < limit; ++i) *top.add_rows() = std::move(out[i]);
  top.set_left_out(static_cast<int64_t>(out.size() - std::min(out.size(), limit)));
  return top;
}

namespace {

bool Moved(pb::Cause cause) {
  return cause == pb::PREEMPTION || cause == pb::RESIZE || cause == pb::DRAIN;
}

// When nothing of the attempt ran any more. Of what waits, or waited, for its export that is before
// its end, and follows from how long the task ran in all. Attempts that are no longer kept make it
// later than it was.
int64_t ReleasedNs(const TaskRow& task, size_t index, int64_t now_ns) {
  const AttemptRow& attempt = task.attempts[index];
  const int64_t end_ns = attempt.ended() ? attempt.end_ns : now_ns;
  if (index + 1 < task.attempts.size() || task.export_state.empty() || !attempt.released() ||
      attempt.start_ns == 0)
    return end_ns;
  int64_t ran_ns = task.ran_ns;
  for (size_t a = 0; a < index; ++a) {
    if (task.attempts[a].start_ns != 0)
      ran_ns -= task.attempts[a].end_ns - task.attempts[a].start_ns;
  }
  return ran_ns <= 0 ? end_ns : std::min(end_ns, attempt.start_ns + ran_ns);
}

// Device-microseconds of one attempt by class, as Apply books them: a device's thousandth for a
// millisecond is one.
void BookAttempt(const JobRow& job, const TaskRow& task, size_t index, int32_t t, int64_t until_ns,
                 std::array<int64_t, kClasses>* booked) {
  const AttemptRow& attempt = task.attempts[index];
  const int64_t milli = attempt.workers * job.task_spec(t).resources().gpus_milli();
  const int64_t end_ns = ReleasedNs(task, index, until_ns);
  const auto add = [&](LedgerClass to, int64_t from_ns, int64_t to_ns) {
    if (to_ns > from_ns)
      (*booked)[static_cast<size_t>(to)] += milli * ((to_ns - from_ns) / kMillisecond);
  };
  const bool after_move = index > 0 && Moved(task.attempts[index - 1].cause);
  const int64_t stop_ns = attempt.stop_ns != 0 ? attempt.stop_ns : end_ns;
  const int64_t start_ns = attempt.start_ns != 0 ? std::min(attempt.start_ns, stop_ns) : stop_ns;
  add(after_move ? LedgerClass::kPreemption : LedgerClass::kRestart, attempt.place_ns, start_ns);
  add(Moved(attempt.cause) ? LedgerClass::kPreemption : LedgerClass::kRestart, stop_ns, end_ns);
  const bool lost = attempt.ended() && attempt.cause != pb::DONE && attempt.cause != pb::CANCEL &&
                    attempt.cause != pb::TIME_LIMIT && attempt.cause != pb::EXPORT_FAILED &&
                    attempt.cause != pb::NOT_NEEDED;
  const int64_t kept_ns =
      lost ? std::clamp(attempt.last_checkpoint_ns, start_ns, stop_ns) : stop_ns;
  add(LedgerClass::kProductive, start_ns, kept_ns);
  add(Moved(attempt.cause) ? LedgerClass::kPreemption : LedgerClass::kRestart, kept_ns, stop_ns);
}

}  // namespace

std::vector<pb::LedgerResponse::Row> LedgerRows(const State& state, pb::GetLedgerRequest::By by,
                                                const Sees& sees) {
  std::map<std::string, pb::LedgerResponse::Row> rows;
  const auto row_of = [&](const std::string& name) -> pb::LedgerResponse::Row& {
    pb::LedgerResponse::Row& row = rows[name];
    row.set_name(name);
    while (row.device_us_size() < static_cast<int>(kClasses)) row.add_device_us(0);
    return row;
  };
  if (by == pb::GetLedgerRequest::QUEUE) {
    for (const auto& [key, device_us] : state.ledger()) {
      if (key.first.empty()) continue;  // idle and down, nobody's
      pb::LedgerResponse::Row& row = row_of(key.first);
      row.set_device_us(key.second, row.device_us(key.second) + device_us);
    }
  } else if (by == pb::GetLedgerRequest::USER || by == pb::GetLedgerRequest::JOB) {
    for (const uint64_t number : state.AllJobs()) {
      const JobRow& job = *state.FindJob(number);
      if (!sees(job) || job.holder != 0) continue;  // its holder's devices are booked once
      std::array<int64_t, kClasses> booked{};
      for (size_t t = 0; t < job.tasks.size(); ++t) {
        for (size_t a = 0; a < job.tasks[t].attempts.size(); ++a) {
          BookAttempt(job, job.tasks[t], a, static_cast<int32_t>(t), state.now_ns(), &booked);
        }
      }
      if (std::all_of(booked.begin(), booked.end(), [](int64_t us) { return us == 0; })) continue;
      pb::LedgerResponse::Row& row =
          row_of(by == pb::GetLedgerRequest::USER ? job.owner : std::to_string(RowNumber(job)));
      for (size_t c = 0; c < kClasses; ++c)
        row.set_device_us(static_cast<int>(c), row.device_us(static_cast<int>(c)) + booked[c]);
      if (by != pb::GetLedgerRequest::JOB) continue;
      row.set_name(job.spec->name());
      row.set_job(RowNumber(job));
      row.set_queue(job.spec->queue());
      row.set_owner(job.owner);
    }
  }
  std::vector<std::pair<int64_t, pb::LedgerResponse::Row>> sorted;
  for (auto& [name, row] : rows) {
    int64_t sum = 0;
    for (const int64_t us : row.device_us()) sum += us;
    sorted.emplace_back(sum, std::move(row));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<pb::LedgerResponse::Row> out;
  for (auto& [sum, row] : sorted) out.push_back(std::move(row));
  return out;
}

Stranded StrandedNow(const State& state, const Plan& plan) {
  Stranded stranded;
  std::map<Key, int64_t> wanted;  // by cluster and flavour
  for (const Verdict& verdict : plan.verdicts) {
    if (verdict.code != pb::V_PLACEMENT ||
        verdict.cluster >= static_cast<int32_t>(state.clusters().size()))
      continue;
    const JobRow* job = state.FindJob(verdict.task.job);
    if (job == nullptr || job->task_spec(verdict.task.task).resources().gpus_milli() == 0) continue;
    ++stranded.tasks;
    wanted[{state.clusters()[verdict.cluster].name, plan.verdicts.FlavourOf(verdict)}] +=
        WantedMilli(job->task_spec(verdict.task.task));
  }
  if (wanted.empty()) return stranded;
  std::map<Key, int64_t> free;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (!host.usable() || state.clusters()[host.cluster].drained ||
        host.inventory.flavour().empty())
      continue;
    const Key key{state.clusters()[host.cluster].name, host.inventory.flavour()};
    if (!wanted.contains(key)) continue;
    for (int d = 0; d < host.inventory.devices_size(); ++d) {
      if (host.inventory.devices(d).healthy())
        free[key] += std::max<int64_t>(0, 1000 - host.device_used_milli[d]);
    }
  }
  for (const auto& [key, milli] : free) stranded.milli += std::min(milli, wanted[key]);
  return stranded;
}

}  // namespace muster
