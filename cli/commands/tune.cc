// muster tune: a job of trials from a job that trains. What a trial is, who proposes it, and that
// none is lost is muster_tune's matter (docs/tuning.md): this only writes the job.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands/commands.h"
#include "cli/commands/local_trainer.h"
#include "cli/commands/past_jobs.h"
#include "cli/commands/submission.h"
#include "common/base/run_program.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "common/spec/trainer_schema.h"
#include "common/spec/when.h"

namespace muster {
namespace {

using ::nlohmann::json;

constexpr char kPastJobsVariable[] = "TUNE_PAST_JOBS";  // jobs may set no MUSTER_ variable

struct TuneOptions {
  std::string file, study, history, python = "python3", queue;
  std::vector<std::string> knobs, fields, settings;  // fields: knobs with values of their own
  int trials = 24, workers = 4, steps = 20, past_jobs = kMostPastJobs;
  SubmitMadeOptions submit;
};

struct Knob {
  std::string text;                 // as given
  std::string key;                  // of trainer: that it changes
  std::vector<std::string> values;  // or the ends of its range; none of a name alone
};

// Knobs that may stand without values: muster_tune's TRAINER_KNOBS.
const std::vector<std::string>& NamedKnobs() {
  static const std::vector<std::string> names = {"zero_stage", "micro_batch", "recompute",
                                                 "offload"};
  return names;
}

bool IsNamed(const std::string& name) {
  return std::count(NamedKnobs().begin(), NamedKnobs().end(), name) > 0;
}

// The key of trainer: that a knob changes.
std::string KeyOf(const std::string& knob) {
  const std::string name = knob.substr(0, knob.find('='));
  return name == "micro_batch" ? "micro_batch_size" : name;
}

absl::Status WrongKnob(const std::string& knob, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--knob ", knob, ": ", why));
}

// One of --knobs.
absl::Status CheckNamed(const std::string& name) {
  if (IsNamed(name)) return absl::OkStatus();
  const std::string known = absl::StrJoin(NamedKnobs(), ", ");
  if (name.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("--knobs: a name is empty; write some of ", known, " with commas between"));
  if (absl::StrContains(name, "="))
    return absl::InvalidArgumentError(
        absl::StrCat("--knobs ", name, ": takes names alone; with values write --knob ", name));
  return absl::InvalidArgumentError(absl::StrCat(
      "--knobs ", name, ": no such name.", DidYouMean(name, NamedKnobs()), " Known are ", known,
      "; any other field of trainer: goes with values: --knob ", name, "=VALUE,VALUE"));
}

bool IsNumber(const std::string& text, double* value) {
  return !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string::npos &&
         absl::SimpleAtod(text, value) && std::isfinite(*value);
}

// LOW and HIGH of LOW..HIGH.
absl::StatusOr<std::vector<std::string>> EndsOf(const std::string& knob, const std::string& name,
                                                const std::string& range, bool log) {
  const size_t dots = range.find("..");
  const std::string from = range.substr(0, dots),
                    to = dots == std::string::npos ? "" : range.substr(dots + 2);
  double low = 0, high = 0;
  if (!IsNumber(from, &low) || !IsNumber(to, &high))
    return WrongKnob(knob, absl::StrCat("LOW and HIGH of a range are numbers, such as ", name,
                                        "=log:1e-5..1e-2"));
  if (low == high)
    return WrongKnob(knob,
                     absl::StrCat("LOW must be below HIGH; of one value write ", name, "=", from));
  if (low > high)
    return WrongKnob(knob, absl::StrCat("LOW must be below HIGH; write ", name, "=",
                                        log ? "log:" : "", to, "..", from));
  if (log && low <= 0) return WrongKnob(knob, "of a range by logarithm LOW must be above 0");
  return std::vector<std::string>{from, to};
}

// What a knob of --knob may be: its values, or the ends of its range; none of a name alone.
absl::StatusOr<std::vector<std::string>> ValuesOf(const std::string& knob) {
  const size_t equals = knob.find('=');
  const std::string name = knob.substr(0, equals);
  if (SetsTrainer(name))
    return WrongKnob(knob, absl::StrCat("is named as it stands below trainer: --knob ",
                                        knob.substr(knob.find('.') + 1)));
  const bool is_name = !name.empty() && (name[0] < '0' || name[0] > '9') && name[0] != '.' &&
                       std::all_of(name.begin(), name.end(), [](unsigned char c) {
                         return std::isalnum(c) != 0 || c == '_' || c == '.';
                       });
  if (!is_name || (equals == std::string::npos && !IsNamed(name)))
    return WrongKnob(knob, absl::StrCat("write FIELD=VALUE,VALUE or FIELD=[log:]LOW..HIGH, such as "
                                        "learning_rate=log:1e-5..1e-2.",
                                        DidYouMean(name, NamedKnobs())));
  if (equals == std::string::npos) return std::vector<std::string>();
  const std::string rest = knob.substr(equals + 1);
  if (rest.empty())
    return WrongKnob(knob, absl::StrCat("has no values; write ", name, "=VALUE,VALUE"));
  if (absl::StartsWith(rest, "log:")) return EndsOf(knob, name, rest.substr(4), /*log=*/true);
  if (absl::StrContains(rest, "..") && rest.find_first_of(",/") == std::string::npos)
    return EndsOf(knob, name, rest, /*log=*/false);
  const std::vector<std::string> values = absl::StrSplit(rest, ',');
  std::set<std::string> seen;
  for (const std::string& value : values) {
    if (value.empty()) return WrongKnob(knob, "one of its values is empty; take it out");
    if (!seen.insert(value).second)
      return WrongKnob(knob, absl::StrCat("has ", value, " twice; take one out"));
  }
  return values;
}

// All of them. What is refused here muster_tune would refuse in each worker.
absl::StatusOr<std::vector<Knob>> ParseKnobs(const TuneOptions& options) {
  std::vector<Knob> knobs;
  for (const std::string& name : options.knobs) {
    if (absl::Status status = CheckNamed(name); !status.ok()) return status;
    knobs.push_back({name, KeyOf(name), {}});
  }
  for (const std::string& text : options.fields) {
    absl::StatusOr<std::vector<std::string>> values = ValuesOf(text);
    if (!values.ok()) return values.status();
    knobs.push_back({text, KeyOf(text), *std::move(values)});
  }
  std::set<std::string> keys;
  for (const Knob& knob : knobs) {
    if (!keys.insert(knob.key).second)
      return WrongKnob(knob.text, absl::StrCat(knob.key, " stands twice; keep one"));
  }
  return knobs;
}

// Why the trainer takes no such value of the key, or has none; "" where it may. Whether values go
// together only trials know.
std::string WhyNot(const std::string& key, const std::string& value,
                   const std::string& trainer_json, const json& schema) {
  const std::string path = absl::StrCat("trainer.", key);
  std::string with = trainer_json, why;
  if (!SetTrainerKey(path, value, &with))
    return absl::StrCat("names a key below one that is no map in the file; take ",
                        key.substr(0, key.rfind('.')), " out of it");
  const EmitProblem emit = [&](const std::string& at, const std::string& message, Document::Where) {
    const bool above = absl::StartsWith(path, absl::StrCat(at, "."));
    if (why.empty() && (at == path || (above && absl::StartsWith(message, "no such field"))))
      why = absl::StrCat(at, ": ", message);
  };
  CheckAgainstSchema(ParseBoundedJson(with, kMaxYamlBytes), schema, "trainer", emit);
  return why;
}

// Against the trainer's schema, where one is known.
absl::Status CheckFieldsOf(const std::vector<Knob>& knobs, const std::string& trainer_json,
                           const std::string& schema_json) {
  const json schema = ParseBoundedJson(schema_json, size_t{1} << 20);
  if (!schema.is_object()) return absl::OkStatus();
  for (const Knob& knob : knobs) {
    for (const std::string& value : knob.values) {
      if (const std::string why = WhyNot(knob.key, value, trainer_json, schema); !why.empty())
        return WrongKnob(knob.text, why);
    }
  }
  return absl::OkStatus();
}

// Its one task that trains. INVALID_ARGUMENT: it has none, or several.
absl::StatusOr<pb::TaskSpec> TrainingTask(const pb::JobSpec& spec, const std::string& file) {
  const pb::TaskSpec* found = nullptr;
  for (const pb::TaskSpec& task : spec.tasks()) {
    if (task.trainer_json().empty()) continue;
    if (found != nullptr)
      return absl::InvalidArgumentError(absl::StrCat(
          file, ": has several tasks with trainer:; leave the one whose settings are to be tried"));
    found = &task;
  }
  if (found == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(file,
                     ": has no task with trainer:. For programs of your own write a job that runs "
                     "muster_tune: docs/tuning.md"));
  return *found;
}

// Trials are jobs of their own: what lies in another job's directory isn't theirs.
absl::Status CheckAbsolute(const json& trainer, const std::string& file) {
  const auto check = [&](const json& of, const char* name) -> absl::Status {
    if (!of.contains(name) || !of[name].is_string()) return absl::OkStatus();
    const std::string path = of[name];
    if (absl::StartsWith(path, "/")) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": trainer.", name, ": ", path,
                     " lies in the job's directory, which trials don't have; name one that is "
                     "there, absolutely: --set trainer.",
                     name, "=/…"));
  };
  for (const char* name : {"data", "init", "eval_data"}) {
    if (absl::Status status = check(trainer, name); !status.ok()) return status;
  }
  if (!trainer.contains("mixture") || !trainer["mixture"].is_array()) return absl::OkStatus();
  for (const json& part : trainer["mixture"]) {
    if (absl::Status status = check(part, "data"); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// A trial's ranks are those of the gang at its least, on one host.
void TakeResources(const pb::TaskSpec& of, pb::TaskSpec* task, int* ranks) {
  const int workers = std::max(1, of.workers().min());
  pb::Resources* resources = task->mutable_resources();
  *resources = of.resources();
  const int gpus = static_cast<int>(resources->gpus_milli() / 1000);
  *ranks = workers * std::max(1, of.processes_per_worker() > 0 ? of.processes_per_worker() : gpus);
  resources->set_gpus_milli(resources->gpus_milli() * workers);
  resources->set_cpus_milli(resources->cpus_milli() * workers);
  resources->set_memory_bytes(resources->memory_bytes() * workers);
}

void WriteCommand(const TuneOptions& options, const std::vector<Knob>& knobs,
                  const pb::TaskSpec& of, int ranks, pb::TaskSpec* task) {
  const auto add = [&](const std::string& word) { task->mutable_run()->add_exec(word); };
  for (const std::string& word :
       {options.python, std::string("-m"), std::string("muster_tune"), std::string("--study"),
        options.study, absl::StrCat("--trials=", options.trials),
        absl::StrCat("--steps=", options.steps), absl::StrCat("--ranks=", ranks),
        absl::StrCat("--trainer=", of.trainer_json())})
    add(word);
  for (const Knob& knob : knobs) add(absl::StrCat("--knob=", knob.text));
  if (!options.history.empty()) add(absl::StrCat("--history=", options.history));
  if (of.resources().gpu_types_size() == 1) {
    const std::string& flavour = of.resources().gpu_types(0);
    add(absl::StrCat("--sku=", flavour));
    if (flavour != "cpu-slot") add(absl::StrCat("--device=", flavour));
  }
}

absl::StatusOr<pb::JobSpec> TuneSpec(Client& client, const TuneOptions& options,
                                     const std::vector<Knob>& knobs, const pb::JobSpec& spec,
                                     const std::string& schema_json) {
  const absl::StatusOr<pb::TaskSpec> training = TrainingTask(spec, options.file);
  if (!training.ok()) return training.status();
  const json trainer = json::parse(training->trainer_json(), nullptr, /*allow_exceptions=*/false);
  if (absl::Status status = CheckAbsolute(trainer, options.file); !status.ok()) return status;
  if (absl::Status status = CheckFieldsOf(knobs, training->trainer_json(), schema_json);
      !status.ok())
    return status;
  if (!spec.array().empty() || spec.sweep_size() > 0)
    return absl::InvalidArgumentError(absl::StrCat(
        options.file, ": has an array or a sweep; leave it out: trials take its place"));
  pb::JobSpec tune = spec;
  ClearTimes(&tune);
  tune.set_name(absl::StrCat(spec.name(), "-tune").substr(0, 63));
  tune.clear_tasks();
  tune.mutable_independent_workers()->set_min(1);
  tune.mutable_independent_workers()->set_max(options.workers);
  pb::TaskSpec* task = tune.add_tasks();
  task->set_name("main");
  *task->mutable_env() = training->env();
  task->set_setup(training->setup());
  task->set_workdir(training->workdir());
  task->set_workdir_digest(training->workdir_digest());
  if (training->has_grace_ns()) task->set_grace_ns(training->grace_ns());
  int ranks = 1;
  TakeResources(*training, task, &ranks);
  task->set_processes_per_worker(1);
  WriteCommand(options, knobs, *training, ranks, task);
  // A variable: every account of a host reads its processes' words, and an older muster_tune takes
  // no word that it doesn't know.
  const auto& flavours = training->resources().gpu_types();
  if (flavours.size() != 1) return tune;
  const std::string past = PastJobs(client, spec.queue(), flavours.Get(0), options.past_jobs);
  if (!past.empty()) (*task->mutable_env())[kPastJobsVariable] = past;
  return tune;
}

int Tune(Session& session, const TuneOptions& options) {
  absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  if (!absl::StartsWith(options.study, "/"))
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat("--study ", options.study,
                     ": write the absolute path of a directory that all workers see")));
  const absl::StatusOr<std::vector<Knob>> knobs = ParseKnobs(options);
  if (!knobs.ok()) return session.Fail(knobs.status());
  const absl::StatusOr<JobFile> file = ReadJobFile(options.file);
  if (!file.ok()) return session.Fail(file.status());
  SpecContext context = ContextOf(**client);
  context.default_queue = options.queue.empty() ? DefaultQueue(*settings, context) : options.queue;
  if (!options.queue.empty()) context.queues.clear();  // the server checks the flag's
  pb::JobSpec spec;
  std::vector<Problem> problems;
  if (!ParseJobFile(file->text, file->name, context, &spec, &problems, options.settings))
    return FailWithProblems(session, problems, *file, "nothing was submitted");
  if (!options.queue.empty()) spec.set_queue(options.queue);
  // A server that no trainer has told its schema leaves the knobs to the one beside this program.
  const std::string schema =
      context.trainer_schema_json.empty() ? LocalTrainerSchema() : context.trainer_schema_json;
  const absl::StatusOr<pb::JobSpec> tune = TuneSpec(**client, options, *knobs, spec, schema);
  if (!tune.ok()) return session.Fail(tune.status());
  return SubmitMade(session, {file->name, SpecToYaml(*tune)}, options.submit);
}

// The study of a job that tries settings; empty: it is no such job.
std::string StudyOf(const pb::Job& job) {
  if (job.spec().tasks_size() == 0) return "";
  const auto& words = job.spec().tasks(0).run().exec();
  for (int i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--study") return words[i + 1];
  }
  return "";
}

// That the Python starts here, and hasn't muster_tune.
bool LacksMusterTune(const std::string& python) {
  constexpr int kLacks = 3;
  const ProgramOptions options{
      .argv = {"/usr/bin/env", python, "-c",
               "import importlib.util, sys; "
               "sys.exit(0 if importlib.util.find_spec('muster_tune') else 3)"},
      .time_limit_ns = 10 * kSecond};
  const absl::StatusOr<ProgramEnd> end = RunProgram(options);
  return end.ok() && end->exit_code == kLacks;
}

// Reads the study's directory by muster_tune itself, which this process becomes.
int ShowStudy(Session& session, const std::string& what, const std::string& python) {
  std::string study = what;
  if (!absl::StartsWith(what, "/")) {
    absl::StatusOr<Client*> client = session.client();
    if (!client.ok()) return session.Fail(client.status());
    const absl::StatusOr<pb::Job> job = (*client)->Get(what);
    if (!job.ok()) return session.Fail(job.status());
    study = StudyOf(*job);
    if (study.empty())
      return session.Fail(absl::InvalidArgumentError(absl::StrCat(
          "job ", what,
          " was not submitted by muster tune; name its study's directory: muster tune show DIR")));
  }
  std::error_code error;
  if (!std::filesystem::exists(study, error))
    return session.Fail(absl::NotFoundError(absl::StrCat(
        study, " is not there on this machine; ask on one that sees the workers' storage")));
  if (LacksMusterTune(python))
    return session.Fail(absl::NotFoundError(absl::StrCat(
        python,
        " has no muster_tune: pip install Muster's python/ folder there, or name a Python "
        "that has it: --python (docs/tuning.md)")));
  execlp(python.c_str(), python.c_str(), "-m", "muster_tune", "show", study.c_str(), nullptr);
  return session.Fail(absl::NotFoundError(absl::StrCat(
      python, " can't be started: --python names one that has muster_tune (docs/tuning.md)")));
}

}  // namespace

