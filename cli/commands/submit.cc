#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands/along.h"
#include "cli/commands/at_time.h"
#include "cli/commands/commands.h"
#include "cli/commands/failed_members.h"
#include "cli/commands/fit.h"
#include "cli/commands/resume_from.h"
#include "cli/commands/run_pty.h"
#include "cli/commands/submission.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "cli/render/array.h"
#include "cli/render/job.h"
#include "cli/render/preview.h"
#include "common/base/hidden.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "common/spec/placement_defaults.h"
#include "common/spec/when.h"

namespace muster {
namespace {

struct SubmitOptions {
  std::vector<std::string> files;
  std::string job;              // what is submitted again; empty: files are
  std::optional<JobFile> made;  // by another command, and no file
  bool resumes = false;         // from its checkpoints
  bool failed = false;          // of an array: only members that have failed
  std::string queue, key, directory;
  std::vector<std::string> settings, env, secrets, sweep, after, after_any;
  std::string on, resume_from;
  std::optional<std::string> at, schedule;
  std::optional<std::string> array;
  bool yes = false, detach = false, preview_only = false, detailed_exitcode = false,
       wait_for_capacity = false;
};

struct Submission {
  JobFile file;
  pb::JobSpec spec;
};

// Its directories, and the one of -C for all tasks. Not kExitOk: it was told why.
int PackFor(Session& session, const SubmitOptions& options, const JobFile& file, Packs* packs,
            pb::JobSpec* spec) {
  const bool all = !options.directory.empty();
  for (pb::TaskSpec& task : *spec->mutable_tasks()) {
    if (!all) continue;
    task.set_workdir(".");
    task.clear_workdir_digest();
  }
  const std::vector<FieldProblem> problems =
      packs->AddWorkdirs(all ? options.directory : BaseOf(file.name), spec);
  if (problems.empty()) return kExitOk;
  if (all) return session.Fail(absl::InvalidArgumentError("-C " + problems.front().message));
  return FailWithProblems(session, PlaceProblems(file.text, file.name, problems), file,
                          "nothing was submitted");
}

bool IsHidden(const pb::JobSpec& spec) {
  const auto hidden = [](const auto& env) {
    return std::any_of(env.begin(), env.end(),
                       [](const auto& variable) { return variable.second == kHiddenValue; });
  };
  return hidden(spec.env()) || std::any_of(spec.tasks().begin(), spec.tasks().end(),
                                           [&](const auto& task) { return hidden(task.env()); });
}

// What was submitted, as a file. PERMISSION_DENIED: the caller may not read all of it.
absl::StatusOr<JobFile> FileOf(const Session& session, const SubmitOptions& options,
                               const pb::Job& job) {
  const std::string id = JobId(job), name = absl::StrCat("job ", id);
  if (IsHidden(job.spec())) {
    return absl::PermissionDeniedError(
        absl::StrCat(name, " is ", Plain(job.owner()), "'s, and its environment is hidden from you",
                     ". Ask for its file, or take the rest: muster show ", id, " --spec"));
  }
  if (HoldsForTerminal(job.spec())) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "'s command had a terminal, and none would come to another job. Start ",
                     "it in this one: muster run --pty -- CMD ARGS, with its words as muster show ",
                     id, " --spec has them"));
  }
  pb::JobSpec spec = OwnSpec(job);
  ClearTimes(&spec);  // its schedule goes on by itself
  if (options.resumes) {
    if (absl::Status status = BeginWhereItEnded(job, &spec); !status.ok()) return status;
  }
  JobFile file{name, SpecToYaml(spec)};
  file.spec = spec;
  file.job = id;
  file.again = absl::StrCat("muster ", options.resumes ? "resume " : "rerun ", file.job);
  if (!job.has_member()) return file;
  const std::string& member = job.member().id();
  if (spec.has_independent_workers()) {
    return absl::InvalidArgumentError(
        absl::StrCat(member,
                     " is one of several workers that share out their work; run all of them again: "
                     "muster rerun ",
                     member.substr(0, member.find('_'))));
  }
  if (!options.array.has_value() && options.sweep.empty())
    session.Err(absl::StrCat(member, " alone: MUSTER_ARRAY_SIZE is 1 in it",
                             spec.sweep().empty() ? "" : ", and its index is 0", ".\n"));
  return file;
}

