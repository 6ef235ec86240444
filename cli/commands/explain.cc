#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/beside.h"
#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/commands/trace.h"
#include "cli/render/array.h"
#include "cli/render/explain.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "common/spec/members.h"

namespace muster {
namespace {

// "" leaves the server's default. Milliseconds, as the API counts.
absl::StatusOr<int64_t> BudgetMs(const std::string& text) {
  if (text.empty()) return 0;
  absl::StatusOr<int64_t> budget_ns = ParseDuration(text);
  if (!budget_ns.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("--budget ", text, ": ", std::string(budget_ns.status().message())));
  if (*budget_ns < kMillisecond || *budget_ns > 20 * kSecond)
    return absl::InvalidArgumentError(
        absl::StrCat("--budget ", text, ": wants a time from 1ms to 20s"));
  return *budget_ns / kMillisecond;
}

int Explain(Session& session, const std::string& id, const std::string& budget) {
  absl::StatusOr<int64_t> budget_ms = BudgetMs(budget);
  if (!budget_ms.ok()) return session.Fail(budget_ms.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  pb::ExplainRequest request;
  request.set_id(id);
  request.set_budget_ms(*budget_ms);
  absl::StatusOr<pb::ExplainResponse> explained = (*client)->Explain(request);
  if (!explained.ok()) return session.Fail(explained.status());
  return session.ShowOne(RenderExplain(*explained, session.out_screen()), *explained,
                         JobId(explained->job()));
}

struct SimulateOptions {
  const CLI::App* given = nullptr;       // which of them were
  std::vector<std::string> trace_words;  // muster-sim's, with a trace
  std::vector<std::string> files, drain, resume, quota;
  std::string queues, queue, at, horizon, budget;
  bool detailed_exitcode = false;
};

// "prod:h100-80g=40": its guarantee.
absl::Status SetQuota(const std::string& text, pb::QueueTree* tree) {
  const size_t colon = text.find(':'),
               equals = text.find('=', colon == std::string::npos ? 0 : colon);
  if (colon == std::string::npos || equals == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--quota ", text, ": write QUEUE:FLAVOUR=GUARANTEE, such as research/nlp:h100-80g=16"));
  }
  const std::string path = text.substr(0, colon),
                    flavour = text.substr(colon + 1, equals - colon - 1);
  absl::StatusOr<int64_t> milli = ParseMilli(text.substr(equals + 1));
  if (!milli.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("--quota ", text, ": ", std::string(milli.status().message())));
  pb::QueueSpec* queue = FindQueue(tree, path);
  if (queue == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("--quota ", text, ": there is no queue \"", path,
                                                   "\". See: muster queue list"));
  pb::Quota& quota = (*queue->mutable_quota())[flavour];
  quota.clear_guarantee_per_cluster();
  quota.set_guarantee_milli(*milli);
  return absl::OkStatus();
}

absl::Status ReadTimes(const SimulateOptions& options, pb::SimulateRequest* request) {
  for (const auto& [flag, text, set] :
       {std::tuple{"--at", options.at, &pb::SimulateRequest::set_delay_ns},
        std::tuple{"--for", options.horizon, &pb::SimulateRequest::set_horizon_ns}}) {
    if (text.empty()) continue;
    absl::StatusOr<int64_t> parsed = ParseDuration(text);
    if (!parsed.ok())
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", text, ": ", std::string(parsed.status().message())));
    (request->*set)(*parsed);
  }
  absl::StatusOr<int64_t> budget_ms = BudgetMs(options.budget);
  if (!budget_ms.ok()) return budget_ms.status();
  request->set_budget_ms(*budget_ms);
  return absl::OkStatus();
}

// The server's problems, each in the file that it came from where there is one.
int FailSimulation(Session& session, const absl::Status& status,
                   const std::vector<JobFile>& files) {
  std::map<size_t, std::vector<FieldProblem>> by_file;
  for (const FieldProblem& problem : ProblemsOf(status)) {
    size_t index = files.size();
    const size_t end = problem.path.find("].");
    if (absl::StartsWith(problem.path, "jobs[") && end != std::string::npos &&
        absl::SimpleAtoi(problem.path.substr(5, end - 5), &index) && index < files.size()) {
      by_file[index].push_back({problem.path.substr(end + 2), problem.message});
    }
  }
  if (by_file.empty()) return session.Fail(status);
  for (const auto& [index, problems] : by_file) {
    FailWithProblems(session, PlaceProblems(files[index].text, files[index].name, problems),
                     files[index], "nothing was simulated");
  }
  return kExitBadInput;
}

// A trace runs in muster-sim, without a server. Nothing where there is none.
std::optional<int> SimulateTrace(Session& session, const SimulateOptions& options) {
  const auto trace = std::find_if(options.files.begin(), options.files.end(), IsTrace);
  if (trace == options.files.end()) {
    if (options.trace_words.empty()) return std::nullopt;
    const std::string& word = options.trace_words.front();
    return session.Fail(absl::InvalidArgumentError(absl::StrCat(
        word == "compare" ? "--compare" : word, " goes with a trace, and ",
        options.files.empty() ? "no file is given"
                              : absl::StrCat(options.files.front(), " is none"),
        ": a .csv, .trace or .gz, or a file that begins as one (docs/simulating.md)")));
  }
  if (options.files.size() > 1) {
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat(*trace, " is a trace and is simulated alone: leave out the other files")));
  }
  for (const char* flag : {"--drain", "--resume", "--quota", "--queue", "--at", "--for", "--budget",
                           "--detailed-exitcode"}) {
    if (options.given->count(flag) == 0) continue;
    return session.Fail(absl::InvalidArgumentError(absl::StrCat(
        flag, " is about the running system; ", *trace,
        " is a trace, which runs on --cluster FILE with the queues of --queues FILE")));
  }
  if (!session.columns_flag.empty())
    return session.Fail(absl::InvalidArgumentError(
        "--columns: a trace's tables have all of theirs; -o json has more"));
  if (session.output_flag != "table" && session.output_flag != "json") {
    return session.Fail(absl::InvalidArgumentError(
        absl::StrCat("-o ", session.output_flag, ": a trace's result is told as table or json")));
  }
  std::vector<std::string> words = options.trace_words;
  const std::string path =
      trace->front() == '-' ? absl::StrCat("./", *trace) : *trace;  // no option of muster-sim's
  words.insert(words.begin() + (!words.empty() && words.front() == "compare" ? 1 : 0), path);
  if (!options.queues.empty()) words.insert(words.end(), {"--queues", options.queues});
  words.insert(words.end(), {"-o", session.output_flag});
  return BecomeBeside(session, "muster-sim", std::move(words));
}

int Simulate(Session& session, const SimulateOptions& options) {
  if (const std::optional<int> code = SimulateTrace(session, options)) return *code;
  pb::SimulateRequest request;
  if (absl::Status status = ReadTimes(options, &request); !status.ok()) return session.Fail(status);
  if (options.files.empty() && options.drain.empty() && options.resume.empty() &&
      options.quota.empty() && options.queues.empty()) {
    return session.Fail(absl::InvalidArgumentError(
        "nothing to simulate: give job files, --drain, --resume, --quota or --queues; or a trace"));
  }
  absl::StatusOr<Settings> settings = session.settings();
  if (!settings.ok()) return session.Fail(settings.status());
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  for (const std::string& target : options.drain) request.add_drain(target);
  for (const std::string& target : options.resume) request.add_resume(target);
  if (!options.queues.empty()) {
    absl::StatusOr<JobFile> file = ReadJobFile(options.queues);
    if (!file.ok()) return session.Fail(file.status());
    std::vector<Problem> problems;
    if (!ParseQueueFile(file->text, file->name, QueueContext(), request.mutable_queues(),
                        &problems)) {
      return FailWithProblems(session, problems, *file, "nothing was simulated");
    }
    request.set_change_queues(true);
  } else if (!options.quota.empty()) {
    absl::StatusOr<pb::QueueTree> tree = PresentTree(**client);
    if (!tree.ok()) return session.Fail(tree.status());
    *request.mutable_queues() = *std::move(tree);
    request.set_change_queues(true);
  }
  for (const std::string& quota : options.quota) {
    if (absl::Status status = SetQuota(quota, request.mutable_queues()); !status.ok())
      return session.Fail(status);
  }
  SpecContext context = options.files.empty() ? SpecContext() : ContextOf(**client);
  context.default_queue = options.queue.empty() ? DefaultQueue(*settings, context) : options.queue;
  if (!options.queue.empty() || request.change_queues())
    context.queues.clear();  // the server checks them
  std::vector<JobFile> files;
  for (const std::string& path : options.files) {
    absl::StatusOr<JobFile> file = ReadJobFile(path);
    if (!file.ok()) return session.Fail(file.status());
    std::vector<Problem> problems;
    pb::JobSpec* spec = request.add_jobs();
    if (!ParseJobFile(file->text, file->name, context, spec, &problems))
      return FailWithProblems(session, problems, *file, "nothing was simulated");
    if (!options.queue.empty()) spec->set_queue(options.queue);
    if (MembersOf(*spec) > 1)
      session.Err(absl::StrCat(file->name, " has ", MembersOf(*spec),
                               " members; the first alone is simulated.\n"));
    files.push_back(*std::move(file));
  }
  absl::StatusOr<pb::SimulateResponse> simulated = (*client)->Simulate(request);
  if (!simulated.ok()) return FailSimulation(session, simulated.status(), files);
  const int code =
      session.ShowOne(RenderSimulation(*simulated, session.out_screen()), *simulated, "simulation");
  const bool evicts = std::any_of(simulated->effects().begin(), simulated->effects().end(),
                                  [](const auto& effect) { return effect.stopped_ns() != 0; });
  return code == kExitOk && options.detailed_exitcode && evicts ? kExitWouldEvict : code;
}

}  // namespace

