#include "scheduler/decide/testing/fuzz_after.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

const TaskRow& TaskOf(const JobRow& job, const pb::AttemptKey& key) {
  return job.tasks[static_cast<size_t>(TaskIndex(*job.spec, key.task()))];
}

// Of an attempt: workers on healthy devices only. On others nothing is held for what shrinks.
int32_t SoundWorkers(const State& state, const AttemptRow& attempt) {
  int32_t sound = 0;
  for (const PartRow& part : attempt.parts) {
    const pb::Inventory& has = state.host(part.host).inventory;
    const size_t a_worker = part.devices.size() / static_cast<size_t>(part.workers);
    for (size_t w = 0; w < static_cast<size_t>(part.workers); ++w) {
      const auto first = part.devices.begin() + static_cast<ptrdiff_t>(w * a_worker);
      sound += std::all_of(first, first + static_cast<ptrdiff_t>(a_worker),
                           [&](int32_t device) { return has.devices(device).healthy(); });
    }
  }
  return sound;
}

}  // namespace

std::string CheckClaimantsPlaces(const State& state, const Plan& plan) {
  for (const pb::Event& event : plan.events) {
    if (!event.has_attempt_stopping() || event.attempt_stopping().cause() != pb::PREEMPTION)
      continue;
    const pb::AttemptStopping& stop = event.attempt_stopping();
    const JobRow& job = *state.FindJobByUid(stop.claimant().job_uid());
    const Reservation* held = TaskOf(job, stop.claimant()).reservation.get();
    if (held == nullptr || !held->held)
      return absl::StrCat("stops for job ", job.number, " without a place for it");
    if (stop.next_workers() == 0) continue;
    const JobRow& again = *state.FindJobByUid(stop.key().job_uid());
    const TaskRow& shrinks = TaskOf(again, stop.key());
    const Reservation* kept = shrinks.reservation.get();
    if ((kept == nullptr || !kept->held || kept->workers != stop.next_workers()) &&
        SoundWorkers(state, *shrinks.current()) >= stop.next_workers())
      return absl::StrCat("job ", again.number, " has no place to go on");
  }
  return "";
}

std::string CheckSums(const State& state) {
  int64_t booked = 0;
  for (const auto& [key, device_us] : state.ledger()) {
    if (device_us < 0) return "a negative ledger class";
    booked += device_us;
  }
  if (booked != state.ledger_capacity_device_us())
    return absl::StrCat("ledger: ", booked, " of ", state.ledger_capacity_device_us());
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    int64_t sum = 0;
    for (const LedgerShare& share : host.shares) sum += share.milli;
    if (sum != 1000 * host.inventory.devices_size()) return "ledger shares of a host";
    for (size_t d = 0; d < host.device_used_milli.size(); ++d) {
      if (host.device_used_milli[d] > 1000)
        return absl::StrCat(host.name, ": device ", d, " is used twice");
    }
  }
  return "";
}

std::string CheckWholeGangs(const State& state) {
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const AttemptRow* current = job.tasks[t].current();
      if (current == nullptr) continue;
      int32_t workers = 0;
      for (const PartRow& part : current->parts) workers += part.workers;
      if (workers != current->workers ||
          workers < job.task_spec(static_cast<int32_t>(t)).workers().min())
        return "part of a gang";
    }
  }
  return "";
}

}  // namespace muster
