// What State derives of a host: which of its devices, CPUs, memory and disk are in use, and to
// which queue and ledger class each thousandth of its devices is booked.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "scheduler/state/applier.h"
#include "scheduler/state/hosted.h"

namespace muster {
namespace {

using Booked = std::map<std::pair<std::string, int>, int64_t>;  // by queue and ledger class

// Time of an attempt that doesn't run is the price of what stopped it, or the one before it.
LedgerClass ClassOf(const TaskRow& task, const AttemptRow& attempt) {
  if (attempt.state == pb::TASK_RUNNING) return LedgerClass::kProductive;
  const size_t attempts = task.attempts.size();
  const bool stopping = attempt.state == pb::TASK_STOPPING;
  const bool moved =
      stopping ? Moved(attempt.cause) : attempts >= 2 && Moved(task.attempts[attempts - 2].cause);
  return moved ? LedgerClass::kPreemption : LedgerClass::kRestart;
}

// Derives one host's use and bookings: first what attempts hold, then what is lost there, then
// what is down, reserved and idle of the rest.
class HostUse {
 public:
  HostUse(const State& state, HostRow* host) : s_(state), host_(*host) {
    host_.device_used_milli.assign(static_cast<size_t>(devices()), 0);
    host_.cpus_used_milli = host_.memory_used_bytes = host_.disk_used_bytes = 0;
  }

  Booked Derive() {
    for (const AttemptRef& ref : host_.attempts) HoldAttempt(ref);
    for (const LostRow& lost : host_.lost) HoldLost(lost);
    std::vector<int64_t> rest = BookDown();
    for (const TaskRef& ref : host_.reserved) BookReserved(ref, &rest);
    for (const int64_t milli : rest) Book("", LedgerClass::kIdle, milli);
    return std::move(booked_);
  }

 private:
  int devices() const { return host_.inventory.devices_size(); }
  const ClusterRow& cluster() const { return s_.clusters()[host_.cluster]; }
  void Book(const std::string& queue, LedgerClass ledger_class, int64_t milli) {
    booked_[{queue, static_cast<int>(ledger_class)}] += milli;
  }

  void Hold(const PartRow& part, const pb::TaskSpec& task, const std::string& queue,
            LedgerClass ledger_class) {
    const Demand demand = WorkerDemand(task, host_.inventory);
    host_.cpus_used_milli += part.workers * demand.cpus_milli;
    host_.memory_used_bytes += part.workers * demand.memory_bytes;
    host_.disk_used_bytes += part.workers * demand.disk_bytes;
    for (size_t d = 0; d < part.devices.size(); ++d) {
      const int32_t device = part.devices[d];
      if (device < 0 || device >= devices()) continue;  // the host came back with fewer devices
      const int64_t milli = d < part.device_milli.size() ? part.device_milli[d] : 1000;
      const int64_t room = std::max<int64_t>(0, 1000 - host_.device_used_milli[device]);
      host_.device_used_milli[device] += milli;
      Book(queue, ledger_class, std::min(milli, room));
    }
  }

  void HoldAttempt(const AttemptRef& ref) {
    const JobRow* job = s_.FindJob(ref.job);
    const AttemptRow* attempt = s_.FindAttempt(ref);
    MUSTER_CHECK(attempt != nullptr);
    if (IsOnHolder(s_, host_, *job, *attempt)) return;
    for (const PartRow& part : attempt->parts) {
      if (part.host != host_.id || part.lost) continue;
      Hold(part, job->task_spec(ref.task), job->spec->queue(),
           ClassOf(job->tasks[ref.task], *attempt));
    }
  }

  void HoldLost(const LostRow& lost) {
    const JobRow* job = s_.FindJobByUid(lost.key.job_uid());
    const int32_t task = job == nullptr ? -1 : TaskIndex(*job->spec, lost.key.task());
    const AttemptRow* attempt = s_.FindAttempt(lost.key);
    if (attempt != nullptr && IsOnHolder(s_, host_, *job, *attempt)) return;
    Hold(ToPart(s_, cluster().name, lost.placement),
         task < 0 ? pb::TaskSpec::default_instance() : job->task_spec(task), "",
         LedgerClass::kDown);
  }

