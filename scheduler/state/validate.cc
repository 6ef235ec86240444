#include "scheduler/state/validate.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/workers.h"
#include "scheduler/state/hosted.h"
#include "scheduler/state/strays.h"
#include "scheduler/state/topology.h"
#include "scheduler/state/validate_hosted.h"
#include "scheduler/state/validate_together.h"

namespace muster {
namespace {

absl::Status Broken(const std::string& rule) { return absl::FailedPreconditionError(rule); }

bool Ends(const JobRow& job) {
  return job.cancel_requested ||
         std::any_of(job.tasks.begin(), job.tasks.end(),
                     [](const TaskRow& t) { return t.state == pb::TASK_FAILED; });
}

// What jobs of the queue and those below it hold of the flavour. What was placed from a queue that
// is there no more counts nowhere.
int64_t HeldBelow(const State& state, int32_t node, const std::string& flavour) {
  const auto own = state.queue_use().find({state.queues().nodes[node].path, flavour});
  int64_t milli = own == state.queue_use().end() ? 0 : own->second;
  for (const int32_t child : state.queues().nodes[node].children)
    milli += HeldBelow(state, child, flavour);
  return milli;
}

// A host of it can't be reached, and it may start elsewhere: its rule says so, or those hosts are
// known to run nothing of it.
bool Replaceable(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt) {
  bool unreachable = false, known_off = true;
  for (const PartRow& part : attempt.parts) {
    const HostRow& host = state.host(part.host);
    if (part.over() || host.state != pb::HOST_UNREACHABLE) continue;
    unreachable = true;
    known_off = known_off && KnownOff(host, spec);
  }
  return unreachable && (known_off || UnreachableRule(spec, attempt) == pb::REPLACE);
}

// Of that, what can't be reached and may be replaced: it holds nothing of a limit, Decide gives it
// to others.
int64_t ReplaceableBelow(const State& state, int32_t node, const std::string& flavour) {
  int64_t milli = 0;
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    if (job.holder != 0) continue;  // it holds nothing
    int32_t up = state.queues().Find(job.spec->queue());
    while (up >= 0 && up != node) up = state.queues().nodes[up].parent;
    if (up < 0) continue;
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const AttemptRow* attempt = job.tasks[t].current();
      if (attempt == nullptr || attempt->released()) continue;
      const pb::TaskSpec& spec = job.task_spec(static_cast<int32_t>(t));
      const bool gpus = spec.resources().gpus_milli() > 0;
      if ((gpus ? attempt->flavour : "cpu") != flavour || !Replaceable(state, spec, *attempt))
        continue;
      milli += (gpus ? spec.resources().gpus_milli()
                     : std::max<int64_t>(1, spec.resources().cpus_milli())) *
               attempt->workers;
    }
  }
  return milli;
}

// Each run of so many GPUs is in one island; parts and devices are in the order of RANK.
absl::Status CheckIslands(const State& state, const pb::AttemptPlaced& e, int64_t gpus) {
  int64_t before = 0;  // GPUs
  std::string island;  // of the GPU before
  for (const pb::Placement& placement : e.placements()) {
    const HostRow& host = state.host(state.FindHost(e.cluster(), placement.host()));
    for (const int32_t device : placement.devices()) {
      std::string here =
          absl::StrCat(host.name, " island ", host.inventory.devices(device).island());
      if (before++ % gpus != 0 && here != island)
        return Broken(absl::StrCat("each block of ", gpus, " GPUs is to be in one island, not in ",
                                   island, " and ", here));
      island = std::move(here);
    }
  }
  return absl::OkStatus();
}

