#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/along.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/commands/left_behind.h"
#include "cli/commands/log_writer.h"
#include "cli/commands/run_pty.h"
#include "cli/commands/submission.h"
#include "cli/follow.h"

namespace muster {
namespace {

struct RunOptions {
  JobFlags flags;
  std::string directory, key;
  bool detach = false, terminal = false;
};

// Reads each attempt's output as the attempts start, one after the other: stdout onto stdout,
// stderr onto stderr.
class OutputReader {
 public:
  OutputReader(Session& session, Client& client, const Interrupt& interrupt)
      : session_(session), client_(client), interrupt_(interrupt) {}
  ~OutputReader() { Join(); }

  void On(const pb::Job& job) {
    if (job.tasks_size() == 0) return;
    for (const pb::Attempt& attempt : job.tasks(0).attempts()) {
      if (attempt.number() <= newest_ || attempt.start_ns() == 0) continue;
      Join();  // the one before has ended: its stream ends, too
      newest_ = attempt.number();
      pb::LogsRequest request;
      request.set_id(absl::StrCat(job.number()));
      request.set_task(job.tasks(0).name());
      request.set_attempt(newest_);
      request.set_rank(-1);
      request.set_follow(true);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        done_ = false;
      }
      thread_ = std::thread([this, job, request] { Read(job, request); });
    }
    const pb::Attempt* newest = NewestAttempt(job.tasks(0));
    cause_ = newest == nullptr ? pb::CAUSE_UNSPECIFIED : newest->cause();
    if (newest != nullptr && newest->end_ns() > 0) AwaitRest();
  }
  // Once joined: its newest attempt ended as one does that found no program or file.
  bool missed_something() const {
    return cause_ == pb::LAUNCH_FAILED || (cause_ == pb::PROGRAM_ERROR && says_missing_);
  }
  bool complete() const { return complete_; }  // all that was read so far; what isn't was told
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  // What the attempt wrote before it ended stands before the line that says so; but a server that
  // is away must not keep that line back.
  void AwaitRest() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int64_t seen = -1; !done_ && seen != pieces_ && !interrupt_.pending();) {
      seen = pieces_;
      read_.wait_for(lock, std::chrono::seconds(5), [&] { return done_; });
    }
  }

  void Note(bool done) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++pieces_;
      done_ = done;
    }
    if (done) read_.notify_all();
  }

  void Read(const pb::Job& job, const pb::LogsRequest& request) {
    LogWriter writer(session_, job, request, LogWriter::kApart);
    const absl::Status status = ReadLogs(session_, client_, request, interrupt_, &writer, false,
                                         [this] { Note(false); });  // Follow tells
    writer.End();
    says_missing_ = SaysWhatIsMissing(writer.tail());
    if (writer.has_gaps()) complete_ = false;
    if (!status.ok() && !interrupt_.pending()) {
      complete_ = false;
      session_.Err(absl::StrCat(
          "muster: the output is not complete here: ", Plain(std::string(status.message())),
          "  All of it: muster logs ", job.number(), "\n"));
    }
    Note(true);
  }

  Session& session_;
  Client& client_;
  const Interrupt& interrupt_;
  std::thread thread_;
  int newest_ = 0;
  pb::Cause cause_ = pb::CAUSE_UNSPECIFIED;
  std::atomic<bool> complete_{true}, says_missing_{false};
  std::mutex mutex_;
  std::condition_variable read_;
  bool done_ = true;    // the attempt's output was read to its end
  int64_t pieces_ = 0;  // of output so far
};

// What is piped or redirected into this command goes nowhere: a job outlives the shell. A file of
// which something was read already is a loop's, `while read`.
std::string InputStaysBehind() {
  struct stat info;
  if (fstat(STDIN_FILENO, &info) != 0) return "";
  pollfd waiting = {STDIN_FILENO, POLLIN, 0};
  const bool piped =
      S_ISFIFO(info.st_mode) && poll(&waiting, 1, 0) == 1 && (waiting.revents & POLLIN) != 0;
  const bool file =
      S_ISREG(info.st_mode) && info.st_size > 0 && lseek(STDIN_FILENO, 0, SEEK_CUR) == 0;
  if (!piped && !file) return "";
  return "  Standard input doesn't come along: the job reads an empty one. Let it read a file, "
         "of a directory that comes along.\n";
}

// A terminal is one process's, of one attempt, that somebody sits at.
absl::Status CheckTerminal(const Session& session, const RunOptions& options) {
  std::string other;
  if (options.detach) other = "-d";
  if (options.flags.workers > 1) other = "--workers";
  if (options.flags.max_restarts > 0) other = "--max-restarts";
  if (!options.key.empty()) other = "--idempotency-key";
  if (!session.for_people()) other = "--output";
  if (!options.terminal) return absl::OkStatus();
  if (!other.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("--pty is one terminal for one process; leave ", other, " out"));
  if (isatty(STDIN_FILENO) == 0)
    return absl::InvalidArgumentError(
        "--pty wants a terminal, and standard input is none, so nobody could type or hang up; "
        "leave --pty out (the output comes here all the same), or give it a terminal, as script "
        "-qec 'muster run --pty …' /dev/null does");
  return absl::OkStatus();
}

