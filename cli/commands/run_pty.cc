#include "cli/commands/run_pty.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands/exec.h"
#include "cli/commands/run_beside.h"
#include "cli/exit_code.h"
#include "cli/follow.h"
#include "cli/render/format.h"
#include "common/base/clock.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kUntilItsEndNs = 30 * kSecond;  // once the command has ended
constexpr int64_t kBeginAgainNs = 55 * kSecond;   // the job waits a minute for its terminal
constexpr int64_t kCancelAgainNs = 20 * kSecond;
constexpr int kTryAgainMs = 500;
constexpr char kHolder[] = "muster-run-pty";
constexpr char kJobEndsToo[] =
    "The job ends with its terminal. What has to go on without one: muster run without --pty";

// Both are on one host and see each other's processes. MUSTER_JOB_DIR/terminal says whose attempt
// the terminal is of, and which process has it, whose session the command is in; terminal.code how
// the command ended; terminal.taken that all that it printed has arrived, as the end of the job
// cuts off what is still on its way. A terminal that goes away takes its session with it, and
// leaves no code.
constexpr char kHolds[] = R"sh(
at=$MUSTER_JOB_DIR/terminal tries=0 attempt= pid=
lives() {
  local stat line
  kill -0 "$pid" 2>/dev/null && return 0
  for stat in /proc/[0-9]*/stat; do
    line=
    { read -r -d '' line < "$stat"; } 2>/dev/null
    set -- ${line##*) }  # state, parent, group, session
    [ "$4" = "$pid" ] && [ "$1" != Z ] && return 0
  done
  return 1
}
stop() {
  if [ -z "$pid" ] && [ -e "$at" ]; then  # it has come since it was looked for
    read -r attempt pid < "$at"
    [ "$attempt" = "$MUSTER_ATTEMPT" ] || pid=
  fi
  if [ -n "$pid" ]; then
    kill -HUP -- "-$pid" 2>/dev/null || kill -HUP "$pid" 2>/dev/null
    while lives; do sleep 0.1; done  # until the grace ends
  fi
  exit 143
}
trap stop TERM
until [ -e "$at" ]; do
  if [ $((tries += 1)) -gt 300 ]; then
    echo 'muster: no terminal has come within a minute; muster run --pty starts a job with one' >&2
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
tries=0
if [ ! -e "$at.code" ]; then
  while lives && [ $((tries += 1)) -le 25 ]; do sleep 0.2; done  # SIGKILL is sent after 5 s
  echo 'muster: the terminal has gone away' >&2
  exit 129
fi
until [ -e "$at.taken" ] || [ $((tries += 1)) -gt 150 ]; do sleep 0.2; done
read -r code < "$at.code"
[ "$code" != 127 ] || command -v -- "$1" > /dev/null ||
  echo "muster: $1: no such program on $HOSTNAME, where PATH is $PATH" >&2
exit "$code"
)sh";
// It outlives SIGHUP, so that the terminal stays until the command has ended of it.
constexpr char kInTerminal[] = R"sh(
at=$MUSTER_JOB_DIR/terminal gone=
echo "$MUSTER_ATTEMPT $$" > "$at.new" && mv -f "$at.new" "$at" || exit 1
trap : INT QUIT
trap gone=1 HUP
if command -v -- "$1" > /dev/null || [ -e "$1" ]; then  # what isn't executable bash says itself
  (exec "$@")
  code=$?
else
  echo "muster: $1: no such program on $HOSTNAME, where PATH is $PATH; a job has its host's or its" \
    "image's, not the submitter's: give the whole path, or --env PATH=..." >&2
  code=127
fi
# A command that reads may see the end of a terminal that goes away before this shell gets SIGHUP.
# Of such a terminal there is always something to read, and never anything; what somebody has typed
# is read here.
looks=0
while [ -z "$gone" ] && read -r -t 0; do
  read -r -t 1 _
  [ $((looks += 1)) -lt 5000 ] || gone=1
done
[ -n "$gone" ] || echo "$code" > "$at.code"
exit "$code"
)sh";
constexpr char kTaken[] = ": > \"$MUSTER_JOB_DIR/terminal.taken\"";

bool Runs(const pb::Job& job) {
  return job.tasks_size() > 0 && job.tasks(0).state() == pb::TASK_RUNNING &&
         job.tasks(0).attempts_size() > 0;
}

