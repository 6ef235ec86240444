#include "scheduler/engine/commands.h"

#include "absl/strings/str_cat.h"
#include "common/spec/check_on.h"
#include "common/spec/members.h"
#include "common/spec/together.h"
#include "scheduler/engine/engine.h"
#include "scheduler/state/abilities.h"
#include "scheduler/state/directories.h"

namespace muster {
namespace {

// What a member runs, and what tells it which one it is.
void AddMember(const JobRow& job, int32_t task, pb::Prepare* prepare) {
  *prepare->mutable_task() = TaskOfMember(*job.spec, task, job.member);
  const auto env = JobEnvOfMember(*job.spec, job.member);
  prepare->mutable_job_env()->insert(env.begin(), env.end());
  const auto variables = MemberVariables(*job.spec, job.array, job.member);
  prepare->mutable_member_env()->insert(variables.begin(), variables.end());
}

// Where the others are that it starts together with: the host of rank 0 of each that has one now.
void AddAddresses(const State& state, const JobRow& job, int32_t task, pb::Prepare* prepare) {
  for (const std::string& name : job.task_spec(task).with()) {
    const int32_t other = TaskIndex(*job.spec, name);
    const AttemptRow* attempt = other < 0 ? nullptr : job.tasks[other].current();
    if (attempt == nullptr) continue;
    (*prepare->mutable_member_env())[AddressVariable(name)] =
        state.host(attempt->parts[0].host).inventory.address();
  }
}

// On whose devices it runs. All that run there have the memory of the holder's share together, so
// each is held to its part of it, whether it states one or not.
void AddHolder(const State& state, const JobRow& job, const AttemptRow& attempt,
               const PartRow& part, pb::Prepare* prepare) {
  const JobRow* holder = job.holder == 0 ? nullptr : state.FindJob(job.holder);
  if (holder == nullptr) return;
  (*prepare->mutable_member_env())[kHolderVariable] =
      absl::StrCat(holder->uid, ".", attempt.holder_attempt);
  pb::TaskSpec* task = prepare->mutable_task();
  const Demand demand = WorkerDemand(*task, state.host(part.host).inventory);
  task->mutable_resources()->set_memory_bytes(demand.memory_bytes);
}

pb::SchedulerMessage PrepareCommand(const State& state, const JobRow& job, int32_t task,
                                    const AttemptRow& attempt, const PartRow& part) {
  const pb::TaskSpec& spec = job.task_spec(task);
  pb::SchedulerMessage message;
  pb::Prepare* prepare = message.mutable_prepare();
  *prepare->mutable_key() = KeyOf(job, task, attempt.number);
  prepare->set_job_number(job.number);
  prepare->set_job_name(job.spec->name());
  prepare->set_owner(job.owner);
  if (job.array == 0) {
    *prepare->mutable_task() = spec;
    *prepare->mutable_job_env() = job.spec->env();
  } else {
    AddMember(job, task, prepare);
  }
  AddAddresses(state, job, task, prepare);
  AddHolder(state, job, attempt, part, prepare);
  *prepare->mutable_here() = ToPlacement(state, part);
  prepare->set_processes_per_worker(spec.processes_per_worker());
  prepare->set_gang_workers(attempt.workers);
  prepare->set_hosts_rendezvous(part.first_group_rank == 0);
  prepare->set_job_directory(JobDirectory(state, job));
  const std::string of_attempt = absl::StrCat("/", spec.name(), "/attempt-", attempt.number);
  if (!prepare->job_directory().empty())
    prepare->set_attempt_directory(prepare->job_directory() + of_attempt);
  const std::string storage =
      spec.checkpoint().storage().empty() ? JobStorage(state, job) : spec.checkpoint().storage();
  prepare->set_checkpoint_storage(storage);
  const std::string checkpoints = DirectoryIn(state, storage, job);
  if (!checkpoints.empty())
    prepare->set_checkpoint_directory(absl::StrCat(checkpoints, of_attempt, "/checkpoints"));
  for (const std::string& path : attempt.resume_from) prepare->add_resume_from(path);
  prepare->set_umask(job.umask);
  prepare->set_start_at_once(attempt.state != pb::TASK_PREPARING);
  prepare->set_restarts_used(job.tasks[task].restarts_used);
  prepare->set_queue(job.spec->queue());
  *prepare->mutable_secrets() = job.spec->secrets();
  prepare->set_keep_reports(job.spec->has_track());
  return message;
}

pb::SchedulerMessage StopCommand(const pb::AttemptKey& key, pb::Cause cause, int64_t grace_ns) {
  pb::SchedulerMessage message;
  *message.mutable_stop()->mutable_key() = key;
  message.mutable_stop()->set_cause(cause);
  message.mutable_stop()->set_grace_ns(grace_ns);
  return message;
}

// What this part's host should do next; nothing if it is the host's or the program's turn.
void AppendPartCommand(const State& state, const JobRow& job, int32_t task,
                       const AttemptRow& attempt, const PartRow& part,
                       std::vector<pb::SchedulerMessage>* commands) {
  if (part.over()) return;
  if (attempt.state == pb::TASK_STOPPING) {
    commands->push_back(
        StopCommand(KeyOf(job, task, attempt.number), attempt.cause, attempt.grace_ns));
    return;
  }
  const HostRow& host = state.host(part.host);
  if (part.state_id != host.state_id) return;  // its agent has never heard of it
  // What nobody knows may hold the very devices, and is stopped first.
  if (host.has_strays()) return;
  // Its agent was exchanged for an older one since it was placed here.
  if (OutgrowsAgent(host, part, NeedsOf(*job.spec, job.task_spec(task)))) return;
  if (part.phase == pb::ATTEMPT_PHASE_UNSPECIFIED) {
    const bool at_once = attempt.state == pb::TASK_STARTING && attempt.parts.size() == 1;
    if (attempt.state == pb::TASK_PREPARING || at_once) {
      commands->push_back(PrepareCommand(state, job, task, attempt, part));
    }
  } else if (part.phase == pb::PREPARED &&
             (attempt.state == pb::TASK_STARTING || attempt.state == pb::TASK_RUNNING)) {
    pb::Start* start = commands->emplace_back().mutable_start();
    *start->mutable_key() = KeyOf(job, task, attempt.number);
    // A task on one host needs no GangPrepared, so nobody has written its address down.
    start->set_master_address(attempt.parts.size() == 1 ? "127.0.0.1" : attempt.master_address);
    start->set_master_port(attempt.master_port);
  }
}

// The attempt as it was, if all that AppendPartCommand reads of it apart from its parts was the
// same; else nullptr.
const AttemptRow* Unchanged(const JobRow* before, size_t task, const AttemptRow& attempt) {
  const AttemptRow* was = before == nullptr ? nullptr : before->tasks[task].current();
  if (was == nullptr || was->number != attempt.number || was->state != attempt.state ||
      was->parts.size() != attempt.parts.size())
    return nullptr;
  const bool same_stop = was->cause == attempt.cause && was->grace_ns == attempt.grace_ns;
  const bool same_master =
      was->master_address == attempt.master_address && was->master_port == attempt.master_port;
  return same_stop && (same_master || attempt.state == pb::TASK_PREPARING) ? was : nullptr;
}

// The host of rank 0 of the attempt that staged it publishes, also when its processes are gone or a
// later attempt runs. kNoHost if there is nothing to publish.
HostId AppendPublish(const State& state, const AttemptRef& staged,
                     std::vector<pb::SchedulerMessage>* commands, HostId only = kNoHost) {
  const JobRow& job = *state.FindJob(staged.job);
  const AttemptRow* attempt = state.FindAttempt(staged);
  if (attempt == nullptr || attempt->parts.empty() ||
      (only != kNoHost && attempt->parts[0].host != only))
    return kNoHost;
  pb::Publish* publish = commands->emplace_back().mutable_publish();
  *publish->mutable_key() = KeyOf(job, staged.task, attempt->number);
  publish->set_staged(attempt->export_staged);
  publish->set_target(attempt->export_target);
  return attempt->parts[0].host;
}

// The attempts on a host, oldest job first.
template <typename F>
void ForEachPart(const State& state, const HostRow& host, F f) {
  for (const AttemptRef& ref : host.attempts) {
    const JobRow* job = state.FindJob(ref.job);
    const AttemptRow* attempt = state.FindAttempt(ref);
    if (job == nullptr || attempt == nullptr) continue;
    for (const PartRow& part : attempt->parts) {
      if (part.host == host.id) f(*job, ref.task, *attempt, part);
    }
  }
}

}  // namespace

bool AwaitsExport(const State& state, const pb::AttemptKey& key) {
  const JobRow* job = nullptr;
  int32_t task = 0;
  const AttemptRow* attempt = state.FindAttempt(key, &job, &task);
  return attempt != nullptr && !job->finished() && !attempt->export_staged.empty() &&
         job->tasks[task].export_state == "staged";
}

std::vector<pb::SchedulerMessage> CommandsFor(const State& state, const std::string& cluster,
                                              const std::string& host_name) {
  std::vector<pb::SchedulerMessage> commands;
  const HostId id = state.FindHost(cluster, host_name);
  if (id == kNoHost) return commands;
  const HostRow& host = state.host(id);
  ForEachPart(state, host,
              [&](const JobRow& job, int32_t task, const AttemptRow& attempt, const PartRow& part) {
                AppendPartCommand(state, job, task, attempt, part, &commands);
              });
  // What was lost here may still run; nobody waits for its checkpoint any more.
  for (const LostRow& lost : host.lost) commands.push_back(StopCommand(lost.key, pb::HOST_LOST, 0));
  for (const AttemptRef& staged : state.staged_exports())
    AppendPublish(state, staged, &commands, id);
  return commands;
}

std::vector<HostCommand> CommandsOf(const State& state, const JobRow& job, const JobRow* before) {
  std::vector<HostCommand> commands;
  std::vector<pb::SchedulerMessage> made;
  const auto take = [&](HostId host) {
    for (pb::SchedulerMessage& message : made) commands.push_back({host, std::move(message)});
    made.clear();
  };
  for (size_t task = 0; task < job.tasks.size(); ++task) {
    const AttemptRow* attempt = job.tasks[task].current();
    if (attempt == nullptr) continue;
    const AttemptRow* was = Unchanged(before, task, *attempt);
    for (size_t p = 0; p < attempt->parts.size(); ++p) {
      const PartRow& part = attempt->parts[p];
      if (was != nullptr && was->parts[p].phase == part.phase &&
          was->parts[p].over() == part.over())
        continue;
      AppendPartCommand(state, job, static_cast<int32_t>(task), *attempt, part, &made);
      take(part.host);
    }
  }
  const std::set<AttemptRef>& staged = state.staged_exports();
  for (auto it = staged.lower_bound({job.number, 0, 0});
       it != staged.end() && it->job == job.number; ++it)
    take(AppendPublish(state, *it, &made));
  return commands;
}

std::vector<pb::SchedulerMessage> QueriesFor(const State& state, const std::string& cluster,
                                             const std::string& host_name,
                                             const std::set<std::string>& mentioned) {
  std::vector<pb::SchedulerMessage> queries;
  const HostId id = state.FindHost(cluster, host_name);
  if (id == kNoHost) return queries;
  const auto ask = [&](const pb::AttemptKey& key) {
    if (mentioned.count(AttemptText(key)) == 0)
      *queries.emplace_back().mutable_query()->mutable_key() = key;
  };
  const HostRow& host = state.host(id);
  ForEachPart(state, host,
              [&](const JobRow& job, int32_t task, const AttemptRow& attempt, const PartRow& part) {
                if (!part.over() && part.phase != pb::ATTEMPT_PHASE_UNSPECIFIED)
                  ask(KeyOf(job, task, attempt.number));
              });
  for (const LostRow& lost : host.lost) ask(lost.key);
  return queries;
}

}  // namespace muster
