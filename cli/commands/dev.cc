// muster dev: jobs whose program is muster_dev (docs/dev.md), by the names that their owners gave
// them. What they run, and when they end by themselves, is the program's matter.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/commands/local_port.h"
#include "cli/commands/run_beside.h"
#include "cli/follow.h"
#include "cli/provider/open_browser.h"
#include "cli/render/array.h"
#include "cli/render/job.h"
#include "common/base/files.h"
#include "common/base/hidden.h"
#include "common/base/units.h"
#include "common/spec/when.h"

namespace muster {
namespace {

using ::nlohmann::json;

constexpr char kLabel[] = "muster-dev", kLabelValue[] = "environment";
constexpr char kDefaultName[] = "dev";
constexpr char kWaitForServer[] = "--wait=120";
constexpr int kPythonWords = 3;  // python -m muster_dev

bool IsEnvironment(const pb::Job& job) {
  const auto label = job.spec().labels().find(kLabel);
  return label != job.spec().labels().end() && label->second == kLabelValue &&
         job.spec().tasks_size() == 1 && job.spec().tasks(0).run().exec_size() >= kPythonWords;
}

// The caller's own, the newest first, without what they run.
absl::StatusOr<pb::ListJobsResponse> Environments(Client& client,
                                                  const std::vector<pb::JobState>& states) {
  const absl::StatusOr<pb::PingResponse> ping = client.Ping();
  if (!ping.ok()) return ping.status();
  pb::ListJobsRequest request;
  request.set_owner(ping->user());
  request.set_page_size(1000);
  (*request.mutable_labels())[kLabel] = kLabelValue;
  for (pb::JobState state : states) request.add_states(state);
  return client.List(request);
}

const std::vector<pb::JobState> kThere = {pb::WAITING, pb::RUNNING};
const std::vector<pb::JobState> kEnded = {pb::SUCCEEDED, pb::FAILED, pb::CANCELLED};

// "environment dev (job 17)"
std::string NameOf(const pb::Job& job) {
  return absl::StrCat("environment ", Plain(job.spec().name()), " (job ", JobId(job), ")");
}

absl::StatusOr<pb::Job> GetEnvironment(Client& client, const std::string& id) {
  absl::StatusOr<pb::Job> job = client.Get(id);
  if (!job.ok() || IsEnvironment(*job)) return job;
  return absl::InvalidArgumentError(
      absl::StrCat("job ", id, " is no environment: muster dev list shows yours"));
}

// By number, or by name, the newest; empty: the only one. `ended`: one that has ended.
absl::StatusOr<pb::Job> Find(Client& client, const std::string& which, bool ended) {
  uint64_t number = 0;
  if (absl::SimpleAtoi(which, &number)) return GetEnvironment(client, which);
  const absl::StatusOr<pb::ListJobsResponse> found = Environments(client, ended ? kEnded : kThere);
  if (!found.ok()) return found.status();
  std::vector<const pb::Job*> fitting;
  for (const pb::Job& job : found->jobs()) {
    if (which.empty() || job.spec().name() == which) fitting.push_back(&job);
  }
  if (fitting.empty() && !ended) {
    const absl::StatusOr<pb::Job> last = Find(client, which, /*ended=*/true);
    if (last.ok())
      return absl::NotFoundError(
          absl::StrCat(NameOf(*last), " goes on no more: ", OutcomeLine(*last),
                       " What it said: muster logs ", JobId(*last), ". A new one: muster dev up"));
  }
  if (fitting.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "you have no environment", which.empty() ? "" : absl::StrCat(" ", which),
        ended ? " that has ended" : "", ": muster dev list -a; a new one: muster dev up"));
  }
  // Of one name there is one that goes on at most; of those that have ended the last one counts.
  const bool same = std::all_of(fitting.begin(), fitting.end(), [&](const pb::Job* job) {
    return job->spec().name() == fitting[0]->spec().name();
  });
  if (!same || (!ended && fitting.size() > 1)) {
    std::string names;
    for (const pb::Job* job : fitting)
      absl::StrAppend(&names, names.empty() ? "" : ", ", Plain(job->spec().name()), " (",
                      JobId(*job), ")");
    return absl::InvalidArgumentError(
        absl::StrCat("which one? There are ", names, "; write its number"));
  }
  return GetEnvironment(client, JobId(*fitting[0]));
}

// A name stands for one that goes on, so there is one of it.
absl::Status CheckNameIsFree(Client& client, const std::string& name) {
  const absl::StatusOr<pb::ListJobsResponse> found = Environments(client, kThere);
  if (!found.ok()) return found.status();
  for (const pb::Job& job : found->jobs()) {
    if (job.spec().name() == name)
      return absl::InvalidArgumentError(absl::StrCat("there is ", NameOf(job),
                                                     " already: muster dev open ", JobId(job),
                                                     ". Another one needs another --name"));
  }
  return absl::OkStatus();
}

