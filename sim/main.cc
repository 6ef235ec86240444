// muster-sim [compare] TRACE --cluster FILE [--queues FILE]: the real engine under a virtual clock
// with simulated hosts. muster-sim --seed N [--config FILE]: scheduler, agents and shims against
// faults (sim/faults).
#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/parse_flags.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "sim/faults/command.h"
#include "sim/peers/kueue.h"
#include "sim/peers/policies.h"
#include "sim/readers.h"
#include "sim/report.h"
#include "sim/trace.h"
#include "sim/world.h"

namespace muster::sim {
namespace {

constexpr char kDefaultQueue[] = "default";

struct Arguments {
  std::string trace, cluster, queues;
  ReadOptions read;
  int random_jobs = 0;
  uint64_t seed = 1;
  std::string policies = "muster";
  std::string output = "table";
  std::string from, until, round, report, launch, stop, quantum = "5m", patience = "10m";
  std::string placement = "v", grow_interval, starve_after, min_runtime, spill_cost;
  std::vector<std::string> without;
  int load = 0;
  bool verbose = false, own_cluster = false, by_size = false, unknown_ends = false,
       unchecked = false, with_jobs = false;
};

int Fail(const std::string& text) {
  std::fprintf(stderr, "muster-sim: %s\n", text.c_str());
  return 2;
}

// By the names that musterd.yaml has for them.
const std::map<std::string, PlacementPolicy>& Placements() {
  static const std::map<std::string, PlacementPolicy> kPlacements = {
      {"v", PlacementPolicy::kV},
      {"fgd", PlacementPolicy::kFgd},
      {"best_fit", PlacementPolicy::kBestFit}};
  return kPlacements;
}

absl::StatusOr<Trace> DrawTrace(const Arguments& args, const pb::ClusterFile& clusters,
                                const pb::QueueTree& queues) {
  std::vector<std::string> leaves, flavours;
  const std::function<void(const google::protobuf::RepeatedPtrField<pb::QueueSpec>&,
                           const std::string&)>
      collect = [&](const auto& level, const std::string& prefix) {
        for (const pb::QueueSpec& queue : level) {
          if (queue.queues().empty()) leaves.push_back(prefix + queue.name());
          collect(queue.queues(), prefix + queue.name() + "/");
        }
      };
  collect(queues.queues(), "");
  int max_gpus = 1;
  const std::map<std::string, pb::Sku> skus(clusters.skus().begin(), clusters.skus().end());
  for (const auto& [name, sku] : skus) {
    if (sku.flavour().empty()) continue;
    if (std::find(flavours.begin(), flavours.end(), sku.flavour()) == flavours.end())
      flavours.push_back(sku.flavour());
    max_gpus = std::max(max_gpus, sku.gpus());
  }
  if (flavours.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(args.cluster, ": no SKU has GPUs; random jobs need some"));
  return RandomTrace(args.random_jobs, args.seed, leaves, flavours, max_gpus);
}

absl::Status SetDurations(const Arguments& args, WorldOptions* options, PolicyOptions* policy,
                          int64_t* from_ns, int64_t* until_ns) {
  struct Duration {
    const char* flag;
    const std::string& text;
    int64_t* ns;
    int64_t most_ns = std::numeric_limits<int64_t>::max();
  };
  constexpr int64_t kMostOfMusterd =
      30 * kDay;  // as musterd.yaml has it (common/spec/daemon_files.cc)
  const Duration kDurations[] = {
      {"--from", args.from, from_ns},
      {"--until", args.until, until_ns},
      {"--round", args.round, &options->round_ns},
      {"--report", args.report, &options->report_ns},
      {"--launch", args.launch, &options->hosts.launch_ns},
      {"--stop", args.stop, &options->hosts.stop_ns},
      {"--grow-interval", args.grow_interval, &options->scheduling.grow_interval_ns,
       kMostOfMusterd},
      {"--starve-after", args.starve_after, &options->scheduling.starve_after_ns, kMostOfMusterd},
      {"--min-runtime", args.min_runtime, &options->scheduling.min_runtime_ns, kMostOfMusterd},
      {"--spill-cost", args.spill_cost, &options->scheduling.spill_cost_ns, kMostOfMusterd},
      {"--quantum", args.quantum, &policy->quantum_ns},
      {"--patience", args.patience, &options->patience_ns},
  };
  for (const Duration& duration : kDurations) {
    if (duration.text.empty()) continue;
    const absl::StatusOr<int64_t> parsed = ParseDuration(duration.text);
    if (!parsed.ok())
      return absl::InvalidArgumentError(
          absl::StrCat(duration.flag, ": ", parsed.status().message()));
    if (*parsed > duration.most_ns) {
      return absl::InvalidArgumentError(absl::StrCat(duration.flag, ": must be from 0s to ",
                                                     FormatDuration(duration.most_ns), "; got ",
                                                     FormatDuration(*parsed)));
    }
    *duration.ns = *parsed;
  }
  if (policy->quantum_ns <= 0) return absl::InvalidArgumentError("--quantum must be above 0");
  return absl::OkStatus();
}

// Why no job of the trace finds its queue in the tree that stands in for a file that wasn't given;
// empty if some do.
std::string WhyNoQueue(const Trace& trace) {
  std::set<std::string> names;
  for (const TraceJob& job : trace.jobs) names.insert(job.queue);
  if (names.empty() || names.contains(kDefaultQueue)) return "";
  constexpr size_t kShown = 5;
  std::vector<std::string> shown(
      names.begin(), names.size() <= kShown ? names.end() : std::next(names.begin(), kShown));
  return absl::StrCat("the trace's jobs are of ", names.size() == 1 ? "the queue " : "the queues ",
                      absl::StrJoin(shown, ", "), names.size() > kShown ? ", …" : "",
                      ", but without --queues there is only `", kDefaultQueue,
                      "`; give a file that has them: --queues FILE");
}

void PrintJobs(const WorldResult& result) {
  for (const JobResult& job : result.jobs) {
    if (!job.refused.empty()) continue;
    absl::PrintF("%d %s %s wait %s run %s evictions %d\n", job.number, job.name, job.queue,
                 job.start_ns < 0 ? "-" : FormatDuration(job.start_ns - job.submit_ns),
                 job.end_ns < 0 ? "-" : FormatDuration(job.end_ns - job.start_ns), job.evictions);
  }
}

// Why jobs were refused, each reason once, the most frequent first: reasons that differ in numbers
// only are one.
void PrintRefused(const WorldResult& result) {
  struct Reason {
    int jobs = 0;
    const JobResult* first = nullptr;
  };
  std::map<std::string, Reason> reasons;
  int refused = 0;
  for (const JobResult& job : result.jobs) {
    if (job.refused.empty()) continue;
    ++refused;
    std::string kind;
    for (const char c : job.refused) {
      if (c < '0' || c > '9') kind += c;
    }
    Reason& reason = reasons[kind];
    if (reason.jobs++ == 0) reason.first = &job;
  }
  if (refused == 0) return;
  std::vector<Reason> sorted;
  for (const auto& [kind, reason] : reasons) sorted.push_back(reason);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Reason& a, const Reason& b) { return a.jobs > b.jobs; });
  const size_t percent = static_cast<size_t>(refused) * 100 / result.jobs.size();
  std::fprintf(stderr, "%s%d of %zu jobs (%zu %%) can never run here and were left out%s\n",
               percent > 5 ? "WARNING: " : "", refused, result.jobs.size(), percent,
               percent > 5 ? ": the figures are those of the others" : "");
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < sorted.size() && i < kShown; ++i) {
    std::fprintf(
        stderr, "  %d, such as %s: %s\n", sorted[i].jobs, sorted[i].first->name.c_str(),
        absl::StrReplaceAll(sorted[i].first->refused, {{"\n", "; "}, {"  ", " "}}).c_str());
  }
  if (sorted.size() > kShown)
    std::fprintf(stderr, "  and %zu more reasons\n", sorted.size() - kShown);
}

