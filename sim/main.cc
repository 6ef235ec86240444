// muster-sim TRACE --cluster FILE [--queues FILE]: the real engine under a virtual clock with simulated hosts.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "sim/trace.h"
#include "sim/world.h"

namespace muster::sim {
namespace {

struct Row {
  std::string queue;
  std::vector<int64_t> waits_ns;
  int64_t run_ns = 0;
  int evictions = 0;
  int unfinished = 0;
};

int64_t Quantile(std::vector<int64_t> values, int percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, values.size() * static_cast<size_t>(percent) / 100)];
}

int64_t Mean(const std::vector<int64_t>& values) {
  if (values.empty()) return 0;
  __int128 sum = 0;
  for (int64_t v : values) sum += v;
  return static_cast<int64_t>(sum / static_cast<__int128>(values.size()));
}

void PrintTable(const WorldResult& result) {
  std::map<std::string, Row> rows;
  for (const JobResult& job : result.jobs) {
    if (!job.refused.empty()) continue;
    for (Row* row : {&rows[job.queue], &rows["(all)"]}) {
      if (job.start_ns >= 0) row->waits_ns.push_back(job.start_ns - job.submit_ns);
      if (job.end_ns >= 0) row->run_ns += job.end_ns - job.start_ns;
      if (job.end_ns < 0) ++row->unfinished;
      row->evictions += job.evictions;
    }
  }
  absl::PrintF("%-24s %7s %10s %10s %10s %10s %9s %10s\n", "QUEUE", "STARTED", "WAIT MEAN", "WAIT P50", "WAIT P99", "WAIT MAX",
               "EVICTIONS", "UNFINISHED");
  for (const auto& [queue, row] : rows) {
    absl::PrintF("%-24s %7d %10s %10s %10s %10s %9d %10d\n", queue, row.waits_ns.size(), FormatDuration(Mean(row.waits_ns)),
                 FormatDuration(Quantile(row.waits_ns, 50)), FormatDuration(Quantile(row.waits_ns, 99)),
                 FormatDuration(Quantile(row.waits_ns, 100)), row.evictions, row.unfinished);
  }
  const int64_t per_mille =
      result.capacity_device_ns == 0
          ? 0
          : static_cast<int64_t>(static_cast<__int128>(result.used_device_ns) * 1000 / result.capacity_device_ns);
  absl::PrintF("utilisation %d.%d %% over %s, %d evictions, %d engine steps in %s, digest %016x\n", per_mille / 10,
               per_mille % 10, FormatDuration(result.end_ns), result.evictions, result.steps, FormatDuration(result.decide_ns),
               result.digest);
}

int Fail(const std::string& text) {
  std::fprintf(stderr, "muster-sim: %s\n", text.c_str());
  return 2;
}

int Main(int argc, char** argv) {
  CLI::App app{"Runs a trace through Muster's engine on simulated hosts; prints waiting times, utilisation, evictions.", "muster-sim"};
  std::string trace_path, cluster_path, queue_path;
  int random_jobs = 0;
  uint64_t seed = 1;
  bool strict = false, verbose = false;
  app.add_option("trace", trace_path, "CSV trace (columns: see docs/operating.md)");
  app.add_option("--cluster", cluster_path, "Clusters file, as musterd reads it")->required();
  app.add_option("--queues", queue_path, "Queues file; default: one queue `default` without limits");
  app.add_option("--random", random_jobs, "Instead of a trace: so many jobs drawn from --seed")->check(CLI::Range(1, 10'000'000));
  app.add_option("--seed", seed, "Seed of --random");
  app.add_flag("--strict", strict, "Stop at the first broken line of the trace");
  app.add_flag("--verbose", verbose, "One line a job");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  SetLogLevel(LogLevel::kWarn);
  if (trace_path.empty() == (random_jobs == 0)) return Fail("give a TRACE or --random N, one of them");

  const ProblemFormat kFormat{.outcome = "nothing was run"};
  std::vector<Problem> problems;
  const auto read = [](const std::string& path) { return ReadFile(path, int64_t{1} << 30); };
  auto cluster_text = read(cluster_path);
  if (!cluster_text.ok()) return Fail(std::string(cluster_text.status().message()));
  pb::ClusterFile clusters;
  if (!ParseClusterFile(*cluster_text, cluster_path, &clusters, &problems)) return Fail(FormatProblems(problems, cluster_path, kFormat));
  pb::QueueTree queues;
  if (queue_path.empty()) {
    queues.add_queues()->set_name("default");
  } else {
    auto queue_text = read(queue_path);
    if (!queue_text.ok()) return Fail(std::string(queue_text.status().message()));
    if (!ParseQueueFile(*queue_text, queue_path, {}, &queues, &problems)) return Fail(FormatProblems(problems, queue_path, kFormat));
  }
  Trace trace;
  if (random_jobs > 0) {
    std::vector<std::string> leaves, flavours;
    const std::function<void(const google::protobuf::RepeatedPtrField<pb::QueueSpec>&, const std::string&)> collect =
        [&](const auto& level, const std::string& prefix) {
          for (const pb::QueueSpec& queue : level) {
            if (queue.queues().empty()) leaves.push_back(prefix + queue.name());
            collect(queue.queues(), prefix + queue.name() + "/");
          }
        };
    collect(queues.queues(), "");
    int max_gpus = 1;
    std::map<std::string, pb::Sku> skus(clusters.skus().begin(), clusters.skus().end());
    for (const auto& [name, sku] : skus) {
      if (sku.flavour().empty()) continue;
      if (std::find(flavours.begin(), flavours.end(), sku.flavour()) == flavours.end()) flavours.push_back(sku.flavour());
      max_gpus = std::max(max_gpus, sku.gpus());
    }
    if (flavours.empty()) return Fail(absl::StrCat(cluster_path, ": no SKU has GPUs; random jobs need some"));
    trace = RandomTrace(random_jobs, seed, leaves, flavours, max_gpus);
  } else {
    auto text = read(trace_path);
    if (!text.ok()) return Fail(std::string(text.status().message()));
    auto parsed = ParseTrace(*text, trace_path, strict);
    if (!parsed.ok()) return Fail(std::string(parsed.status().message()));
    trace = *std::move(parsed);
    for (const std::string& line : trace.broken) std::fprintf(stderr, "left out: %s\n", line.c_str());
    if (!trace.broken.empty()) std::fprintf(stderr, "%zu broken lines left out (--strict stops at the first)\n", trace.broken.size());
  }

  auto result = RunWorld(clusters, queues, trace, WorldOptions{});
  if (!result.ok()) return Fail(std::string(result.status().message()));
  int refused = 0;
  for (const JobResult& job : result->jobs) {
    if (!job.refused.empty()) {
      ++refused;
      std::fprintf(stderr, "refused: %s: %s\n", job.name.c_str(), job.refused.c_str());
    } else if (verbose) {
      absl::PrintF("%d %s %s wait %s run %s evictions %d\n", job.number, job.name, job.queue,
                   job.start_ns < 0 ? "-" : FormatDuration(job.start_ns - job.submit_ns),
                   job.end_ns < 0 ? "-" : FormatDuration(job.end_ns - job.start_ns), job.evictions);
    }
  }
  PrintTable(*result);
  if (refused > 0) std::fprintf(stderr, "%d jobs can never run here and were refused\n", refused);
  for (const std::string& line : result->stuck) std::fprintf(stderr, "did not end: %s\n", line.c_str());
  return result->stuck.empty() ? 0 : 1;
}

}  // namespace
}  // namespace muster::sim

int main(int argc, char** argv) { return muster::sim::Main(argc, argv); }