// ---- up, resume ----

struct UpOptions {
  JobFlags flags;
  std::string idle = "2h", python;
};

// The one whose environment is active in this shell, else the hosts' own.
std::string DefaultPython() {
  const char* active = getenv("VIRTUAL_ENV");
  return active == nullptr || *active == '\0' ? "python3" : absl::StrCat(active, "/bin/python");
}

int SubmitEnvironment(Session& session, Client& client, const pb::JobSpec& spec) {
  const std::string key = SubmissionKey("");
  const absl::StatusOr<pb::SubmitResponse> response = SubmitSpec(client, spec, key);
  if (!response.ok()) {
    const std::string wrong = WrongFlags(response.status());
    if (wrong.empty()) return FailSubmitted(session, response.status(), nullptr, key);
    session.Err(wrong);
    return ExitCodeFor(response.status());
  }
  const std::string id = JobId(response->job());
  return session.ShowOne(absl::StrCat("Environment ", Plain(spec.name()), " is job ", id,
                                      ".  Open it once it runs: muster dev open ", id, "\n"),
                         response->job(), id);
}

int Up(Session& session, UpOptions options) {
  const absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  const absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  FillFlags(*settings, ContextOf(**client), &options.flags);
  std::string idle_s = options.idle;
  if (options.idle != "never") {
    const absl::StatusOr<int64_t> idle = ParseDuration(options.idle);
    if (!idle.ok())
      return session.Fail(absl::InvalidArgumentError(
          absl::StrCat("--idle ", options.idle, ": ", idle.status().message(), ", or never")));
    if (*idle < kSecond || *idle % kSecond != 0)
      return session.Fail(absl::InvalidArgumentError(
          absl::StrCat("--idle ", options.idle, ": wants whole seconds, or never")));
    idle_s = absl::StrCat(*idle / kSecond, "s");  // ParseDuration takes more forms than it does
  }
  const std::string python = options.python.empty() ? DefaultPython() : options.python;
  options.flags.command = {python, "-m", "muster_dev", absl::StrCat("--idle=", idle_s)};
  absl::StatusOr<pb::JobSpec> spec = SpecOfFlags(options.flags);
  if (!spec.ok()) return session.Fail(spec.status());
  (*spec->mutable_labels())[kLabel] = kLabelValue;
  spec->mutable_tasks(0)->set_processes_per_worker(1);  // whatever its GPUs
  if (absl::Status status = CheckNameIsFree(**client, spec->name()); !status.ok())
    return session.Fail(status);
  return SubmitEnvironment(session, **client, *spec);
}

int ResumeEnvironment(Session& session, const std::string& which) {
  const absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::Job> job = Find(**client, which, /*ended=*/true);
  if (!job.ok()) return session.Fail(job.status());
  if (!HasEnded(job->state()))
    return session.Fail(absl::FailedPreconditionError(
        absl::StrCat(NameOf(*job), " has not ended: muster dev open ", JobId(*job))));
  if (absl::Status status = CheckNameIsFree(**client, job->spec().name()); !status.ok())
    return session.Fail(status);
  pb::JobSpec spec = OwnSpec(*job);
  ClearTimes(&spec);
  const bool hidden = std::any_of(spec.env().begin(), spec.env().end(), [](const auto& variable) {
    return variable.second == kHiddenValue;
  });
  if (hidden)
    return session.Fail(absl::PermissionDeniedError(
        absl::StrCat(NameOf(*job), " is ", Plain(job->owner()), "'s, who alone can resume it")));
  // Where it had no directory of its user's, its files are in the job's, in one cluster.
  if (spec.tasks(0).workdir().empty() && !job->directory().empty()) {
    spec.mutable_tasks(0)->set_workdir(absl::StrCat(job->directory(), "/work"));
    spec.clear_clusters();
    spec.add_clusters(job->cluster());
  }
  return SubmitEnvironment(session, **client, spec);
}

// ---- open ----

struct OpenOptions {
  std::string which;
  int port = 0;
  bool no_browser = false;
};

struct Entrance {
  int port = 0;
  std::string token;
};

