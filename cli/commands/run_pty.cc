#include "cli/commands/run_pty.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands/exec.h"
#include "cli/exit_code.h"
#include "cli/follow.h"
#include "cli/render/format.h"

namespace muster {
namespace {

constexpr int64_t kUntilItsEndNs = 30'000'000'000;  // once the command has ended

// Both are on one host and see each other's processes. MUSTER_JOB_DIR/terminal says whose attempt
// the terminal is of, and which process has it; terminal.code how the command ended. A terminal
// that goes away takes that process with it, and leaves no code.
constexpr char kHolds[] = R"sh(
at=$MUSTER_JOB_DIR/terminal tries=0 attempt= pid=
stop() {
  if [ -n "$pid" ]; then
    kill -HUP -- "-$pid" 2>/dev/null || kill -HUP "$pid" 2>/dev/null
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  fi
  exit 143
}
trap stop TERM
until [ -e "$at" ]; do
  if [ $((tries += 1)) -gt 300 ]; then
    echo 'muster: no terminal has come within a minute' >&2
    exit 1
  fi
  sleep 0.2
done
read -r attempt pid < "$at"
if [ "$attempt" != "$MUSTER_ATTEMPT" ]; then
  echo "muster: the terminal was that of attempt $attempt, and ended with it" >&2
  exit 129
fi
while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
sleep 0.5  # the end of this one cuts off what is still on its way to the terminal
if [ ! -e "$at.code" ]; then
  echo 'muster: the terminal has gone away' >&2
  exit 129
fi
read -r code < "$at.code"
exit "$code"
)sh";
constexpr char kInTerminal[] = R"sh(
at=$MUSTER_JOB_DIR/terminal
echo "$MUSTER_ATTEMPT $$" > "$at.new" && mv -f "$at.new" "$at" || exit 1
trap : INT QUIT
(exec "$@")
code=$?
echo "$code" > "$at.code"
exit "$code"
)sh";

bool Runs(const pb::Job& job) {
  return job.tasks_size() > 0 && job.tasks(0).state() == pb::TASK_RUNNING &&
         job.tasks(0).attempts_size() > 0;
}

int GiveUp(Client& client, Session& session, const std::string& id, int code) {
  const absl::StatusOr<pb::Job> cancelled = client.Cancel(id);
  if (!cancelled.ok()) {
    session.Err(absl::StrCat("muster: job ", id, " could not be cancelled: ",
                             Plain(std::string(cancelled.status().message())),
                             "  Without a terminal it ends by itself, a minute after it starts\n"));
  }
  return code;
}

}  // namespace

void HoldForTerminal(pb::JobSpec* spec) {
  pb::TaskSpec* task = spec->mutable_tasks(0);
  task->set_processes_per_worker(1);  // whatever its GPUs: there is one terminal
  pb::Run* run = task->mutable_run();
  const std::vector<std::string> command(run->exec().begin(), run->exec().end());
  run->clear_exec();
  for (const char* word : {"bash", "-c", kHolds, "muster-run-pty"}) run->add_exec(word);
  for (const std::string& word : command) run->add_exec(word);  // for who looks at the job
}

int RunInTerminal(Session& session, Client& client, const std::string& id,
                  const std::vector<std::string>& command, const Interrupt& interrupt) {
  pb::Job job;
  const absl::Status watched =
      client.Watch(id, 0, &interrupt, [&](const pb::WatchJobResponse& response) {
        for (const std::string& event : response.events())
          session.Err(absl::StrCat("  ", Plain(event), "\n"));
        job = response.job();
        return !HasEnded(job.state()) && !Runs(job);
      });
  if (interrupt.pending()) return GiveUp(client, session, id, kExitInterrupted);
  if (HasEnded(job.state())) {
    FollowOptions follow;
    follow.events_to_stderr = true;
    return Follow(session, client, id, interrupt, follow);  // says how
  }
  if (!Runs(job)) {
    const absl::Status cut =
        watched.ok() ? absl::UnavailableError("its server ended the call") : watched;
    return GiveUp(client, session, id, session.Fail(cut));
  }

  pb::TunnelInput start;
  pb::ExecStart* exec = start.mutable_exec();
  exec->set_id(id);
  exec->set_attempt(job.tasks(0).attempts().rbegin()->number());
  for (const char* word : {"bash", "-c", kInTerminal, "muster-run-pty"}) exec->add_command(word);
  for (const std::string& word : command) exec->add_command(word);
  bool ended = false;
  const int code =
      ExecHere(session, client, interrupt, std::move(start), /*terminal=*/true, &ended);
  if (!ended) return GiveUp(client, session, id, code);
  FollowOptions quiet;
  quiet.quiet = true;
  quiet.timeout_ns = kUntilItsEndNs;
  Follow(session, client, id, interrupt, quiet);
  return code;
}

}  // namespace muster