constexpr size_t kMostSubmittedSingly = 100;

// These members of an array of indices, as one array; several where its text would be too long.
absl::StatusOr<std::vector<JobFile>> FilesOfIndices(const Session& session,
                                                    const SubmitOptions& options, pb::Job job,
                                                    const std::vector<pb::ArrayMember>& members) {
  const std::string id = JobId(job), before = job.spec().array();
  const std::vector<std::string> arrays = ArraysOf(members, before);
  if (const auto at_a_time = static_cast<size_t>(MembersAtATime(job.spec()));
      arrays.size() > at_a_time) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--failed: ", members.size(), " members of array ", id, " take ", arrays.size(),
        " arrays, and only ", at_a_time, " may run at a time; run all of them again: muster rerun ",
        id, ", or name some: ", "muster rerun ", id, " --array 0-99%", at_a_time));
  }
  std::vector<JobFile> files;
  for (const std::string& array : arrays) {
    job.mutable_spec()->set_array(array);
    absl::StatusOr<JobFile> file = FileOf(session, options, job);
    if (!file.ok()) return file.status();
    if (arrays.size() > 1)
      absl::StrAppend(&file->name, ", part ", files.size() + 1, " of ", arrays.size());
    file->again =
        absl::StrCat("muster rerun ", id, " ", arrays.size() > 1 ? "--array " + array : "--failed");
    session.Err(absl::StrCat("Of array ", id, " again: ", array, ". MUSTER_ARRAY_SIZE is ",
                             MembersOf(job.spec()), " in them.\n"));
    files.push_back(*std::move(file));
  }
  return files;
}

// The failed members of an array, as files: those of indices together, combinations of a sweep each
// by itself.
absl::StatusOr<std::vector<JobFile>> FilesOfFailed(const Session& session, Client& client,
                                                   const SubmitOptions& options) {
  const std::string& id = options.job;
  const absl::StatusOr<pb::Job> job = client.Get(id);
  if (!job.ok()) return job.status();
  const absl::StatusOr<std::vector<pb::ArrayMember>> members = FailedMembers(&client, *job);
  if (!members.ok()) return members.status();
  if (!job->spec().array().empty()) return FilesOfIndices(session, options, *job, *members);
  const bool shared_out = job->spec().has_independent_workers();
  if (shared_out || members->size() > kMostSubmittedSingly)
    return absl::InvalidArgumentError(absl::StrCat(
        "--failed: ", shared_out ? "the" : absl::StrCat(members->size()), " members of array ", id,
        shared_out ? " share out their work" : " are too many to be submitted one by one",
        "; run all of them again: muster rerun ", id));
  std::vector<JobFile> files;
  for (const pb::ArrayMember& member : *members) {
    const absl::StatusOr<pb::Job> one = client.Get(member.id());
    if (!one.ok()) return one.status();
    absl::StatusOr<JobFile> file = FileOf(session, options, *one);
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
  }
  return files;
}

absl::StatusOr<std::vector<JobFile>> ReadFiles(const Session& session, Client& client,
                                               const SubmitOptions& options,
                                               const Interrupt& interrupt) {
  std::vector<JobFile> files;
  if (options.failed && options.array.has_value())
    return absl::InvalidArgumentError(
        "--array: --failed says which members run again; leave one of them out");
  if (options.failed) return FilesOfFailed(session, client, options);
  if (!options.job.empty()) {
    const absl::StatusOr<pb::Job> job = client.Get(options.job);
    if (!job.ok()) return job.status();
    absl::StatusOr<JobFile> file = FileOf(session, options, *job);
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
  }
  if (options.made.has_value()) files.push_back(*options.made);
  for (const std::string& path : options.files) {
    absl::StatusOr<JobFile> file = ReadJobFile(path, &interrupt);
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
  }
  return files;
}

// What is wrong with one of these fields, or below it, as a flag sets them.
absl::Status CheckFields(const pb::JobSpec& spec, const SpecContext& context,
                         const std::set<std::string>& fields) {
  for (const FieldProblem& problem : CheckSpec(spec, context)) {
    if (fields.contains(problem.path.substr(0, problem.path.find_first_of(".["))))
      return absl::InvalidArgumentError(absl::StrCat(problem.path, ": ", problem.message));
  }
  return absl::OkStatus();
}