// Until it runs, or the interrupt is pending; while its server is away, too. Says once why it
// waits.
absl::Status AwaitRunning(Session& session, Client& client, const std::string& id,
                          const Interrupt& interrupt) {
  std::string said;
  absl::Status found;
  const auto on = [&](const pb::WatchJobResponse& now) {
    const pb::Job& job = now.job();
    if (HasEnded(job.state())) {
      found = absl::FailedPreconditionError(absl::StrCat(
          OutcomeLine(job), " What it said: muster logs ", id,
          job.state() == pb::FAILED ? ". Again, once that is mended" : ". Back with its files",
          ": muster dev resume ", id));
      return false;
    }
    if (job.tasks_size() > 0 && job.tasks(0).state() == pb::TASK_RUNNING) return false;
    const std::string why = WhyText(job, session.now_ns());
    if (why != said)
      session.Err(absl::StrCat("muster: job ", id, " does not run yet: ", why,
                               "\n  this waits until it does; Ctrl+C leaves it waiting alone\n"));
    said = why;
    return true;
  };
  const absl::Status status =
      WatchThrough(session, client, id, interrupt,
                   "the environment goes on without it. Trying again; Ctrl+C leaves it alone", on);
  return status.ok() ? found : status;
}

absl::StatusOr<Entrance> Parse(const std::string& text, const std::string& job_id) {
  const json said = json::parse(text, nullptr, /*allow_exceptions=*/false);
  Entrance entrance;
  if (said.is_object() && said.contains("port") && said["port"].is_number_integer() &&
      said.contains("token") && said["token"].is_string()) {
    entrance.port = said["port"];
    entrance.token = said["token"];
  }
  const bool plain = std::all_of(entrance.token.begin(), entrance.token.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
  if (entrance.port < 1 || entrance.port > 65'535 || entrance.token.empty() || !plain)
    return absl::FailedPreconditionError(absl::StrCat(
        "muster_dev of job ", job_id, " didn't tell its port and token as this muster reads them: ",
        "pip install Muster's python/ folder anew where its Python is, and start it anew: muster ",
        "dev stop ", job_id, "; muster dev resume ", job_id));
  return entrance;
}

// The environment itself is asked, beside its server. What it says passes no command line and no
// log.
absl::StatusOr<Entrance> AskEntrance(const Session& session, Client& client, const pb::Job& job,
                                     const Interrupt& interrupt) {
  pb::ExecStart exec;
  exec.set_id(JobId(job));
  for (int i = 0; i < kPythonWords; ++i) exec.add_command(job.spec().tasks(0).run().exec(i));
  exec.add_command("session");
  exec.add_command(kWaitForServer);
  const absl::StatusOr<RanBeside> ran =
      RunBesideAgain(&client, interrupt, exec, [&](const std::string& why) {
        session.Err(absl::StrCat("muster: ", why, "; it is asked again, for a minute\n"));
      });
  if (!ran.ok()) return ran.status();
  if (ran->exit_code != 0)
    return absl::FailedPreconditionError(
        absl::StrCat("its server can't be entered; what it said: muster logs ", JobId(job)));
  return Parse(ran->output, JobId(job));
}

// A page that leads to `url`, which only this user can read: a browser's command line is for all
// to see.
class PrivatePage {
 public:
  explicit PrivatePage(const std::string& url) {
    std::string name = std::filesystem::temp_directory_path() / "muster-dev-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) return;
    directory_ = name;
    const std::string page =
        absl::StrCat("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=", url,
                     "\"><a href=\"", url, "\">JupyterLab</a>\n");
    if (WriteFileDurably(path(), page).ok()) is_there_ = true;
  }
  ~PrivatePage() {
    std::error_code error;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, error);
  }
  PrivatePage(const PrivatePage&) = delete;
  PrivatePage& operator=(const PrivatePage&) = delete;

  std::string path() const { return directory_ + "/open.html"; }
  bool is_there() const { return is_there_; }

 private:
  std::string directory_;
  bool is_there_ = false;
};

int Open(Session& session, const OpenOptions& options) {
  Interrupt interrupt;
  const absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::Job> job = Find(**client, options.which, /*ended=*/false);
  if (!job.ok()) return session.Fail(job.status());
  const absl::Status runs = AwaitRunning(session, **client, JobId(*job), interrupt);
  if (interrupt.pending()) return kExitInterrupted;
  if (!runs.ok()) return session.Fail(runs);
  const absl::StatusOr<Entrance> entrance = AskEntrance(session, **client, *job, interrupt);
  if (interrupt.pending()) return kExitInterrupted;
  if (!entrance.ok()) return session.Fail(entrance.status());
  int local = options.port;
  const absl::StatusOr<int> listener = ListenLocally(&local);
  if (!listener.ok()) return session.Fail(listener.status());
  const std::string url = absl::StrCat("http://127.0.0.1:", local, "/lab?token=", entrance->token);
  session.Out(absl::StrCat(url, "\n"));
  session.Err(absl::StrCat(
      "muster: this address is of ", NameOf(*job),
      "; whoever has it can use it, until the environment's next start. Ctrl+C closes the way to "
      "it; the environment goes on.\n"));
  std::unique_ptr<PrivatePage> page;
  if (!options.no_browser) {
    page = std::make_unique<PrivatePage>(url);
    if (page->is_there()) OpenBrowser("file://" + page->path());
  }
  pb::TunnelInput start;
  start.mutable_forward()->set_id(JobId(*job));
  start.mutable_forward()->set_port(entrance->port);
  CarryConnections(session, **client, start, *listener, interrupt);
  return kExitInterrupted;
}

// ---- list, stop ----

int List(Session& session, bool all) {
  const absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const absl::StatusOr<pb::ListJobsResponse> found =
      Environments(**client, all ? std::vector<pb::JobState>{} : kThere);
  if (!found.ok()) return session.Fail(found.status());
  if (found->jobs().empty() && session.for_people()) {
    session.Err(all ? "You had no environment yet.  A first one: muster dev up\n"
                    : "No environment of yours waits or runs.  Ended ones: muster dev list -a\n");
    return kExitOk;
  }
  const std::vector<pb::Job> jobs(found->jobs().begin(), found->jobs().end());
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Job& job : found->jobs()) {
    rows.push_back(&job);
    names.push_back(JobId(job));
  }
  return session.Show(JobsTable(jobs, session.now_ns()), *found, rows, names);
}

