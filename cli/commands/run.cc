#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/commands/along.h"
#include "cli/commands/commands.h"
#include "cli/commands/left_behind.h"
#include "cli/commands/log_writer.h"
#include "cli/commands/submission.h"
#include "cli/follow.h"
#include "common/base/ids.h"
#include "common/base/units.h"

namespace muster {
namespace {

struct RunOptions {
  std::vector<std::string> command, env, secrets, clusters, gpu_types;
  std::string key, queue, name, gpus, cpus, memory, time_limit, workdir, directory, image;
  int workers = 1, max_restarts = 0;
  bool detach = false;
};

std::string NameFor(const RunOptions& options) {
  if (!options.name.empty()) return options.name;
  std::string stem = options.command[0].substr(options.command[0].rfind('/') + 1);
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

// INVALID_ARGUMENT names the flag. What the server knows better (queue, flavours) it checks itself.
absl::StatusOr<pb::JobSpec> SpecFor(const RunOptions& options) {
  pb::JobSpec spec;
  spec.set_name(NameFor(options));
  spec.set_queue(options.queue);
  for (const std::string& cluster : options.clusters) spec.add_clusters(cluster);
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  task->mutable_workers()->set_min(options.workers);
  task->mutable_workers()->set_max(options.workers);
  task->set_max_restarts(options.max_restarts);
  for (const std::string& word : options.command) task->mutable_run()->add_exec(word);
  pb::Resources* resources = task->mutable_resources();
  for (const std::string& type : options.gpu_types) resources->add_gpu_types(type);
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
       {fill("--gpus", options.gpus, ParseMilli, [&](int64_t v) { resources->set_gpus_milli(v); }),
        fill("--cpus", options.cpus, ParseMilli, [&](int64_t v) { resources->set_cpus_milli(v); }),
        fill("--memory", options.memory, ParseSizeWithUnit,
             [&](int64_t v) { resources->set_memory_bytes(v); }),
        fill("--time-limit", options.time_limit, ParseDuration,
             [&](int64_t v) { task->set_time_limit_ns(v); })}) {
    if (!status.ok()) return status;
  }
  for (const std::string& secret : options.secrets) spec.add_secrets(secret);
  if (absl::Status status = AddVariables(options.env, &spec); !status.ok()) return status;
  if (!options.workdir.empty()) {
    char path[PATH_MAX];
    if (realpath(options.workdir.c_str(), path) == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("--workdir ", options.workdir, ": there is no such directory here"));
    task->set_workdir(path);
  }
  if (!options.directory.empty()) task->set_workdir(".");
  task->set_image(options.image);
  return spec;
}

// What the server says of fields, of the flags that gave them; empty: it speaks of no field.
std::string WrongFlags(const absl::Status& status) {
  static const std::map<std::string, std::string> flags = {
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
    const auto flag = flags.find(field.substr(0, field.find_first_of("[{")));
    absl::StrAppend(&text, "  ", flag == flags.end() ? Plain(problem.path) : flag->second, ": ",
                    Plain(problem.message), "\n");
  }
  return text;
}

// Reads each attempt's output as the attempts start, one after the other: stdout onto stdout,
// stderr onto stderr.
class OutputReader {
 public:
  OutputReader(Session& session, Client& client, const Interrupt& interrupt)
      : session_(session), client_(client), interrupt_(interrupt) {}
  ~OutputReader() { Join(); }

  void On(const pb::Job& job) {
    if (job.tasks_size() == 0) return;
    for (const pb::Attempt& attempt : job.tasks(0).attempts()) {
      if (attempt.number() <= newest_ || attempt.start_ns() == 0) continue;
      Join();  // the one before has ended: its stream ends, too
      newest_ = attempt.number();
      pb::LogsRequest request;
      request.set_id(absl::StrCat(job.number()));
      request.set_task(job.tasks(0).name());
      request.set_attempt(newest_);
      request.set_rank(-1);
      request.set_follow(true);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        done_ = false;
      }
      thread_ = std::thread([this, job, request] { Read(job, request); });
    }
    const pb::Attempt* newest = NewestAttempt(job.tasks(0));
    failed_by_itself_ = newest != nullptr && (newest->cause() == pb::PROGRAM_ERROR ||
                                              newest->cause() == pb::LAUNCH_FAILED);
    if (newest != nullptr && newest->end_ns() > 0) AwaitRest();
  }
  // Its newest attempt ended as one does that found no program or file.
  bool failed_by_itself() const { return failed_by_itself_; }
  bool complete() const { return complete_; }  // all that was read so far; what isn't was told
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  // What the attempt wrote before it ended stands before the line that says so; but a server that
  // is away must not keep that line back.
  void AwaitRest() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int64_t seen = -1; !done_ && seen != pieces_ && !interrupt_.pending();) {
      seen = pieces_;
      read_.wait_for(lock, std::chrono::seconds(5), [&] { return done_; });
    }
  }

  void Note(bool done) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++pieces_;
      done_ = done;
    }
    if (done) read_.notify_all();
  }

  void Read(const pb::Job& job, const pb::LogsRequest& request) {
    LogWriter writer(session_, job, request, LogWriter::kApart);
    const absl::Status status = ReadLogs(session_, client_, request, interrupt_, &writer, false,
                                         [this] { Note(false); });  // Follow tells
    writer.End();
    if (writer.has_gaps()) complete_ = false;
    if (!status.ok() && !interrupt_.pending()) {
      complete_ = false;
      session_.Err(absl::StrCat(
          "muster: the output is not complete here: ", Plain(std::string(status.message())),
          "  All of it: muster logs ", job.number(), "\n"));
    }
    Note(true);
  }

  Session& session_;
  Client& client_;
  const Interrupt& interrupt_;
  std::thread thread_;
  int newest_ = 0;
  bool failed_by_itself_ = false;
  std::atomic<bool> complete_{true};
  std::mutex mutex_;
  std::condition_variable read_;
  bool done_ = true;    // the attempt's output was read to its end
  int64_t pieces_ = 0;  // of output so far
};

