#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/fit.h"
#include "cli/commands/local_trainer.h"
#include "cli/commands/submission.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "cli/render/preview.h"
#include "common/base/files.h"

namespace muster {
namespace {

struct SubmitOptions {
  std::string file, queue, key;
  std::vector<std::string> settings;
  bool yes = false, detach = false, preview_only = false, detailed_exitcode = false,
       wait_for_capacity = false;
};

int Submit(Session& session, const SubmitOptions& options) {
  Interrupt interrupt;  // from here on Ctrl+C can't lose a job's number
  absl::StatusOr<JobFile> file = ReadJobFile(options.file, &interrupt);
  if (!file.ok()) return session.Fail(file.status());
  absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());

  SpecContext context = ContextOf(**client);
  context.default_queue = options.queue.empty() ? DefaultQueue(*settings, context) : options.queue;
  if (!options.queue.empty())
    context.queues.clear();  // the file's own doesn't count; the server checks the flag's
  pb::JobSpec spec;
  std::vector<Problem> problems;
  if (!ParseJobFile(file->text, file->name, context, &spec, &problems, options.settings)) {
    return FailWithProblems(session, problems, file->name, "nothing was submitted");
  }
  if (!options.queue.empty()) spec.set_queue(options.queue);

  pb::PreviewRequest preview_request;
  *preview_request.mutable_spec() = spec;
  preview_request.set_wait_for_capacity(options.wait_for_capacity);
  absl::StatusOr<pb::PreviewResponse> preview = (*client)->Preview(preview_request);
  if (!preview.ok()) return FailRefused(session, preview.status(), &*file);
  if (options.preview_only) {
    const std::string text =
        session.for_people()
            ? RenderPreview(*preview, session.out_screen(), session.now_ns()) + FitText(*preview)
            : "";
    int code = session.ShowOne(text, *preview, preview->task());
    return code == kExitOk && options.detailed_exitcode && WouldEvict(*preview) ? kExitWouldEvict
                                                                                : code;
  }
  if (session.for_people()) {
    session.Err(RenderPreview(*preview, session.err_screen(), session.now_ns()));
    session.Err(FitText(*preview));
  }
  if (session.asks() && !options.yes && options.file != "-" &&
      !session.Confirms("Submit? [Y/n] ", interrupt)) {
    session.Err("Nothing was submitted.\n");
    return interrupt.pending() ? kExitInterrupted : kExitOk;
  }
  if (interrupt.pending()) {
    session.Err("Nothing was submitted.\n");
    return kExitInterrupted;
  }