void AddTune(CLI::App& root, Session& session) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* tune = root.add_subcommand(
      "tune",
      "Try settings of a job that trains, a short trial each, for the most tokens a second");
  CLI::Option* file = tune->add_option("file", options->file, "Job file with trainer:");
  tune->add_option("--knobs", options->knobs,
                   "zero_stage,micro_batch,recompute,offload: those whose values are known")
      ->delimiter(',');
  tune->add_option("--knob", options->fields,
                   "FIELD=VALUE,VALUE or FIELD=[log:]LOW..HIGH of trainer:; may be repeated")
      ->allow_extra_args(false);
  CLI::Option* study =
      tune->add_option("--study", options->study, "Directory of the trials, which all workers see");
  tune->add_option("--trials", options->trials, "How many")->check(CLI::Range(1, 100000));
  tune->add_option("--workers", options->workers,
                   "At most so many trials at once; all but one on what is free")
      ->check(CLI::Range(1, 10000));
  tune->add_option("--steps", options->steps, "Of a trial")->check(CLI::Range(3, 1000000));
  tune->add_option("--history", options->history,
                   "Directory of past studies' speeds, which this one learns from and adds to");
  tune->add_option("--past-jobs", options->past_jobs,
                   "Learn from so many of the queue's jobs that have trained; 0: from none")
      ->check(CLI::Range(0, kMostPastJobs))
      ->capture_default_str();
  tune->add_option("--python", options->python, "Of the workers, with muster_tune");
  tune->add_option("--queue", options->queue, "Instead of the file's queue")->check(RefuseEmpty);
  tune->add_option("--set", options->settings, "FIELD=VALUE over what the file says")
      ->allow_extra_args(false);
  tune->add_flag("-y,--yes", options->submit.yes, "Don't ask; without a terminal nothing is asked");
  tune->add_flag("-d,--detach,--no-follow", options->submit.detach, "Don't follow");
  tune->add_flag("--preview-only,--dry-run", options->submit.preview_only,
                 "Only show where, when and from whom; submit nothing");
  tune->require_subcommand(0, 1);
  auto shown = std::make_shared<std::string>();
  CLI::App* show = tune->add_subcommand("show", "The trials of a study, the best first");
  show->add_option("job", *shown, "Its job's number, or its directory")->required();
  auto python = std::make_shared<std::string>("python3");
  show->add_option("--python", *python, "With muster_tune");
  show->callback([&session, shown, python] {
    session.command = [&session, shown, python] { return ShowStudy(session, *shown, *python); };
  });
  tune->callback([&session, options, show, file, study] {
    if (show->parsed()) return;
    if (file->count() == 0) throw CLI::RequiredError("file");
    if (study->count() == 0) throw CLI::RequiredError("--study");
    if (options->knobs.empty() && options->fields.empty())
      throw CLI::RequiredError(
          "--knobs or --knob is required: --knobs zero_stage,micro_batch, or --knob "
          "learning_rate=log:1e-5..1e-2",
          CLI::ExitCodes::RequiredError);
    session.command = [&session, options] { return Tune(session, *options); };
  });
}

}  // namespace muster
