#include "cli/commands/running_task.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/render/array.h"
#include "cli/render/format.h"
#include "common/spec/task_names.h"

namespace muster {
namespace {

bool Runs(const pb::Task& task) {
  return task.state() == pb::TASK_RUNNING && !task.attempts().empty();
}

// Where it is told why nothing of it runs.
std::string WhereToLook(const pb::Job& job) {
  return HasEnded(job.state()) ? absl::StrCat("; how it ended: muster show ", JobId(job))
                               : absl::StrCat("; why: muster explain ", JobId(job));
}

RunningTask Read(const pb::Task& task, const pb::TaskSpec& spec) {
  const pb::Attempt& attempt = *task.attempts().rbegin();
  RunningTask read;
  read.name = task.name();
  read.attempt = attempt.number();
  read.trainer = !spec.trainer_json().empty();
  int32_t workers = 0;
  for (const pb::Placement& placement : attempt.placements()) workers += placement.workers();
  read.ranks = std::max(1, workers) * std::max(1, spec.processes_per_worker());
  return read;
}

}  // namespace

absl::Status NoRequests(const std::string& job_id) {
  return absl::FailedPreconditionError(
      absl::StrCat("the muster-agent on the host of job ", job_id,
                   " is too old to pass requests on: upgrade it there (muster show ", job_id,
                   " names the host)"));
}

absl::StatusOr<RunningTask> FindRunningTask(const pb::Job& job, const std::string& name) {
  const std::string id = JobId(job);
  std::vector<std::string> names;
  RunningTask found;
  for (int i = 0; i < job.tasks_size() && i < job.spec().tasks_size(); ++i) {
    const pb::Task& task = job.tasks(i);
    if (name.empty() ? !Runs(task) : task.name() != name) continue;
    if (!Runs(task))
      return absl::FailedPreconditionError(
          absl::StrCat("task ", name, " of job ", id, " is not running", WhereToLook(job)));
    names.push_back(task.name());
    found = Read(task, job.spec().tasks(i));
  }
  if (names.empty() && !name.empty())
    return absl::NotFoundError(NoSuchTask(absl::StrCat("--task: job ", id), job.spec(), name));
  if (names.empty())
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", id, " is not running: it is its program that is asked", WhereToLook(job)));
  if (names.size() > 1)
    return absl::InvalidArgumentError(absl::StrCat("several tasks of job ", id,
                                                   " run: name one by --task (",
                                                   absl::StrJoin(names, ", "), ")"));
  return found;
}

}  // namespace muster
