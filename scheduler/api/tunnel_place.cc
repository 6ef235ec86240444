// Where a tunnel leads, and what may be asked of it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/spec/members.h"
#include "common/spec/task_names.h"
#include "scheduler/api/services.h"
#include "scheduler/api/tunnel_stream.h"

namespace muster {
namespace {

constexpr int kMostWords = 1024;
constexpr size_t kMostCommandBytes = 64 << 10, kMostTermBytes = 64;
constexpr int kMostPort = 65'535, kMostCells = 10'000;

bool Runs(const TaskRow& task) {
  return !task.attempts.empty() && !task.attempts.back().ended() &&
         task.attempts.back().start_ns != 0;
}

std::string RanksOf(const AttemptRow& attempt, int32_t per_worker) {
  const int32_t ranks = attempt.workers * per_worker;
  return ranks == 1 ? "only rank 0" : absl::StrCat("ranks 0 to ", ranks - 1);
}

// The task asked for, or the only one that runs. -1: *status says why there is none.
int32_t TaskOf(const JobRow& job, const std::string& name, const std::string& id, bool* waits,
               absl::Status* status) {
  if (!name.empty()) {
    const int32_t task = TaskIndex(*job.spec, name);
    if (task < 0)
      *status = absl::NotFoundError(NoSuchTask(absl::StrCat("job ", id), *job.spec, name));
    return task;
  }
  std::vector<std::string> running;
  int32_t only = 0;
  for (size_t i = 0; i < job.tasks.size(); ++i) {
    if (!Runs(job.tasks[i])) continue;
    only = static_cast<int32_t>(i);
    running.push_back(job.task_spec(only).name());
  }
  if (running.size() > 1) {
    *status = absl::InvalidArgumentError(absl::StrCat(
        "job ", id, " runs tasks ", absl::StrJoin(running, ", "), ": say which with --task"));
    return -1;
  }
  if (running.size() == 1 || job.tasks.size() == 1) return only;
  *waits = true;
  *status = absl::FailedPreconditionError(absl::StrCat("nothing of job ", id, " runs now"));
  return -1;
}

// The part that has this rank; null: none has.
const PartRow* PartOf(const AttemptRow& attempt, int32_t per_worker, int32_t rank) {
  const auto part =
      std::find_if(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& candidate) {
        const int32_t first = candidate.first_group_rank * per_worker;
        return rank >= first && rank < first + candidate.workers * per_worker;
      });
  return part == attempt.parts.end() ? nullptr : &*part;
}

absl::Status CheckSize(const pb::TerminalSize& size) {
  if (size.rows() < 0 || size.rows() > kMostCells || size.columns() < 0 ||
      size.columns() > kMostCells)
    return absl::InvalidArgumentError(absl::StrCat("size: 0..", kMostCells));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTunnelStart(const pb::TunnelInput& start, bool command) {
  if (command ? !start.has_exec() : !start.has_forward())
    return absl::InvalidArgumentError("the first message has to say what to begin");
  if (!command) {
    return start.forward().port() >= 1 && start.forward().port() <= kMostPort
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat("port: 1..", kMostPort));
  }
  const pb::ExecStart& exec = start.exec();
  size_t bytes = 0;
  for (const std::string& word : exec.command()) {
    bytes += word.size() + 1;
    if (word.find('\0') != std::string::npos)
      return absl::InvalidArgumentError("command: a word has a NUL inside");
  }
  if (exec.command().empty() || exec.command(0).empty())
    return absl::InvalidArgumentError("command: missing");
  if (exec.command_size() > kMostWords || bytes > kMostCommandBytes) {
    return absl::InvalidArgumentError(absl::StrCat("command: at most ", kMostWords, " words and ",
                                                   kMostCommandBytes,
                                                   " bytes; send what is longer as its input"));
  }
  if (exec.term().size() > kMostTermBytes ||
      exec.term().find_first_of(std::string_view("\0=\n", 3)) != std::string::npos)
    return absl::InvalidArgumentError("term: is no name of a terminal");
  return CheckSize(exec.size());
}

std::string TunnelNote(const pb::TunnelInput& start) {
  if (start.has_forward()) return absl::StrCat("port ", start.forward().port());
  const pb::ExecStart& exec = start.exec();
  size_t rest = 0;
  for (int i = 1; i < exec.command_size(); ++i) rest += exec.command(i).size();
  const std::string& program = exec.command(0);
  return absl::StrCat(std::string(CutUtf8(program, 200)), " and ", exec.command_size() - 1,
                      " more words of ", rest, " bytes, rank ", exec.rank());
}

// What begins there has the owner's account, variables and secrets.
absl::Status CheckTunnelUser(const State& state, uint64_t number, const Principal& who,
                             bool operators) {
  const JobRow* job = state.FindJob(number);
  if (operators || who.trusted || job == nullptr || job->owner == who.user) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("this job is ", job->owner,
                   "'s, and here owners alone run commands beside their jobs and reach their ports "
                   "(operators_exec: false in musterd.yaml)"));
}

