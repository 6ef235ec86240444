#include "scheduler/state/validate_hosted.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/state/hosted.h"

namespace muster {
namespace {

absl::Status NotOnHolder(const std::string& rule) { return absl::FailedPreconditionError(rule); }

// Each of these devices once, no more of it than the holder has left.
absl::Status CheckShares(const HolderRoom& room, const pb::Placement& placement,
                         int64_t gpus_milli) {
  const bool whole = gpus_milli % 1000 == 0;
  const int64_t count = whole ? gpus_milli / 1000 : 1;
  if (placement.devices_size() != count ||
      placement.device_milli_size() != (whole ? 0 : placement.devices_size()))
    return NotOnHolder("devices don't fit the demand");
  std::set<int32_t> seen;
  for (int d = 0; d < placement.devices_size(); ++d) {
    const int32_t device = placement.devices(d);
    if (device < 0 || static_cast<size_t>(device) >= room.device_milli.size() ||
        !seen.insert(device).second)
      return NotOnHolder(absl::StrCat("no device ", device, ", or twice"));
    if (!whole && placement.device_milli(d) != gpus_milli)
      return NotOnHolder("shares of devices don't fit the demand");
    if (room.device_milli[device] < (whole ? 1000 : gpus_milli))
      return NotOnHolder(absl::StrCat("its holder has no room on device ", device));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlacedOnHolder(const State& state, const JobRow& job, const pb::TaskSpec& spec,
                                 const pb::AttemptPlaced& e) {
  const AttemptRow* holder = HolderRuns(state, job);
  if (holder == nullptr) return NotOnHolder("places on a job that doesn't run");
  if (holder->number != e.holder_attempt())
    return NotOnHolder("places on another attempt than the one that runs");
  if (state.FindCluster(e.cluster()) != holder->cluster ||
      (spec.resources().gpus_milli() > 0 && e.flavour() != holder->flavour))
    return NotOnHolder("places elsewhere than its holder is");
  if (e.workers() != 1 || e.placements_size() != 1 || e.placements(0).workers() != 1)
    return NotOnHolder("places more than one worker on a holder");
  const HostId host = state.FindHost(e.cluster(), e.placements(0).host());
  const auto part = std::find_if(holder->parts.begin(), holder->parts.end(),
                                 [&](const PartRow& p) { return p.host == host && !p.over(); });
  if (part == holder->parts.end())
    return NotOnHolder("places on a host that its holder doesn't have");
  const HolderRoom room = RoomOf(state, job.holder, *holder, *part);
  const Demand demand = WorkerDemand(spec, state.host(host).inventory);
  if (demand.cpus_milli > room.cpus_milli || demand.memory_bytes > room.memory_bytes ||
      demand.disk_bytes > room.disk_bytes)
    return NotOnHolder("its holder has not enough CPUs, memory or disk left");
  return CheckShares(room, e.placements(0), spec.resources().gpus_milli());
}

}  // namespace muster