// A generator brings its hosts and queues along; what the arguments name comes before them.
absl::StatusOr<std::optional<KueueSetup>> ReadGenerator(const Arguments& args) {
  const bool named = args.read.format == "kueue";
  const bool yaml = absl::EndsWith(args.trace, ".yaml") || absl::EndsWith(args.trace, ".yml") ||
                    absl::EndsWith(args.trace, ".yaml.gz");
  if (args.trace.empty() || (!named && (!args.read.format.empty() || !yaml))) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadMaybeCompressed(args.trace);
  if (!text.ok()) return text.status();
  if (!named && !LooksLikeKueueGenerator(*text)) return std::nullopt;
  absl::StatusOr<KueueSetup> setup = ParseKueueGenerator(*text, args.trace, KueueOptions());
  if (!setup.ok()) return setup.status();
  return std::optional<KueueSetup>(*std::move(setup));
}

// The system that a trace runs on: of a generator, or of the files that the arguments name.
struct Setup {
  std::optional<KueueSetup> generator;
  pb::ClusterFile clusters;
  pb::QueueTree queues;
};

absl::StatusOr<Setup> ReadSetup(const Arguments& args) {
  const ProblemFormat kFormat{.outcome = "nothing was run"};
  Setup setup;
  std::vector<Problem> problems;
  absl::StatusOr<std::optional<KueueSetup>> generator = ReadGenerator(args);
  if (!generator.ok()) return generator.status();
  setup.generator = *std::move(generator);
  if (!args.cluster.empty()) {
    const auto text = ReadMaybeCompressed(args.cluster);
    if (!text.ok()) return text.status();
    if (!ParseClusterFile(*text, args.cluster, &setup.clusters, &problems))
      return absl::InvalidArgumentError(FormatProblems(problems, args.cluster, kFormat));
  } else if (setup.generator.has_value()) {
    setup.clusters = setup.generator->clusters;
  } else {
    return absl::InvalidArgumentError(
        "--cluster FILE is missing: the clusters to simulate, as musterd reads them");
  }
  if (!args.queues.empty()) {
    const auto text = ReadMaybeCompressed(args.queues);
    if (!text.ok()) return text.status();
    if (!ParseQueueFile(*text, args.queues, {}, &setup.queues, &problems))
      return absl::InvalidArgumentError(FormatProblems(problems, args.queues, kFormat));
  } else if (setup.generator.has_value()) {
    setup.queues = setup.generator->queues;
  } else {
    setup.queues.add_queues()->set_name(kDefaultQueue);
  }
  return setup;
}