void AddExplain(CLI::App& root, Session& session) {
  auto id = std::make_shared<std::string>();
  auto budget = std::make_shared<std::string>();
  CLI::App* explain = root.add_subcommand(
      "explain",
      "Why a job waits, until when, and what would make it start sooner (squeue --start)");
  explain->add_option("job", *id, "Number or uid; of an array's member 17_3")->required();
  explain->add_option("--budget", *budget, "How long to look, at most 20s; default 2s");
  explain->callback([&session, id, budget] {
    session.command = [&session, id, budget] { return Explain(session, *id, *budget); };
  });

  auto options = std::make_shared<SimulateOptions>();
  CLI::App* simulate = root.add_subcommand(
      "simulate",
      "What would happen if: jobs, drains, quotas; or a trace on simulated hosts; changes nothing");
  options->given = simulate;
  simulate->add_option("files,--submit", options->files,
                       "Job files to submit; or one trace, which muster-sim runs");
  simulate->add_option("--drain", options->drain, "A cluster, or cluster/host; may be repeated")
      ->expected(1)
      ->take_all();
  simulate->add_option("--resume", options->resume, "The same")->expected(1)->take_all();
  CLI::Option* queues = simulate->add_option(
      "--queues", options->queues,
      "A queues file instead of the present tree; of a trace: instead of one queue, default");
  simulate->add_option("--quota", options->quota, "QUEUE:FLAVOUR=GUARANTEE; may be repeated")
      ->expected(1)
      ->take_all()
      ->excludes(queues);
  simulate->add_option("--queue", options->queue, "Of the jobs, instead of the files' queue")
      ->check(RefuseEmpty);
  simulate->add_option("--at", options->at,
                       "All that happens so long from now, such as 2h; default: now");
  simulate->add_option("--for", options->horizon, "How far to look; default 1d, at most 30d");
  simulate->add_option("--budget", options->budget, "How long to compute, at most 20s; default 5s");
  simulate->add_flag("--detailed-exitcode", options->detailed_exitcode,
                     "Exit 7 if somebody would be stopped or shrunk");
  AddTraceOptions(simulate, &options->trace_words);
  simulate->callback([&session, options] {
    session.command = [&session, options] { return Simulate(session, *options); };
  });
}

}  // namespace muster
