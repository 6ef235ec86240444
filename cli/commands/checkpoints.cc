#include <algorithm>
#include <optional>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/resume_from.h"
#include "cli/commands/run_beside.h"
#include "cli/commands/running_task.h"
#include "cli/render/array.h"
#include "cli/render/table.h"
#include "common/base/clock.h"
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
      const std::optional<int64_t> step = StepOf(*it);
      table.AddRow({task.name(), step.has_value() ? absl::StrCat(*step) : "",
                    own ? absl::StrCat(it->attempt()) : "",
                    it->at_ns() > 0 ? FormatDateTime(it->at_ns()) : "",
                    it->size_bytes() > 0 ? FormatSize(it->size_bytes()) : "", it->storage(),
                    it->path()});
      rows.push_back(&*it);
      names.push_back(it->path());
    }
  }
  if (rows.empty() && session.for_people()) {
    session.Err(absl::StrCat("Job ", JobId(*job), " has told no checkpoints.\n"));
    return kExitOk;
  }
  const bool sized = std::any_of(job->tasks().begin(), job->tasks().end(), [](const auto& task) {
    return std::any_of(task.checkpoints().begin(), task.checkpoints().end(),
                       [](const pb::Checkpoint& one) { return one.size_bytes() > 0; });
  });
  const int code = session.Show(table, *job, rows, names);
  if (!sized && session.for_people())
    session.Err("SIZE is what a program tells of its checkpoints; this one told none.\n");
  return code;
}

// ---- now ----

struct NowOptions {
  std::string id, task, timeout = "10m";
};

constexpr int kBetweenLooksMs = 300;
constexpr int kNotTaken = 4;  // exit code of what follows
// Asks rank 0, and waits until that has taken the request away. $1: seconds.
constexpr char kAsk[] = R"sh(
asked=$MUSTER_REQUEST_DIR/save
trap 'rm -f "$asked"; exit 1' HUP
: > "$asked" || exit 1
until=$(($(date +%s) + $1))
while [ -e "$asked" ]; do
  [ "$(date +%s)" -lt "$until" ] || { rm -f "$asked"; exit 4; }
  sleep 0.1
done
)sh";

// The newest that the attempt has told; null: none.
const pb::Checkpoint* NewestOf(const pb::Job& job, const std::string& task, int32_t attempt) {
  const pb::Checkpoint* newest = nullptr;
  for (const pb::Task& one : job.tasks()) {
    if (one.name() != task) continue;
    for (const pb::Checkpoint& checkpoint : one.checkpoints()) {
      if (checkpoint.attempt() == attempt) newest = &checkpoint;
    }
  }
  return newest;
}

// What came of a request.
struct Asked {
  pb::Checkpoint saved;
  std::string late;  // not empty: the time was over first, and where
};

Asked NotTaken(const std::string& id, const std::string& timeout) {
  return {{},
          absl::StrCat("the program of job ", id, " has not taken the request within ", timeout,
                       ": it doesn't look for requests, or is in a long step. muster-trainer, "
                       "MusterCallback and muster_runtime.decide() do (docs/programs.md, \"What it "
                       "may be asked\")")};
}

// The job as it is, once its server answers; until then while there is time.
absl::StatusOr<pb::Job> GetThrough(Session& session, Client* client, const Interrupt& interrupt,
                                   const std::string& id, int64_t until_ns) {
  for (bool told = false;; told = true) {
    absl::StatusOr<pb::Job> job = client->Get(id);
    const bool away = absl::IsUnavailable(job.status()) || absl::IsDeadlineExceeded(job.status());
    if (!away || RealClock()->MonotonicNs() > until_ns) return job;
    if (!told)
      session.Err(
          "muster: no contact with the server; the job goes on without it. Trying again until "
          "--timeout is over\n");
    if (interrupt.WaitFor(kBetweenLooksMs)) return absl::CancelledError("interrupted");
  }
}