// How a job loses its array, or its sweep. `job`: what is submitted again, which has no file yet;
// or empty.
std::string WithoutText(const std::string& members, const std::string& job) {
  return absl::StrCat(
      "a job has one of both; take the ", members, " out of its file",
      job.empty() ? "," : absl::StrCat(" (muster show ", job, " --spec writes it),"));
}

// The flags' members. A name of --sweep stands in place of the file's values for it. `job`: as
// above.
absl::Status SetMembers(const std::optional<std::string>& array,
                        const std::vector<std::string>& sweep, const SpecContext& context,
                        const std::string& job, pb::JobSpec* spec) {
  if (!array.has_value() && sweep.empty()) return absl::OkStatus();
  if (array.has_value() && array->empty())
    return absl::InvalidArgumentError("--array is empty; write indices such as 0-99");
  if (array.has_value() && (!sweep.empty() || spec->sweep_size() > 0))
    return absl::InvalidArgumentError(
        sweep.empty() ? absl::StrCat("--array: the job has a sweep, and ",
                                     WithoutText("sweep", job), " or leave --array out")
                      : "--array and --sweep exclude each other; keep one");
  if (!sweep.empty() && !spec->array().empty())
    return absl::InvalidArgumentError(absl::StrCat(
        "--sweep: the job has an array, and ", WithoutText("array", job), " or leave --sweep out"));
  if (array.has_value()) spec->set_array(*array);
  for (const std::string& text : sweep) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      return absl::InvalidArgumentError(
          absl::StrCat("--sweep ", text, ": write NAME=VALUE,VALUE, such as lr=1e-4,3e-4"));
    const std::string name = text.substr(0, equals);
    const auto known = std::find_if(spec->mutable_sweep()->begin(), spec->mutable_sweep()->end(),
                                    [&](const pb::SweepValues& of) { return of.name() == name; });
    pb::SweepValues* values = known == spec->mutable_sweep()->end() ? spec->add_sweep() : &*known;
    values->clear_values();
    values->set_name(name);
    for (const absl::string_view value : absl::StrSplit(text.substr(equals + 1), ',')) {
      if (value.empty())
        return absl::InvalidArgumentError(
            absl::StrCat("--sweep ", text, ": one of its values is empty; where that is meant, ",
                         "write it into the job's file: sweep: {", name, ": [\"\", …]}"));
      values->add_values(std::string(value));
    }
  }
  return CheckFields(*spec, context, {"array", "sweep", "independent_workers"});
}

// A job that is submitted again with another layout doesn't keep the placement that was filled in
// for the one before.
void LeaveOutOldPlacement(const SubmitOptions& options, const SpecContext& context, JobFile* file) {
  if (!file->spec.has_value() || (options.settings.empty() && options.sweep.empty())) return;
  const std::string bare = SpecToYaml(WithoutFilledPlacements(*file->spec));
  if (bare == file->text) return;
  const auto reads = [&](const std::string& text, pb::JobSpec* spec) {
    std::vector<Problem> problems;
    return ParseJobFile(text, file->name, context, spec, &problems, options.settings) &&
           SetMembers(std::nullopt, options.sweep, context, file->job, spec).ok() &&
           CheckFields(*spec, context, {"tasks", "trainer"}).ok();
  };
  pb::JobSpec changed, as_it_stands;
  if (!reads(bare, &changed)) {
    if (!reads(file->text, &as_it_stands))
      file->text = bare;  // nobody is told of words that nobody wrote
    return;
  }
  file->text = SpecToYaml(WithoutOutdatedPlacements(*file->spec, changed));
}

