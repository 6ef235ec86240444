#include "scheduler/decide/testing/fuzz_hosted.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// What something has or wants on one host, by device.
struct Amount {
  std::map<int32_t, int64_t> device_milli;
  int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;

  void Add(const State& state, const pb::TaskSpec& spec, const PartRow& part) {
    const Demand each = WorkerDemand(spec, state.host(part.host).inventory);
    cpus_milli += part.workers * each.cpus_milli;
    memory_bytes += part.workers * each.memory_bytes;
    disk_bytes += part.workers * each.disk_bytes;
    for (size_t d = 0; d < part.devices.size(); ++d)
      device_milli[part.devices[d]] += d < part.device_milli.size() ? part.device_milli[d] : 1000;
  }
  bool Within(const Amount& of) const {
    return cpus_milli <= of.cpus_milli && memory_bytes <= of.memory_bytes &&
           disk_bytes <= of.disk_bytes &&
           std::all_of(device_milli.begin(), device_milli.end(), [&](const auto& device) {
             const auto has = of.device_milli.find(device.first);
             return has != of.device_milli.end() && device.second <= has->second;
           });
  }
};

uint64_t HolderOf(const JobRow& job) { return std::strtoull(job.spec->on().c_str(), nullptr, 10); }

// The attempt that holds devices; nullptr: the job holds none.
const AttemptRow* Holding(const JobRow* job) {
  if (job == nullptr || job->finished()) return nullptr;
  const AttemptRow* current = job->tasks[0].current();
  return current == nullptr || current->released() ? nullptr : current;
}

// What the holder's attempt has on the host, and all that run there of those on it.
std::pair<Amount, Amount> HasAndTaken(const State& state, const JobRow& holder,
                                      const AttemptRow& attempt, HostId host) {
  std::pair<Amount, Amount> amounts;
  for (const PartRow& part : attempt.parts) {
    if (part.host == host && !part.over()) amounts.first.Add(state, holder.task_spec(0), part);
  }
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    const AttemptRow* current = job.spec->on().empty() ? nullptr : Holding(&job);
    if (current == nullptr || HolderOf(job) != holder.number ||
        current->holder_attempt != attempt.number)
      continue;
    for (const PartRow& part : current->parts) {
      if (part.host == host) amounts.second.Add(state, job.task_spec(0), part);
    }
  }
  return amounts;
}

std::string CheckOne(const State& state, const JobRow& job) {
  const std::string name = absl::StrCat("job ", job.number, " on job ", HolderOf(job));
  const JobRow* holder = state.FindJob(HolderOf(job));
  if ((holder == nullptr || holder->finished()) && !job.cancel_requested)
    return name + " goes on, and that one has ended";
  const AttemptRow* current = Holding(&job);
  if (current == nullptr || current->state == pb::TASK_STOPPING) return "";
  const AttemptRow* held = Holding(holder);
  const bool beside = held != nullptr && held->number == current->holder_attempt;
  if (beside && held->state == pb::TASK_STOPPING) return name + " goes on, and that one is stopped";
  if (!beside)  // that one was lost by this plan: the next one stops it
    return state.host(current->parts[0].host).state == pb::HOST_UNREACHABLE
               ? ""
               : name + " runs on what that one doesn't hold";
  const auto [has, taken] = HasAndTaken(state, *holder, *held, current->parts[0].host);
  return taken.Within(has) ? "" : name + " has more than that one has left";
}

// By queue and flavour, of jobs on devices of their own.
std::string CheckUse(const State& state) {
  std::map<std::pair<std::string, std::string>, int64_t> use;
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    for (size_t t = 0; job.spec->on().empty() && t < job.tasks.size(); ++t) {
      const AttemptRow* current = job.tasks[t].current();
      if (current == nullptr || current->released()) continue;
      const pb::Resources& wants = job.task_spec(static_cast<int32_t>(t)).resources();
      const int64_t each =
          wants.gpus_milli() > 0 ? wants.gpus_milli() : std::max<int64_t>(1, wants.cpus_milli());
      use[{job.spec->queue(), wants.gpus_milli() > 0 ? current->flavour : "cpu"}] +=
          each * current->workers;
    }
  }
  return use == state.queue_use() ? "" : "queues are charged for what others hold";
}

}  // namespace