int RunCommand(Session& session, RunOptions options) {
  Interrupt interrupt;
  absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  SpecContext context = ContextOf(**client);
  if (options.queue.empty()) options.queue = DefaultQueue(*settings, context);
  if (!options.gpus.empty() && options.gpu_types.empty() && context.flavours.size() == 1)
    options.gpu_types = {context.flavours.begin()->first};
  absl::StatusOr<pb::JobSpec> spec = SpecFor(options);
  if (!spec.ok()) return session.Fail(spec.status());
  Packs packs;
  for (const FieldProblem& problem : packs.AddWorkdirs(options.directory, &*spec))
    return session.Fail(absl::InvalidArgumentError("-C " + problem.message));
  if (absl::Status sent = packs.Send(session, **client, *spec); !sent.ok())
    return session.Fail(sent);
  const bool has_directory = !options.workdir.empty() || !options.directory.empty();
  const LeftBehind left = WhatStaysBehind(session.arguments, options.command, has_directory, *spec);
  const std::string key = SubmissionKey(options.key);
  absl::StatusOr<pb::SubmitResponse> response = SubmitSpec(**client, *spec, key);
  if (!response.ok()) {
    const std::string wrong = WrongFlags(response.status());
    if (wrong.empty()) return FailSubmitted(session, response.status(), nullptr, key);
    session.Err(wrong);
    return ExitCodeFor(response.status());
  }
  std::string id = absl::StrCat(response->job().number());
  const std::string which =
      absl::StrCat("Job ", id, " ", Plain(response->job().spec().name()),
                   response->existed() ? " was submitted before with this key." : " submitted.");
  if (session.for_people() && !left.text.empty())
    session.Err(absl::StrCat("muster: note:\n", left.text));
  if (options.detach || !session.for_people()) {
    return session.ShowOne(absl::StrCat(which, "  Follow: muster attach ", id, "\n"),
                           response->job(), id);
  }
  session.Err(absl::StrCat(which, " Its output follows; Ctrl+C stops following, never the job.\n"));
  OutputReader reader(session, **client, interrupt);
  FollowOptions follow;
  follow.events_to_stderr = true;
  follow.on_job = [&](const pb::Job& job) { reader.On(job); };
  const int code = Follow(session, **client, id, interrupt, follow);
  reader.Join();
  if (code == kExitJobFailed && reader.failed_by_itself() && !left.remedy.empty())
    session.Err(absl::StrCat("  With what it missed: ", left.remedy, "\n"));
  return code == kExitOk && !reader.complete() ? static_cast<int>(kExitUnreachable) : code;
}

}  // namespace

void AddRun(CLI::App& root, Session& session) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* run = root.add_subcommand(
      "run", "Run one command as a job: muster run [flags] -- CMD ARGS; its output comes here");
  run->add_option("command", options->command, "The program and its arguments, after --")
      ->required();
  run->add_option("--queue", options->queue, "Default: the context's, or the only one");
  run->add_option("--name", options->name, "Default: the program's name");
  run->add_option("--workers", options->workers, "Identical workers, placed all or none")
      ->check(CLI::Range(1, 65536));
  run->add_option("--gpus", options->gpus, "Per worker; a fraction with one worker only");
  run->add_option("--gpu-type", options->gpu_types, "Flavours in order of preference")
      ->delimiter(',');
  run->add_option("--cpus", options->cpus, "Per worker");
  run->add_option("--memory", options->memory, "Per worker, such as 4GiB");
  run->add_option("--time-limit", options->time_limit, "Hard stop after so long, such as 30m");
  run->add_option("--cluster", options->clusters, "Where it may run, in order of preference")
      ->delimiter(',');
  run->add_option("--env", options->env,
                  "NAME=VALUE, or NAME of a variable of this shell; may be repeated")
      ->allow_extra_args(false);
  run->add_option("--secret", options->secrets,
                  "NAME, or NAME=VARIABLE: a secret of yours (muster secret) as a variable; may be "
                  "repeated")
      ->allow_extra_args(false);
  CLI::Option* directory = run->add_option(
      "-C,--directory", options->directory,
      "Directory that comes along, packed (.musterignore); the job runs in its copy");
  run->add_option("--workdir", options->workdir,
                  "Directory to run in that is on the hosts, too; nothing is copied")
      ->excludes(directory);
  run->add_option("--image", options->image,
                  "Directory on the hosts that the program takes for the root of the file system");
  run->add_option("--max-restarts", options->max_restarts, "After failures of the program")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  run->add_option(
      "--idempotency-key", options->key,
      "For scripts that repeat themselves: the same key gives the same job, submitted once");
  run->add_flag("-d,--detach", options->detach, "Don't follow");
  run->callback([&session, options] {
    session.command = [&session, options] { return RunCommand(session, *options); };
  });
}

}  // namespace muster