// Until the attempt tells a checkpoint that is newer than `before`.
absl::StatusOr<Asked> AwaitCheckpoint(Session& session, Client* client, const Interrupt& interrupt,
                                      const std::string& id, const std::string& task,
                                      int32_t attempt, int64_t before_ns, int64_t until_ns) {
  while (true) {
    const absl::StatusOr<pb::Job> job = GetThrough(session, client, interrupt, id, until_ns);
    if (!job.ok()) return job.status();
    const pb::Checkpoint* newest = NewestOf(*job, task, attempt);
    if (newest != nullptr && newest->at_ns() > before_ns) return Asked{*newest, ""};
    const bool runs =
        std::any_of(job->tasks().begin(), job->tasks().end(), [&](const pb::Task& one) {
          return one.name() == task && !one.attempts().empty() &&
                 one.attempts().rbegin()->number() == attempt && !HasEnded(job->state()) &&
                 one.attempts().rbegin()->end_ns() == 0;
        });
    if (!runs)
      return absl::FailedPreconditionError(absl::StrCat(
          "the attempt of job ", id, " has ended before it told a checkpoint: muster show ", id));
    if (RealClock()->MonotonicNs() > until_ns)
      return Asked{{},
                   absl::StrCat("job ", id,
                                " has taken the request, and told no checkpoint yet: "
                                "muster checkpoints list ",
                                id)};
    if (interrupt.WaitFor(kBetweenLooksMs)) return absl::CancelledError("interrupted");
  }
}

// Whole ones, at least one.
std::string SecondsUntil(int64_t until_ns) {
  const int64_t left_ns = until_ns - RealClock()->MonotonicNs();
  return absl::StrCat(std::max<int64_t>(1, (left_ns + kSecond - 1) / kSecond));
}

absl::StatusOr<Asked> SaveNow(Session& session, Client* client, const Interrupt& interrupt,
                              const NowOptions& options, int64_t timeout_ns) {
  const int64_t until_ns = RealClock()->MonotonicNs() + timeout_ns;
  const absl::StatusOr<pb::Job> job = client->Get(options.id);
  if (!job.ok()) return job.status();
  const absl::StatusOr<RunningTask> task = FindRunningTask(*job, options.task);
  if (!task.ok()) return task.status();
  const pb::Checkpoint* newest = NewestOf(*job, task->name, task->attempt);
  pb::ExecStart exec;
  exec.set_id(options.id);
  exec.set_task(task->name);
  exec.set_attempt(task->attempt);
  for (const std::string& word :
       {std::string("/bin/sh"), std::string("-c"), absl::StrCat(kRequestsOrExit, kAsk),
        std::string("sh"), SecondsUntil(until_ns)})
    exec.add_command(word);
  session.Err(absl::StrCat("muster: asked job ", JobId(*job), "; waits up to ", options.timeout,
                           " for its program to take that (--timeout)\n"));
  // Where an answer was lost, it may save twice.
  const absl::StatusOr<RanBeside> ran =
      RunBesideAgain(client, interrupt, exec, [&](const std::string& why) {
        session.Err(absl::StrCat("muster: ", why, "; it is asked again, for a minute\n"));
        *exec.mutable_command()->rbegin() = SecondsUntil(until_ns);
      });
  if (!ran.ok()) return ran.status();
  if (ran->exit_code == kNoRequests) return NoRequests(JobId(*job));
  if (ran->exit_code == kNotTaken) return NotTaken(JobId(*job), options.timeout);
  if (ran->exit_code != 0)
    return absl::FailedPreconditionError(
        absl::StrCat("the request could not be written into the directory of job ", JobId(*job),
                     "; what its shell said is above. See that the job's storage answers and has "
                     "room, and ask again"));
  return AwaitCheckpoint(session, client, interrupt, options.id, task->name, task->attempt,
                         newest == nullptr ? 0 : newest->at_ns(), until_ns);
}

int Now(Session& session, const NowOptions& options) {
  const absl::StatusOr<int64_t> timeout_ns = ParseDuration(options.timeout);
  if (!timeout_ns.ok() || *timeout_ns < kSecond)
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat("--timeout ", options.timeout, ": wants a time from 1s, as 10m")));
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<Asked> asked = SaveNow(session, *client, interrupt, options, *timeout_ns);
  if (interrupt.pending()) return kExitInterrupted;
  if (!asked.ok()) return session.Fail(asked.status());
  if (!asked->late.empty()) {
    session.Err(absl::StrCat("muster: ", asked->late, "\n"));
    return kExitTimeout;
  }
  const pb::Checkpoint& saved = asked->saved;
  session.ShowOne(
      absl::StrCat("Job ", options.id, " has saved step ", saved.step(), ": ", saved.path(), "\n"),
      saved, saved.path());
  return kExitOk;
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
  auto options = std::make_shared<NowOptions>();
  CLI::App* now = checkpoints->add_subcommand(
      "now", "Have a running job save one after the step that it is in, and wait for it");
  now->add_option("job", options->id, "Number or uid; of an array a member, as 17_3")->required();
  now->add_option("--task", options->task, "Where several of its tasks run");
  now->add_option("--timeout", options->timeout, "Wait no longer than that; exit 124")
      ->capture_default_str();
  now->callback([&session, options] {
    session.command = [&session, options] { return Now(session, *options); };
  });
}

}  // namespace muster
