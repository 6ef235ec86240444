#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/commands/log_writer.h"
#include "cli/follow.h"
#include "cli/render/array.h"
#include "cli/render/job.h"
#include "common/base/clock.h"
#include "common/base/protocol.h"
#include "common/base/units.h"

namespace muster {
namespace {

int Attach(Session& session, const std::string& id) {
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  return Follow(session, **client, id, interrupt);
}

// All of them, within one timeout; the exit code is that of the first that did not succeed.
int Wait(Session& session, const std::vector<std::string>& ids, const std::string& timeout) {
  FollowOptions options;
  options.quiet = true;
  if (!timeout.empty()) {
    absl::StatusOr<int64_t> parsed = ParseDuration(timeout);
    if (!parsed.ok())
      return session.Fail(absl::InvalidArgumentError(
          absl::StrCat("--timeout ", timeout, ": ", std::string(parsed.status().message()))));
    options.timeout_ns = std::max<int64_t>(1, *parsed);
    options.since_ns = RealClock()->MonotonicNs();
  }
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  int result = kExitOk;
  for (const std::string& id : ids) {
    int code = Follow(session, **client, id, interrupt, options);
    if (code == kExitInterrupted || code == kExitTimeout) return code;
    if (result == kExitOk) result = code;
  }
  return result;
}

// The job of a schedule that waits for its time, from one of an earlier time; nullopt: it has
// ended.
std::optional<pb::Job> WaitingOne(Client& client, const pb::Job& job) {
  constexpr int kMost = 100;
  std::optional<pb::Job> one;
  uint64_t next = job.occurrence().next();
  for (int i = 0; next != 0 && i < kMost; ++i) {
    absl::StatusOr<pb::Job> found = client.Get(absl::StrCat(next));
    if (!found.ok()) return std::nullopt;
    one = *std::move(found);
    if (one->not_before_ns() != 0) return one;
    next = one->occurrence().next();
  }
  return std::nullopt;
}

int Cancel(Session& session, const std::vector<std::string>& ids, bool wait) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  int result = kExitOk;
  for (const std::string& id : ids) {
    absl::StatusOr<pb::Job> job = (*client)->Cancel(id);
    if (!job.ok()) {
      int code = session.Fail(job.status());
      if (result == kExitOk) result = code;
      continue;
    }
    const std::string name = absl::StrCat(job->has_array() ? "Array " : "Job ", JobId(*job));
    const std::string text =
        job->state() == pb::CANCELLED ? absl::StrCat(name, " is cancelled.\n")
        : HasEnded(job->state())
            ? absl::StrCat(name, " has ended already: ", StateName(job->state()), ".\n")
        : job->has_array()
            ? absl::StrCat(name,
                           " is being cancelled; it ends when all its members' processes are "
                           "gone.\n")
            : absl::StrCat(name, " is being cancelled; it ends when its processes are gone.\n");
    const std::optional<pb::Job> waits =
        session.for_people() ? WaitingOne(**client, *job) : std::nullopt;
    session.ShowOne(waits ? absl::StrCat(text, GoesOnText(*waits, session.now_ns())) : text, *job,
                    JobId(*job));
  }
  if (!wait || result != kExitOk) return result;
  Interrupt interrupt;
  FollowOptions options;
  options.quiet = true;
  for (const std::string& id : ids) {
    int code = Follow(session, **client, id, interrupt, options);
    if (code == kExitInterrupted || code == kExitUnreachable) return code;
  }
  return kExitOk;
}

// Why a job that has ended has nothing to show.
std::string WhyNothing(const pb::Job& job, const pb::LogsRequest& request) {
  const bool ran = HasRun(job);
  if (request.rank() == kReportsRank) {
    return !job.spec().has_track() ? " has no track in its file, so what it reports isn't kept"
           : ran ? " left no reports: its rank 0 sent none, or its host no longer keeps them"
                 : " never ran, so it left no reports";
  }
  return ran ? " left no output: its processes wrote none, or its hosts no longer keep it"
             : " never ran, so it left no output";
}

// Of a job with several tasks that have run, none of which was asked for, it asks for the one that
// was placed last, the file's first of those that start together; and says so.
std::string ChooseTask(const pb::Job& job, pb::LogsRequest* request) {
  std::vector<std::string> ran, others;
  const pb::Task* newest = nullptr;
  for (const pb::Task& task : job.tasks()) {
    if (task.attempts_size() == 0) continue;
    ran.push_back(task.name());
    if (newest == nullptr || NewestAttempt(task)->place_ns() > NewestAttempt(*newest)->place_ns())
      newest = &task;
  }
  if (!request->task().empty() || ran.size() < 2) return "";
  request->set_task(newest->name());
  std::copy_if(ran.begin(), ran.end(), std::back_inserter(others),
               [&](const std::string& name) { return name != newest->name(); });
  return absl::StrCat("muster: job ", JobId(job), " has tasks ", absl::StrJoin(ran, ", "),
                      "; this is ", newest->name(), ", the newest that ran. Another: --task ",
                      others[0], "\n");
}

int Logs(Session& session, pb::LogsRequest request) {
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::Job> job = (*client)->Get(request.id());
  if (!job.ok()) return session.Fail(job.status());
  if (const std::string chosen = ChooseTask(*job, &request); session.for_people())
    session.Err(chosen);
  if (session.for_people() && request.follow() && !HasEnded(job->state()) && !job->has_array() &&
      !HasRun(*job)) {
    session.Err(absl::StrCat("muster: job ", JobId(*job),
                             " waits; its output follows as soon as it runs.  Why: muster explain ",
                             JobId(*job), "\n"));
  }
  LogWriter writer(session, *job, request, LogWriter::kTogether);
  const absl::Status status = ReadLogs(session, **client, request, interrupt, &writer, true);
  writer.End();
  if (interrupt.pending()) return kExitInterrupted;
  if (status.ok() && !writer.wrote() && HasEnded(job->state()) && session.for_people())
    session.Err(absl::StrCat("muster: job ", JobId(*job), WhyNothing(*job, request), "\n"));
  if (!status.ok()) return session.Fail(status);
  return writer.has_gaps() && !request.follow() ? kExitUnreachable : kExitOk;
}

}  // namespace

