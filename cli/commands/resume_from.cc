#include "cli/commands/resume_from.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/render/array.h"
#include "cli/render/format.h"
#include "common/spec/task_names.h"

namespace muster {
namespace {

constexpr size_t kMostPaths = 8;

using Paths = std::vector<std::string>;

// Whether others may begin from this job's checkpoints.
absl::Status CheckEnded(const pb::Job& job, const char* on_its_own) {
  const std::string name = absl::StrCat("job ", JobId(job));
  if (job.has_array())
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is an array; resume its members one by one: muster jobs ", JobId(job), " --tasks"));
  if (HasEnded(job.state())) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name, " has not ended, ", on_its_own, ": muster cancel ", JobId(job)));
}

// That a task has told, and behind them those that its job began from, the newest first. Of one
// step alone, if one is given.
Paths ToldBy(const pb::Task& task, std::optional<int64_t> step = std::nullopt) {
  Paths paths;
  for (const pb::Checkpoint& checkpoint : task.checkpoints() | std::views::reverse) {
    if (!step || StepOf(checkpoint) == step) paths.push_back(checkpoint.path());
  }
  return paths;
}

void SetPaths(Paths paths, pb::TaskSpec* task) {
  if (paths.size() > kMostPaths) paths.resize(kMostPaths);
  *task->mutable_checkpoint()->mutable_resume_from() = {paths.begin(), paths.end()};
}

struct From {
  std::string job, task;
  std::optional<int64_t> step;
};

absl::StatusOr<From> Parse(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  From from{parts[0], parts.size() > 1 ? parts[1] : "", std::nullopt};
  int64_t step = 0;
  const bool has_step = parts.size() == 3 && absl::SimpleAtoi(parts[2], &step) && step >= 0;
  const bool lacks = std::find(parts.begin(), parts.end(), "") != parts.end();
  if (lacks || parts.size() > 3 || (parts.size() == 3 && !has_step))
    return absl::InvalidArgumentError(absl::StrCat(
        "--resume-from ", text,
        ": write JOB, JOB/TASK or JOB/TASK/STEP, such as 17 or 17/train/1200. Paths and URLs "
        "stand in the file's checkpoint.resume_from"));
  if (has_step) from.step = step;
  return from;
}

// The index of the job's task of that name; -1: it has none.
int TaskCalled(const pb::JobSpec& spec, const std::string& name) {
  const auto& tasks = spec.tasks();
  const auto found = std::find_if(tasks.begin(), tasks.end(),
                                  [&](const pb::TaskSpec& task) { return task.name() == name; });
  return found == tasks.end() ? -1 : static_cast<int>(found - tasks.begin());
}

// Which of the job's tasks a task of `spec` begins from; -1: from none.
int SourceOf(const pb::Job& job, const From& from, const pb::JobSpec& spec, int task) {
  const std::string& name = spec.tasks(task).name();
  if (!from.task.empty())
    return spec.tasks_size() == 1 || name == from.task ? TaskCalled(job.spec(), from.task) : -1;
  return spec.tasks_size() == 1 && job.spec().tasks_size() == 1 ? 0 : TaskCalled(job.spec(), name);
}

// That the job has nothing to begin from, and what it has.
absl::Status NothingThere(const pb::Job& job, const From& from, const pb::JobSpec& spec) {
  const std::string name = absl::StrCat("job ", JobId(job));
  std::string what = "told no checkpoint for the tasks of this one";
  if (!from.task.empty() && TaskCalled(job.spec(), from.task) < 0)
    return absl::InvalidArgumentError(
        NoSuchTask(absl::StrCat("--resume-from: ", name), job.spec(), from.task));
  if (!from.task.empty() && spec.tasks_size() > 1 && TaskCalled(spec, from.task) < 0)
    return absl::InvalidArgumentError(
        absl::StrCat(NoSuchTask("--resume-from: this job", spec, from.task),
                     "; only one of the same name begins from that of ", name));
  if (from.step) what = absl::StrCat("has no checkpoint of step ", *from.step);
  return absl::FailedPreconditionError(absl::StrCat(
      "--resume-from: ", name, " ", what, "; what it has: muster checkpoints list ", JobId(job)));
}

}  // namespace

std::optional<int64_t> StepOf(const pb::Checkpoint& checkpoint) {
  if (checkpoint.attempt() > 0) return checkpoint.step();
  constexpr std::string_view kMark = "/step-";
  const std::string& path = checkpoint.path();
  const size_t at = path.rfind(kMark);
  int64_t step = 0;
  if (at == std::string::npos || !absl::SimpleAtoi(path.substr(at + kMark.size()), &step) ||
      step < 0)
    return std::nullopt;
  return step;
}

absl::Status BeginWhereItEnded(const pb::Job& job, pb::JobSpec* spec) {
  if (absl::Status s =
          CheckEnded(job, "and goes on by itself. To go on with it changed, end it first");
      !s.ok())
    return s;
  bool any = false;
  for (int t = 0; t < std::min(spec->tasks_size(), job.tasks_size()); ++t) {
    Paths paths = ToldBy(job.tasks(t));
    any = any || !paths.empty();
    for (const std::string& path : spec->tasks(t).checkpoint().resume_from()) {
      if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
    }
    SetPaths(std::move(paths), spec->mutable_tasks(t));
  }
  if (any) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", JobId(job), " told no checkpoint to go on from. From its beginning: muster rerun ",
      JobId(job)));
}

absl::Status BeginFromJob(Client& client, const std::string& text, pb::JobSpec* spec) {
  const absl::StatusOr<From> from = Parse(text);
  if (!from.ok()) return from.status();
  const absl::StatusOr<pb::Job> job = client.Get(from->job);
  if (!job.ok()) return job.status();
  if (absl::Status s =
          CheckEnded(*job, "and removes old checkpoints as new ones come. End it first");
      !s.ok())
    return s;
  bool any = false;
  for (int t = 0; t < spec->tasks_size(); ++t) {
    const int source = SourceOf(*job, *from, *spec, t);
    if (source < 0 || source >= job->tasks_size()) continue;
    Paths paths = ToldBy(job->tasks(source), from->step);
    if (paths.empty()) continue;
    any = true;
    SetPaths(std::move(paths), spec->mutable_tasks(t));
  }
  return any ? absl::OkStatus() : NothingThere(*job, *from, *spec);
}

std::string BeginsFromText(const pb::JobSpec& spec) {
  std::string text;
  for (const pb::TaskSpec& task : spec.tasks()) {
    const auto& paths = task.checkpoint().resume_from();
    if (paths.empty()) continue;
    const int others = paths.size() - 1;
    absl::StrAppend(
        &text,
        spec.tasks_size() > 1 ? absl::StrCat("Task ", Plain(task.name()), " goes") : "It goes",
        " on from the checkpoint ", Plain(paths[0]),
        others == 0 ? ""
                    : absl::StrCat("; if that can't be read, from ", others,
                                   others == 1 ? " other" : " others"),
        ".\n");
  }
  return text;
}

}  // namespace muster