// Each block of its ranks is in one domain of the level that it requires. Parts are in the order of
// RANK.
absl::Status CheckBlocks(const State& state, const pb::TaskSpec& spec, const pb::AttemptPlaced& e) {
  const int64_t gpus = spec.resources().gpus_milli() / 1000;
  for (const pb::RankBlock& block : spec.topology().blocks()) {
    const pb::TopologyLevel level = block.required();
    if (level == pb::ISLAND) {
      if (absl::Status status = CheckIslands(state, e, block.gpus()); !status.ok()) return status;
      continue;
    }
    if (!Binds(level) || block.gpus() <= gpus) continue;
    int64_t before = 0;  // GPUs in the parts before
    std::string domain;  // of the part before
    for (const pb::Placement& placement : e.placements()) {
      const HostRow& host = state.host(state.FindHost(e.cluster(), placement.host()));
      std::string here = DomainOf(level, host);
      if (before % block.gpus() != 0 && here != domain)
        return Broken(absl::StrCat("each block of ", block.gpus(), " GPUs is to be in one ",
                                   absl::AsciiStrToLower(pb::TopologyLevel_Name(level)),
                                   ", not in ", domain, " and ", here));
      before += placement.workers() * gpus;
      domain = std::move(here);
    }
  }
  return absl::OkStatus();
}

// The whole gang is in one domain of the level that its task requires.
absl::Status CheckTopology(const State& state, const pb::TaskSpec& spec,
                           const pb::AttemptPlaced& e) {
  const pb::TopologyLevel level = spec.topology().required();
  if (!Binds(level)) return absl::OkStatus();  // a placement names one cluster
  std::set<std::string> domains;
  for (const pb::Placement& placement : e.placements()) {
    const HostRow& host = state.host(state.FindHost(e.cluster(), placement.host()));
    if (level != pb::ISLAND || placement.devices().empty()) {
      domains.insert(DomainOf(level, host));
    } else {
      for (const int32_t device : placement.devices())
        domains.insert(
            absl::StrCat(host.name, " island ", host.inventory.devices(device).island()));
    }
  }
  if (domains.size() <= 1) return absl::OkStatus();
  return Broken(absl::StrCat("is to be in one ",
                             absl::AsciiStrToLower(pb::TopologyLevel_Name(level)), ", not in ",
                             absl::StrJoin(domains, " and ")));
}

// The task waits, and may be placed now.
absl::Status CheckWaits(const State& state, const JobRow& job, int32_t t,
                        const pb::AttemptPlaced& e) {
  const TaskRow& row = job.tasks[t];
  if (Ends(job)) return Broken("places a task of a job that is being cancelled or has failed");
  // What State has forgotten has ended, well where that counts: else this job has ended, too.
  for (const std::string& id : job.spec->after()) {
    const std::optional<NamedJob> before = FindNamedJob(state, id);
    if (before.has_value() && before->state != pb::SUCCEEDED)
      return Broken(absl::StrCat("places a task before job ", id, " has succeeded"));
  }
  for (const std::string& id : job.spec->after_any()) {
    const std::optional<NamedJob> before = FindNamedJob(state, id);
    if (before.has_value() && !before->ended())
      return Broken(absl::StrCat("places a task before job ", id, " has ended"));
  }
  if (job.not_before_ns != 0) return Broken("places a task before the job's time has come");
  for (const std::string& before : job.task_spec(t).after()) {
    const int32_t b = TaskIndex(*job.spec, before);
    if (b < 0 || job.tasks[b].state != pb::TASK_SUCCEEDED)
      return Broken(absl::StrCat("places a task before ", before, " has succeeded"));
  }
  if (!row.waiting()) return Broken("places a task that doesn't wait");
  if (NotNeeded(job, t)) return Broken("places a task that nobody needs any more");
  if (row.next_attempt != e.key().attempt())
    return Broken("places an attempt that isn't the task's next");
  if (row.backoff_until_ns > state.now_ns())
    return Broken("places a task before its backoff is over");
  if (job.holder != 0) return absl::OkStatus();  // its queue is asked nothing
  const int32_t queue = state.queues().Find(job.spec->queue());
  if (queue < 0 || !state.queues().leaf(queue)) return Broken("places a job of no leaf queue");
  if (state.queues().nodes[queue].held && !row.comes_back())
    return Broken("places a job of a held queue");
  return absl::OkStatus();
}