void AddFollow(CLI::App& root, Session& session) {
  auto ids = std::make_shared<std::vector<std::string>>();
  auto id = std::make_shared<std::string>();
  CLI::App* attach =
      root.add_subcommand("attach", "Follow a job; Ctrl+C stops following, never the job");
  attach->add_option("job", *id, "Number or uid; of an array's member 17_3")->required();
  attach->callback(
      [&session, id] { session.command = [&session, id] { return Attach(session, *id); }; });

  auto timeout = std::make_shared<std::string>();
  CLI::App* wait =
      root.add_subcommand("wait", "Block until jobs have ended; the exit code tells how");
  wait->add_option("jobs", *ids, "Numbers or uids; of an array's members 17_3")->required();
  wait->add_option("--timeout", *timeout,
                   "Give up after so long, such as 10m, however many jobs: exit 124");
  wait->callback([&session, ids, timeout] {
    session.command = [&session, ids, timeout] { return Wait(session, *ids, *timeout); };
  });

  auto until_gone = std::make_shared<bool>(false);
  CLI::App* cancel = root.add_subcommand("cancel", "Stop jobs for good (scancel)");
  cancel->add_option("jobs", *ids, "Numbers or uids; of an array's members 17_3")->required();
  cancel->add_flag("--wait", *until_gone, "Until their processes are gone");
  auto yes = std::make_shared<bool>(false);
  cancel->add_flag("-y,--yes", *yes,
                   "Don't ask: it never does; for scripts that say so everywhere");
  cancel->callback([&session, ids, until_gone, yes] {
    session.command = [&session, ids, until_gone] { return Cancel(session, *ids, *until_gone); };
  });

  auto request = std::make_shared<pb::LogsRequest>();
  struct LogOptions {
    std::string id, task;
    int attempt = 0, rank = -1;
    int64_t tail = 0, from = -1;
    bool follow = false, reports = false;
  };
  auto log = std::make_shared<LogOptions>();
  CLI::App* logs = root.add_subcommand("logs", "Output of a job's processes");
  logs->add_option("job", log->id, "Number or uid; of an array's member 17_3")->required();
  logs->add_flag("-f,--follow", log->follow, "Until the task has ended");
  CLI::Option* task = logs->add_option("--task", log->task,
                                       "Default: the newest that ran; of those that start "
                                       "together the file's first");
  CLI::Option* attempt = logs->add_option("--attempt", log->attempt, "Default: the newest")
                             ->check(CLI::Range(1, 1000000));
  logs->add_option("--rank", log->rank, "Default: all, each line with its rank")
      ->check(CLI::Range(0, 1 << 26));
  logs->add_option("--tail", log->tail, "Only the last N lines")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  CLI::Option* reports = logs->add_flag("--reports", log->reports,
                                        "Instead of output: each step that rank 0 reported, as "
                                        "JSON, of a job with track");
  logs->add_option("--from", log->from,
                   "With --reports, --task and --attempt: goes on from a next_offset of -o jsonl, "
                   "and on to later attempts")
      ->check(CLI::Range(int64_t{0}, INT64_MAX))
      ->needs(reports)
      ->needs(task)
      ->needs(attempt);
  logs->callback([&session, log, request] {
    request->set_id(log->id);
    request->set_task(log->task);
    request->set_attempt(log->attempt);
    request->set_rank(log->reports ? kReportsRank : log->rank);
    if (log->from >= 0) {
      request->clear_attempt();
      request->mutable_from()->set_task(log->task);
      request->mutable_from()->set_attempt(log->attempt);
      (*request->mutable_from()->mutable_next_offsets())[kReportsRank] = log->from;
    }
    request->set_follow(log->follow);
    request->set_tail_lines(log->tail);
    session.command = [&session, request] { return Logs(session, *request); };
  });
}

}  // namespace muster