absl::Status FindTunnelPlace(const State& state, uint64_t number, const pb::TunnelInput& start,
                             TunnelPlace* place) {
  const bool command = start.has_exec();
  const std::string& asked = command ? start.exec().id() : start.forward().id();
  const std::string& task_name = command ? start.exec().task() : start.forward().task();
  const int32_t rank = command ? start.exec().rank() : start.forward().rank();
  const JobRow* job = state.FindJob(number);
  place->job = number;
  place->id = absl::StrCat(number);
  if (job == nullptr)
    return absl::FailedPreconditionError(absl::StrCat("job ", asked, " has ended"));
  if (job->array != 0) place->id = MemberId(*job->spec, job->array, job->member);
  if (IsWholeArray(*job, asked)) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", job->array, " is an array; name one of its members, such as ",
                     MemberId(*job->spec, job->array, 0)));
  }
  if (job->finished())
    return absl::FailedPreconditionError(absl::StrCat("job ", place->id, " has ended"));
  absl::Status status;
  const int32_t task = TaskOf(*job, task_name, place->id, &place->waits, &status);
  if (task < 0) return status;
  const TaskRow& row = job->tasks[task];
  const std::string whose =
      job->tasks.size() > 1
          ? absl::StrCat("task ", job->task_spec(task).name(), " of job ", place->id)
          : absl::StrCat("job ", place->id);
  if (row.finished()) return absl::FailedPreconditionError(absl::StrCat(whose, " has ended"));
  if (!Runs(row)) {
    place->waits = true;
    return absl::FailedPreconditionError(absl::StrCat(whose, " doesn't run yet"));
  }
  const AttemptRow& attempt = row.attempts.back();
  if (command && start.exec().attempt() != 0 && start.exec().attempt() != attempt.number) {
    return absl::FailedPreconditionError(absl::StrCat("attempt ", start.exec().attempt(), " of ",
                                                      whose, " doesn't run; attempt ",
                                                      attempt.number, " does"));
  }
  const int32_t per_worker = std::max(1, job->task_spec(task).processes_per_worker());
  const PartRow* part = PartOf(attempt, per_worker, rank);
  if (part == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(whose, " has no rank ", rank, "; it has ", RanksOf(attempt, per_worker)));
  }
  const HostRow& host = state.host(part->host);
  place->cluster = state.clusters()[host.cluster].name;
  place->host = host.name;
  place->attempt = attempt.number;
  if (part->over()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, " of ", whose, " has ended on ", place->cluster, "/", place->host));
  }
  if (!host.inventory.opens_tunnels()) {
    return absl::FailedPreconditionError(
        absl::StrCat("host ", place->cluster, "/", place->host,
                     " has a muster-agent that can't do this: upgrade muster-agent there (a "
                     "sandbox's is simulated and never can)"));
  }
  *place->open.mutable_key() = KeyOf(*job, task, attempt.number);
  if (command)
    *place->open.mutable_exec() = start.exec();
  else
    *place->open.mutable_forward() = start.forward();
  return absl::OkStatus();
}

}  // namespace muster