int Stop(Session& session, const std::string& which) {
  const absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::Job> job = Find(**client, which, /*ended=*/false);
  if (!job.ok()) return session.Fail(job.status());
  job = (*client)->Cancel(JobId(*job));
  if (!job.ok()) return session.Fail(job.status());
  const std::string id = JobId(*job);
  return session.ShowOne(
      absl::StrCat("Environment ", Plain(job->spec().name()), " (job ", id,
                   ") is stopped, and its devices are released. Its files stay.  Back with them: "
                   "muster dev resume ",
                   id, "\n"),
      *job, id);
}

void AddWhich(CLI::App* command, std::string* which) {
  command->add_option("environment", *which, "Its number or name; default: the only one");
}

}  // namespace

void AddDev(CLI::App& root, Session& session) {
  CLI::App* dev = root.add_subcommand(
      "dev", "Environments to develop in: JupyterLab on devices that are held until it is idle");
  dev->require_subcommand(1);

  auto made = std::make_shared<UpOptions>();
  CLI::App* up = dev->add_subcommand("up", "Hold devices, and run JupyterLab there");
  AddJobFlags(up, &made->flags);
  made->flags.name = kDefaultName;
  up->add_option("--name", made->flags.name, "Of the environment")->capture_default_str();
  up->add_option("--idle", made->idle,
                 "Release it after so long without a busy kernel, a command or GPU use; never")
      ->capture_default_str();
  up->add_option("--python", made->python,
                 "Of the hosts, with jupyterlab and muster_dev; default: that of this shell's "
                 "virtual environment, else python3");
  up->callback(
      [&session, made] { session.command = [&session, made] { return Up(session, *made); }; });

  auto all = std::make_shared<bool>(false);
  CLI::App* list = dev->add_subcommand("list", "Your environments");
  list->add_flag("-a,--all", *all, "Ended ones, too");
  list->callback(
      [&session, all] { session.command = [&session, all] { return List(session, *all); }; });

  auto opened = std::make_shared<OpenOptions>();
  CLI::App* open = dev->add_subcommand(
      "open", "Lead a port of this machine to its JupyterLab, and say the address");
  AddWhich(open, &opened->which);
  open->add_option("--port", opened->port, "Of this machine; default: one that is free")
      ->check(CLI::Range(1, 65'535));
  open->add_flag("--no-browser", opened->no_browser, "Only say the address");
  open->callback([&session, opened] {
    session.command = [&session, opened] { return Open(session, *opened); };
  });

  auto stopped = std::make_shared<std::string>();
  CLI::App* stop = dev->add_subcommand("stop", "Release its devices; its files stay");
  AddWhich(stop, stopped.get());
  stop->callback([&session, stopped] {
    session.command = [&session, stopped] { return Stop(session, *stopped); };
  });

  auto resumed = std::make_shared<std::string>();
  CLI::App* resume =
      dev->add_subcommand("resume", "Start one that has ended again, with its files; a new job");
  AddWhich(resume, resumed.get());
  resume->callback([&session, resumed] {
    session.command = [&session, resumed] { return ResumeEnvironment(session, *resumed); };
  });
}

}  // namespace muster
