#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/render/array.h"
#include "cli/render/table.h"
#include "common/base/units.h"

namespace muster {
namespace {

int ListCheckpoints(Session& session, const std::string& id) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::Job> job = (*client)->Get(id);
  if (!job.ok()) return session.Fail(job.status());
  Table table({{"TASK", Table::kLeft, false, 2},
               {"STEP", Table::kRight},
               {"ATTEMPT", Table::kRight},
               {"AT", Table::kLeft, false, 1},
               {"SIZE", Table::kRight, false, 3},
               {"STORAGE", Table::kLeft, true},
               {"PATH"}});
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Task& task : job->tasks()) {
    // The newest first: that is what the task goes on from.
    for (auto it = task.checkpoints().rbegin(); it != task.checkpoints().rend(); ++it) {
      const bool own = it->attempt() > 0;  // else it began from it
      table.AddRow(
          {task.name(), own ? absl::StrCat(it->step()) : "", own ? absl::StrCat(it->attempt()) : "",
           it->at_ns() > 0 ? FormatDateTime(it->at_ns()) : "",
           it->size_bytes() > 0 ? FormatSize(it->size_bytes()) : "", it->storage(), it->path()});
      rows.push_back(&*it);
      names.push_back(it->path());
    }
  }
  if (rows.empty() && session.for_people()) {
    session.Err(absl::StrCat("Job ", JobId(*job), " has told no checkpoints.\n"));
    return kExitOk;
  }
  return session.Show(table, *job, rows, names);
}

}  // namespace

void AddCheckpoints(CLI::App& root, Session& session) {
  CLI::App* checkpoints =
      root.add_subcommand("checkpoints", "What a job has saved, and can go on from");
  checkpoints->require_subcommand(1);
  auto id = std::make_shared<std::string>();
  CLI::App* list = checkpoints->add_subcommand("list", "Its checkpoints, the newest first");
  list->add_option("job", *id, "Number or uid")->required();
  list->callback([&session, id] {
    session.command = [&session, id] { return ListCheckpoints(session, *id); };
  });
}

}  // namespace muster
