// Small readings of State that engine, decide and ask share.
#include <algorithm>
#include <ranges>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/job_defaults.h"
#include "common/base/rank_devices.h"
#include "common/base/units.h"
#include "scheduler/state/state.h"

namespace muster {

pb::AttemptKey KeyOf(const JobRow& job, int32_t task, int32_t attempt) {
  pb::AttemptKey key;
  key.set_job_uid(job.uid);
  key.set_task(job.task_spec(task).name());
  key.set_attempt(attempt);
  return key;
}

int32_t TaskIndex(const pb::JobSpec& spec, std::string_view name) {
  for (int32_t t = 0; t < spec.tasks_size(); ++t) {
    if (spec.tasks(t).name() == name) return t;
  }
  return -1;
}

bool NotNeeded(const JobRow& job, int32_t task) {
  const auto& until = job.task_spec(task).until();
  return !until.empty() && std::all_of(until.begin(), until.end(), [&](const std::string& name) {
    const int32_t other = TaskIndex(*job.spec, name);
    return other >= 0 && job.tasks[other].state == pb::TASK_SUCCEEDED;
  });
}

bool AllPrepared(const AttemptRow& attempt) {
  if (attempt.state != pb::TASK_PREPARING || attempt.ended()) return false;
  return std::all_of(attempt.parts.begin(), attempt.parts.end(),
                     [](const PartRow& part) { return part.phase == pb::PREPARED && !part.lost; });
}

std::optional<pb::Event> PreparedGang(const State& state, const pb::AttemptKey& key) {
  const AttemptRow* attempt = state.FindAttempt(key);
  if (attempt == nullptr || attempt->parts.empty() || !AllPrepared(*attempt)) return std::nullopt;
  pb::Event event;
  pb::GangPrepared* prepared = event.mutable_gang_prepared();
  *prepared->mutable_key() = key;
  prepared->set_master_address(state.host(attempt->parts[0].host).inventory.address());
  prepared->set_master_port(attempt->master_port);
  return event;
}

namespace {

// Why a process failed, as its host told it from its log. What only the scheduler gives isn't
// believed.
pb::Cause CauseOf(const pb::WorkerExit& exit) {
  switch (exit.cause()) {
    case pb::PROGRAM_ERROR:
    case pb::KILLED:
    case pb::OUT_OF_MEMORY:
    case pb::HANG:
    case pb::OUT_OF_DISK:
    case pb::DEVICE_FAILURE:
    case pb::HOST_FAILURE:
    case pb::NETWORK_FAILURE:
    case pb::RENDEZVOUS:
    case pb::STORAGE_FAILURE:
      return exit.cause();
    default:
      return exit.oom() ? pb::OUT_OF_MEMORY : exit.signal() > 0 ? pb::KILLED : pb::PROGRAM_ERROR;
  }
}

constexpr int64_t kSoundRunNs =
    10 * kMinute;  // a program that ran for so long is not one that fails at its start

}  // namespace

bool LagsInLaunch(const AttemptRow& attempt, const PartRow& part) {
  const bool preparing = attempt.state == pb::TASK_PREPARING;
  return !part.over() && (preparing || attempt.state == pb::TASK_STARTING) &&
         part.phase < (preparing ? pb::PREPARED : pb::STARTED);
}

bool OutgrowsAgent(const HostRow& host, const PartRow& part, Abilities needs) {
  return !part.over() && part.phase == pb::ATTEMPT_PHASE_UNSPECIFIED &&
         !Can(AbilitiesOf(host.inventory), needs);
}

bool RanSoundly(const AttemptRow& attempt) {
  return attempt.start_ns != 0 &&
         (attempt.off_since_ns != 0 ? attempt.off_since_ns : attempt.end_ns) - attempt.start_ns >=
             kSoundRunNs;
}

std::optional<Failure> FirstFailure(const AttemptRow& attempt) {
  const pb::WorkerExit* first = nullptr;
  const PartRow* where = nullptr;
  for (const PartRow& part : attempt.parts) {
    for (const pb::WorkerExit& exit : part.exits) {
      // What came after a stop says nothing; the stop may have been for this one, which came
      // before.
      if (part.stop_sent && !exit.own()) continue;
      if (exit.exit_code() == 0 && exit.signal() == 0 && !exit.oom()) continue;
      // Who lost a peer says so; another that ended by itself knows more, even if its host's clock
      // is late.
      const auto order = [](const pb::WorkerExit& e) {
        return std::make_tuple(CauseOf(e) == pb::NETWORK_FAILURE, e.at_ns(), e.rank());
      };
      if (first == nullptr || order(exit) < order(*first)) {
        first = &exit;
        where = &part;
      }
    }
  }
  Failure failure;
  if (first == nullptr) {
    for (const PartRow& part : attempt.parts) {
      if (part.cause == pb::CAUSE_UNSPECIFIED || part.cause == pb::DONE || part.stop_sent) continue;
      failure.cause = part.cause;
      failure.detail = part.detail;
      failure.host = part.host;
      return failure;
    }
    return std::nullopt;
  }
  // That the host was restarted, or lost track of the others, is no cause of an end that was told.
  const bool told = first->own() && where->cause == pb::HOST_LOST;
  if (where->cause != pb::CAUSE_UNSPECIFIED && where->cause != pb::DONE && !told) {
    failure.cause = where->cause;
  } else {
    failure.cause = CauseOf(*first);
  }
  failure.host = where->host;
  failure.rank = first->rank();
  failure.exit_code = first->signal() > 0 ? 0 : first->exit_code();
  failure.own = first->own();
  failure.detail =
      !first->detail().empty() ? absl::StrCat("rank ", first->rank(), ": ", first->detail())
      : first->signal() > 0    ? absl::StrCat("rank ", first->rank(), ": signal ", first->signal())
                            : absl::StrCat("rank ", first->rank(), ": exit ", first->exit_code());
  return failure;
}

bool Infrastructure(pb::Cause cause) {
  return cause == pb::RENDEZVOUS || cause == pb::LAUNCH_FAILED || cause == pb::IMAGE_FAILED ||
         cause == pb::DEVICE_FAILURE || cause == pb::HOST_FAILURE || cause == pb::NETWORK_FAILURE ||
         cause == pb::STORAGE_FAILURE;
}

bool SaysFinal(const pb::TaskSpec& task, const Failure& failure) {
  // What its host says in the program's place: such a program isn't there, or can't be run. Of a
  // setup, and of what was killed with the others, the code is no word of the program's.
  const bool no_program =
      (failure.exit_code == 126 || failure.exit_code == 127) && !Infrastructure(failure.cause);
  const auto& codes = task.final_exit_codes();
  return (failure.own || no_program) &&
         std::find(codes.begin(), codes.end(), failure.exit_code) != codes.end();
}

bool EndedForGood(const pb::TaskSpec& task, const AttemptRow& attempt) {
  if (task.final_exit_codes().empty() || !attempt.ended()) return false;
  const std::optional<Failure> failure = FirstFailure(attempt);
  return failure.has_value() && failure->cause == attempt.cause && SaysFinal(task, *failure);
}

HostId FailedHost(const AttemptRow& attempt) {
  const std::optional<Failure> failure = FirstFailure(attempt);
  return failure.has_value() && failure->cause == attempt.cause ? failure->host : kNoHost;
}

std::vector<int32_t> DevicesOfRank(const pb::TaskSpec& task, const PartRow& part, int32_t rank) {
  const auto [first, last] = RankDevices(rank, task.processes_per_worker(), part.first_group_rank,
                                         part.workers, static_cast<int32_t>(part.devices.size()));
  return {part.devices.begin() + first, part.devices.begin() + last};
}

pb::QuarantineRule QuarantineRuleOf(const State& state, int32_t cluster) {
  pb::QuarantineRule rule = state.clusters()[cluster].spec.quarantine();
  if (rule.device_blames() == 0) rule.set_device_blames(2);
  if (rule.host_blames() == 0) rule.set_host_blames(3);
  if (rule.window_ns() == 0) rule.set_window_ns(kDay);
  if (!rule.has_max_percent()) rule.set_max_percent(10);
  return rule;
}

Demand WorkerDemand(const pb::TaskSpec& task, const pb::Inventory& inventory) {
  const pb::Resources& wants = task.resources();
  return ShareOfHost(
      {wants.gpus_milli(), wants.cpus_milli(), wants.memory_bytes(), wants.disk_bytes()},
      inventory.devices_size(), inventory.cpus_milli(), inventory.memory_bytes());
}

Demand ShareOfHost(Demand wants, int64_t devices, int64_t cpus_milli, int64_t memory_bytes) {
  if (wants.gpus_milli > 0 && devices > 0) {
    const auto share = [&](int64_t whole) {
      return static_cast<int64_t>(static_cast<__int128>(whole) * wants.gpus_milli /
                                  (1000 * devices));
    };
    if (wants.cpus_milli == 0) wants.cpus_milli = share(cpus_milli);
    if (wants.memory_bytes == 0) wants.memory_bytes = share(memory_bytes);
  }
  if (wants.gpus_milli == 0 && wants.cpus_milli == 0) wants.cpus_milli = 1000;
  return wants;
}

pb::WhenUnreachable UnreachableRule(const pb::TaskSpec& task, const AttemptRow& attempt) {
  if (task.when_unreachable() != pb::WHEN_UNREACHABLE_UNSPECIFIED) return task.when_unreachable();
  return !task.trainer_json().empty() || attempt.parts.size() > 1 ? pb::REPLACE : pb::WAIT;
}

int64_t FenceWaitNs(const pb::TaskSpec& task) {
  if (task.when_unreachable() != pb::FENCE) return 0;
  constexpr int64_t kKillNs = 5 * kSecond, kTickNs = kSecond;
  constexpr int64_t kDriftPerMille = 1;  // of a host's clock and of ours, each
  const int64_t fence_ns = task.fence_after_ns() > 0 ? task.fence_after_ns() : kDefaultFenceAfterNs;
  const int64_t grace_ns = task.has_grace_ns() ? task.grace_ns() : kDefaultGraceNs;
  const int64_t host_ns = fence_ns + grace_ns + kKillNs;  // ten years at most
  return static_cast<int64_t>(static_cast<__int128>(host_ns) * (1000 + kDriftPerMille) /
                              (1000 - kDriftPerMille)) +
         1 + kTickNs;
}

bool KnownOff(const HostRow& host, const pb::TaskSpec& task) {
  if (host.state != pb::HOST_UNREACHABLE) return false;
  const int64_t wait_ns = FenceWaitNs(task);
  return !host.confirmed_off_by.empty() || (wait_ns > 0 && host.quiet_ns >= wait_ns);
}

bool IsRemoved(const State& state, const HostRow& host) {
  return !host.listed && !state.clusters()[host.cluster].spec.open() && host.attempts.empty() &&
         (host.state == pb::HOST_UNREACHABLE || host.state == pb::HOST_NEVER_SEEN);
}

std::string JobStorage(const State& state, const JobRow& job) {
  const int32_t cluster = state.FindCluster(job.cluster);
  return cluster < 0 ? "" : state.clusters()[cluster].spec.job_storage();
}

bool Reaches(const pb::ClusterFile& file, const std::string& storage, const std::string& cluster) {
  const auto it = file.storages().find(storage);
  if (it == file.storages().end()) return false;
  return std::find(it->second.clusters().begin(), it->second.clusters().end(), cluster) !=
         it->second.clusters().end();
}

bool TakesJobsOf(const pb::ClusterSpec& cluster, const std::string& owner) {
  return cluster.only_user().empty() || cluster.only_user() == owner;
}

std::vector<int32_t> AllowedClusters(const State& state, const JobRow& job) {
  std::vector<int32_t> allowed;
  if (job.spec->clusters().empty()) {
    for (size_t c = 0; c < state.clusters().size(); ++c) allowed.push_back(static_cast<int32_t>(c));
  } else {
    for (const std::string& name : job.spec->clusters()) {
      const int32_t c = state.FindCluster(name);
      if (c >= 0 && std::find(allowed.begin(), allowed.end(), c) == allowed.end())
        allowed.push_back(c);
    }
  }
  std::erase_if(allowed,
                [&](int32_t c) { return !TakesJobsOf(state.clusters()[c].spec, job.owner); });
  if (!job.cluster.empty()) {
    const std::string storage = JobStorage(state, job);
    std::erase_if(allowed, [&](int32_t c) {
      const std::string& name = state.clusters()[c].name;
      return name != job.cluster && !Reaches(state.cluster_file(), storage, name);
    });
  }
  return allowed;
}

std::vector<std::string> ResumeFrom(const State& state, const TaskRow& task,
                                    const std::string& cluster) {
  std::vector<std::string> paths;
  for (const pb::Checkpoint& checkpoint : std::views::reverse(task.checkpoints)) {
    const std::string& storage = checkpoint.storage();
    if (storage.empty() || Reaches(state.cluster_file(), storage, cluster) ||
        !state.cluster_file().storages().contains(storage))
      paths.push_back(checkpoint.path());
  }
  return paths;
}

pb::Placement ToPlacement(const State& state, const PartRow& part) {
  pb::Placement placement;
  placement.set_host(state.host(part.host).name);
  placement.set_first_group_rank(part.first_group_rank);
  placement.set_workers(part.workers);
  for (const int32_t device : part.devices) placement.add_devices(device);
  for (const int64_t milli : part.device_milli) placement.add_device_milli(milli);
  return placement;
}

}  // namespace muster