// The jobs that the flags name stand in place of the file's of that kind; "none" leaves none.
absl::Status SetOtherJobs(const SubmitOptions& options, const SpecContext& context,
                          pb::JobSpec* spec) {
  const auto set = [](const std::vector<std::string>& lists,
                      google::protobuf::RepeatedPtrField<std::string>* jobs) {
    if (lists.empty()) return;
    jobs->Clear();
    for (const std::string& list : lists) {
      for (const absl::string_view job : absl::StrSplit(list, ',')) {
        if (job != "none" || lists.size() > 1) jobs->Add(std::string(job));
      }
    }
  };
  set(options.after, spec->mutable_after());
  set(options.after_any, spec->mutable_after_any());
  if (!options.on.empty()) spec->set_on(options.on == "none" ? "" : options.on);
  if (options.after.empty() && options.after_any.empty() && options.on.empty())
    return absl::OkStatus();
  return CheckFields(*spec, context, {"after", "after_any", "on"});
}

// "none" leaves none.
absl::Status SetTimes(const SubmitOptions& options, const SpecContext& context, int64_t now_ns,
                      pb::JobSpec* spec) {
  if (!options.at.has_value() && !options.schedule.has_value()) return absl::OkStatus();
  // An empty variable of a shell would run a nightly job at once, and never again.
  if (options.at == "")
    return absl::InvalidArgumentError("--at is empty; write a time such as 22:00, or none");
  if (options.schedule == "")
    return absl::InvalidArgumentError(
        "--schedule is empty; write five fields such as \"0 3 * * *\", or none");
  if (options.at == "none") {
    spec->clear_not_before();
  } else if (options.at.has_value()) {
    const absl::StatusOr<std::string> at = InstantOf(*options.at, now_ns, absl::LocalTimeZone());
    if (!at.ok()) return absl::InvalidArgumentError(absl::StrCat("--at: ", at.status().message()));
    if (ParseInstantNs(*at).value_or(0) < now_ns - kMinute)
      return absl::InvalidArgumentError(
          absl::StrCat("--at: ", *at, " is over; --at none starts it at once"));
    spec->set_not_before(*at);
  }
  if (options.schedule == "none") {
    spec->clear_schedule();
  } else if (options.schedule.has_value()) {
    spec->mutable_schedule()->set_cron(*options.schedule);
  }
  return CheckFields(*spec, context, {"schedule", "not_before"});
}

// Fields that don't come from the file.
std::map<std::string, std::string> GivenByFlags(const SubmitOptions& options) {
  std::map<std::string, std::string> flags;
  if (!options.queue.empty()) flags["queue"] = "--queue";
  if (!options.on.empty()) flags["on"] = "--on";
  if (options.array.has_value()) flags["array"] = "--array";
  if (!options.sweep.empty()) flags["sweep"] = "--sweep";
  if (options.at.has_value()) flags["not_before"] = "--at";
  if (options.schedule.has_value()) flags["schedule"] = "--schedule";
  if (!options.after.empty()) flags["after"] = "--after";
  if (!options.after_any.empty()) flags["after_any"] = "--after-any";
  return flags;
}

// Failed members that differ in nothing but what --sweep replaces would be the same job several
// times. `first`: by their sweep, the member that is submitted with it.
bool IsDouble(const Session& session, const SubmitOptions& options, const JobFile& file,
              const pb::JobSpec& spec, std::map<std::string, std::string>* first) {
  if (!options.failed || options.sweep.empty()) return false;
  pb::JobSpec members;
  *members.mutable_sweep() = spec.sweep();
  const auto [known, is_new] = first->emplace(members.SerializeAsString(), file.job);
  if (!is_new)
    session.Err(absl::StrCat(file.job, ": --sweep makes it the same job as ", known->second,
                             ", which is submitted once.\n"));
  return !is_new;
}