// The trace as it is to be run: fitted to the fleet, cut, and scaled to a load.
absl::StatusOr<Trace> MakeTrace(const Arguments& args, const Setup& setup, int64_t from_ns,
                                int64_t until_ns) {
  absl::StatusOr<Trace> trace = args.random_jobs > 0 ? DrawTrace(args, setup.clusters, setup.queues)
                                : setup.generator.has_value() ? TraceOf(*setup.generator)
                                                              : ReadTrace(args.trace, args.read);
  if (!trace.ok()) return trace;
  constexpr size_t kBrokenShown = 20;
  for (size_t i = 0; i < trace->broken.size() && i < kBrokenShown; ++i)
    std::fprintf(stderr, "left out: %s\n", trace->broken[i].c_str());
  if (!trace->broken.empty())
    std::fprintf(stderr, "%zu broken lines left out (--strict stops at the first)\n",
                 trace->broken.size());
  FitToFleet(setup.clusters, !args.own_cluster, &*trace);
  if (args.by_size) QueueBySize(&*trace);
  Cut(from_ns, until_ns, &*trace);
  if (args.load > 0) ScaleToLoad(DevicesOf(setup.clusters, ""), args.load, &*trace);
  if (trace->jobs.empty()) return absl::InvalidArgumentError("the trace holds no job");
  if (args.queues.empty() && !setup.generator.has_value()) {
    if (const std::string why = WhyNoQueue(*trace); !why.empty())
      return absl::InvalidArgumentError(why);
  }
  return trace;
}

using Runs = std::vector<std::pair<std::string, WorldResult>>;

// Under each of the policies.
absl::StatusOr<Runs> RunPolicies(const Arguments& args, const Setup& setup, const Trace& trace,
                                 WorldOptions options, const PolicyOptions& policy_options) {
  Runs runs;
  for (const absl::string_view name : absl::StrSplit(args.policies, ',', absl::SkipEmpty())) {
    const std::string policy(name);
    absl::StatusOr<DecideFunction> decide = MakePolicy(policy, &trace, policy_options);
    if (!decide.ok()) return decide.status();
    options.decide = *std::move(decide);
    options.check_plans = !args.unchecked && policy == "muster";
    absl::StatusOr<WorldResult> result = RunWorld(setup.clusters, setup.queues, trace, options);
    if (!result.ok()) return result.status();
    for (size_t i = 0; i < result->stuck.size() && i < 20; ++i)
      std::fprintf(stderr, "did not end: %s\n", result->stuck[i].c_str());
    if (result->stuck.size() > 20)
      std::fprintf(stderr, "and %zu more did not end\n", result->stuck.size() - 20);
    runs.emplace_back(policy, *std::move(result));
  }
  if (runs.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("no policy; there are ", absl::StrJoin(PolicyNames(), ", ")));
  return runs;
}

