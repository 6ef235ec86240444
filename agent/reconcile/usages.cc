// What attempts use: taken in, kept and told.
#include <algorithm>

#include "agent/reconcile/reconciler.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kUsageIntervalNs = kMinute;  // of one attempt
constexpr int kUsagesAtOnce = 500;             // in a heartbeat
constexpr int64_t kGpusKeptNs = 30 * kSecond;  // on disk, so often

}  // namespace

v1::HostUsage HostUsageOf(const AttemptRecord& record) {
  v1::HostUsage usage = record.usage;
  if (!record.gpus.slots.empty()) *usage.mutable_gpus() = UsageOf(record.gpus);
  return usage;
}

void Reconciler::OnGpus(const std::vector<GpuLook>& looks, int64_t boot_ns, int64_t span_ns) {
  const bool keep = boot_ns - gpus_kept_ns_ >= kGpusKeptNs;
  if (keep) gpus_kept_ns_ = boot_ns;
  for (auto& [id, record] : records_) {
    const v1::Placement& here = record.prepare.here();
    // Of a part of a device nobody can tell who used it.
    if (record.claim != Claim::kStarted || record.gone() || here.device_milli_size() > 0) continue;
    std::vector<GpuLook> own;
    for (const GpuLook& look : looks) {
      if (std::find(here.devices().begin(), here.devices().end(), look.device) !=
          here.devices().end())
        own.push_back(look);
    }
    AddLooks(own, record.usage.ran_ns(), span_ns, &record.gpus);
    if (keep && !record.gpus.slots.empty()) KeepGpus(record);
  }
}

void Reconciler::KeepGpus(const AttemptRecord& record) {
  if (const absl::Status status = files_->KeepGpus(record); !status.ok())
    LogError("agent failed", {{"doing", "remember what GPUs did"},
                              {"job", record.id.job_uid},
                              {"error", std::string(status.message())}});
}

void Reconciler::AddUsages(int64_t boot_ns, v1::Heartbeat* heartbeat) {
  for (const auto& [id, record] : records_) {
    if (heartbeat->usages_size() >= kUsagesAtOnce) return;  // the others with the next
    if (record.claim != Claim::kStarted || record.gone() || record.usage.ran_ns() == 0) continue;
    const auto [sent, first] = usages_sent_.try_emplace(id);
    if (!first && (boot_ns - sent->second.boot_ns < kUsageIntervalNs ||
                   sent->second.ran_ns == record.usage.ran_ns()))
      continue;
    sent->second = {boot_ns, record.usage.ran_ns()};
    v1::AttemptUsage* told = heartbeat->add_usages();
    *told->mutable_key() = KeyOf(id);
    *told->mutable_usage() = HostUsageOf(record);
  }
}

}  // namespace muster::agent