bool PutOnHolder(const State& state, Dice* dice, pb::JobSubmitted* e) {
  std::vector<uint64_t> holders;
  for (const uint64_t number : state.AllJobs()) {
    const JobRow& job = *state.FindJob(number);
    const bool fits = job.spec->tasks_size() == 1 && job.spec->on().empty() && job.array == 0;
    if (fits && (!job.finished() || dice->Percent(5))) holders.push_back(number);
  }
  pb::JobSpec* spec = e->mutable_spec();
  while (spec->tasks_size() > 1) spec->mutable_tasks()->RemoveLast();
  pb::TaskSpec* task = spec->mutable_tasks(0);
  task->clear_after();
  task->mutable_workers()->set_min(1);
  task->mutable_workers()->set_max(1);
  task->clear_topology();
  if (dice->Percent(3) || holders.empty()) {
    spec->set_on(absl::StrCat(e->number() + 7));
    return false;
  }
  const JobRow& holder = *state.FindJob(holders[dice->Of(static_cast<int>(holders.size()))]);
  spec->set_on(absl::StrCat(holder.number));
  pb::Resources* wants = task->mutable_resources();
  wants->Clear();
  *wants->mutable_gpu_types() = holder.task_spec(0).resources().gpu_types();
  const int64_t has = holder.task_spec(0).resources().gpus_milli();
  if (has >= 1000) {
    wants->set_gpus_milli(dice->Percent(50) ? 250 * (1 + dice->Of(3)) : 1000 * (1 + dice->Of(2)));
  } else if (has > 0 && dice->Percent(50)) {
    wants->set_gpus_milli(250);
  } else {
    wants->clear_gpu_types();
  }
  wants->set_cpus_milli(250 * (1 + dice->Of(8)));
  return true;
}

Plan WithoutHosted(const State& state, const Plan& plan) {
  Plan others = plan;
  std::erase_if(others.events, [&](const pb::Event& event) {
    const pb::AttemptKey& key = event.has_attempt_placed()     ? event.attempt_placed().key()
                                : event.has_attempt_stopping() ? event.attempt_stopping().key()
                                                               : event.attempt_lost().key();
    const JobRow* job = state.FindJobByUid(key.job_uid());
    return job != nullptr && !job->spec->on().empty();
  });
  return others;
}

std::string CheckHosted(const State& state) {
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    if (job.spec->on().empty()) continue;
    if (std::string broken = CheckOne(state, job); !broken.empty()) return broken;
  }
  return CheckUse(state);
}

std::string CheckHostedSettled(const State& state) {
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    if (job.spec->on().empty() || !job.tasks[0].waiting() || !job.spec->clusters().empty() ||
        !job.cluster.empty() || job.tasks[0].backoff_until_ns > state.now_ns())
      continue;
    const JobRow* holder = state.FindJob(HolderOf(job));
    const AttemptRow* held = Holding(holder);
    if (held == nullptr || held->state != pb::TASK_RUNNING) continue;
    const pb::TaskSpec& wants = job.task_spec(0);
    for (const PartRow& part : held->parts) {
      const HostRow& host = state.host(part.host);
      // Others than the simplest hosts have tests of their own.
      if (part.over() || !host.usable() || state.clusters()[host.cluster].drained ||
          !Can(AbilitiesOf(host.inventory), NeedsOf(*job.spec, wants)))
        continue;
      const auto [has, taken] = HasAndTaken(state, *holder, *held, part.host);
      PartRow one;
      one.host = part.host;
      one.workers = 1;
      int64_t rest = wants.resources().gpus_milli();
      for (const auto& [device, milli] : has.device_milli) {
        const auto used = taken.device_milli.find(device);
        const int64_t left = milli - (used == taken.device_milli.end() ? 0 : used->second);
        const int64_t takes = wants.resources().gpus_milli() % 1000 == 0 ? 1000 : rest;
        if (rest <= 0 || left < takes || !host.inventory.devices(device).healthy()) continue;
        one.devices.push_back(device);
        one.device_milli.push_back(takes);
        rest -= takes;
      }
      Amount all = taken;
      all.Add(state, wants, one);
      if (rest <= 0 && all.Within(has))
        return absl::StrCat("job ", number, " waits, and job ", holder->number, " has room for it");
    }
  }
  return "";
}

}  // namespace muster