void PrintComparison(const pb::ClusterFile& clusters, const Trace& trace, const Runs& runs,
                     int64_t patience_ns) {
  const int64_t load = LoadPerMille(DevicesOf(clusters, ""), trace);
  absl::PrintF("%d jobs in %s, %d GPUs, load %d.%d %%\n", trace.jobs.size(),
               FormatDuration(trace.jobs.back().submit_ns / kSecond * kSecond),
               DevicesOf(clusters, ""), load / 10, load % 10);
  if (const int64_t late = LateWorkPerMille(trace); late >= 200) {
    absl::PrintF(
        "%d.%d %% of that work is of jobs that can't end before the last submission: UTIL stays "
        "below the load\n",
        late / 10, late % 10);
  }
  std::fputs(PolicyTable(runs, patience_ns).c_str(), stdout);
}

int Run(const Arguments& args, bool compare) {
  if (args.trace.empty() == (args.random_jobs == 0))
    return Fail("give a TRACE or --random N, one of them");
  const absl::StatusOr<Setup> setup = ReadSetup(args);
  if (!setup.ok()) return Fail(std::string(setup.status().message()));
  WorldOptions options;
  PolicyOptions policy_options;
  int64_t from_ns = 0, until_ns = 0;
  if (setup->generator.has_value())
    options.hosts.launch_ns = options.hosts.stop_ns =
        0;  // its workloads take the time that it says
  if (absl::Status status = SetDurations(args, &options, &policy_options, &from_ns, &until_ns);
      !status.ok())
    return Fail(std::string(status.message()));
  if (args.unknown_ends) options.hosts.progress_ns = 0;
  options.scheduling.placement = Placements().at(args.placement);
  for (const std::string& part : args.without)
    (part == "levels" ? options.scheduling.levels : options.scheduling.draining) = false;

  const absl::StatusOr<Trace> trace = MakeTrace(args, *setup, from_ns, until_ns);
  if (!trace.ok()) return Fail(std::string(trace.status().message()));
  const absl::StatusOr<Runs> runs = RunPolicies(args, *setup, *trace, options, policy_options);
  if (!runs.ok()) return Fail(std::string(runs.status().message()));
  if (args.output == "json") {
    std::fputs(Json(setup->clusters, *runs, options.patience_ns, args.with_jobs).c_str(), stdout);
  } else if (compare) {
    PrintComparison(setup->clusters, *trace, *runs, options.patience_ns);
  } else {
    for (const auto& [policy, result] : *runs) {
      if (args.verbose) PrintJobs(result);
      std::fputs(QueueTable(result, options.patience_ns).c_str(), stdout);
    }
  }
  std::fflush(stdout);
  PrintRefused(runs->front().second);  // the same under every policy
  const bool failed = std::any_of(runs->begin(), runs->end(), [](const auto& run) {
    return !run.second.stuck.empty() ||
           std::none_of(run.second.jobs.begin(), run.second.jobs.end(),
                        [](const JobResult& job) { return job.refused.empty(); });
  });
  return failed ? 1 : 0;
}

// Faults come from a seed alone, without a trace and its clusters.
bool WantsFaults(int argc, char** argv) {
  if (argc < 2 || std::string(argv[1]).rfind("--seed", 0) != 0) return false;
  return std::none_of(argv, argv + argc, [](const char* word) {
    return std::string(word).rfind("--cluster", 0) == 0;
  });
}

