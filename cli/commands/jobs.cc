#include <algorithm>

#include <CLI/CLI.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "cli/keys.h"
#include "cli/render/array.h"
#include "cli/render/job.h"
#include "cli/up/lock.h"
#include "common/spec/spec.h"

namespace muster {
namespace {

struct ListOptions {
  std::string queue, owner, state;
  std::vector<std::string> labels;
  int limit = 1000;
  bool all = false;
  bool watch = false;
  std::string array;  // its members
  bool exported = false;
  int64_t ended_after_ns = 0;
  bool tasks = false;
};

// Whether a flag leaves out jobs that would be listed without it.
bool LeavesOut(const ListOptions& options) {
  return !options.state.empty() || !options.queue.empty() || !options.owner.empty() ||
         !options.labels.empty() || options.exported || options.ended_after_ns != 0;
}

bool Filtered(const ListOptions& options) { return options.all || LeavesOut(options); }

absl::StatusOr<pb::ListJobsRequest> ListRequest(const ListOptions& options, bool finished) {
  pb::ListJobsRequest request;
  request.set_array(options.array);
  request.set_exported(options.exported);
  request.set_ended_after_ns(options.ended_after_ns);
  request.set_queue(options.queue);
  request.set_owner(options.owner);
  for (const std::string& label : options.labels) {
    size_t equals = label.find('=');
    if (equals == std::string::npos)
      return absl::InvalidArgumentError(absl::StrCat("--label ", label, ": write KEY=VALUE"));
    (*request.mutable_labels())[label.substr(0, equals)] = label.substr(equals + 1);
  }
  if (!options.state.empty()) {
    pb::JobState state;
    if (!pb::JobState_Parse(absl::AsciiStrToUpper(options.state), &state) ||
        state == pb::JOB_STATE_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--state ", options.state, ": one of waiting, running, succeeded, failed, cancelled"));
    }
    request.add_states(state);
  } else if (!options.array.empty()) {
    // of any state
  } else if (finished) {
    for (pb::JobState state : {pb::SUCCEEDED, pb::FAILED, pb::CANCELLED}) request.add_states(state);
  } else if (!options.all) {
    for (pb::JobState state : {pb::WAITING, pb::RUNNING}) request.add_states(state);
  }
  return request;
}

// All pages up to `limit` jobs; *more says whether there would have been others.
absl::StatusOr<pb::ListJobsResponse> ListAll(Client& client, pb::ListJobsRequest request, int limit,
                                             bool* more) {
  pb::ListJobsResponse all;
  *more = false;
  for (;;) {
    request.set_page_size(std::min(1000, limit - all.jobs_size()));
    absl::StatusOr<pb::ListJobsResponse> page = client.List(request);
    if (!page.ok()) return page.status();
    for (pb::Job& job : *page->mutable_jobs()) all.add_jobs()->Swap(&job);
    *more = !page->next_page_token().empty();
    if (!*more || all.jobs_size() >= limit || page->next_page_token() == request.page_token())
      return all;
    request.set_page_token(page->next_page_token());
  }
}

// The job itself, where it has no members.
absl::StatusOr<pb::ListJobsResponse> TheJobAlone(Client& client, const ListOptions& options) {
  absl::StatusOr<pb::Job> job = client.Get(options.array);
  if (!job.ok()) return job.status();
  const std::string id = JobId(*job);
  if (options.tasks)
    return absl::InvalidArgumentError(
        absl::StrCat("job ", id, job->has_member() ? " is a member" : " is no array",
                     ": it has no members. All of it: muster show ", id));
  pb::ListJobsResponse response;
  *response.add_jobs() = *std::move(job);
  return response;
}

// Why nothing of `jobs JOB` with filters is there, where the job has no members; else `refused`.
absl::Status WhyNoMembers(Client& client, const ListOptions& options, const absl::Status& refused) {
  const absl::StatusOr<pb::Job> job = client.Get(options.array);
  if (!job.ok() || job->has_array()) return refused;
  const std::string id = JobId(*job);
  return absl::NotFoundError(
      absl::StrCat("job ", id, job->has_member() ? " is a member" : " is no array",
                   ": flags such as --state choose among an array's members, and it has none. The "
                   "job itself: muster jobs ",
                   id));
}

// Of members alone, of jobs that have all ended, or of what goes on.
Table TableOf(const std::vector<pb::Job>& jobs, const ListOptions& options, bool finished,
              int64_t now_ns) {
  const bool one = !options.array.empty() && jobs.size() == 1 && !jobs[0].has_member();
  if (!options.array.empty() && !one) return MembersTable(jobs, now_ns);
  if (finished || (one && HasEnded(jobs[0].state()))) return HistoryTable(jobs, now_ns);
  return JobsTable(jobs, now_ns);
}

// What the `muster up` behind this server has to say: its agent may keep ending while the daemon
// answers.
void TellTrouble(const Session& session, const std::string& server) {
  const UpHolder holder = UpLock::Serving(server, ProcessEnvironment);
  for (absl::string_view line : absl::StrSplit(holder.trouble, '\n', absl::SkipEmpty()))
    session.Err(absl::StrCat("muster up: ", Plain(std::string(line)), "\n"));
}

int ShowList(Session& session, const ListOptions& options, bool finished) {
  absl::StatusOr<pb::ListJobsRequest> request = ListRequest(options, finished);
  if (!request.ok()) return session.Fail(request.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  bool more = false;
  absl::StatusOr<pb::ListJobsResponse> response = ListAll(**client, *request, options.limit, &more);
  // With a filter NOT_FOUND may be of a queue, and the job itself could be what was filtered out.
  if (!options.array.empty() && absl::IsNotFound(response.status())) {
    if (LeavesOut(options)) return session.Fail(WhyNoMembers(**client, options, response.status()));
    response = TheJobAlone(**client, options);
  }
  if (!response.ok()) return session.Fail(response.status());
  if (session.for_people()) TellTrouble(session, (*client)->server());
  std::vector<pb::Job> jobs(response->jobs().begin(), response->jobs().end());
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Job& job : response->jobs()) {
    rows.push_back(&job);
    names.push_back(JobId(job));
  }
  const Table table = TableOf(jobs, options, finished, session.now_ns());
  if (jobs.empty() && session.for_people()) {
    session.Err(Filtered(options) ? "No such jobs.\n"
                : finished        ? "No finished jobs.  Unfinished ones: muster jobs\n"
                                  : "No unfinished jobs.  Finished ones: muster history\n");
    return kExitOk;
  }
  int code = session.Show(table, *response, rows, names);
  if (more)
    session.Err(absl::StrCat("There are more than ", options.limit, ": --limit N shows them.\n"));
  return code;
}

int WatchList(Session& session, const ListOptions& options) {
  Interrupt interrupt;
  Keys keys(session.out_screen().live);
  for (;;) {
    if (session.out_screen().live) session.Out("\x1b[H\x1b[2J");
    int code = ShowList(session, options, false);
    if (code != kExitOk || session.out_failed()) return code;
    const Keys::Woken woken = keys.WaitFor(interrupt, 2000);
    if (woken == Keys::kQuit) return kExitOk;
    if (woken == Keys::kInterrupt) return kExitInterrupted;
    if (!session.out_screen().live && session.for_people()) session.Out("\n");
  }
}

int ShowJob(Session& session, const std::string& id, bool spec_only) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::Job> job = (*client)->Get(id);
  if (!job.ok()) return session.Fail(job.status());
  if (spec_only) {
    session.Out(SpecToYaml(OwnSpec(*job)));
    return kExitOk;
  }
  return session.ShowOne(RenderJob(*job, session.out_screen(), session.now_ns()), *job,
                         JobId(*job));
}

void AddListOptions(CLI::App* command, const std::shared_ptr<ListOptions>& options) {
  command->add_option("--queue", options->queue, "Only this queue and those below it");
  command->add_option("--owner", options->owner, "Only this user's");
  command->add_option("--label", options->labels, "Only with KEY=VALUE; may be repeated");
  command->add_option("--state", options->state,
                      "waiting, running, succeeded, failed or cancelled");
  command->add_option("--limit", options->limit, "At most so many, newest first")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
}

}  // namespace