// All that is wrong with any of the files is told before anything is asked of the server.
int ReadSubmissions(Session& session, const SubmitOptions& options, const Interrupt& interrupt,
                    Packs* packs, std::vector<Submission>* submissions) {
  absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<std::vector<JobFile>> files = ReadFiles(session, **client, options, interrupt);
  if (!files.ok()) return session.Fail(files.status());
  SpecContext context = ContextOf(**client);
  context.default_queue = options.queue.empty() ? DefaultQueue(*settings, context) : options.queue;
  if (!options.queue.empty())
    context.queues.clear();  // the file's own doesn't count; the server checks the flag's
  int result = kExitOk;
  std::map<std::string, std::string> first;
  for (JobFile& file : *files) {
    pb::JobSpec spec;
    std::vector<Problem> problems;
    LeaveOutOldPlacement(options, context, &file);
    if (!ParseJobFile(file.text, file.name, context, &spec, &problems, options.settings)) {
      result = FailWithProblems(session, problems, file, "nothing was submitted");
      continue;
    }
    if (!options.queue.empty()) spec.set_queue(options.queue);
    file.flags = GivenByFlags(options);
    for (const std::string& secret : options.secrets) spec.add_secrets(secret);
    // Before its members, whose names may stand in them.
    if (absl::Status status = AddVariables(options.env, &spec); !status.ok())
      return session.Fail(status);
    if (absl::Status status = SetMembers(options.array, options.sweep, context, file.job, &spec);
        !status.ok())
      return session.Fail(status);
    if (IsDouble(session, options, file, spec, &first)) continue;
    if (absl::Status status = SetOtherJobs(options, context, &spec); !status.ok())
      return session.Fail(status);
    if (absl::Status status = SetTimes(options, context, session.now_ns(), &spec); !status.ok())
      return session.Fail(status);
    if (!options.resume_from.empty()) {
      if (absl::Status status = BeginFromJob(**client, options.resume_from, &spec); !status.ok())
        return session.Fail(status);
    }
    const int code = PackFor(session, options, file, packs, &spec);
    if (code != kExitOk) result = code;
    submissions->push_back({std::move(file), std::move(spec)});
  }
  return result;
}

// Where, when and from whom each would start.
int ShowPreviews(Session& session, Client& client, const SubmitOptions& options,
                 const std::vector<Submission>& submissions) {
  int result = kExitOk;
  for (const Submission& submission : submissions) {
    pb::PreviewRequest request;
    *request.mutable_spec() = submission.spec;
    request.set_wait_for_capacity(options.wait_for_capacity);
    const absl::StatusOr<pb::PreviewResponse> preview = client.Preview(request);
    if (!preview.ok()) return FailRefused(session, preview.status(), &submission.file);
    std::string text;
    if (session.for_people()) {
      if (submissions.size() > 1) text = absl::StrCat(submission.file.name, ":\n");
      const Screen& screen = options.preview_only ? session.out_screen() : session.err_screen();
      absl::StrAppend(&text, RenderPreview(*preview, screen, session.now_ns()),
                      OtherTasksText(*preview), FilledInText(submission.spec, preview->resolved()),
                      FitText(*preview), BeginsFromText(submission.spec));
      session.Err(NotesOn(submission.spec));
    }
    if (!options.preview_only) {
      session.Err(text);
      continue;
    }
    const int code = session.ShowOne(text, *preview, preview->task());
    if (code != kExitOk) return code;
    if (options.detailed_exitcode && WouldEvict(*preview)) result = kExitWouldEvict;
  }
  return result;
}

// These of several, each submitted by itself: a key stands for one job.
std::string CommandsFor(const SubmitOptions& options, std::span<const Submission> alone) {
  std::vector<std::string> commands;
  for (const Submission& one : alone)
    commands.push_back(one.file.again.empty() ? "muster submit " + one.file.name : one.file.again);
  return absl::StrCat(
      absl::StrJoin(commands, ", "),
      options.failed ? " (and this command's flags but --failed)" : " (and this command's flags)");
}

// The first of these was refused, or had no answer; the jobs `before` it are on the server.
int FailOneOfThem(Session& session, const SubmitOptions& options, const absl::Status& status,
                  std::span<const Submission> these, const std::string& key,
                  const std::vector<std::string>& before) {
  const bool alone = before.empty() && these.size() == 1;
  const int code = FailSubmitted(session, status, &these[0].file, key,
                                 alone ? "the same command" : CommandsFor(options, these.first(1)));
  if (!before.empty())
    session.Err(absl::StrCat("Submitted before that: ", absl::StrJoin(before, ", "),
                             "; the same command would submit them again.\n"));
  if (these.size() > 1)
    session.Err(absl::StrCat("Not submitted yet: ", CommandsFor(options, these.subspan(1)), "\n"));
  return code;
}

