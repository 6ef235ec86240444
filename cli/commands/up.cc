#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "cli/up/supervisor.h"
#include "common/base/files.h"

namespace muster {
namespace {

struct UpOptions {
  std::string data_dir, listen, exporter;
  int slots = 0;
  bool detach = false, stop_jobs = false, adopt_restored = false;
};

// Where the outcome of a start goes: the screen, or for --detach the waiting parent.
using Report = std::function<void(int code, const std::string& text)>;

absl::StatusOr<UpPlan> PlanFor(const UpOptions& options) {
  UpPlan plan;
  plan.data_dir =
      options.data_dir.empty() ? DefaultDataDirectory(ProcessEnvironment) : options.data_dir;
  if (plan.data_dir.empty())
    return absl::InvalidArgumentError(
        "no home directory to keep data in; name one: --data-dir DIR");
  if (absl::Status made = MakeDirectories(plan.data_dir, 0700); !made.ok())
    return absl::InvalidArgumentError(std::string(made.message()));
  char* absolute = realpath(plan.data_dir.c_str(), nullptr);
  if (absolute == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("--data-dir ", plan.data_dir, ": can't be resolved"));
  plan.data_dir = absolute;
  free(absolute);
  plan.server = options.listen.empty()
                    ? absl::StrCat("unix://", LocalSocketPath(ProcessEnvironment))
                    : options.listen;
  if (plan.server[0] == '/') plan.server = "unix://" + plan.server;
  if (plan.server.rfind("unix:///", 0) != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", plan.server,
                     ": must be unix:///path; a network is served by musterd itself "
                     "(docs/hosts.md)"));
  plan.binaries_dir = ExecutableDirectory();
  plan.slots = options.slots;
  if (!options.exporter.empty()) {
    char* file = realpath(options.exporter.c_str(), nullptr);
    if (file == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("--exporter ", options.exporter, ": isn't there; docs/tracking.md has one"));
    plan.exporter = file;
    free(file);
  }
  plan.adopt_restored = options.adopt_restored;
  return plan;
}

absl::StatusOr<std::vector<pb::Job>> Unfinished(Client& client) {
  pb::ListJobsRequest request;
  request.set_page_size(1000);
  request.add_states(pb::WAITING);
  request.add_states(pb::RUNNING);
  std::vector<pb::Job> jobs;
  do {
    absl::StatusOr<pb::ListJobsResponse> page = client.List(request);
    if (!page.ok()) return page.status();
    for (pb::Job& job : *page->mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return jobs;
}

// Cancels all jobs and waits until their processes are gone. A second signal ends the waiting, too.
absl::Status StopJobs(Session& session, Client& client) {
  absl::StatusOr<std::vector<pb::Job>> jobs = Unfinished(client);
  if (!jobs.ok()) return jobs.status();
  for (const pb::Job& job : *jobs) {
    absl::StatusOr<pb::Job> cancelled = client.Cancel(absl::StrCat(job.number()));
    if (!cancelled.ok()) return cancelled.status();
    session.Err(absl::StrCat("Stopping job ", job.number(), " ", Plain(job.spec().name()), ".\n"));
  }
  for (const pb::Job& job : *jobs) {
    absl::Status status =
        client.Watch(absl::StrCat(job.number()), 0, nullptr,
                     [](const pb::WatchJobResponse& r) { return !HasEnded(r.job().state()); });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void SayWhatGoesOn(Session& session, Client& client) {
  absl::StatusOr<std::vector<pb::Job>> jobs = Unfinished(client);
  if (!jobs.ok()) return;  // the daemon is gone already
  std::string running;
  int waiting = 0;
  for (const pb::Job& job : *jobs) {
    if (job.state() == pb::RUNNING) {
      absl::StrAppend(&running, running.empty() ? "" : ", ", job.number());
    } else {
      ++waiting;
    }
  }
  bool several = running.find(',') != std::string::npos;
  if (!running.empty()) {
    session.Err(
        absl::StrCat(several ? "Jobs " : "Job ", running, several ? " go" : " goes",
                     " on; muster up finds ", several ? "them" : "it",
                     " again.  With --stop-jobs (muster up, muster down) jobs end, too.\n"));
  }
  if (waiting > 0)
    session.Err(
        absl::StrCat(waiting, waiting == 1 ? " waiting job is" : " waiting jobs are", " kept.\n"));
}

// Whether a command without flags finds this server.
bool FoundByItself(const std::string& server) {
  const absl::StatusOr<Settings> settings = ResolveSettings("", "", ProcessEnvironment);
  return settings.ok() && settings->server == server;
}

std::string UpAlready(const UpHolder& holder) {
  std::string text = absl::StrCat("Muster is up already (pid ", holder.pid, ", ", holder.server,
                                  ", data in ", holder.data_dir, ").\n");
  if (const absl::Status reachable = CheckReachable(holder.server); !reachable.ok()) {
    absl::StrAppend(&text, "But ", std::string(reachable.message()), ". ",
                    holder.trouble.empty() ? "It is starting, or being started again.\n"
                                           : Plain(holder.trouble) + "\n");
  }
  return absl::StrCat(
      text, "Look around: ",
      FoundByItself(holder.server) ? ""
                                   : absl::StrCat("export MUSTER_SERVER=", holder.server, "; "),
      "muster jobs     End it: ", DownCommand(holder.data_dir, ProcessEnvironment), "\n");
}

// What this start was told and the one that is up was not.
std::string NotApplied(const UpOptions& options) {
  std::vector<std::string> given;
  if (options.slots > 0) given.emplace_back("--slots");
  if (!options.exporter.empty()) given.emplace_back("--exporter");
  if (options.adopt_restored) given.emplace_back("--adopt-restored");
  if (given.empty()) return "";
  return absl::StrCat("muster: ", absl::StrJoin(given, ", "), given.size() == 1 ? " was" : " were",
                      " not applied: end it first, and start it so.\n");
}

// "     Or end the other: muster down"
std::string OrEnd(const UpHolder& other) {
  if (other.pid == 0) return "";
  return absl::StrCat("     Or end the other: ", DownCommand(other.data_dir, ProcessEnvironment));
}

std::string HowToUse(const UpPlan& plan, bool detached) {
  std::string text;
  if (!FoundByItself(plan.server))
    absl::StrAppend(&text, "Here, and in other shells:  export MUSTER_SERVER=", plan.server, "\n");
  absl::StrAppend(&text,
                  "Try:  muster run -- echo hello     muster submit JOB.yaml     muster jobs     "
                  "muster host list\n");
  absl::StrAppend(
      &text,
      detached ? absl::StrCat("End it:  ", DownCommand(plan.data_dir, ProcessEnvironment),
                              "     (running jobs go on; with --stop-jobs they end, too)\n")
               : "Ctrl+C ends it; running jobs go on, and the next muster up finds them again.\n");
  return text;
}

int Serve(Session& session, const UpPlan& plan, const UpOptions& options, const Report& report) {
  Interrupt interrupt;
  UpHolder holder;
  absl::StatusOr<std::unique_ptr<UpLock>> lock = UpLock::Take(plan.data_dir, plan.server, &holder);
  if (absl::IsAlreadyExists(lock.status())) {
    const std::string not_applied = NotApplied(options);
    const int code = not_applied.empty() ? kExitOk : kExitBadInput;
    report(code, UpAlready(holder) + not_applied);
    return code;
  }
  if (!lock.ok()) {
    report(kExitBadInput, RenderError(lock.status(), plan.server));
    return kExitBadInput;
  }
  if (CheckReachable(plan.server).ok()) {
    report(kExitBadInput,
           absl::StrCat("muster: something else serves ", plan.server,
                        " already; it was not started from ", plan.data_dir,
                        ".\n  Choose another socket: muster up --listen unix:///path",
                        OrEnd(UpLock::Serving(plan.server, ProcessEnvironment)), "\n"));
    return kExitBadInput;
  }
  Supervisor supervisor(plan, interrupt, lock->get());
  absl::Status status = supervisor.Start();
  if (!status.ok()) {
    supervisor.Stop();
    int code = interrupt.pending() ? kExitInterrupted : kExitUnreachable;
    report(code, interrupt.pending()
                     ? ""
                     : absl::StrCat("muster: ", std::string(status.message()), "\n"));
    return code;
  }
  report(kExitOk, supervisor.Describe() + HowToUse(plan, options.detach));
  supervisor.Run();
  if (options.stop_jobs) {
    absl::Status stopped = StopJobs(session, supervisor.client());
    if (!stopped.ok()) session.Err(RenderError(stopped, plan.server));
  } else {
    SayWhatGoesOn(session, supervisor.client());
  }
  supervisor.Stop();
  session.Err("Muster is down.\n");
  return kExitOk;
}

// The supervisor in the background; returns when it has reported. Before any thread exists.
int Detach(Session& session, const UpPlan& plan, const UpOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return session.Fail(ErrnoStatus(errno, "pipe"));
  if (absl::Status made = MakeDirectories(plan.data_dir + "/logs", 0700); !made.ok())
    return session.Fail(made);
  pid_t pid = fork();
  if (pid < 0) return session.Fail(ErrnoStatus(errno, "fork"));
  if (pid == 0) {
    close(ends[0]);
    setsid();
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    KeepLogShort(plan.data_dir + "/logs/up.log");
    int log = open((plan.data_dir + "/logs/up.log").c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(null, STDIN_FILENO);
    dup2(log < 0 ? null : log, STDOUT_FILENO);
    dup2(log < 0 ? null : log, STDERR_FILENO);
    int code = Serve(session, plan, options, [&](int result, const std::string& text) {
      std::string message = absl::StrCat(result, "\n", text);
      const auto before = signal(SIGPIPE, SIG_IGN);  // for this write only: the children inherit it
      if (write(ends[1], message.data(), message.size()) < 0)
        session.Err("muster: the caller is gone; going on\n");
      close(ends[1]);
      signal(SIGPIPE, before);
    });
    _exit(code);
  }
  close(ends[1]);
  std::string message;
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
    message.append(buffer, static_cast<size_t>(count));
  close(ends[0]);
  size_t newline = message.find('\n');
  if (newline == std::string::npos) {
    session.Err(absl::StrCat("muster: the background process ended before it was ready; see ",
                             plan.data_dir, "/logs/up.log\n"));
    return kExitUnreachable;
  }
  int code = atoi(message.c_str());
  std::string text = message.substr(newline + 1);
  code == kExitOk ? session.Out(text) : session.Err(text);
  return code;
}

int Up(Session& session, const UpOptions& options) {
  absl::StatusOr<UpPlan> plan = PlanFor(options);
  if (!plan.ok()) return session.Fail(plan.status());
  if (options.detach) return Detach(session, *plan, options);
  return Serve(session, *plan, options, [&](int code, const std::string& text) {
    code == kExitOk ? session.Out(text) : session.Err(text);
  });
}

// The one that this user's commands talk to, where it has another directory.
std::string ElsewhereUp(Session& session) {
  const absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return "\n";
  const UpHolder other = UpLock::Serving(settings->server, ProcessEnvironment);
  if (other.pid == 0) return "\n";
  return absl::StrCat("  Another is, from ", other.data_dir,
                      ". End that: ", DownCommand(other.data_dir, ProcessEnvironment), "\n");
}

int Down(Session& session, const UpOptions& options) {
  absl::StatusOr<UpPlan> plan = PlanFor(options);
  if (!plan.ok()) return session.Fail(plan.status());
  const UpHolder holder = UpLock::Holder(plan->data_dir);
  if (holder.pid == 0) {
    session.Err(absl::StrCat("Muster is not up (", plan->data_dir, ").", ElsewhereUp(session)));
    return kExitOk;
  }
  Interrupt interrupt;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(holder.server);
  if (client.ok() && options.stop_jobs) {
    absl::Status stopped = StopJobs(session, **client);
    if (!stopped.ok()) return session.Fail(stopped);
  } else if (client.ok()) {
    SayWhatGoesOn(session, **client);
  }
  if (kill(holder.pid, SIGTERM) != 0)
    return session.Fail(ErrnoStatus(errno, absl::StrCat("process ", holder.pid)));
  if (!UpLock::WaitUntilFree(plan->data_dir, interrupt)) return kExitInterrupted;
  session.Err("Muster is down.\n");
  return kExitOk;
}

}  // namespace

void AddUp(CLI::App& root, Session& session) {
  auto options = std::make_shared<UpOptions>();
  CLI::App* up =
      root.add_subcommand("up", "The daemon and one agent on this machine: no files, no root");
  up->add_option("--data-dir", options->data_dir, "Default: ~/.local/share/muster/up");
  up->add_option("--listen", options->listen, "unix:///path; default: the local socket");
  up->add_option("--slots", options->slots,
                 "Declare so many CPU slots as stand-ins for GPUs; default: only where there is no "
                 "GPU, one a core")
      ->check(CLI::Range(1, 1024));
  up->add_option("--exporter", options->exporter,
                 "Run muster-exporter, too, with this file (docs/tracking.md)");
  up->add_flag("-d,--detach", options->detach, "In the background; muster down ends it");
  up->add_flag("--stop-jobs", options->stop_jobs, "Stop the jobs, too, when it ends");
  up->add_flag("--adopt-restored", options->adopt_restored,
               "Go on, once, from a store that was copied or restored here; the original is "
               "stopped for good, and so are its jobs");
  up->callback([&session, options] {
    session.command = [&session, options] { return Up(session, *options); };
  });

  CLI::App* down = root.add_subcommand("down", "End what muster up started; running jobs go on");
  down->add_option("--data-dir", options->data_dir, "As given to muster up");
  down->add_flag("--stop-jobs", options->stop_jobs, "Stop the jobs first");
  down->callback([&session, options] {
    session.command = [&session, options] { return Down(session, *options); };
  });
}

}  // namespace muster