  // Books what can't be used, and returns what can, in thousandths by device.
  std::vector<int64_t> BookDown() {
    const bool up = (host_.state == pb::HOST_UP || host_.state == pb::HOST_SILENT) &&
                    !host_.drained && !cluster().drained;
    std::vector<int64_t> rest(static_cast<size_t>(devices()), 0);
    for (int d = 0; d < devices(); ++d) {
      const int64_t rest_milli = std::max<int64_t>(0, 1000 - host_.device_used_milli[d]);
      if (up && host_.inventory.devices(d).healthy()) {
        rest[d] = rest_milli;
      } else {
        Book("", LedgerClass::kDown, rest_milli);
      }
    }
    return rest;
  }

  void BookReserved(const TaskRef& ref, std::vector<int64_t>* rest) {
    const JobRow& job = *s_.FindJob(ref.job);
    for (const HostSlice& part : job.tasks[ref.task].reservation->parts) {
      if (part.host != host_.id) continue;
      for (size_t d = 0; d < part.devices.size(); ++d) {
        if (part.devices[d] < 0 || part.devices[d] >= devices()) continue;
        int64_t& rest_milli = (*rest)[part.devices[d]];
        const int64_t kept_milli = std::min(
            rest_milli, d < part.device_milli.size() ? part.device_milli[d] : int64_t{1000});
        rest_milli -= kept_milli;
        Book(job.spec->queue(), LedgerClass::kReserved, kept_milli);
      }
    }
  }

  const State& s_;
  HostRow& host_;
  Booked booked_;
};

}  // namespace

HostSlice ToSlice(const State& state, std::string_view cluster, const pb::Placement& placement) {
  HostSlice slice;
  slice.host = state.FindHost(cluster, placement.host());
  slice.workers = placement.workers();
  slice.devices.assign(placement.devices().begin(), placement.devices().end());
  slice.device_milli.assign(placement.device_milli().begin(), placement.device_milli().end());
  return slice;
}

PartRow ToPart(const State& state, std::string_view cluster, const pb::Placement& placement) {
  HostSlice slice = ToSlice(state, cluster, placement);
  PartRow part;
  part.host = slice.host;
  part.first_group_rank = placement.first_group_rank();
  part.workers = slice.workers;
  part.devices = std::move(slice.devices);
  part.device_milli = std::move(slice.device_milli);
  return part;
}

int64_t DevicesMilli(const AttemptRow& attempt, const pb::TaskSpec& task) {
  return attempt.workers * task.resources().gpus_milli();
}

// Takes the host's share out of the sums over all hosts (sign -1), or adds it (1).
void Applier::CountShares(const HostRow& host, int64_t sign) {
  std::map<std::pair<std::string, int>, int64_t>& rates = *Own(&s_.ledger_rate_);
  for (const LedgerShare& share : host.shares) {
    const auto rate = rates.emplace(std::make_pair(share.queue, share.ledger_class), 0).first;
    rate->second += sign * share.milli;
    if (rate->second == 0) rates.erase(rate);
    s_.capacity_milli_ += sign * share.milli;
    if (share.ledger_class != static_cast<int>(LedgerClass::kIdle)) continue;
    auto& idle = *Own(&s_.idle_);
    const auto at =
        idle.emplace(std::make_pair((*s_.clusters_)[host.cluster].name, host.booked_flavour), 0)
            .first;
    at->second += sign * share.milli;
    if (at->second == 0) idle.erase(at);
  }
}

void Applier::RefreshHost(HostId id) {
  HostRow* host = s_.hosts_.Mutable(static_cast<size_t>(id));
  CountShares(*host, -1);
  const Booked booked = HostUse(s_, host).Derive();
  host->shares.clear();
  host->booked_flavour = host->inventory.flavour();
  if (IsRemoved(s_, *host)) return;
  int64_t sum_milli = 0;
  for (const auto& [key, milli] : booked) {
    if (milli == 0) continue;
    host->shares.push_back({key.first, key.second, milli});
    sum_milli += milli;
  }
  MUSTER_CHECK(sum_milli == 1000 * static_cast<int64_t>(host->inventory.devices_size()));
  CountShares(*host, 1);
}

}  // namespace muster