int RunCommand(Session& session, RunOptions options) {
  JobFlags& flags = options.flags;
  Interrupt interrupt(options.terminal ? Interrupt::kHangUpsToo : Interrupt::kInterrupts);
  absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  if (absl::Status status = CheckTerminal(session, options); !status.ok())
    return session.Fail(status);
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  SpecContext context = ContextOf(**client);
  FillFlags(*settings, context, &flags);
  absl::StatusOr<pb::JobSpec> spec = SpecOfFlags(flags);
  if (!spec.ok()) return session.Fail(spec.status());
  if (!options.directory.empty()) spec->mutable_tasks(0)->set_workdir(".");
  Packs packs;
  for (const FieldProblem& problem : packs.AddWorkdirs(options.directory, &*spec))
    return session.Fail(absl::InvalidArgumentError("-C " + problem.message));
  if (absl::Status sent = packs.Send(session, **client, *spec); !sent.ok())
    return session.Fail(sent);
  const bool has_directory = !flags.workdir.empty() || !options.directory.empty();
  LeftBehind left = WhatStaysBehind(session.arguments, flags.command, has_directory, *spec);
  if (options.terminal)
    HoldForTerminal(&*spec);
  else
    absl::StrAppend(&left.text, InputStaysBehind());
  const std::string key = SubmissionKey(options.key);
  absl::StatusOr<pb::SubmitResponse> response = SubmitSpec(**client, *spec, key);
  if (!response.ok()) {
    const std::string wrong = WrongFlags(response.status());
    if (wrong.empty()) return FailSubmitted(session, response.status(), nullptr, key);
    session.Err(wrong);
    return ExitCodeFor(response.status());
  }
  std::string id = absl::StrCat(response->job().number());
  const std::string which =
      absl::StrCat("Job ", id, " ", Plain(response->job().spec().name()),
                   response->existed() ? " was submitted before with this key." : " submitted.");
  if (session.for_people() && !left.text.empty())
    session.Err(absl::StrCat("muster: note:\n", left.text));
  if (options.detach || !session.for_people()) {
    return session.ShowOne(absl::StrCat(which, "  Follow: muster attach ", id, "\n"),
                           response->job(), id);
  }
  if (options.terminal) {
    session.Err(absl::StrCat(which,
                             " Its terminal comes here once it runs; Ctrl+C before that "
                             "cancels the job.\n"));
    return RunInTerminal(session, **client, id, flags.command, interrupt);
  }
  session.Err(absl::StrCat(which, " Its output follows; Ctrl+C stops following, never the job.\n"));
  OutputReader reader(session, **client, interrupt);
  FollowOptions follow;
  follow.events_to_stderr = true;
  follow.on_job = [&](const pb::Job& job) { reader.On(job); };
  const int code = Follow(session, **client, id, interrupt, follow);
  reader.Join();
  if (code == kExitJobFailed && reader.missed_something() && !left.remedy.empty())
    session.Err(absl::StrCat("  With what it missed: ", left.remedy, "\n"));
  return code == kExitOk && !reader.complete() ? static_cast<int>(kExitUnreachable) : code;
}

}  // namespace

void AddRun(CLI::App& root, Session& session) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* run = root.add_subcommand(
      "run", "Run one command as a job: muster run [flags] -- CMD ARGS; its output comes here");
  run->add_option("command", options->flags.command, "The program and its arguments, after --")
      ->required();
  AddJobFlags(run, &options->flags);
  run->add_option("--name", options->flags.name, "Default: the program's name");
  run->add_option("--workers", options->flags.workers, "Identical workers, placed all or none")
      ->check(CLI::Range(1, 65536));
  run->add_option("-C,--directory", options->directory,
                  "Directory that comes along, packed (.musterignore); the job runs in its copy")
      ->excludes(run->get_option("--workdir"));
  run->add_option("--max-restarts", options->flags.max_restarts, "After failures of the program")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  run->add_option(
      "--idempotency-key", options->key,
      "For scripts that repeat themselves: the same key gives the same job, submitted once");
  run->add_flag("-d,--detach", options->detach, "Don't follow");
  run->add_flag("-t,--pty", options->terminal,
                "In a terminal, which is this one; the job ends with the command");
  run->callback([&session, options] {
    session.command = [&session, options] { return RunCommand(session, *options); };
  });
}

}  // namespace muster