int Main(int argc, char** argv) {
  if (WantsFaults(argc, argv)) return faults::Main(argc, argv);
  const bool compare = argc > 1 && std::string(argv[1]) == "compare";
  CLI::App app{
      "Runs a trace through Muster's engine on simulated hosts; prints waiting times, utilisation, "
      "evictions by queue.\n"
      "`muster-sim compare TRACE …` prints one row a policy; `muster-sim --seed N` runs faults "
      "instead of a trace.",
      "muster-sim"};
  Arguments args;
  if (compare) args.policies = absl::StrJoin(PolicyNames(), ",");
  app.add_option("trace", args.trace,
                 "Trace: our CSV, Philly, Kalos, Shockwave, openb, a Kueue generator; may be "
                 "gzipped (columns: docs/simulating.md)");
  app.add_option("--cluster", args.cluster,
                 "Clusters file, as musterd reads it; a Kueue generator brings its own");
  app.add_option("--queues", args.queues,
                 "Queues file; default: one queue `default` without limits");
  app.add_option(
         "--policy,--policies", args.policies,
         absl::StrCat("Who decides, joined by commas: ", absl::StrJoin(PolicyNames(), ", ")))
      ->capture_default_str();
  app.add_option("-o,--output", args.output, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  app.add_flag("--jobs", args.with_jobs,
               "With -o json: every job with the times at which it held devices, for sim/plot.py");
  app.add_option("--format", args.read.format, "Trace format; default: by its first line")
      ->check(CLI::IsMember({"csv", "philly", "shockwave", "openb", "kueue"}));
  app.add_option("--throughputs", args.read.throughputs,
                 "Shockwave: measured steps a second; durations then follow the batch sizes");
  app.add_flag("--strict", args.read.strict, "Stop at the first broken line of the trace");
  app.add_option("--random", args.random_jobs, "Instead of a trace: so many jobs drawn from --seed")
      ->check(CLI::Range(1, 10'000'000));
  app.add_option("--seed", args.seed, "Seed of --random");
  app.add_option("--from", args.from, "Leave out jobs submitted earlier, such as 20d");
  app.add_option("--until", args.until, "Leave out jobs submitted then or later");
  app.add_option("--load", args.load,
                 "Compress or stretch the times between submissions to this load in percent")
      ->check(CLI::Range(1, 1000));
  app.add_flag(
      "--own-cluster", args.own_cluster,
      "Jobs of a trace that names clusters stay in theirs; default: the others come after it");
  app.add_flag("--queue-by-size", args.by_size,
               "Each job goes to the queue of its number of GPUs: g1, g2, …");
  app.add_flag("--unknown-ends", args.unknown_ends,
               "Jobs report no progress: their ends can't be expected");
  app.add_flag("--unchecked", args.unchecked, "Don't let Validate check each plan (faster)");
  app.add_option("--round", args.round,
                 "Decide only at multiples of this; default: whenever something happens");
  app.add_option(
      "--report", args.report,
      "Starts, progress and checkpoints may wait so long for another event's step; default 0");
  app.add_option("--launch", args.launch, "From start to the first useful step; default 20s");
  app.add_option("--stop", args.stop, "From the stop signal to a checkpoint and exit; default 5s");
  app.add_option("--placement", args.placement,
                 "As in musterd.yaml: how work that fits one host chooses among hosts")
      ->check(CLI::IsMember(Placements()))
      ->capture_default_str();
  app.add_option("--grow-interval", args.grow_interval, "As in musterd.yaml; default 10m");
  app.add_option("--starve-after", args.starve_after, "As in musterd.yaml; default 30m");
  app.add_option("--min-runtime", args.min_runtime, "As in musterd.yaml; default 5m");
  app.add_option("--spill-cost", args.spill_cost, "As in musterd.yaml; default 60s");
  app.add_option("--quantum", args.quantum, "Preemptive peers choose anew so often")
      ->capture_default_str();
  app.add_option("--patience", args.patience,
                 "A job that its queue's guarantee covers for longer without starting is late")
      ->capture_default_str();
  app.add_flag("--verbose", args.verbose, "One line a job");
  // For measurements (decision 016), and in no help: what SchedulingOptions says may be left out.
  app.add_option("--without", args.without, "levels, draining")
      ->delimiter(',')
      ->check(CLI::IsMember({"levels", "draining"}))
      ->group("");
  if (const std::optional<int> code =
          ParseFlags(app, compare ? argc - 1 : argc, compare ? argv + 1 : argv);
      code.has_value())
    return *code;
  SetLogLevel(LogLevel::kWarn);
  return Run(args, compare);
}

}  // namespace
}  // namespace muster::sim

int main(int argc, char** argv) { return muster::sim::Main(argc, argv); }