bool AllowsWorkers(const pb::TaskSpec& spec, int32_t workers) {
  const int32_t min = std::max(1, spec.workers().min());
  return workers >= min && workers <= std::max(min, spec.workers().max()) &&
         workers % StepOf(spec.workers()) == 0;
}

// "2..8 in multiples of 2"
std::string AllowedText(const pb::TaskSpec& spec) {
  const int32_t min = std::max(1, spec.workers().min());
  const std::string range = absl::StrCat(min, "..", std::max(min, spec.workers().max()));
  const int32_t step = StepOf(spec.workers());
  return step == 1 ? range : absl::StrCat(range, " in multiples of ", step);
}

// Cluster, flavour and number of workers are what the task allows.
absl::Status CheckAllowed(const State& state, const JobRow& job, const pb::TaskSpec& spec,
                          const pb::AttemptPlaced& e) {
  const int32_t cluster = state.FindCluster(e.cluster());
  if (cluster < 0) return Broken("places in an unknown cluster");
  if (state.clusters()[cluster].drained) return Broken("places in a drained cluster");
  const std::vector<int32_t> allowed = AllowedClusters(state, job);
  if (std::find(allowed.begin(), allowed.end(), cluster) == allowed.end())
    return Broken("places in a cluster that the job may not use");

  const int64_t gpus_milli = spec.resources().gpus_milli();
  const auto& types = spec.resources().gpu_types();
  if (gpus_milli > 0 && std::find(types.begin(), types.end(), e.flavour()) == types.end())
    return Broken("places on a flavour that isn't in gpu_types");
  if (gpus_milli == 0 && !e.flavour().empty())
    return Broken("gives a flavour to a task without GPUs");
  if (!AllowsWorkers(spec, e.workers()))
    return Broken(absl::StrCat("places ", e.workers(), " workers, not ", AllowedText(spec)));
  return absl::OkStatus();
}

