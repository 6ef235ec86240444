#include "scheduler/ask/usage.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kGib = int64_t{1} << 30, kMib = int64_t{1} << 20;
// What ended well has shown all that it needs, if it did anything; what was stopped has shown it if
// it ran for long.
constexpr int64_t kRanWellNs = kMinute, kRanLongNs = 30 * kMinute;
// GPUs have to be watched for so long, all together, and to be busy for less than this.
constexpr int64_t kWatchedLongNs = 10 * kMinute;
constexpr int64_t kIdlePermille = 300;

int64_t Clamped(__int128 value) {
  return static_cast<int64_t>(std::clamp<__int128>(value, 0, std::numeric_limits<int64_t>::max()));
}

template <typename Set>
void RaiseTo(bool known, int64_t before, int64_t value, Set set) {
  if (!known || value > before) set(value);
}

// The slots of each host, in the longest of their lengths.
void MeanOfSlots(const std::vector<const pb::GpuUsage*>& hosts, pb::GpuUsage* all) {
  for (const pb::GpuUsage* host : hosts)
    all->set_slot_ns(std::max(all->slot_ns(), host->slot_ns()));
  std::vector<std::pair<int64_t, int64_t>> sums;  // permille, and of how many
  for (const pb::GpuUsage* host : hosts) {
    if (host->slot_ns() <= 0 || all->slot_ns() % host->slot_ns() != 0) continue;  // none of ours
    const int64_t each = all->slot_ns() / host->slot_ns();
    for (int i = 0; i < host->busy_permille_size(); ++i) {
      if (host->busy_permille(i) < 0) continue;
      const size_t slot = static_cast<size_t>(i / each);
      if (sums.size() <= slot) sums.resize(slot + 1);
      sums[slot].first += host->busy_permille(i);
      ++sums[slot].second;
    }
  }
  for (const auto& [permille, count] : sums)
    all->add_busy_permille(count == 0 ? -1 : static_cast<int32_t>(permille / count));
}

pb::GpuUsage SumGpus(const std::vector<const pb::GpuUsage*>& hosts) {
  pb::GpuUsage all;
  __int128 watched_ns = 0, busy_ns = 0;
  for (const pb::GpuUsage* host : hosts) {
    watched_ns += host->watched_ns();
    busy_ns += host->busy_ns();
    if (all.memory_bytes() != 0 && host->memory_peak_bytes() <= all.memory_peak_bytes()) continue;
    all.set_memory_peak_bytes(host->memory_peak_bytes());
    all.set_memory_bytes(host->memory_bytes());
  }
  all.set_watched_ns(Clamped(watched_ns));
  all.set_busy_ns(Clamped(busy_ns));
  MeanOfSlots(hosts, &all);
  return all;
}

bool KilledForMemory(const AttemptRow& attempt) {
  if (attempt.cause != pb::OUT_OF_MEMORY) return false;
  return std::any_of(attempt.parts.begin(), attempt.parts.end(), [](const PartRow& part) {
    return std::any_of(part.exits.begin(), part.exits.end(),
                       [](const pb::WorkerExit& exit) { return exit.oom(); });
  });
}

// It has shown what it needs.
bool SaysEnough(const AttemptRow& attempt) {
  if (attempt.start_ns == 0) return false;
  const int64_t ran_ns = attempt.end_ns - attempt.start_ns;
  switch (attempt.cause) {
    case pb::DONE:
    case pb::NOT_NEEDED:
      return ran_ns >= kRanWellNs;
    case pb::TIME_LIMIT:
    case pb::CANCEL:
    case pb::PREEMPTION:
    case pb::RESIZE:
    case pb::DRAIN:
    case pb::HOLDER:
      return ran_ns >= kRanLongNs;
    default:
      return false;
  }
}

// A quarter more than was used, as people write it.
int64_t EnoughMemory(int64_t peak_bytes) {
  const int64_t bytes = Clamped(__int128{peak_bytes} * 5 / 4);
  const int64_t unit = bytes > kGib ? kGib : 64 * kMib;
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

int64_t EnoughCpusMilli(int64_t most_milli) {
  return std::max<int64_t>(1000, (most_milli * 5 / 4 + 999) / 1000 * 1000);
}

// It would be worth while.
bool FarLess(int64_t enough, int64_t asked, int64_t least) {
  return asked - enough >= least && Clamped(__int128{enough} * 10) <= Clamped(__int128{asked} * 6);
}

std::string ShortCpus(int64_t milli) { return FormatMilli(milli / 100 * 100); }

std::string AdviceAfterKill(int64_t asked_bytes, int64_t peak_bytes) {
  if (asked_bytes == 0) {
    return absl::StrCat(
        "killed for memory, and it had asked for none: say what it needs",
        peak_bytes > 0 ? absl::StrCat(", memory: ", FormatSize(EnoughMemory(peak_bytes / 5 * 6)))
                       : "");
  }
  return absl::StrCat("killed for memory with the ", FormatSize(asked_bytes),
                      " that it had asked for: it needs more, memory: ",
                      FormatSize(EnoughMemory(asked_bytes / 5 * 6)), " for example");
}

// The most of all its attempts that have ended: what one of them needed, the next may need.
pb::Usage MostOf(const State& state, const TaskRow& task) {
  pb::Usage most;
  for (const AttemptRow& attempt : task.attempts) {
    const std::optional<pb::Usage> usage = SumUsage(state, attempt);
    if (!usage.has_value() || !attempt.ended()) continue;
    if (usage->has_memory_peak_bytes() && usage->memory_peak_bytes() >= most.memory_peak_bytes())
      most.set_memory_peak_bytes(usage->memory_peak_bytes());
    if (usage->has_cpus_most_milli() && usage->cpus_most_milli() >= most.cpus_most_milli())
      most.set_cpus_most_milli(usage->cpus_most_milli());
  }
  return most;
}

}  // namespace

