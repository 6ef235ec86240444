#include "sim/faults/config.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sim/random.h"

namespace muster::sim::faults {
namespace {

struct Number {
  const char* name;
  int32_t Config::*field;
};
struct Duration {
  const char* name;
  int64_t Config::*field;
};
constexpr Number kNumbers[] = {
    {"hosts", &Config::hosts},         {"gpus", &Config::gpus},
    {"jobs", &Config::jobs},           {"faults", &Config::faults},
    {"sqlite", &Config::sqlite},       {"long-leases", &Config::long_leases},
    {"arrays", &Config::arrays},       {"successors", &Config::successors},
    {"together", &Config::together},   {"hosted", &Config::hosted},
    {"timed", &Config::timed},         {"multiples", &Config::multiples},
    {"schedules", &Config::schedules}, {"final-exits", &Config::final_exits},
    {"only-user", &Config::only_user}};
constexpr Duration kDurations[] = {
    {"duration", &Config::duration_ns}, {"patience", &Config::patience_ns},
    {"lease", &Config::lease_ns},       {"heartbeat", &Config::heartbeat_ns},
    {"work", &Config::work_ns},         {"latency", &Config::latency_ns}};

constexpr const char* kKindNames[] = {"cut",
                                      "cut-up",
                                      "cut-down",
                                      "reset",
                                      "lossy",
                                      "slow",
                                      "mass-cut",
                                      "crash-before-commit",
                                      "crash-after-commit",
                                      "commit-fails",
                                      "commit-fails-done",
                                      "store-full",
                                      "pause-scheduler",
                                      "takeover",
                                      "scheduler-clock",
                                      "crash-agent",
                                      "disk-full",
                                      "kill-shim",
                                      "reboot",
                                      "reboot-many",
                                      "lose-state",
                                      "host-clock",
                                      "launch-fails",
                                      "late-shims",
                                      "drain",
                                      "restore",
                                      "power-off",
                                      "agent-away",
                                      "old-streams",
                                      "pause-agent",
                                      "pause-shims",
                                      "edit-queues",
                                      "reboot-at-marker",
                                      "sleep",
                                      "clone",
                                      "stagger",
                                      "hold-ack",
                                      "device-fault",
                                      "lose-state-alone",
                                      "storage-hangs"};
static_assert(std::size(kKindNames) == static_cast<size_t>(FaultKind::kLast) + 1);

}  // namespace

absl::StatusOr<Config> ParseConfig(const std::string& text) {
  Config config;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    const std::string value(absl::StripAsciiWhitespace(parts.second));
    bool known = false;
    for (const Number& n : kNumbers) {
      if (parts.first != n.name) continue;
      known = true;
      if (!absl::SimpleAtoi(value, &(config.*n.field)) || config.*n.field < 0)
        return absl::InvalidArgumentError(absl::StrCat(number, ": ", n.name, ": wants a number"));
    }
    for (const Duration& d : kDurations) {
      if (parts.first != d.name) continue;
      known = true;
      const absl::StatusOr<int64_t> parsed = ParseDuration(value);
      if (!parsed.ok())
        return absl::InvalidArgumentError(
            absl::StrCat(number, ": ", d.name, ": ", std::string(parsed.status().message())));
      config.*d.field = *parsed;
    }
    if (!known)
      return absl::InvalidArgumentError(absl::StrCat(number, ": ", parts.first, ": unknown"));
  }
  if (config.hosts < 2 || config.gpus < 1)
    return absl::InvalidArgumentError("hosts must be 2 or more, gpus 1 or more");
  if (config.lease_ns < 3 * config.heartbeat_ns)
    return absl::InvalidArgumentError("lease: at least three heartbeats");
  return config;
}

Config ForSeed(Config config, uint64_t seed) {
  if (config.long_leases > 0 && seed % static_cast<uint64_t>(config.long_leases) == 0)
    config.lease_ns *= 3;
  for (int32_t Config::*some :
       {&Config::arrays, &Config::successors, &Config::timed, &Config::hosted, &Config::together,
        &Config::multiples, &Config::schedules, &Config::final_exits, &Config::only_user})
    config.*some = config.*some > 0 && seed % static_cast<uint64_t>(config.*some) == 0 ? 1 : 0;
  return config;
}

