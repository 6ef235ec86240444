// muster score: a job of independent workers that answer rows. How rows are shared out, and that
// none is lost is muster_score's matter (docs/scoring.md): this only writes the job.
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/commands/submission.h"
#include "cli/render/format.h"

namespace muster {
namespace {

// A row that kills its process is found by its workers' deaths: it costs four restarts.
constexpr int kMaxRestarts = 20;
// Of muster_score: what was asked for is wrong, such as a column, or a model that isn't there. Of
// Python: it lacks muster_score. Of a start: there is no such program. An engine that died, and a
// store that was away, end with another one (python/muster_score/errors.py).
constexpr int kFinalExitCodes[] = {1, 2, 126, 127};

struct ScoreOptions {
  JobFlags flags;
  std::string model, input, output, work, engine, column, python = "python3";
  std::vector<std::string> words, settings;  // words: for muster_score
  int workers = 16, max_tokens = 0;          // 0: what muster_score takes
  SubmitMadeOptions submit;
};

// OK: all workers find it by that name.
absl::Status CheckPlace(const char* what, const std::string& path) {
  if (absl::StartsWith(path, "/") || absl::StartsWith(path, "s3://")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", path, ": write the absolute path of what all workers see, or s3://BUCKET/PREFIX"));
}

absl::Status CheckPlaces(const ScoreOptions& options) {
  if (options.model == "-" &&
      (options.engine.empty() || options.engine == "transformers" || options.engine == "vllm"))
    return absl::InvalidArgumentError(
        "MODEL -: is for an engine of your own (--engine module:Class); write the directory of a "
        "model in Hugging Face's form");
  if (!options.words.empty() && !absl::StartsWith(options.words[0], "-"))
    return absl::InvalidArgumentError(absl::StrCat(
        options.words[0],
        ": is no option of muster_score; write IN in quotes, or your shell expands the pattern"));
  if (absl::StartsWith(options.model, "s3://"))
    return absl::InvalidArgumentError(
        absl::StrCat("MODEL ", options.model,
                     ": models in object stores aren't read; copy it to a directory that all "
                     "workers see, such as with aws s3 sync, and write its absolute path"));
  std::error_code error;
  if (!absl::StartsWith(options.model, "/") && options.model != "-" &&
      std::filesystem::exists(options.model, error))
    return absl::InvalidArgumentError(
        absl::StrCat("MODEL ", options.model, ": write the absolute path, which all workers see: ",
                     std::filesystem::absolute(options.model, error).string()));
  if (absl::Status status = CheckPlace("IN", options.input); !status.ok()) return status;
  if (absl::Status status = CheckPlace("OUT", options.output); !status.ok()) return status;
  const bool stored = absl::StartsWith(options.output, "s3://");
  if (stored && !absl::StartsWith(options.work, "/"))
    return absl::InvalidArgumentError(
        absl::StrCat("OUT ", options.output,
                     ": name a directory of its own that all workers see, by its absolute path, "
                     "with --work: it says who has which rows"));
  if (!stored && !options.work.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("--work ", options.work, ": is for an OUT in an object store; leave it out"));
  return absl::OkStatus();
}

// All hosts that musterd knows are this machine: as `muster up` has it, nobody reaches them from
// elsewhere.
bool HostsAreHere(Client& client) {
  if (!absl::StartsWith(client.server(), "unix://")) return false;
  const absl::StatusOr<pb::ListHostsResponse> listed = client.ListHosts("");
  if (!listed.ok() || listed->hosts().empty()) return false;
  return std::all_of(listed->hosts().begin(), listed->hosts().end(), [](const pb::Host& host) {
    return absl::StartsWith(host.inventory().address(), "127.");
  });
}

// What this machine sees of the model is what its only host will see; of other hosts that isn't
// known, and the worker says it at its start.
// With an image nothing is known: the model may be in it.
absl::Status CheckModel(const ScoreOptions& options, bool has_image, bool hosts_are_here,
                        std::string* note) {
  const bool of_ours = options.engine.empty() || options.engine == "transformers";
  if (!absl::StartsWith(options.model, "/") || has_image || (!of_ours && options.engine != "vllm"))
    return absl::OkStatus();
  const std::filesystem::path model = options.model;
  std::error_code error;
  if (!std::filesystem::exists(model, error)) {
    if (error) return absl::OkStatus();  // such as what only its owner may look into
    if (hosts_are_here)
      return absl::InvalidArgumentError(absl::StrCat(
          "MODEL ", options.model,
          ": there is no such directory; write that of a model in Hugging Face's form, "
          "such as the export of a muster-trainer's job"));
    *note = absl::StrCat("muster: note: MODEL ", Plain(options.model),
                         ": no such directory on this machine. A worker whose host has none ends "
                         "the job.\n");
    return absl::OkStatus();
  }
  if (!of_ours) return absl::OkStatus();  // vLLM takes other forms, too
  if (std::filesystem::is_regular_file(model, error))
    return absl::InvalidArgumentError(
        absl::StrCat("MODEL ", options.model, ": is a file; write its directory, ",
                     model.parent_path().string(), ", which has config.json and the weights"));
  if (hosts_are_here && !std::filesystem::exists(model / "config.json", error) && !error)
    return absl::InvalidArgumentError(
        absl::StrCat("MODEL ", options.model,
                     ": has no config.json, so it is no model in Hugging Face's form; write the "
                     "directory that has one, such as a job's export"));
  return absl::OkStatus();
}

// The same of what is read. A pattern that muster_score knows and this doesn't is left to it.
absl::Status CheckInput(const ScoreOptions& options, bool has_image, bool hosts_are_here) {
  if (!absl::StartsWith(options.input, "/") || has_image || !hosts_are_here ||
      absl::StrContains(options.input, "**"))
    return absl::OkStatus();
  glob_t found;
  const int code = glob(options.input.c_str(), GLOB_NOSORT, nullptr, &found);
  globfree(&found);
  if (code != GLOB_NOMATCH) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("IN ", options.input,
                   ": no file is there; write the absolute path of files that are, such "
                   "as '/data/prompts/*.jsonl'"));
}

std::vector<std::string> CommandOf(const ScoreOptions& options) {
  std::vector<std::string> words = {options.python, "-m",       "muster_score", "--input",
                                    options.input,  "--output", options.output};
  const auto add = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    words.emplace_back(name);
    words.push_back(value);
  };
  add("--model", options.model == "-" ? "" : options.model);
  add("--work", options.work);
  add("--engine", options.engine);
  add("--column", options.column);
  add("--max-tokens", options.max_tokens > 0 ? absl::StrCat(options.max_tokens) : "");
  words.insert(words.end(), options.words.begin(), options.words.end());
  return words;
}

absl::StatusOr<pb::JobSpec> ScoreSpec(const ScoreOptions& options) {
  JobFlags flags = options.flags;
  flags.command = CommandOf(options);
  if (flags.name.empty()) flags.name = "score";
  flags.max_restarts = kMaxRestarts;
  absl::StatusOr<pb::JobSpec> spec = SpecOfFlags(flags);
  if (!spec.ok()) return spec.status();
  spec->mutable_independent_workers()->set_min(1);
  spec->mutable_independent_workers()->set_max(options.workers);
  pb::TaskSpec* task = spec->mutable_tasks(0);
  task->clear_workers();
  task->set_processes_per_worker(1);
  for (const int code : kFinalExitCodes) task->add_final_exit_codes(code);
  return spec;
}

int Score(Session& session, ScoreOptions options) {
  if (absl::Status status = CheckPlaces(options); !status.ok()) return session.Fail(status);
  absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  SpecContext context = ContextOf(**client);
  if (!options.flags.queue.empty()) context.queues.clear();  // the server checks the flag's
  FillFlags(*settings, context, &options.flags);
  absl::StatusOr<pb::JobSpec> made = ScoreSpec(options);
  if (!made.ok()) return session.Fail(made.status());
  const JobFile file = {"score", SpecToYaml(*made)};
  pb::JobSpec spec;
  std::vector<Problem> problems;
  if (!ParseJobFile(file.text, file.name, context, &spec, &problems, options.settings))
    return FailWithProblems(session, problems, file, "nothing was submitted");
  const bool has_image = spec.tasks_size() > 0 && !spec.tasks(0).image().empty();
  std::string note;
  const bool here = HostsAreHere(**client);
  if (absl::Status status = CheckModel(options, has_image, here, &note); !status.ok())
    return session.Fail(status);
  if (absl::Status status = CheckInput(options, has_image, here); !status.ok())
    return session.Fail(status);
  session.Err(note);
  return SubmitMade(session, {file.name, SpecToYaml(spec)}, options.submit);
}

void AddWhatIsScored(CLI::App* score, ScoreOptions* options) {
  score->add_option("model", options->model, "Hugging Face directory; - : the engine takes none")
      ->required();
  score->add_option("in", options->input, "Files or s3:// objects by a pattern, in quotes")
      ->required();
  score->add_option("out", options->output, "Directory that all workers see, or s3://BUCKET/PREFIX")
      ->required();
  score->add_option("words", options->words,
                    "Further options of muster_score, after --, such as --temperature 0.7");
  score->add_option("--engine", options->engine,
                    "transformers (the default), vllm, or module:Class of your own");
  score->add_option("--column", options->column, "Of the rows: the prompt. Default: prompt");
  score->add_option("--max-tokens", options->max_tokens, "Of an answer, at most. Default: 256")
      ->check(CLI::Range(1, 1000000));
  score->add_option("--work", options->work,
                    "Of an s3:// output: a directory of its own that all workers see");
  score->add_option("--python", options->python, "Of the workers, with muster_score");
}

}  // namespace

void AddScore(CLI::App& root, Session& session) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* score = root.add_subcommand(
      "score", "Let a model answer the rows of files: independent workers, each row once");
  AddWhatIsScored(score, options.get());
  score
      ->add_option("--workers", options->workers,
                   "At most so many at once; all but one on what is free")
      ->check(CLI::Range(1, 10000));
  score->add_option("--name", options->flags.name, "Default: score");
  AddJobFlags(score, &options->flags);
  // MODEL, IN and OUT may stand behind them.
  for (const char* name : {"--gpu-type", "--cluster"})
    score->get_option(name)->allow_extra_args(false);
  score
      ->add_option("--set", options->settings,
                   "FIELD=VALUE of the job, such as max_restarts=50; may be repeated")
      ->allow_extra_args(false);
  score->add_flag("-y,--yes", options->submit.yes,
                  "Don't ask; without a terminal nothing is asked");
  score->add_flag("-d,--detach,--no-follow", options->submit.detach, "Don't follow");
  score->add_flag("--preview-only,--dry-run", options->submit.preview_only,
                  "Only show where, when and from whom; submit nothing");
  score->callback([&session, options] {
    session.command = [&session, options] { return Score(session, *options); };
  });
}

}  // namespace muster