  const std::string key = SubmissionKey(options.key);
  absl::StatusOr<pb::SubmitResponse> response =
      SubmitSpec(**client, spec, key, options.wait_for_capacity);
  if (!response.ok()) return FailSubmitted(session, response.status(), &*file, key);
  const pb::Job& job = response->job();
  std::string id = absl::StrCat(job.number());
  bool follow = !options.detach && session.for_people();
  std::string text =
      absl::StrCat("Job ", id, " ", Plain(job.spec().name()),
                   response->existed() ? " was submitted before with this key." : " submitted.");
  absl::StrAppend(&text, follow ? " Following it; Ctrl+C stops following, never the job.\n"
                                : absl::StrCat("  Follow: muster attach ", id, "\n"));
  session.ShowOne(text, job, id);
  return follow ? Follow(session, **client, id, interrupt) : kExitOk;
}

int Validate(Session& session, const std::vector<std::string>& paths,
             const std::string& schema_path, bool offline,
             const std::vector<std::string>& settings) {
  SpecContext context;
  std::string checked = "against the job schema alone";
  if (!schema_path.empty()) {
    absl::StatusOr<std::string> schema = ReadFile(schema_path, 16 << 20);
    if (!schema.ok())
      return session.Fail(absl::InvalidArgumentError(
          absl::StrCat("--schema ", schema_path, ": ", std::string(schema.status().message()))));
    context.trainer_schema_json = *std::move(schema);
    checked = "against the job schema and the trainer's";
  } else if (!offline) {
    absl::StatusOr<Client*> client = session.client();
    if (client.ok()) {
      context = ContextOf(**client);
      checked = absl::StrCat("with what ", (*client)->server(), " knows");
    } else if (!absl::IsUnavailable(client.status())) {
      return session.Fail(client.status());
    }
  }
  if (absl::StatusOr<Settings> settings = session.settings(); settings.ok())
    context.default_queue = DefaultQueue(*settings, context);
  if (context.default_queue.empty() && context.queues.empty())
    context.default_queue = "default";  // unknown here: not the file's fault
  int result = kExitOk;
  bool here = false, asked = false;  // the trainer's schema is that of the one beside this program,
                                     // which was asked once
  for (const std::string& path : paths) {
    absl::StatusOr<JobFile> file = ReadJobFile(path);
    if (!file.ok()) {
      result = session.Fail(file.status());
      continue;
    }
    if (context.trainer_schema_json.empty() && absl::StrContains(file->text, "trainer") &&
        !std::exchange(asked, true)) {
      context.trainer_schema_json = LocalTrainerSchema();
      here = !context.trainer_schema_json.empty();
    }
    pb::JobSpec spec;
    std::vector<Problem> problems;
    if (!ParseJobFile(file->text, file->name, context, &spec, &problems, settings)) {
      result = FailWithProblems(session, problems, file->name, "not valid");
      continue;
    }
    const bool trains =
        std::any_of(spec.tasks().begin(), spec.tasks().end(),
                    [](const pb::TaskSpec& task) { return !task.trainer_json().empty(); });
    const char* of_trainer = !trains ? ""
                             : context.trainer_schema_json.empty()
                                 ? "; trainer: unchecked, as what it takes isn't known: --schema "
                                   "FILE, which `muster-trainer --schema` prints"
                             : here ? "; trainer: as the muster-trainer beside muster takes it"
                                    : "";
    std::string text = absl::StrCat(path, ": valid (", spec.tasks_size(),
                                    spec.tasks_size() == 1 ? " task" : " tasks", ", checked ",
                                    checked, of_trainer, ")\n");
    session.ShowOne(text, spec, spec.name());
  }
  return result;
}

}  // namespace

void AddSubmit(CLI::App& root, Session& session) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* submit =
      root.add_subcommand("submit", "Preview a job, confirm, submit and follow it (sbatch)");
  submit->add_option("file", options->file, "Job file; - reads standard input")->required();
  submit->add_option("--queue", options->queue, "Instead of the file's queue");
  submit
      ->add_option("--set", options->settings,
                   "FIELD=VALUE over what the file says, such as trainer.max_steps=100 or "
                   "tasks[train].workers=4; may be repeated")
      ->allow_extra_args(false);
  submit->add_flag("-y,--yes", options->yes, "Don't ask");
  submit->add_flag("-d,--detach,--no-follow", options->detach, "Don't follow");
  submit->add_option(
      "--idempotency-key", options->key,
      "For scripts that repeat themselves: the same key gives the same job, submitted once");
  CLI::Option* preview_only =
      submit->add_flag("--preview-only,--dry-run", options->preview_only,
                       "Only show where, when and from whom; submit nothing");
  submit
      ->add_flag("--detailed-exitcode", options->detailed_exitcode,
                 "With --preview-only: exit 7 if somebody would be evicted")
      ->needs(preview_only);
  submit->add_flag("--wait-for-capacity", options->wait_for_capacity,
                   "Accept a job that no cluster can hold yet: hosts are on their way");
  submit->callback([&session, options] {
    session.command = [&session, options] { return Submit(session, *options); };
  });

  auto files = std::make_shared<std::vector<std::string>>();
  auto schema = std::make_shared<std::string>();
  auto offline = std::make_shared<bool>(false);
  CLI::App* validate =
      root.add_subcommand("validate", "Check job files; knows more when a server is reachable");
  validate->add_option("files", *files, "Job files")->required();
  validate->add_option("--schema", *schema,
                       "What `muster-trainer --schema` printed, instead of what the server or the "
                       "muster-trainer here says");
  validate->add_flag("--offline", *offline, "Ask no server");
  auto settings = std::make_shared<std::vector<std::string>>();
  validate->add_option("--set", *settings, "FIELD=VALUE over what the files say; may be repeated")
      ->allow_extra_args(false);
  validate->callback([&session, files, schema, offline, settings] {
    session.command = [&session, files, schema, offline, settings] {
      return Validate(session, *files, *schema, *offline, *settings);
    };
  });
}

}  // namespace muster
