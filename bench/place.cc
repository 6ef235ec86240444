// Rows `gang-32k` and `onehost-10k`: what one decision over many hosts takes, through the real
// State.
//
//   bench_place gang-32k|onehost-10k [--quick]
//
// CPU time of the one thread, median of the runs: wall time is the same on an idle machine and
// measures the others on a busy one.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/testing/builders.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

double CpuMs() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool Figure(const char* name, double value, const char* unit, const char* bar, bool holds,
            const char* peer) {
  std::printf(
      "{\"figure\": \"%s\", \"value\": %.1f, \"unit\": \"%s\", \"peer\": \"%s\", \"bar\": \"%s\", "
      "\"holds\": %s}\n",
      name, value, unit, peer, bar, holds ? "true" : "false");
  return holds;
}

int Placed(const Plan& plan) {
  int workers = 0;
  for (const pb::Event& event : plan.events) workers += event.attempt_placed().workers();
  return workers;
}

struct Took {
  double decide_ms = 0, validate_ms = 0;
};

// Decides and validates the same State so often; exits if the plan isn't valid or doesn't place so
// many workers.
Took Measure(const testing::SystemBuilder& system, int runs, int workers) {
  std::vector<double> decide, validate;
  for (int r = 0; r < runs; ++r) {
    const double from = CpuMs();
    const Plan plan = Decide(system.state, system.now_ns, SchedulingOptions());
    const double decided = CpuMs();
    const absl::Status valid = Validate(system.state, plan);
    const double validated = CpuMs();
    if (!valid.ok() || Placed(plan) != workers) {
      std::fprintf(stderr, "placed %d of %d workers; %s\n", Placed(plan), workers,
                   std::string(valid.message()).c_str());
      std::exit(1);
    }
    decide.push_back(decided - from);
    validate.push_back(validated - decided);
  }
  return {Median(decide), Median(validate)};
}

bool Gang(bool quick) {
  testing::SystemBuilder system;
  system.Cluster("c").Queue("q");
  for (int h = 0; h < 1000; ++h) system.Hello("c", absl::StrCat("n", h), 0, "", 32);
  testing::JobBuilder job("q");
  job.Workers(32'000).GpusMilli(0).Cpus(1);
  job.SubmitTo(&system);
  const Took took = Measure(system, quick ? 5 : 31, 32'000);
  const double rate = 32'000 / (took.decide_ms + took.validate_ms) * 1e3;
  std::printf(
      "one gang of 32,000 workers on 1,000 hosts of 32 CPUs: Decide %.2f ms, Validate %.2f ms\n",
      took.decide_ms, took.validate_ms);
  return Figure("gang-32k.rate", rate, "placements/s", ">= 500000", rate >= 500'000,
                "Armada 49000-53000 (published, BenchmarkScheduleMany)");
}

bool OneHost(bool quick) {
  testing::SystemBuilder system;
  system.Cluster("c").Queue("q");
  std::mt19937_64 random(1);
  for (int h = 0; h < 10'000; ++h)
    system.Hello("c", absl::StrCat("n", h), 0, "", 16 + 8 * (h / 2000));
  for (int t = 0; t < 10'000; ++t) {
    testing::JobBuilder job("q");
    job.GpusMilli(0);
    job.task()->mutable_resources()->set_cpus_milli(
        static_cast<int64_t>(500 * (1 + random() % 32)));
    job.task()->mutable_resources()->set_memory_bytes(static_cast<int64_t>(1 + random() % 64)
                                                      << 30);
    job.SubmitTo(&system);
  }
  const Took took = Measure(system, quick ? 5 : 31, 10'000);
  std::printf(
      "10,000 one-host tasks with 32 x 64 sizes of CPUs and memory on 10,000 hosts of five sizes: "
      "Decide %.2f ms (Validate %.2f ms)\n",
      took.decide_ms, took.validate_ms);
  return Figure("onehost-10k.decide", took.decide_ms, "ms", "<= 40", took.decide_ms <= 40,
                "Armada 318-340 ms (published)");
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const std::string row = argc > 1 ? argv[1] : "";
  const bool quick = argc > 2 && std::string(argv[2]) == "--quick";
  if (row == "gang-32k") return muster::Gang(quick) ? 0 : 1;
  if (row == "onehost-10k") return muster::OneHost(quick) ? 0 : 1;
  std::fprintf(stderr, "usage: bench_place gang-32k|onehost-10k [--quick]\n");
  return 2;
}