// One of them is followed; of several it is said how.
int SubmitAll(Session& session, Client& client, const SubmitOptions& options,
              const Interrupt& interrupt, const Packs& packs,
              const std::vector<Submission>& submissions) {
  std::vector<std::string> ids;
  for (const Submission& submission : submissions) {
    if (absl::Status sent = packs.Send(session, client, submission.spec); !sent.ok())
      return session.Fail(sent);
  }
  for (const Submission& submission : submissions) {
    const std::string key = SubmissionKey(options.key);
    const absl::StatusOr<pb::SubmitResponse> response =
        SubmitSpec(client, submission.spec, key, options.wait_for_capacity);
    if (!response.ok())
      return FailOneOfThem(session, options, response.status(),
                           std::span(submissions).subspan(ids.size()), key, ids);
    const pb::Job& job = response->job();
    const std::string id = JobId(job);
    const bool follow = !options.detach && session.for_people() && submissions.size() == 1 &&
                        job.not_before_ns() == 0;
    ids.push_back(id);
    const std::string text = absl::StrCat(
        "Job ", id, " ", Plain(job.spec().name()),
        response->existed() ? " was submitted before with this key." : " submitted.",
        follow ? " Following it; Ctrl+C stops following, never the job." : "",
        WaitsForText(job, session.now_ns()),
        follow ? "" : absl::StrCat("  Follow: muster attach ", id),
        job.has_array() ? absl::StrCat("   Its ",
                                       job.array().members() == 1
                                           ? "member"
                                           : absl::StrCat(job.array().members(), " members"),
                                       ": muster jobs ", id, " --tasks\n")
                        : absl::StrCat("   Its output: muster logs -f ", id, "\n"));
    session.ShowOne(text, job, id);
    if (follow) return Follow(session, client, id, interrupt);
  }
  if (ids.size() > 1 && session.for_people())
    session.Err(absl::StrCat("All of them: muster wait ", absl::StrJoin(ids, " "), "\n"));
  return kExitOk;
}

int Submit(Session& session, const SubmitOptions& options) {
  Interrupt interrupt;  // from here on Ctrl+C can't lose a job's number
  std::vector<Submission> submissions;
  Packs packs;
  if (const int code = ReadSubmissions(session, options, interrupt, &packs, &submissions);
      code != kExitOk)
    return code;
  if (submissions.size() > 1 && !options.key.empty()) {
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat("--idempotency-key stands for one job, and these are ", submissions.size(),
                     ": submit them one by one, each with its own: ",
                     CommandsFor(options, std::span(submissions).first(1)))));
  }
  Client& client = **session.client();
  const int code = ShowPreviews(session, client, options, submissions);
  if (code != kExitOk || options.preview_only) return code;
  const bool from_stdin = std::count(options.files.begin(), options.files.end(), "-") > 0;
  const std::string question = submissions.size() == 1
                                   ? "Submit? [Y/n] "
                                   : absl::StrCat("Submit these ", submissions.size(), "? [Y/n] ");
  const bool refused =
      session.asks() && !options.yes && !from_stdin && !session.Confirms(question, interrupt);
  if (refused || interrupt.pending()) {
    session.Err("Nothing was submitted.\n");
    return interrupt.pending() ? kExitInterrupted : kExitOk;
  }
  return SubmitAll(session, client, options, interrupt, packs, submissions);
}

