// Jobs on another one's devices, by what specs name and committed rows say.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "sim/faults/checks.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {
namespace {

uint64_t HolderNumber(const pb::JobRecord& job) {
  return std::strtoull(job.spec().on().c_str(), nullptr, 10);
}

// Each device and share that the attempt has on the host.
std::map<int32_t, int64_t> DevicesOf(const pb::AttemptRecord& attempt, const std::string& host) {
  std::map<int32_t, int64_t> devices;
  for (const pb::Placement& placement : attempt.placements()) {
    for (int d = 0; placement.host() == host && d < placement.devices_size(); ++d)
      devices[placement.devices(d)] +=
          d < placement.device_milli_size() ? placement.device_milli(d) : 1000;
  }
  return devices;
}

}  // namespace

void Checker::RememberHolder(const pb::JobRecord& job, const pb::AttemptRecord& attempt,
                             const pb::JobRecord& holder) {
  pb::AttemptKey& key = holder_of_[Text(KeyOf(job, 0, attempt))];
  key.set_job_uid(holder.uid());
  key.set_task(holder.spec().tasks(0).name());
  key.set_attempt(attempt.holder_attempt());
}

void Checker::RememberHolder(const pb::AttemptKey& placed) {
  const Known mine = Find(placed, "");
  if (mine.job->spec().on().empty()) return;
  for (const auto& [uid, job] : jobs_) {
    if (job.number() == HolderNumber(*mine.job)) RememberHolder(*mine.job, *mine.attempt, job);
  }
}

// The store that counts may give the holder's number to another job.
void Checker::RememberHoldersAlone(const pb::JobRecord& job, const Rows& rows) {
  if (job.spec().on().empty()) return;
  for (const pb::AttemptRecord& attempt : job.tasks(0).attempts()) {
    if (holder_of_.contains(Text(KeyOf(job, 0, attempt)))) continue;
    for (const auto& [name, bytes] : rows) {
      pb::JobRecord holder;
      if (name.first == "job" && holder.ParseFromString(bytes) &&
          holder.number() == HolderNumber(job))
        RememberHolder(job, attempt, holder);
    }
  }
}

pb::AttemptKey Checker::HolderKeyOf(const pb::AttemptKey& key) const {
  const auto found = holder_of_.find(Text(key));
  return found == holder_of_.end() ? pb::AttemptKey() : found->second;
}

bool Checker::IsOnHolder(const pb::AttemptKey& key, const std::string& host) const {
  const pb::AttemptKey holder = HolderKeyOf(key);
  if (holder.job_uid().empty()) return false;
  const auto row = hosts_.find(host);
  for (const pb::LostAttempt& lost : row->second.lost()) {
    if (Text(lost.key()) == Text(holder)) return true;
  }
  const Known known = Find(holder, host);
  return known.attempt != nullptr && known.part >= 0 && known.attempt->end_ns() == 0 &&
         !std::all_of(known.attempt->parts().begin(), known.attempt->parts().end(), Over) &&
         !known.attempt->parts(known.part).lost();
}

void Checker::CheckHosted(int64_t now_ns, const pb::AttemptKey& key) {
  const Known mine = Find(key, "");
  if (mine.job->spec().on().empty()) return;
  const pb::JobRecord& after = *mine.job;
  const pb::AttemptRecord& placed = *mine.attempt;
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": job ", after.number()));
  };
  ++counters_["jobs that started on others' devices"];
  const Known holder = Find(HolderKeyOf(key), "");
  const pb::AttemptRecord* has = holder.attempt;
  if (has == nullptr || has->state() != pb::TASK_RUNNING || has->cluster() != placed.cluster())
    return violate("starts on an attempt that doesn't run");
  for (const pb::Placement& placement : placed.placements()) {
    const std::map<int32_t, int64_t> holds = DevicesOf(*has, placement.host());
    std::map<int32_t, int64_t> used;
    for (const auto& [uid, job] : jobs_) {
      if (job.spec().on() != after.spec().on() || job.end_ns() != 0) continue;
      for (const pb::AttemptRecord& beside : job.tasks(0).attempts()) {
        // What waits for its export alone has left.
        const bool gone = std::all_of(beside.parts().begin(), beside.parts().end(), Over);
        if (beside.end_ns() != 0 || gone || beside.holder_attempt() != has->number() ||
            job.number() == after.number())
          continue;
        for (const auto& [device, milli] : DevicesOf(beside, placement.host()))
          used[device] += milli;
      }
    }
    for (const auto& [device, milli] : DevicesOf(placed, placement.host())) {
      const auto of_holder = holds.find(device);
      if (of_holder == holds.end() || used[device] + milli > of_holder->second)
        violate(absl::StrCat("has more of device ", device, " than its holder has left"));
    }
  }
}

}  // namespace muster::sim::faults