absl::Status CheckDevices(const HostRow& host, const pb::Placement& placement, int64_t gpus_milli,
                          const std::string& where) {
  const bool whole = gpus_milli % 1000 == 0;
  const int64_t count = whole ? placement.workers() * (gpus_milli / 1000) : placement.workers();
  if (placement.devices_size() != count)
    return Broken(absl::StrCat(where, placement.devices_size(), " devices, not ", count));
  if (placement.device_milli_size() != (whole ? 0 : placement.devices_size()))
    return Broken(where + "shares of devices don't fit the demand");
  std::set<int32_t> seen;
  for (int d = 0; d < placement.devices_size(); ++d) {
    const int32_t device = placement.devices(d);
    if (device < 0 || device >= host.inventory.devices_size())
      return Broken(absl::StrCat(where, "no device ", device));
    if (!seen.insert(device).second)
      return Broken(absl::StrCat(where, "device ", device, " twice"));
    if (!host.inventory.devices(device).healthy())
      return Broken(absl::StrCat(where, "device ", device, " isn't healthy"));
    if (!whole && placement.device_milli(d) != gpus_milli)
      return Broken(where + "shares of devices don't fit the demand");
    if (host.device_used_milli[device] + (whole ? 1000 : gpus_milli) > 1000)
      return Broken(absl::StrCat(where, "device ", device, " isn't free"));
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(const HostRow& host, const pb::TaskSpec& spec, int64_t workers,
                       const std::string& where) {
  const Demand demand = WorkerDemand(spec, host.inventory);
  if (demand.cpus_milli > 0 &&
      host.cpus_used_milli + workers * demand.cpus_milli > host.inventory.cpus_milli())
    return Broken(where + "not enough CPUs");
  if (demand.memory_bytes > 0 &&
      host.memory_used_bytes + workers * demand.memory_bytes > host.inventory.memory_bytes())
    return Broken(where + "not enough memory");
  if (demand.disk_bytes > 0 &&
      host.disk_used_bytes + workers * demand.disk_bytes > host.inventory.disk_bytes())
    return Broken(where + "not enough disk");
  return absl::OkStatus();
}

// The host may get work, and its agent can do what that needs.
absl::Status CheckHostTakes(const HostRow& host, Abilities needs, const std::string& where) {
  if (host.state != pb::HOST_UP) return Broken(where + "isn't up");
  if (host.drained) return Broken(where + "is drained");
  if (host.quarantined()) return Broken(where + "is in quarantine");
  if (!host.inventory.low_disk().empty()) return Broken(where + "has too little disk left");
  if (!Can(AbilitiesOf(host.inventory), needs))
    return Broken(where + WhyUnable(host.inventory, needs));
  if (host.has_strays()) return Broken(where + "still runs what nobody knows");
  return absl::OkStatus();
}

// It has room for what is placed on it, too. `rank`: the gang's next one.
absl::Status CheckOnHost(const HostRow& host, const pb::TaskSpec& spec, const std::string& flavour,
                         const pb::Placement& placement, int32_t rank, Abilities needs,
                         const std::string& where) {
  if (absl::Status status = CheckHostTakes(host, needs, where); !status.ok()) return status;
  if (placement.workers() <= 0 || placement.first_group_rank() != rank)
    return Broken(where + "ranks aren't contiguous");
  const int64_t gpus_milli = spec.resources().gpus_milli();
  if (gpus_milli > 0 && host.inventory.flavour() != flavour)
    return Broken(where + "has another flavour");
  if (absl::Status status = CheckDevices(host, placement, gpus_milli, where); !status.ok())
    return status;
  return CheckRoom(host, spec, placement.workers(), where);
}

absl::Status CheckPlaced(const State& state, const pb::AttemptPlaced& e) {
  if (state.restoring())
    return Broken("places while hosts may run what a restored store doesn't know");
  const JobRow* job = state.FindJobByUid(e.key().job_uid());
  if (job == nullptr || job->finished()) return Broken("places a task of no unfinished job");
  const int32_t t = TaskIndex(*job->spec, e.key().task());
  if (t < 0) return Broken("places an unknown task");
  const pb::TaskSpec& spec = job->task_spec(t);
  if (absl::Status status = CheckWaits(state, *job, t, e); !status.ok()) return status;
  if (absl::Status status = CheckAllowed(state, *job, spec, e); !status.ok()) return status;
  int32_t rank = 0;
  std::set<std::string> hosts;
  for (const pb::Placement& placement : e.placements()) {
    const std::string where = absl::StrCat(e.cluster(), "/", placement.host(), ": ");
    const HostId id = state.FindHost(e.cluster(), placement.host());
    if (id == kNoHost) return Broken(where + "no such host");
    if (!hosts.insert(placement.host()).second) return Broken(where + "named twice");
    const Abilities needs = NeedsOf(*job->spec, spec);
    absl::Status status = job->holder != 0
                              ? CheckHostTakes(state.host(id), needs, where)
                              : CheckOnHost(state.host(id), spec, e.flavour(), placement, rank,
                                            NeedsOf(*job->spec, spec), where);
    if (!status.ok()) return status;
    rank += placement.workers();
  }
  if (rank != e.workers())
    return Broken(absl::StrCat("the gang isn't whole: ", rank, " of ", e.workers(), " workers"));
  if (e.at_once() != (e.placements_size() == 1))
    return Broken("a gang over several hosts starts in two phases, any other at once");
  if (job->holder != 0) return CheckPlacedOnHolder(state, *job, spec, e);
  if (e.holder_attempt() != 0) return Broken("names a holder's attempt of a job that has none");
  if (absl::Status status = CheckBlocks(state, spec, e); !status.ok()) return status;
  return CheckTopology(state, spec, e);
}

// `strays`: the hosts that have any.
absl::Status CheckAlone(const State& state, const std::vector<HostId>& strays,
                        const pb::AttemptPlaced& e) {
  const JobRow& job = *state.FindJobByUid(e.key().job_uid());
  for (const HostId id : strays) {
    if (HasStrayOf(state, state.host(id), job))
      return Broken(absl::StrCat("places a task of job ", job.number, " while ", state.HostName(id),
                                 " may run one of it that nobody knows"));
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const State& after, const pb::AttemptPlaced& e) {
  const JobRow& job = *after.FindJobByUid(e.key().job_uid());
  if (job.holder != 0) return absl::OkStatus();
  const std::string flavour = e.flavour().empty() ? "cpu" : e.flavour();
  for (int32_t n = after.queues().Find(job.spec->queue()); n >= 0;
       n = after.queues().nodes[n].parent) {
    const QueueNode& node = after.queues().nodes[n];
    const auto quota = node.spec.quota().find(flavour);
    if (quota == node.spec.quota().end() || !quota->second.has_limit_milli()) continue;
    const int64_t limit = quota->second.limit_milli();
    int64_t held = HeldBelow(after, n, flavour);
    if (held > limit) held -= ReplaceableBelow(after, n, flavour);
    if (held > limit)
      return Broken(absl::StrCat("queue ", node.path, " would hold ", held, " of at most ", limit,
                                 " ", flavour));
  }
  return absl::OkStatus();
}

// Both are in order of jobs and tasks.
absl::Status CheckVerdicts(const State& after, const Verdicts& verdicts, PlanFault* fault) {
  auto verdict = verdicts.begin();
  for (const TaskRef& task : after.waiting_tasks()) {
    while (verdict != verdicts.end() && verdict->task < task) ++verdict;
    if (verdict != verdicts.end() && verdict->task == task &&
        verdict->code != pb::VERDICT_UNSPECIFIED)
      continue;
    if (fault != nullptr) fault->job = task.job;
    return Broken(absl::StrCat("job ", task.job, " task ",
                               after.FindJob(task.job)->task_spec(task.task).name(),
                               " waits without a verdict"));
  }
  return absl::OkStatus();
}

absl::Status CheckStopping(const State& state, const pb::AttemptStopping& e) {
  const JobRow* job = nullptr;
  int32_t t = 0;
  const AttemptRow* attempt = state.FindAttempt(e.key(), &job, &t);
  if (attempt == nullptr || attempt->ended() || attempt->released())
    return Broken("stops an attempt that doesn't run");
  if (attempt->state == pb::TASK_STOPPING) return Broken("stops an attempt that is being stopped");
  if (e.cause() == pb::CAUSE_UNSPECIFIED || e.cause() == pb::DONE)
    return Broken("stops without a cause");
  const pb::TaskSpec& spec = job->task_spec(t);
  if (e.next_workers() != 0) {
    if (e.cause() != pb::RESIZE && e.cause() != pb::PREEMPTION)
      return Broken("resizes for another cause than RESIZE or PREEMPTION");
    if (!AllowsWorkers(spec, e.next_workers()))
      return Broken(absl::StrCat("resizes beyond what the task allows: to ", e.next_workers(),
                                 " workers, not ", AllowedText(spec)));
  }
  if (e.grace_ns() < 0) return Broken("stops with a negative grace");
  if (e.cause() == pb::HOLDER && (job->holder == 0 || HolderGoesOn(state, *job, *attempt)))
    return Broken("stops for a holder that goes on");
  const bool claims = !e.claimant().job_uid().empty();
  if (claims != (e.cause() == pb::PREEMPTION))
    return Broken("preemption and a claimant go together");
  if (!claims) return absl::OkStatus();
  if (job->holder != 0) return Broken("preempts what holds nothing");
  const JobRow* claimant = state.FindJobByUid(e.claimant().job_uid());
  const int32_t c = claimant == nullptr ? -1 : TaskIndex(*claimant->spec, e.claimant().task());
  if (c < 0 || claimant->tasks[c].next_attempt != e.claimant().attempt())
    return Broken("preempts for a task that doesn't wait");
  // It waits, or restarts larger, or can't be reached and may start elsewhere.
  const AttemptRow* runs = claimant->tasks[c].current();
  const bool resizes = runs != nullptr && runs->state == pb::TASK_STOPPING &&
                       runs->cause == pb::RESIZE && runs->next_workers > runs->workers;
  const bool replaced = runs != nullptr && Replaceable(state, claimant->task_spec(c), *runs);
  if (!claimant->tasks[c].waiting() && !resizes && !replaced)
    return Broken("preempts for a task that doesn't wait");
  return absl::OkStatus();
}

absl::Status CheckReservation(const State& state, const pb::ReservationChanged& e) {
  const JobRow* job = state.FindJobByUid(e.key().job_uid());
  const int32_t t = job == nullptr ? -1 : TaskIndex(*job->spec, e.key().task());
  if (t < 0 || job->tasks[t].finished()) return Broken("reserves for no unfinished task");
  const TaskRow& row = job->tasks[t];
  if (row.state == pb::TASK_BLOCKED && !e.placements().empty())
    return Broken("reserves for a task that others come before");
  if (row.next_attempt != e.key().attempt())
    return Broken("reserves for an attempt that isn't the task's next");
  if (e.placements().empty())
    return row.reservation != nullptr ? absl::OkStatus()
                                      : Broken("ends a reservation that isn't there");
  if (row.current() != nullptr && row.state != pb::TASK_STOPPING &&
      std::none_of(row.current()->parts.begin(), row.current()->parts.end(),
                   [&](const PartRow& part) {
                     return !part.over() && state.host(part.host).state == pb::HOST_UNREACHABLE;
                   })) {
    return Broken("reserves for a task that runs");
  }
  int32_t workers = 0;
  for (const pb::Placement& placement : e.placements()) {
    const HostId id = state.FindHost(e.cluster(), placement.host());
    if (id == kNoHost)
      return Broken(absl::StrCat(e.cluster(), "/", placement.host(), ": no such host"));
    for (const int32_t device : placement.devices()) {
      if (device < 0 || device >= state.host(id).inventory.devices_size())
        return Broken(absl::StrCat(placement.host(), ": no device ", device));
    }
    workers += placement.workers();
  }
  if (workers != e.workers() || workers < std::max(1, job->task_spec(t).workers().min()))
    return Broken("reserves for less than a gang");
  if (const int32_t step = StepOf(job->task_spec(t).workers()); workers % step != 0)
    return Broken(absl::StrCat("reserves for ", workers, " workers, no multiple of ", step));
  return absl::OkStatus();
}

absl::Status CheckLost(const State& state, const pb::AttemptLost& e, const Plan& plan) {
  const JobRow* job = nullptr;
  int32_t t = 0;
  const AttemptRow* attempt = state.FindAttempt(e.key(), &job, &t);
  if (attempt == nullptr || attempt->ended()) return Broken("loses an attempt that doesn't run");
  const HostId id = state.FindHost(e.cluster(), e.host());
  const auto part = std::find_if(attempt->parts.begin(), attempt->parts.end(),
                                 [&](const PartRow& p) { return p.host == id; });
  if (part == attempt->parts.end() || part->over()) return Broken("loses a part that isn't there");
  if (state.host(id).state != pb::HOST_UNREACHABLE)
    return Broken("loses what a host that can be reached holds");
  if (!KnownOff(state.host(id), job->task_spec(t)) &&
      UnreachableRule(job->task_spec(t), *attempt) != pb::REPLACE) {
    return Broken("loses an attempt whose task waits for its host");
  }
  if (Ends(*job) || attempt->cause == pb::TIME_LIMIT || NotNeeded(*job, t)) return absl::OkStatus();
  const bool placed =
      std::any_of(plan.events.begin(), plan.events.end(), [&](const pb::Event& event) {
        const pb::AttemptKey& key = event.attempt_placed().key();
        return event.has_attempt_placed() && key.job_uid() == e.key().job_uid() &&
               key.task() == e.key().task() && key.attempt() > e.key().attempt();
      });
  return placed ? absl::OkStatus() : Broken("loses an attempt without placing the next");
}

absl::Status CheckOne(const State& state, const pb::Event& event, const Plan& plan) {
  switch (event.body_case()) {
    case pb::Event::kAttemptPlaced:
      return CheckPlaced(state, event.attempt_placed());
    case pb::Event::kAttemptStopping:
      return CheckStopping(state, event.attempt_stopping());
    case pb::Event::kAttemptLost:
      return CheckLost(state, event.attempt_lost(), plan);
    case pb::Event::kClusterOpened: {
      const pb::ClusterOpened& e = event.cluster_opened();
      const JobRow* job = state.FindJobByUid(e.job_uid());
      const int32_t t = job == nullptr ? -1 : TaskIndex(*job->spec, e.task());
      if (t < 0 || !job->tasks[t].waiting())
        return Broken("opens a cluster for a task that doesn't wait");
      // Each decision opens a cluster that wasn't, or brings one to the front for this attempt: so
      // there are no more of them than clusters in its list.
      const TaskRow& row = job->tasks[t];
      const auto holds = [&](const std::vector<std::string>& list) {
        return std::find(list.begin(), list.end(), e.cluster()) != list.end();
      };
      const bool fronted = row.opened_attempt == row.next_attempt && holds(row.fronted);
      if (holds(row.opened) && (!e.to_front() || fronted))
        return Broken("opens a cluster that is open to the attempt");
      if (e.to_front() && job->tasks.size() > 1 && job->cluster.empty())
        return Broken("moves a task away from the others of its job");
      const std::vector<int32_t> allowed = AllowedClusters(state, *job);
      const int32_t cluster = state.FindCluster(e.cluster());
      if (std::find(allowed.begin(), allowed.end(), cluster) == allowed.end())
        return Broken("opens a cluster that the job may not use");
      return absl::OkStatus();
    }
    case pb::Event::kTaskFailed: {
      const JobRow* job = state.FindJobByUid(event.task_failed().job_uid());
      const int32_t t = job == nullptr ? -1 : TaskIndex(*job->spec, event.task_failed().task());
      if (t < 0 || job->tasks[t].finished() || job->tasks[t].current() != nullptr)
        return Broken("fails a task that doesn't wait");
      return absl::OkStatus();
    }
    case pb::Event::kReservation:
      return CheckReservation(state, event.reservation());
    default:
      return Broken("isn't an event of a plan");
  }
}

}  // namespace

absl::Status Validate(const State& state, const Plan& plan, PlanFault* fault) {
  const auto broken_by = [&](size_t i, const absl::Status& status) {
    if (fault != nullptr) *fault = {static_cast<int>(i), 0};
    return Broken(absl::StrCat("event ", i, ": ", std::string(status.message())));
  };
  if (fault != nullptr) *fault = PlanFault();
  State after = state;
  for (size_t i = 0; i < plan.events.size(); ++i) {
    const pb::Event& event = plan.events[i];
    if (const absl::Status status = CheckOne(after, event, plan); !status.ok())
      return broken_by(i, status);
    Apply(&after, event);
  }
  const std::vector<HostId> strays = HostsWithStrays(state);
  for (size_t i = 0; i < plan.events.size(); ++i) {
    const pb::Event& event = plan.events[i];
    absl::Status status;
    if (event.has_attempt_stopping())
      status = CheckStoppedTogether(after, event.attempt_stopping());
    if (event.has_attempt_placed()) {
      status = CheckAlone(state, strays, event.attempt_placed());
      if (status.ok()) status = CheckLimits(after, event.attempt_placed());
      if (status.ok()) status = CheckPlacedTogether(state, after, event.attempt_placed());
    }
    if (!status.ok()) return broken_by(i, status);
  }
  if (plan.next_wake_ns < state.now_ns()) return Broken("next look lies in the past");
  return CheckVerdicts(after, plan.verdicts, fault);
}

}  // namespace muster
