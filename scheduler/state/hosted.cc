#include "scheduler/state/hosted.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "scheduler/state/applier.h"

namespace muster {

uint64_t HolderNumber(const pb::JobSpec& spec) {
  uint64_t number = 0;
  return absl::SimpleAtoi(spec.on(), &number) ? number : 0;
}

const AttemptRow* HolderRuns(const State& state, const JobRow& job) {
  const JobRow* holder = state.FindJob(job.holder);
  if (holder == nullptr || holder->finished() || holder->tasks.size() != 1) return nullptr;
  const AttemptRow* current = holder->tasks[0].current();
  // One that has gone and waits for its export has nothing any more.
  const bool runs =
      current != nullptr && current->state == pb::TASK_RUNNING && !current->released();
  return runs ? current : nullptr;
}

bool HolderGoesOn(const State& state, const JobRow& job, const AttemptRow& attempt) {
  const AttemptRow* runs = HolderRuns(state, job);
  return runs != nullptr && runs->number == attempt.holder_attempt;
}

bool IsOnHolder(const State& state, const HostRow& host, const JobRow& job,
                const AttemptRow& attempt) {
  if (job.holder == 0) return false;
  const JobRow* holder = state.FindJob(job.holder);
  const auto of_holder = [&](const LostRow& lost) {
    return holder != nullptr && lost.key.job_uid() == holder->uid &&
           lost.key.attempt() == attempt.holder_attempt;
  };
  if (std::any_of(host.lost.begin(), host.lost.end(), of_holder)) return true;
  const AttemptRef ref{job.holder, 0, attempt.holder_attempt};
  if (!std::binary_search(host.attempts.begin(), host.attempts.end(), ref)) return false;
  const std::vector<PartRow>& parts = state.FindAttempt(ref)->parts;
  return std::any_of(parts.begin(), parts.end(),
                     [&](const PartRow& part) { return part.host == host.id && !part.lost; });
}

void HolderRoom::Take(const Demand& demand, const std::vector<int32_t>& devices,
                      const std::vector<int64_t>& shares) {
  for (size_t d = 0; d < devices.size(); ++d) {
    if (devices[d] < 0 || static_cast<size_t>(devices[d]) >= device_milli.size()) continue;
    device_milli[devices[d]] -= d < shares.size() ? shares[d] : 1000;
  }
  cpus_milli -= demand.cpus_milli;
  memory_bytes -= demand.memory_bytes;
  disk_bytes -= demand.disk_bytes;
}

HolderRoom RoomOf(const State& state, uint64_t holder, const AttemptRow& attempt,
                  const PartRow& part) {
  const HostRow& host = state.host(part.host);
  const pb::Inventory& inventory = host.inventory;
  const Demand has = WorkerDemand(state.FindJob(holder)->task_spec(0), inventory);
  HolderRoom room;
  room.device_milli.assign(static_cast<size_t>(inventory.devices_size()), 0);
  for (size_t d = 0; d < part.devices.size(); ++d) {
    const int32_t device = part.devices[d];
    if (device < 0 || device >= inventory.devices_size() || !inventory.devices(device).healthy())
      continue;
    room.device_milli[device] = d < part.device_milli.size() ? part.device_milli[d] : 1000;
  }
  room.cpus_milli = part.workers * has.cpus_milli;
  room.memory_bytes = part.workers * has.memory_bytes;
  room.disk_bytes = part.workers * has.disk_bytes;
  for (const AttemptRef& ref : host.attempts) {
    const JobRow& job = *state.FindJob(ref.job);
    const AttemptRow* beside = state.FindAttempt(ref);
    if (job.holder != holder || beside->holder_attempt != attempt.number) continue;
    const Demand demand = WorkerDemand(job.task_spec(ref.task), inventory);
    for (const PartRow& own : beside->parts) {
      if (own.host == part.host && !own.lost) room.Take(demand, own.devices, own.device_milli);
    }
  }
  // What was lost here may live still.
  for (const LostRow& lost : host.lost) {
    const JobRow* job = state.FindJobByUid(lost.key.job_uid());
    const AttemptRow* beside = state.FindAttempt(lost.key);
    if (job == nullptr || job->holder != holder || beside == nullptr ||
        beside->holder_attempt != attempt.number)
      continue;
    const PartRow own = ToPart(state, state.clusters()[host.cluster].spec.name(), lost.placement);
    room.Take(WorkerDemand(job->task_spec(0), inventory), own.devices, own.device_milli);
  }
  return room;
}

// ---- what becomes of them when their holder ends ----

void Applier::IndexHosted(const JobRow& job, bool there) {
  if (job.holder == 0) return;
  std::map<uint64_t, std::vector<uint64_t>>& hosted = *Own(&s_.hosted_);
  std::vector<uint64_t>& jobs = hosted[job.holder];
  const auto at = std::lower_bound(jobs.begin(), jobs.end(), job.number);
  if (there) {
    jobs.insert(at, job.number);
  } else {
    jobs.erase(at);
  }
  if (jobs.empty()) hosted.erase(job.holder);
}

void Applier::EndHosted(uint64_t holder) {
  const auto found = s_.hosted_->find(holder);
  if (found == s_.hosted_->end()) return;
  const std::vector<uint64_t> jobs = found->second;  // those without processes end here
  for (const uint64_t number : jobs)
    CancelJob(number, absl::StrCat("cancelled: job ", holder,
                                   ", on whose devices it was to run, has ended"));
}

}  // namespace muster
