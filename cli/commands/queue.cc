#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/render/fleet.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"

namespace muster {
namespace {

struct ApplyOptions {
  std::string file;
  bool dry_run = false, detailed_exitcode = false;
  uint64_t if_version = 0;
};

int List(Session& session, const std::string& below) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::ListQueuesResponse> response = (*client)->ListQueues();
  if (!response.ok()) return session.Fail(response.status());
  std::vector<pb::Queue> queues;
  for (const pb::Queue& queue : response->queues()) {
    if (below.empty() || queue.path() == below || absl::StartsWith(queue.path(), below + "/"))
      queues.push_back(queue);
  }
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Queue& queue : queues) {
    rows.push_back(&queue);
    names.push_back(queue.path());
  }
  if (queues.empty() && !below.empty() && response->queues_size() > 0) {
    if (absl::StatusOr<pb::Queue> queue = (*client)->GetQueue(below); !queue.ok())
      return session.Fail(queue.status());  // says which there are
  }
  if (queues.empty() && session.for_people()) {
    session.Err("No queues.  Make some: muster queue apply queues.yaml\n");
    return kExitOk;
  }
  int code = session.Show(QueuesTable(queues), *response, rows, names);
  if (session.for_people())
    session.Err(absl::StrCat("Version ", response->version(), " of the queues.\n"));
  return code;
}

// The tree as `apply` reads it.
int Export(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::QueueTree> tree = PresentTree(**client);
  if (!tree.ok()) return session.Fail(tree.status());
  return session.ShowOne(QueueTreeToYaml(*tree), *tree, "queues");
}

int ShowQueue(Session& session, const std::string& path) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::Queue> queue = (*client)->GetQueue(path);
  if (!queue.ok()) return session.Fail(queue.status());
  const int code = session.Show(QueuesTable({*queue}), *queue, {&*queue}, {queue->path()});
  if (code != kExitOk || !session.for_people() || !session.columns_flag.empty()) return code;
  // What the table doesn't have: order, times, roles. As the file that `apply` reads has it.
  pb::QueueTree alone;
  *alone.add_queues() = queue->spec();
  session.Out(absl::StrCat("\n", QueueTreeToYaml(alone)));
  session.Err(absl::StrCat("Its jobs: muster jobs --queue ", path,
                           "   The whole tree, for apply: muster queue export\n"));
  return code;
}

int Apply(Session& session, const ApplyOptions& options) {
  absl::StatusOr<JobFile> file = ReadJobFile(options.file);
  if (!file.ok()) return session.Fail(file.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  std::vector<Problem> problems;
  pb::ApplyQueuesRequest request;
  auto refuse = [&](const std::vector<Problem>& found) {
    ProblemFormat format;
    format.outcome = "nothing was changed";
    format.color = session.err_screen().color;
    session.Err(FormatProblems(found, file->name, format));
    return kExitBadInput;
  };
  if (!ParseQueueFile(file->text, file->name, QueueContext(), request.mutable_tree(), &problems))
    return refuse(problems);
  request.set_dry_run(options.dry_run);
  request.set_if_version(options.if_version);
  absl::StatusOr<pb::ApplyQueuesResponse> response = (*client)->ApplyQueues(request);
  if (!response.ok()) {
    std::vector<FieldProblem> found = ProblemsOf(response.status());
    if (absl::IsInvalidArgument(response.status()) && !found.empty())
      return refuse(PlaceQueueProblems(file->text, file->name, found));
    return session.Fail(response.status());
  }
  std::string text;
  for (const std::string& change : response->changes()) absl::StrAppend(&text, Plain(change), "\n");
  if (response->changes_size() == 0) text = "The queues are like this already.\n";
  for (const pb::PreviewResponse::Taken& taken : response->evicted()) {
    absl::StrAppend(
        &text, "Takes from ", Plain(taken.queue()), " ", taken.job(),
        taken.gpus_milli() > 0 ? absl::StrCat(": ", FormatMilli(taken.gpus_milli()), " GPUs") : "",
        "; it ", Plain(taken.outcome()), "\n");
  }
  int code = session.ShowOne(text, *response, absl::StrCat(response->version()));
  if (code == kExitOk && options.detailed_exitcode && response->evicted_size() > 0)
    code = kExitWouldEvict;
  if (!session.for_people()) return code;
  if (!options.dry_run) {
    session.Err(absl::StrCat("Applied as version ", response->version(), ".\n"));
  } else if (response->changes_size() > 0) {
    absl::StatusOr<pb::ListQueuesResponse> now = (*client)->ListQueues();
    std::string guard = now.ok() ? absl::StrCat(" --if-version ", now->version()) : "";
    session.Err(absl::StrCat("Nothing was changed.  Apply: muster queue apply ", options.file,
                             guard, "\n"));
  }
  return code;
}

}  // namespace

void AddQueue(CLI::App& root, Session& session) {
  CLI::App* queue = root.add_subcommand("queue", "The quota tree: list, show, export, apply, diff");
  queue->require_subcommand(1);
  queue->fallthrough();

  auto path = std::make_shared<std::string>();
  CLI::App* list = queue->add_subcommand("list", "Guarantee, entitlement and use of every queue");
  list->add_option("queue", *path, "Only this one and those below it");
  list->callback(
      [&session, path] { session.command = [&session, path] { return List(session, *path); }; });
  CLI::App* show = queue->add_subcommand("show", "One queue");
  show->add_option("queue", *path, "Path such as research/nlp")->required();
  show->callback([&session, path] {
    session.command = [&session, path] { return ShowQueue(session, *path); };
  });

  CLI::App* exported = queue->add_subcommand(
      "export", "The tree as a file that apply reads:  muster queue export > queues.yaml");
  exported->callback([&session] { session.command = [&session] { return Export(session); }; });

  auto options = std::make_shared<ApplyOptions>();
  CLI::App* apply =
      queue->add_subcommand("apply", "Replace the tree by a file's (sacctmgr modify)");
  apply->add_option("file", options->file, "queues.yaml; - reads standard input")->required();
  CLI::Option* dry_run = apply->add_flag("--dry-run", options->dry_run,
                                         "Only say what would change, and whom it would take from");
  apply
      ->add_flag("--detailed-exitcode", options->detailed_exitcode,
                 "With --dry-run: exit 7 if somebody would be evicted")
      ->needs(dry_run);
  apply->add_option("--if-version", options->if_version,
                    "Only if the tree still has this version; else exit 5");
  apply->callback([&session, options] {
    session.command = [&session, options] { return Apply(session, *options); };
  });
  CLI::App* diff = queue->add_subcommand("diff", "What apply would change");
  diff->add_option("file", options->file, "queues.yaml; - reads standard input")->required();
  diff->add_flag("--detailed-exitcode", options->detailed_exitcode,
                 "Exit 7 if somebody would be evicted");
  diff->callback([&session, options] {
    options->dry_run = true;
    session.command = [&session, options] { return Apply(session, *options); };
  });
  for (CLI::App* command : {list, show, exported, apply, diff}) command->fallthrough();
}

}  // namespace muster