void AddJobs(CLI::App& root, Session& session) {
  auto list = std::make_shared<ListOptions>();
  CLI::App* jobs = root.add_subcommand("jobs", "List unfinished jobs (squeue)");
  AddListOptions(jobs, list);
  jobs->add_option("job", list->array, "An array's number: its members, finished ones, too");
  jobs->add_flag("-t,--tasks", list->tasks, "With an array's number: its members, one a row");
  jobs->add_flag("-a,--all", list->all, "Finished ones, too");
  jobs->add_flag("--exported", list->exported,
                 "Only with track or notify; for programs that export");
  jobs->add_option("--ended-after", list->ended_after_ns,
                   "With --all: of those that have ended, only what ended after this Unix time in "
                   "nanoseconds");
  jobs->add_flag("-w,--watch", list->watch, "Look again every 2 s until q or Ctrl+C");
  jobs->callback([&session, list] {
    session.command = [&session, list] {
      if (list->tasks && list->array.empty()) {
        return session.Fail(absl::InvalidArgumentError(
            "--tasks shows the members of one array; name it: muster jobs 17 --tasks"));
      }
      return list->watch ? WatchList(session, *list) : ShowList(session, *list, false);
    };
  });

  auto past = std::make_shared<ListOptions>();
  CLI::App* history = root.add_subcommand("history", "List finished jobs (sacct)");
  AddListOptions(history, past);
  history->callback([&session, past] {
    session.command = [&session, past] { return ShowList(session, *past, true); };
  });

  auto id = std::make_shared<std::string>();
  auto spec_only = std::make_shared<bool>(false);
  CLI::App* show = root.add_subcommand("show", "One job whole: tasks, attempts, checkpoints");
  show->add_option("job", *id, "Number or uid; of an array's member 17_3")->required();
  show->add_flag("--spec", *spec_only, "Its job file, to submit again");
  show->callback([&session, id, spec_only] {
    session.command = [&session, id, spec_only] { return ShowJob(session, *id, *spec_only); };
  });
}

}  // namespace muster