// Until the job runs or has ended, or the interrupt is pending; while its server is away, too.
absl::Status AwaitStart(Session& session, Client& client, const std::string& id,
                        const Interrupt& interrupt, pb::Job* job) {
  return WatchThrough(session, client, id, interrupt,
                      "the job waits without it. Trying again; Ctrl+C cancels the job",
                      [&](const pb::WatchJobResponse& response) {
                        for (const std::string& event : response.events())
                          session.Err(absl::StrCat("  ", Plain(event), "\n"));
                        *job = response.job();
                        return !HasEnded(job->state()) && !Runs(*job);
                      });
}

pb::ExecStart Beside(const std::string& id, int attempt, const char* script) {
  pb::ExecStart exec;
  exec.set_id(id);
  exec.set_attempt(attempt);
  for (const char* word : {"bash", "-c", script, kHolder}) exec.add_command(word);
  return exec;
}

// Where musterd, its host's agent or the network fails it before it has begun, again.
TunnelOutcome CarryCommand(Session& session, Client& client, const Interrupt& interrupt,
                           const pb::ExecStart& exec) {
  pb::TunnelInput start;
  *start.mutable_exec() = exec;
  bool told = false;
  for (const int64_t until_ns = RealClock()->MonotonicNs() + kBeginAgainNs;;) {
    TunnelOutcome outcome = CarryHere(client, interrupt, start, /*terminal=*/true);
    if (outcome.begun || outcome.ended) return outcome;
    const CutOff cut = WhyCutOff(outcome.status);
    if (!cut.may_begin_again || RealClock()->MonotonicNs() >= until_ns) return outcome;
    if (!std::exchange(told, true))
      session.Err(absl::StrCat("muster: the terminal isn't there yet: ", cut.why,
                               "; tried again, for a minute\n"));
    if (interrupt.WaitFor(kTryAgainMs)) return outcome;
  }
}

// A job that waits would take devices later, with nobody there.
int GiveUp(Client& client, Session& session, const std::string& id, int code) {
  absl::StatusOr<pb::Job> cancelled = client.Cancel(id);
  if (absl::IsUnavailable(cancelled.status()))
    session.Err(absl::StrCat("muster: no contact with the server; for ", FormatSpan(kCancelAgainNs),
                             " tried again to cancel job ", id, "\n"));
  for (const int64_t until_ns = RealClock()->MonotonicNs() + kCancelAgainNs;
       absl::IsUnavailable(cancelled.status()) && RealClock()->MonotonicNs() < until_ns;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kTryAgainMs));
    cancelled = client.Cancel(id);
  }
  if (!cancelled.ok()) {
    session.Err(absl::StrCat("muster: job ", id, " could not be cancelled: ",
                             Plain(std::string(cancelled.status().message())),
                             "  Without a terminal it ends by itself, a minute after it starts; "
                             "before that: muster cancel ",
                             id, "\n"));
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
  for (const char* word : {"bash", "-c", kHolds, kHolder}) run->add_exec(word);
  for (const std::string& word : command) run->add_exec(word);  // for who looks at the job
}

bool HoldsForTerminal(const pb::JobSpec& spec) {
  if (spec.tasks_size() != 1) return false;
  const auto& words = spec.tasks(0).run().exec();
  return words.size() > 4 && words[0] == "bash" && words[1] == "-c" && words[3] == kHolder;
}

int RunInTerminal(Session& session, Client& client, const std::string& id,
                  const std::vector<std::string>& command, const Interrupt& interrupt) {
  pb::Job job;
  const absl::Status status = AwaitStart(session, client, id, interrupt, &job);
  if (interrupt.pending()) return GiveUp(client, session, id, kExitInterrupted);
  if (!status.ok()) return GiveUp(client, session, id, session.Fail(status));
  if (HasEnded(job.state())) {
    FollowOptions follow;
    follow.events_to_stderr = true;
    return Follow(session, client, id, interrupt, follow);  // says how
  }

  const int attempt = job.tasks(0).attempts().rbegin()->number();
  pb::ExecStart exec = Beside(id, attempt, kInTerminal);
  for (const std::string& word : command) exec.add_command(word);
  const TunnelOutcome outcome = CarryCommand(session, client, interrupt, exec);
  if (interrupt.pending()) return GiveUp(client, session, id, kExitInterrupted);
  const int code = TellOutcome(session, outcome, kJobEndsToo);
  if (!EndedByItself(outcome)) return GiveUp(client, session, id, code);
  // If nothing comes of it, the job ends half a minute later.
  (void)RunBesideAgain(&client, interrupt, Beside(id, attempt, kTaken), [](const std::string&) {});
  FollowOptions quiet;
  quiet.quiet = true;
  quiet.timeout_ns = kUntilItsEndNs;
  Follow(session, client, id, interrupt, quiet);
  return code;
}

}  // namespace muster
