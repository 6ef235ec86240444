#include "scheduler/state/usage.h"

#include "common/base/units.h"

namespace muster {
namespace {

constexpr int64_t kMostRanNs = 36'500 * kDay;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostCores = 65'536;
constexpr int64_t kMostGpus = 1024;
// Clocks and counters aren't read at the same moment.
constexpr int64_t kSlackNs = kMinute;

bool Within(int64_t value, int64_t most) { return value >= 0 && value <= most; }

bool IsPlausible(const pb::GpuUsage& gpus, int64_t ran_ns) {
  const int64_t most_ms = (ran_ns + kSlackNs) / kMillisecond * kMostGpus;
  if (gpus.watched_ns() <= 0 || !Within(gpus.watched_ns() / kMillisecond, most_ms) ||
      !Within(gpus.busy_ns(), gpus.watched_ns()) || !Within(gpus.memory_bytes(), kMostBytes) ||
      !Within(gpus.memory_peak_bytes(), gpus.memory_bytes()) || gpus.slot_ns() <= 0 ||
      gpus.slot_ns() > kMostRanNs || gpus.busy_permille_size() > kGpuSlotsMax)
    return false;
  for (const int32_t busy_permille : gpus.busy_permille()) {
    if (busy_permille < -1 || busy_permille > 1000) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const pb::HostUsage> PlausibleUsage(const pb::HostUsage& told) {
  const int64_t ran_ns = told.ran_ns();
  if (ran_ns <= 0 || ran_ns > kMostRanNs) return nullptr;
  auto usage = std::make_shared<pb::HostUsage>();
  usage->set_ran_ns(ran_ns);
  const int64_t most_cpu_ms = (ran_ns + kSlackNs) / kMillisecond * kMostCores;
  if (told.has_memory_peak_bytes() && Within(told.memory_peak_bytes(), kMostBytes))
    usage->set_memory_peak_bytes(told.memory_peak_bytes());
  if (told.cpu_us() >= 0 && told.has_cpu_us() && Within(told.cpu_us() / 1000, most_cpu_ms))
    usage->set_cpu_us(told.cpu_us());
  if (told.has_cpus_most_milli() && Within(told.cpus_most_milli(), kMostCores * 1000))
    usage->set_cpus_most_milli(told.cpus_most_milli());
  if (told.has_gpus() && IsPlausible(told.gpus(), ran_ns)) *usage->mutable_gpus() = told.gpus();
  const bool any = usage->has_memory_peak_bytes() || usage->has_cpu_us() || usage->has_gpus();
  return any ? usage : nullptr;
}

}  // namespace muster