std::optional<pb::Usage> SumUsage(const State& state, const AttemptRow& attempt,
                                  const UsageByHost& live) {
  pb::Usage sum;
  __int128 cpu_us = 0;
  std::vector<const pb::GpuUsage*> gpus;
  for (const PartRow& part : attempt.parts) {
    const pb::HostUsage* told = part.usage.get();
    if (told == nullptr && !live.empty() && part.host != kNoHost) {
      const auto it = live.find(state.host(part.host).name);
      if (it != live.end()) told = &it->second;
    }
    if (told == nullptr || told->ran_ns() <= 0) continue;
    const int64_t workers = std::max(1, part.workers);
    sum.set_ran_ns(std::max(sum.ran_ns(), told->ran_ns()));
    if (told->has_memory_peak_bytes())
      RaiseTo(sum.has_memory_peak_bytes(), sum.memory_peak_bytes(),
              (told->memory_peak_bytes() + workers - 1) / workers,
              [&](int64_t bytes) { sum.set_memory_peak_bytes(bytes); });
    if (told->has_cpu_us()) {
      cpu_us += told->cpu_us();
      sum.set_cpu_us(Clamped(cpu_us));
      RaiseTo(sum.has_cpus_mean_milli(), sum.cpus_mean_milli(),
              Clamped(__int128{told->cpu_us()} * 1'000'000 / told->ran_ns() / workers),
              [&](int64_t milli) { sum.set_cpus_mean_milli(milli); });
    }
    if (told->has_cpus_most_milli())
      RaiseTo(sum.has_cpus_most_milli(), sum.cpus_most_milli(), told->cpus_most_milli() / workers,
              [&](int64_t milli) { sum.set_cpus_most_milli(milli); });
    if (told->has_gpus()) gpus.push_back(&told->gpus());
  }
  if (sum.ran_ns() == 0) return std::nullopt;
  if (!gpus.empty()) *sum.mutable_gpus() = SumGpus(gpus);
  return sum;
}

std::vector<std::string> AdviceOf(const State& state, const pb::TaskSpec& spec,
                                  const TaskRow& task) {
  const auto last = std::find_if(task.attempts.rbegin(), task.attempts.rend(),
                                 [](const AttemptRow& attempt) { return attempt.ended(); });
  if (last == task.attempts.rend()) return {};
  const pb::Usage most = MostOf(state, task);
  const pb::Resources& asked = spec.resources();
  if (KilledForMemory(*last))
    return {AdviceAfterKill(asked.memory_bytes(), most.memory_peak_bytes())};
  // Of a host that says nothing nobody knows what was used there.
  const bool told = std::all_of(last->parts.begin(), last->parts.end(),
                                [](const PartRow& part) { return part.usage != nullptr; });
  const std::optional<pb::Usage> usage = SumUsage(state, *last);
  if (!SaysEnough(*last) || !told || !usage.has_value()) return {};
  std::vector<std::string> advice;
  const int64_t enough_bytes = EnoughMemory(most.memory_peak_bytes());
  if (usage->has_memory_peak_bytes() && FarLess(enough_bytes, asked.memory_bytes(), kGib)) {
    advice.push_back(absl::StrCat("asked for ", FormatSize(asked.memory_bytes()),
                                  " of memory, used ", FormatSize(most.memory_peak_bytes()),
                                  " at most: memory: ", FormatSize(enough_bytes), " would do"));
  }
  const int64_t enough_milli = EnoughCpusMilli(most.cpus_most_milli());
  if (usage->has_cpus_most_milli() && FarLess(enough_milli, asked.cpus_milli(), 1000)) {
    advice.push_back(absl::StrCat("asked for ", FormatMilli(asked.cpus_milli()), " cpus, used ",
                                  ShortCpus(usage->cpus_mean_milli()), " on average and ",
                                  ShortCpus(most.cpus_most_milli()),
                                  " at most: cpus: ", FormatMilli(enough_milli), " would do"));
  }
  const pb::GpuUsage& gpus = usage->gpus();
  if (gpus.watched_ns() >= kWatchedLongNs &&
      gpus.busy_ns() < Clamped(__int128{gpus.watched_ns()} * kIdlePermille / 1000)) {
    advice.push_back(absl::StrCat(
        "its GPUs were busy ", Clamped(__int128{gpus.busy_ns()} * 100 / gpus.watched_ns()),
        " % of the time: fewer of them, or cheaper ones, might do; or it waited for its data"));
  }
  return advice;
}

}  // namespace muster