void AddOptions(CLI::App* submit, Session& session, const std::shared_ptr<SubmitOptions>& options) {
  submit->add_option("--queue", options->queue, "Instead of the file's queue")->check(RefuseEmpty);
  submit
      ->add_option("--set", options->settings,
                   "FIELD=VALUE over what the file says, such as trainer.max_steps=100 or "
                   "tasks[train].workers=4; may be repeated")
      ->allow_extra_args(false);
  submit
      ->add_option("--after", options->after,
                   "JOB,JOB: starts once these have succeeded, is cancelled if one doesn't; an "
                   "array's number means all of it. Instead of the file's; none: of none")
      ->allow_extra_args(false);
  submit
      ->add_option("--after-any", options->after_any,
                   "JOB,JOB: starts once these have ended, in whatever way")
      ->allow_extra_args(false);
  submit->add_option(
      "--on", options->on,
      "JOB: runs on the devices that this job of yours holds, such as an environment "
      "of muster dev; charged to nobody");
  submit->add_option("--at", options->at,
                     "TIME: nothing of it starts before 03:00, \"2026-12-24 03:00\", +2h, or "
                     "2026-12-24T03:00:00Z; instead of the file's not_before; none: at once");
  submit->add_option("--schedule", options->schedule,
                     "\"0 3 * * *\": runs it again and again at these times, as in a crontab, by "
                     "UTC or the file's zone; instead of the file's; none: once");
  submit->add_option("-C,--directory", options->directory,
                     "Directory that comes along, packed (.musterignore), instead of the file's "
                     "workdir; the job runs in its copy");
  submit
      ->add_option("--env", options->env,
                   "NAME=VALUE, or NAME of a variable of this shell, over what the file says; may "
                   "be repeated")
      ->allow_extra_args(false);
  submit
      ->add_option(
          "--secret", options->secrets,
          "NAME, or NAME=VARIABLE: a secret of yours (muster secret) as a variable, beside "
          "the file's; may be repeated")
      ->allow_extra_args(false);
  submit->add_option("--array", options->array,
                     "Runs the job once for each index, as 0-99, 1-9:2 or 0-99%8 (eight at a "
                     "time); {{index}} in run, MUSTER_ARRAY_INDEX");
  submit
      ->add_option("--sweep", options->sweep,
                   "NAME=VALUE,VALUE: runs the job once for each value, of several once for each "
                   "combination; {{NAME}} in run, MUSTER_SWEEP_NAME; may be repeated")
      ->allow_extra_args(false);
  submit->add_flag("-y,--yes", options->yes, "Don't ask; without a terminal nothing is asked");
  submit->add_flag("-d,--detach,--no-follow", options->detach, "Don't follow");
  submit->add_option(
      "--idempotency-key", options->key,
      "For scripts that repeat themselves: the same key gives the same job, submitted once");
  CLI::Option* preview_only =
      submit->add_flag("--preview-only,--dry-run", options->preview_only,
                       "Only show where, when and from whom; submit nothing");
  submit
      ->add_flag("--detailed-exitcode", options->detailed_exitcode,
                 "With --preview-only: exit 7 if somebody would be evicted")
      ->needs(preview_only);
  submit->add_flag("--wait-for-capacity", options->wait_for_capacity,
                   "Accept a job that no cluster can hold yet: hosts are on their way");
  submit->callback([&session, options] {
    session.command = [&session, options] { return Submit(session, *options); };
  });
}

}  // namespace

int SubmitMade(Session& session, const JobFile& file, const SubmitMadeOptions& made) {
  SubmitOptions options;
  options.made = file;
  options.yes = made.yes;
  options.detach = made.detach;
  options.preview_only = made.preview_only;
  return Submit(session, options);
}

void AddSubmit(CLI::App& root, Session& session) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* submit =
      root.add_subcommand("submit", "Preview a job, confirm, submit and follow it (sbatch)");
  submit
      ->add_option("files", options->files,
                   "Job file; - reads standard input. Of several none is followed")
      ->required();
  submit->add_option("--resume-from", options->resume_from,
                     "JOB, JOB/TASK or JOB/TASK/STEP: begins from the checkpoints of that ended "
                     "job, the newest first, or from that step's, instead of the file's "
                     "checkpoint.resume_from");
  AddOptions(submit, session, options);
  auto again = std::make_shared<SubmitOptions>();
  CLI::App* rerun = root.add_subcommand(
      "rerun", "Submit a job again as it was, or changed; it is a new job, and begins anew");
  rerun->add_option("job", again->job, "Its number; of an array's member 17_3")->required();
  rerun->add_flag("--failed", again->failed, "Of an array: its members that have failed");
  AddOptions(rerun, session, again);
  auto on = std::make_shared<SubmitOptions>();
  on->resumes = true;
  CLI::App* resume = root.add_subcommand(
      "resume",
      "Submit an ended job again, as it was or changed, to go on from its newest checkpoint");
  resume->add_option("job", on->job, "Its number; of an array's member 17_3")->required();
  AddOptions(resume, session, on);
}

}  // namespace muster
