#include "cli/commands/exec.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/local_port.h"
#include "cli/commands/run_beside.h"
#include "cli/tunnel.h"

namespace muster {
namespace {

constexpr int kMostPort = 65'535;
constexpr char kJobGoesOn[] =
    "The job goes on: run the command again. What has to outlive a lost connection: setsid -f CMD, "
    "with its output in a file";

std::atomic<int> g_resized{-1};

void OnResized(int) {
  const int saved = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(g_resized.load(), &one, sizeof one);
  errno = saved;
}

// Standard input as the far terminal wants it: each key at once, Ctrl+C too. Before the process
// ends it is as it was.
class RawTerminal {
 public:
  RawTerminal() = default;
  ~RawTerminal() {
    if (raw_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
    if (resized_ < 0) return;
    signal(SIGWINCH, SIG_DFL);
    g_resized = -1;
    close(resized_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  int WatchSize() {
    resized_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g_resized = resized_;
    signal(SIGWINCH, OnResized);
    return resized_;
  }
  void Begin() {
    if (tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios raw = before_;
    cfmakeraw(&raw);
    raw_ = tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
  }

 private:
  bool raw_ = false;
  termios before_ = {};
  int resized_ = -1;
};

struct ExecOptions {
  std::string id, task, attempt = "current";
  int rank = 0;
  bool terminal = false, input = false;
  std::vector<std::string> command;
};

int Exec(Session& session, const ExecOptions& options) {
  pb::TunnelInput start;
  pb::ExecStart* exec = start.mutable_exec();
  exec->set_id(options.id);
  exec->set_task(options.task);
  exec->set_rank(options.rank);
  int attempt = 0;
  if (options.attempt != "current" && (!absl::SimpleAtoi(options.attempt, &attempt) || attempt < 1))
    return session.Fail(absl::InvalidArgumentError("--attempt: wants current, or a number"));
  exec->set_attempt(attempt);
  for (const std::string& word : options.command) exec->add_command(word);
  // A shell whose terminal never gets anything would stay for ever.
  if (options.terminal && options.input && isatty(STDIN_FILENO) == 0 && errno != EIO)
    return session.Fail(absl::InvalidArgumentError(
        "-it wants a terminal, and standard input is none; leave -t out, and standard input comes "
        "along as it is"));
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const TunnelOutcome outcome = CarryHere(**client, interrupt, std::move(start), options.terminal);
  return interrupt.pending() ? static_cast<int>(kExitInterrupted)
                             : TellOutcome(session, outcome, kJobGoesOn);
}

// ---- ports ----

struct ForwardOptions {
  std::string id, task, ports;
  int rank = 0;
  bool any = false;
};

// "PORT" or "PORT:LOCAL". False: it is neither.
bool ParsePorts(const std::string& text, int* port, int* local) {
  const size_t colon = text.find(':');
  const bool far = absl::SimpleAtoi(text.substr(0, colon), port) && *port >= 1;
  *local = *port;
  const bool near = colon == std::string::npos ||
                    (absl::SimpleAtoi(text.substr(colon + 1), local) && *local >= 0);
  return far && near && *port <= kMostPort && *local <= kMostPort;
}

int Forward(Session& session, const ForwardOptions& options) {
  pb::TunnelInput start;
  pb::ForwardStart* forward = start.mutable_forward();
  int port = 0, local = 0;
  if (!ParsePorts(options.ports, &port, &local))
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat("port ", options.ports, ": wants PORT or PORT:LOCAL, such as 8888:8889")));
  if (options.any) local = 0;
  forward->set_id(options.id);
  forward->set_task(options.task);
  forward->set_rank(options.rank);
  forward->set_port(port);
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::Job> job = (*client)->Get(options.id);
  if (!job.ok()) return session.Fail(job.status());
  if (HasEnded(job->state()))
    return session.Fail(absl::FailedPreconditionError(
        absl::StrCat("job ", options.id, " has ended: nothing of it listens")));
  if (job->state() == pb::WAITING)
    return session.Fail(absl::FailedPreconditionError(absl::StrCat(
        "job ", options.id, " doesn't run yet: muster explain ", options.id, " says why")));
  absl::StatusOr<int> listener = ListenLocally(&local);
  if (!listener.ok()) return session.Fail(listener.status());
  session.Err(absl::StrCat("muster: 127.0.0.1:", local, " leads to port ", port, " of job ",
                           options.id, ", rank ", options.rank,
                           ", as soon as something listens there; Ctrl+C ends it\n"));
  CarryConnections(session, **client, start, *listener, interrupt);
  return kExitInterrupted;
}

}  // namespace

TunnelOutcome CarryHere(Client& client, const Interrupt& interrupt, pb::TunnelInput start,
                        bool terminal) {
  TunnelEnds ends{STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
  RawTerminal raw;  // what is said after this is said on the terminal as it was
  if (terminal) {
    pb::ExecStart* exec = start.mutable_exec();
    const char* term = getenv("TERM");
    exec->set_terminal(true);
    exec->set_term(term == nullptr ? "dumb" : term);
    *exec->mutable_size() = SizeOf(STDIN_FILENO);
    // One that has hung up is one, too: EIO.
    ends.terminal = isatty(STDIN_FILENO) != 0 || errno == EIO;
    if (ends.terminal) ends.resized = raw.WatchSize();
  }
  const std::unique_ptr<TunnelCall> call = client.Exec(&interrupt);
  return CarryTunnel(call.get(), start, ends, [&] {
    if (ends.terminal) raw.Begin();
  });
}

bool EndedByItself(const TunnelOutcome& outcome) {
  return outcome.ended && outcome.end.error().empty();
}

int TellOutcome(Session& session, const TunnelOutcome& outcome, const std::string& lost) {
  const pb::TunnelEnd& end = outcome.end;
  if (EndedByItself(outcome))
    return end.signal() != 0 ? kSignalled + end.signal() : end.exit_code();
  if (outcome.ended) {
    session.Err(absl::StrCat("muster: ", Plain(end.error()), "\n"));
    return end.exit_code() != 0 ? end.exit_code() : kExitCutOff;
  }
  if (!outcome.begun) return session.Fail(outcome.status);
  const CutOff cut = WhyCutOff(outcome.status);
  session.Err(absl::StrCat("muster: the command was cut off, and is ended: ", cut.why, "\n"));
  if (cut.may_begin_again) session.Err(absl::StrCat("  ", lost, "\n"));
  return kExitCutOff;
}

void AddExec(CLI::App& root, Session& session) {
  auto options = std::make_shared<ExecOptions>();
  CLI::App* exec = root.add_subcommand(
      "exec",
      "Run a command beside a worker, as the job's owner: muster exec JOB -- CMD ARGS; its exit "
      "code is this one's");
  exec->add_option("job", options->id, "Number or uid; of an array's member 17_3")->required();
  exec->add_option("command", options->command, "The program and its arguments, after --")
      ->required();
  exec->add_option("--task", options->task, "Default: the one that runs");
  exec->add_option("--rank", options->rank, "Beside which process; default: 0")
      ->check(CLI::Range(0, 1 << 26));
  exec->add_option("--attempt", options->attempt, "current, or the number that has to run now");
  exec->add_flag("-t,--pty", options->terminal, "In a terminal of its own, as for a shell");
  exec->add_flag("-i", options->input,
                 "Standard input always comes along; with -t it has to be a terminal");
  exec->callback([&session, options] {
    session.command = [&session, options] { return Exec(session, *options); };
  });

  auto forwarded = std::make_shared<ForwardOptions>();
  CLI::App* forward = root.add_subcommand(
      "forward", "Lead a port of this machine to one on which a process of the job listens");
  forward->add_option("job", forwarded->id, "Number or uid; of an array's member 17_3")->required();
  forward
      ->add_option("port", forwarded->ports,
                   "PORT, or PORT:LOCAL for another one here; local 0: any that is free")
      ->required();
  forward->add_option("--task", forwarded->task, "Default: the one that runs");
  forward->add_option("--rank", forwarded->rank, "On whose host; default: 0")
      ->check(CLI::Range(0, 1 << 26));
  forward->add_flag("--any", forwarded->any, "Any local port that is free");
  forward->callback([&session, forwarded] {
    session.command = [&session, forwarded] { return Forward(session, *forwarded); };
  });
}

}  // namespace muster
