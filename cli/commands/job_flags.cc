#include "cli/commands/job_flags.h"

#include <climits>
#include <cstdlib>
#include <map>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/commands/along.h"
#include "cli/commands/commands.h"
#include "cli/render/format.h"
#include "common/base/ids.h"
#include "common/base/units.h"

namespace muster {
namespace {

std::string NameFor(const JobFlags& flags) {
  if (!flags.name.empty()) return flags.name;
  std::string stem = flags.command[0].substr(flags.command[0].rfind('/') + 1);
  return IsLabel(stem) ? stem : "run";
}

// As in a job file: a size carries a unit.
absl::StatusOr<int64_t> ParseSizeWithUnit(std::string_view text) {
  if (text.find_first_not_of("0123456789.") == std::string_view::npos) {
    const std::string number(text);
    return absl::InvalidArgumentError(absl::StrCat("\"", number, "\" has no unit; write ", number,
                                                   "GiB, or ", number, "B for bytes"));
  }
  return ParseSize(text);
}

}  // namespace

void AddJobFlags(CLI::App* command, JobFlags* flags) {
  command->add_option("--queue", flags->queue, "Default: the context's, or the only one")
      ->check(RefuseEmpty);
  command->add_option("--gpus", flags->gpus, "Per worker; a fraction with one worker only");
  command->add_option("--gpu-type", flags->gpu_types, "Flavours in order of preference")
      ->delimiter(',');
  command->add_option("--cpus", flags->cpus, "Per worker");
  command->add_option("--memory", flags->memory, "Per worker, such as 4GiB");
  command->add_option("--time-limit", flags->time_limit, "Hard stop after so long, such as 30m");
  command->add_option("--cluster", flags->clusters, "Where it may run, in order of preference")
      ->delimiter(',');
  command
      ->add_option("--env", flags->env,
                   "NAME=VALUE, or NAME of a variable of this shell; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--secret", flags->secrets,
          "NAME, or NAME=VARIABLE: a secret of yours (muster secret) as a variable; may be "
          "repeated")
      ->allow_extra_args(false);
  command->add_option("--workdir", flags->workdir,
                      "Directory to run in that is on the hosts, too; nothing is copied");
  command->add_option(
      "--image", flags->image,
      "Directory on the hosts that the program takes for the root of the file system");
}

void FillFlags(const Settings& settings, const SpecContext& context, JobFlags* flags) {
  if (flags->queue.empty()) flags->queue = DefaultQueue(settings, context);
  if (!flags->gpus.empty() && flags->gpu_types.empty() && context.flavours.size() == 1)
    flags->gpu_types = {context.flavours.begin()->first};
}

absl::StatusOr<pb::JobSpec> SpecOfFlags(const JobFlags& flags) {
  pb::JobSpec spec;
  spec.set_name(NameFor(flags));
  spec.set_queue(flags.queue);
  for (const std::string& cluster : flags.clusters) spec.add_clusters(cluster);
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  task->mutable_workers()->set_min(flags.workers);
  task->mutable_workers()->set_max(flags.workers);
  task->set_max_restarts(flags.max_restarts);
  for (const std::string& word : flags.command) task->mutable_run()->add_exec(word);
  pb::Resources* resources = task->mutable_resources();
  for (const std::string& type : flags.gpu_types) resources->add_gpu_types(type);
  auto fill = [](const char* flag, const std::string& text,
                 absl::StatusOr<int64_t> (*parse)(std::string_view), auto set) -> absl::Status {
    if (text.empty()) return absl::OkStatus();
    absl::StatusOr<int64_t> value = parse(text);
    if (!value.ok())
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", text, ": ", std::string(value.status().message())));
    set(*value);
    return absl::OkStatus();
  };
  for (const absl::Status& status :
       {fill("--gpus", flags.gpus, ParseMilli, [&](int64_t v) { resources->set_gpus_milli(v); }),
        fill("--cpus", flags.cpus, ParseMilli, [&](int64_t v) { resources->set_cpus_milli(v); }),
        fill("--memory", flags.memory, ParseSizeWithUnit,
             [&](int64_t v) { resources->set_memory_bytes(v); }),
        fill("--time-limit", flags.time_limit, ParseDuration,
             [&](int64_t v) { task->set_time_limit_ns(v); })}) {
    if (!status.ok()) return status;
  }
  for (const std::string& secret : flags.secrets) spec.add_secrets(secret);
  if (absl::Status status = AddVariables(flags.env, &spec); !status.ok()) return status;
  if (!flags.workdir.empty()) {
    char path[PATH_MAX];
    if (realpath(flags.workdir.c_str(), path) == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("--workdir ", flags.workdir, ": there is no such directory here"));
    task->set_workdir(path);
  }
  task->set_image(flags.image);
  return spec;
}

std::string WrongFlags(const absl::Status& status) {
  static const std::map<std::string, std::string> names = {
      {"queue", "--queue"},           {"name", "--name"},
      {"workers", "--workers"},       {"clusters", "--cluster"},
      {"resources.gpus", "--gpus"},   {"resources.gpu_types", "--gpu-type"},
      {"resources.cpus", "--cpus"},   {"resources.memory", "--memory"},
      {"time_limit", "--time-limit"}, {"workdir", "-C, --workdir"},
      {"image", "--image"},           {"env", "--env"},
      {"secrets", "--secret"},        {"max_restarts", "--max-restarts"}};
  const std::vector<FieldProblem> problems = ProblemsOf(status);
  if (!absl::IsInvalidArgument(status) || problems.empty()) return "";
  std::string text = "muster: nothing was submitted\n";
  for (const FieldProblem& problem : problems) {
    const std::string field(absl::StripPrefix(problem.path, "tasks[main]."));
    const auto flag = names.find(field.substr(0, field.find_first_of("[{")));
    absl::StrAppend(&text, "  ", flag == names.end() ? Plain(problem.path) : flag->second, ": ",
                    Plain(problem.message), "\n");
  }
  return text;
}

}  // namespace muster
