#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/along.h"
#include "cli/commands/commands.h"
#include "cli/commands/local_trainer.h"
#include "cli/commands/submission.h"
#include "cli/render/preview.h"
#include "common/base/files.h"
#include "common/spec/placement_defaults.h"

namespace muster {
namespace {

struct ValidateOptions {
  std::vector<std::string> files, settings;
  std::string schema, queue;
  bool offline = false;
};

// What the checker knows, and where from.
struct Known {
  SpecContext context;
  std::string checked = "against the job schema alone";
  Client* client = nullptr;  // of the server that was asked
};

// Not kExitOk: it was told why.
int Learn(Session& session, const ValidateOptions& options, Known* known) {
  SpecContext& context = known->context;
  if (!options.schema.empty()) {
    absl::StatusOr<std::string> schema = ReadFile(options.schema, 16 << 20);
    if (!schema.ok())
      return session.Fail(absl::InvalidArgumentError(
          absl::StrCat("--schema ", options.schema, ": ", std::string(schema.status().message()))));
    context.trainer_schema_json = *std::move(schema);
    known->checked = "against the job schema and the trainer's";
  } else if (!options.offline) {
    absl::StatusOr<Client*> client = session.client();
    if (client.ok()) {
      context = ContextOf(**client);
      known->client = *client;
      known->checked = absl::StrCat("with what ", (*client)->server(), " knows");
    } else if (!absl::IsUnavailable(client.status())) {
      return session.Fail(client.status());
    }
  }
  if (absl::StatusOr<Settings> settings = session.settings(); settings.ok())
    context.default_queue = DefaultQueue(*settings, context);
  if (context.default_queue.empty() && context.queues.empty())
    context.default_queue = "default";  // unknown here: not the file's fault
  if (!options.queue.empty()) context.default_queue = options.queue;
  return kExitOk;
}

// What only the server knows: whether any cluster could hold it. Not kExitOk: it couldn't, and that
// was told. *note: it couldn't be asked.
int AskServer(Session& session, const Known& known, const JobFile& file, const pb::JobSpec& spec,
              std::string* note) {
  if (known.client == nullptr) return kExitOk;
  pb::PreviewRequest request;
  *request.mutable_spec() = spec;
  const absl::Status status = known.client->Preview(request).status();
  if (absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status))
    return FailRefused(session, status, &file, "not valid");
  // Its queue isn't there for who asks, or takes nothing of theirs.
  if (absl::IsNotFound(status) || absl::IsPermissionDenied(status)) {
    session.Err(
        absl::StrCat(file.name, ": not valid: ", Plain(std::string(status.message())), "\n"));
    return kExitBadInput;
  }
  if (!status.ok())
    *note = absl::StrCat("; whether a cluster could hold it is not known: ",
                         Plain(std::string(status.message())));
  return kExitOk;
}

// What is wrong with the queue that a flag gave; "": nothing that is known here.
std::string WrongQueue(const pb::JobSpec& spec, const SpecContext& context) {
  for (const FieldProblem& problem : CheckSpec(spec, context)) {
    if (problem.path == "queue") return problem.message;
  }
  return "";
}

// What submission would fill in for a trainer's layout.
std::string FilledIn(const pb::JobSpec& spec) {
  pb::JobSpec filled = spec;
  for (pb::TaskSpec& task : *filled.mutable_tasks()) FillPlacement(filled, &task);
  return FilledInText(spec, filled);
}

int Validate(Session& session, const ValidateOptions& options) {
  Known known;
  if (const int code = Learn(session, options, &known); code != kExitOk) return code;
  SpecContext& context = known.context;
  int result = kExitOk;
  bool here = false, asked = false;  // the trainer's schema is that of the one beside this program,
                                     // which was asked once
  for (const std::string& path : options.files) {
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
    SpecContext of_file = context;
    if (!options.queue.empty()) of_file.queues.clear();  // the file's own doesn't count
    if (!ParseJobFile(file->text, file->name, of_file, &spec, &problems, options.settings)) {
      result = FailWithProblems(session, problems, *file, "not valid");
      continue;
    }
    if (!options.queue.empty()) {
      spec.set_queue(options.queue);
      file->flags["queue"] = "--queue";
      if (const std::string wrong = WrongQueue(spec, context); !wrong.empty()) {
        session.Err(absl::StrCat(path, ": not valid\n  --queue: ", Plain(wrong), "\n"));
        result = kExitBadInput;
        continue;
      }
    }
    if (const std::vector<FieldProblem> found = Packs().AddWorkdirs(BaseOf(file->name), &spec);
        !found.empty()) {
      result = FailWithProblems(session, PlaceProblems(file->text, file->name, found), *file,
                                "not valid");
      continue;
    }
    std::string note;
    if (const int code = AskServer(session, known, *file, spec, &note); code != kExitOk) {
      result = code;
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
                                    known.checked, of_trainer, note, ")\n", FilledIn(spec));
    session.ShowOne(text, spec, spec.name());
    if (session.for_people()) session.Err(NotesOn(spec));
  }
  return result;
}

}  // namespace

void AddValidate(CLI::App& root, Session& session) {
  auto options = std::make_shared<ValidateOptions>();
  CLI::App* validate =
      root.add_subcommand("validate", "Check job files; knows more when a server is reachable");
  validate->add_option("files", options->files, "Job files")->required();
  validate->add_option("--schema", options->schema,
                       "What `muster-trainer --schema` printed, instead of what the server or the "
                       "muster-trainer here says");
  validate->add_option("--queue", options->queue, "Instead of the files' queue")
      ->check(RefuseEmpty);
  validate->add_flag("--offline", options->offline, "Ask no server");
  validate
      ->add_option("--set", options->settings,
                   "FIELD=VALUE over what the files say; may be repeated")
      ->allow_extra_args(false);
  validate->callback([&session, options] {
    session.command = [&session, options] { return Validate(session, *options); };
  });
}

}  // namespace muster
