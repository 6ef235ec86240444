// `muster storage`: what a running job has written, and how much room and quota is left there, by
// a command beside its worker.
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/run_beside.h"
#include "cli/commands/running_task.h"
#include "cli/render/array.h"
#include "cli/storage.h"

namespace muster {
namespace {

// As storage.h has its lines. `quota` ends with 1 where a limit is passed, and marks what is by *.
constexpr char kTellStorage[] = R"sh(
cd "$MUSTER_JOB_DIR" || exit 1
room=$(stat -f -c '%S %b %a' .) && echo "room $room"
if command -v quota > /dev/null; then
  quota -w -p -f "$(stat -c %m .)" 2> /dev/null | {
    read -r title; read -r heads; read -r device used soft hard rest
    [ -z "$hard" ] || echo "quota ${used%\*} $soft $hard"
  }
fi
sum=$(du -sk . 2> /dev/null | cut -f 1) && [ -n "$sum" ] && echo "files $sum"
exit 0
)sh";

struct StorageOptions {
  std::string id, task;
};

// Its directory stays, and somebody else may be asked.
absl::Status NobodyToAsk(const pb::Job& job) {
  const std::string directory = Plain(job.directory());
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", JobId(job), " has ended: it is not running, so nothing can be asked beside it.",
      directory.empty() ? absl::StrCat(" What it reported: muster show ", JobId(job))
                        : absl::StrCat(" Where its storage is mounted: du -sh ", directory,
                                       "; df -h ", directory)));
}

int TellStorage(Session& session, const StorageOptions& options) {
  Interrupt interrupt;
  const absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::Job> job = (*client)->Get(options.id);
  if (!job.ok()) return session.Fail(job.status());
  if (HasEnded(job->state())) return session.Fail(NobodyToAsk(*job));
  const absl::StatusOr<RunningTask> task = FindRunningTask(*job, options.task);
  if (!task.ok()) return session.Fail(task.status());
  pb::ExecStart exec;
  exec.set_id(options.id);
  exec.set_task(task->name);
  exec.set_attempt(task->attempt);
  for (const char* word : {"/bin/sh", "-c", kTellStorage}) exec.add_command(word);
  const absl::StatusOr<RanBeside> ran =
      RunBesideAgain(*client, interrupt, exec, [&](const std::string& why) {
        session.Err(absl::StrCat("muster: ", why, "; it is asked again, for a minute\n"));
      });
  if (interrupt.pending()) return kExitInterrupted;
  if (!ran.ok()) return session.Fail(ran.status());
  if (ran->exit_code != 0) {
    return session.Fail(absl::FailedPreconditionError(
        absl::StrCat("the directory of job ", options.id,
                     " can't be entered on its host; what its shell said is above. See that the "
                     "job's storage is mounted there and answers, and ask again")));
  }
  const absl::StatusOr<StorageTold> told = ReadStorage(ran->output);
  if (!told.ok()) return session.Fail(told.status());
  if (!session.for_people()) return session.ShowOne("", StorageOf(*job, *told), JobId(*job));
  session.Out(RenderStorage(*job, *told));
  return kExitOk;
}

}  // namespace

void AddStorage(CLI::App& root, Session& session) {
  auto options = std::make_shared<StorageOptions>();
  CLI::App* storage = root.add_subcommand(
      "storage", "What a running job has written, and what room and quota are left there");
  storage->add_option("job", options->id, "Number or uid; of an array a member, as 17_3")
      ->required();
  storage->add_option("--task", options->task, "Where several of its tasks run");
  storage->callback([&session, options] {
    session.command = [&session, options] { return TellStorage(session, *options); };
  });
}

}  // namespace muster
