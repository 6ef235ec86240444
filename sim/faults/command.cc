#include "sim/faults/command.h"

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/files.h"
#include "common/base/fnv.h"
#include "common/base/quiet_log.h"
#include "common/base/units.h"
#include "sim/faults/run.h"

#ifndef MUSTER_COMMIT
#define MUSTER_COMMIT "unknown"
#endif

namespace muster::sim::faults {
namespace {

constexpr int kShrinkRuns = 300;

struct Arguments {
  uint64_t seed = 1;
  int64_t seeds = 1;
  std::string config, only;
  bool json = false, no_shrink = false, until_failure = false;
};

int Fail(const std::string& text) {
  std::fprintf(stderr, "muster-sim: %s\n", text.c_str());
  return 2;
}

// One failing run, with all that replays it.
void Tell(const Arguments& args, const Config& config, uint64_t seed, const std::vector<Fault>& all,
          const std::vector<Fault>& faults, const RunResult& result) {
  std::fprintf(stderr, "seed %llu, commit %s: %zu violations\n",
               static_cast<unsigned long long>(seed), MUSTER_COMMIT, result.violations.size());
  for (const std::string& violation : result.violations)
    std::fprintf(stderr, "  %s\n", violation.c_str());
  const std::vector<Fault> fewer =
      args.no_shrink ? faults : Shrink(config, seed, faults, kShrinkRuns);
  std::string only;
  std::fprintf(stderr, "it fails with %zu of its %zu faults:\n", fewer.size(), all.size());
  for (const Fault& fault : fewer) {
    size_t index = 0;
    while (index < all.size() && FaultText(all[index]) != FaultText(fault)) ++index;
    std::fprintf(stderr, "  %zu: %s\n", index, FaultText(fault).c_str());
    absl::StrAppend(&only, only.empty() ? "" : ",", index);
  }
  if (!fewer.empty() && fewer.size() < faults.size()) {
    for (const std::string& violation : Run(config, seed, fewer).violations)
      std::fprintf(stderr, "  then: %s\n", violation.c_str());
  }
  std::fprintf(stderr, "replay: muster-sim --seed %llu --only %s",
               static_cast<unsigned long long>(seed), only.empty() ? "none" : only.c_str());
  if (args.config.empty()) {
    std::fprintf(stderr, "\n");
  } else {
    std::fprintf(stderr, " --config %s, which says\n%s", args.config.c_str(),
                 ConfigText(config).c_str());
  }
}

}  // namespace

int Main(int argc, char** argv) {
  CLI::App app{
      "Runs scheduler, agents and shims against faults on a virtual clock; the seed decides "
      "everything.",
      "muster-sim"};
  Arguments args;
  app.add_option("--seed", args.seed, "The first, or only, seed")->required();
  app.add_option("--seeds", args.seeds, "So many seeds, one after the other")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  app.add_option("--config", args.config,
                 "Lines `name: value`: hosts, gpus, jobs, faults, sqlite, long-leases, arrays, "
                 "successors, timed, hosted, together, multiples, schedules, final-exits, "
                 "only-user, duration, patience, lease, heartbeat, work, latency");
  app.add_option("--only", args.only,
                 "Of the seed's faults only these (numbers joined by commas, or none)");
  app.add_flag("--json", args.json, "One line of JSON at the end instead of the table");
  app.add_flag("--no-shrink", args.no_shrink, "Don't look for a shorter list of faults that fails");
  app.add_flag("--until-failure", args.until_failure, "Stop at the first seed that fails");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  SilenceLog();  // faults are what it is full of
  Config config;
  if (!args.config.empty()) {
    const absl::StatusOr<std::string> text = ReadFile(args.config);
    if (!text.ok()) return Fail(std::string(text.status().message()));
    const absl::StatusOr<Config> parsed = ParseConfig(*text);
    if (!parsed.ok())
      return Fail(absl::StrCat(args.config, ":", std::string(parsed.status().message())));
    config = *parsed;
  }
  Counters counters;
  int64_t failed = 0, virtual_ns = 0, real_ns = 0;
  uint64_t first_failed = 0, digest = 0;
  for (int64_t i = 0; i < args.seeds; ++i) {
    const uint64_t seed = args.seed + static_cast<uint64_t>(i);
    const std::vector<Fault> all = DrawFaults(config, seed);
    std::vector<Fault> faults = all;
    if (!args.only.empty()) {
      faults.clear();
      for (const absl::string_view word : absl::StrSplit(args.only, ',', absl::SkipEmpty())) {
        size_t index = 0;
        if (word == "none") continue;
        if (!absl::SimpleAtoi(word, &index) || index >= all.size())
          return Fail(absl::StrCat("--only: there is no fault ", std::string(word)));
        faults.push_back(all[index]);
      }
    }
    const RunResult result = Run(config, seed, faults);
    counters.Add(result.counters);
    virtual_ns += result.virtual_ns;
    real_ns += result.real_ns;
    digest = Fnv1a(absl::StrCat(result.digest), digest);
    if (result.violations.empty()) continue;
    if (failed++ == 0) first_failed = seed;
    if (!args.json) Tell(args, config, seed, all, faults, result);
    if (args.until_failure) break;
  }
  const double speed =
      real_ns > 0 ? static_cast<double>(virtual_ns) / static_cast<double>(real_ns) : 0;
  if (args.json) {
    std::string names;
    for (size_t i = 0; i < kCounterNames.size(); ++i)
      absl::StrAppend(&names, i == 0 ? "" : ",", "\"", kCounterNames[i], "\":", counters.at(i));
    absl::PrintF(
        "{\"seeds\":%d,\"failed\":%d,\"first_failed\":%d,\"virtual_s\":%d,\"real_s\":%.3f,\"times_"
        "real_time\":%.1f,\"digest\":\"%016x\",\"counters\":{%s}}\n",
        args.seeds, failed, first_failed, virtual_ns / kSecond, static_cast<double>(real_ns) / 1e9,
        speed, digest, names);
  } else {
    for (size_t i = 0; i < kCounterNames.size(); ++i)
      absl::PrintF("%10d  %s\n", counters.at(i), kCounterNames[i]);
    absl::PrintF("%d seeds from %d: %d failed; %s in %s, %.0f times real time; digest %016x\n",
                 args.seeds, args.seed, failed, FormatDuration(virtual_ns / kSecond * kSecond),
                 FormatDuration(real_ns / kMillisecond * kMillisecond), speed, digest);
  }
  return failed > 0 ? 1 : 0;
}

}  // namespace muster::sim::faults