std::string ConfigText(const Config& config) {
  std::string text;
  for (const Number& n : kNumbers) absl::StrAppend(&text, n.name, ": ", config.*n.field, "\n");
  for (const Duration& d : kDurations)
    absl::StrAppend(&text, d.name, ": ", FormatDuration(config.*d.field), "\n");
  return text;
}

std::string FaultText(const Fault& fault) {
  return absl::StrCat("at ", FormatDuration(fault.at_ns), " ",
                      kKindNames[static_cast<int>(fault.kind)], " host ", fault.host, " for ",
                      FormatDuration(fault.duration_ns), " value ", fault.value);
}

std::vector<Fault> DrawFaults(const Config& all, uint64_t seed) {
  const Config config = ForSeed(all, seed);
  Random random(seed * 0x9e3779b97f4a7c15ull + 1);
  std::vector<FaultKind> kinds;
  const uint64_t one_in = random.OneIn(2) ? 2 : 8;
  for (int k = 0; k <= static_cast<int>(FaultKind::kLast); ++k) {
    if (random.OneIn(one_in)) kinds.push_back(static_cast<FaultKind>(k));
  }
  std::vector<Fault> faults;
  if (kinds.empty()) return faults;
  for (int32_t i = 0; i < config.faults; ++i) {
    Fault fault;
    fault.at_ns = static_cast<int64_t>(random.Below(static_cast<uint64_t>(config.duration_ns)));
    fault.kind = kinds[random.Below(kinds.size())];
    fault.host = static_cast<int32_t>(random.Below(static_cast<uint64_t>(config.hosts)));
    if (i > 0 && random.OneIn(4)) {
      fault.at_ns = std::min(config.duration_ns - 1,
                             faults.back().at_ns + random.Between(0, config.lease_ns));
      fault.host = faults.back().host;
    }
    // Half of them shorter than a lease, half longer.
    fault.duration_ns = random.OneIn(2) ? random.Between(1, config.lease_ns)
                                        : random.Between(config.lease_ns, 6 * config.lease_ns);
    switch (fault.kind) {
      case FaultKind::kSlow:
        fault.value = random.Between(config.latency_ns, config.lease_ns);
        break;
      case FaultKind::kLateShims:
        fault.value = random.Between(kSecond, 5 * config.lease_ns);
        break;
      case FaultKind::kOldStreams:
        fault.value = random.Between(kSecond, 3 * config.lease_ns);
        break;
      case FaultKind::kSchedulerClock:
      case FaultKind::kHostClock:
        fault.value = random.Between(-kHour, kHour);
        break;
      case FaultKind::kCrashBeforeCommit:
      case FaultKind::kCrashAfterCommit:
      case FaultKind::kCommitFails:
      case FaultKind::kCommitFailsDone:
        fault.value = random.Between(1, 4);
        break;
      case FaultKind::kCrashAgent:
        fault.value = random.Between(1, 4);
        break;
      case FaultKind::kEditQueues:
        fault.value = random.Between(1, int64_t{1} << 40);
        break;
      case FaultKind::kKillShim:
      case FaultKind::kRestore:
        fault.value = random.Between(0, 1);
        break;
      case FaultKind::kMassCut:
      case FaultKind::kStagger:
        fault.value = random.Between(55, 100);
        break;
      case FaultKind::kHoldAck:
        fault.value =
            random.Between(config.lease_ns / 3, config.lease_ns - config.heartbeat_ns / 2);
        break;
      case FaultKind::kDeviceFault:
        fault.value = random.Between(0, config.gpus - 1);
        break;
      default:
        break;
    }
    faults.push_back(fault);
  }
  std::sort(faults.begin(), faults.end(),
            [](const Fault& a, const Fault& b) { return a.at_ns < b.at_ns; });
  return faults;
}

}  // namespace muster::sim::faults
