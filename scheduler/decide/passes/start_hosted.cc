// What runs on another job's devices starts there as soon as that job runs and has room, in order
// of submission. It takes nothing that anybody else could get, so nothing else asks about it, and
// it is done last: who was stopped by this plan takes nobody in.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/passes/passes.h"
#include "scheduler/state/hosted.h"

namespace muster {
namespace {

using Rooms = std::map<std::pair<uint64_t, HostId>, HolderRoom>;  // by holder; less what starts now

// Whole devices are the first that nobody beside it has; a share comes from the fullest that has
// room.
std::optional<HostSlice> FitInto(const Demand& demand, HostId host, const HolderRoom& room) {
  if (demand.cpus_milli > room.cpus_milli || demand.memory_bytes > room.memory_bytes ||
      demand.disk_bytes > room.disk_bytes)
    return std::nullopt;
  HostSlice slice{.host = host, .workers = 1};
  const auto devices = static_cast<int32_t>(room.device_milli.size());
  if (demand.gpus_milli % 1000 == 0) {
    for (int32_t d = 0; d < devices; ++d) {
      if (static_cast<int64_t>(slice.devices.size()) * 1000 == demand.gpus_milli) break;
      if (room.device_milli[d] == 1000) slice.devices.push_back(d);
    }
    const bool all = static_cast<int64_t>(slice.devices.size()) * 1000 == demand.gpus_milli;
    return all ? std::optional(slice) : std::nullopt;
  }
  int32_t best = -1;
  for (int32_t d = 0; d < devices; ++d) {
    if (room.device_milli[d] < demand.gpus_milli) continue;
    if (best < 0 || room.device_milli[d] < room.device_milli[best]) best = d;
  }
  if (best < 0) return std::nullopt;
  slice.devices = {best};
  slice.device_milli = {demand.gpus_milli};
  return slice;
}

bool HostTakes(const Inputs& in, const Gang& gang, HostId id) {
  const HostRow& host = in.state.host(id);
  return host.usable() && !in.state.clusters()[host.cluster].drained &&
         Can(AbilitiesOf(host.inventory), gang.needs);
}

void StartOn(const Inputs& in, int32_t g, const AttemptRow& holder, Rooms* rooms, Draft* draft) {
  const Gang& gang = in.gang(g);
  const std::vector<int32_t> allowed = AllowedClusters(in.state, *gang.job);
  if (std::find(allowed.begin(), allowed.end(), holder.cluster) == allowed.end()) return;
  const auto& types = gang.spec->resources().gpu_types();
  if (gang.gpus && std::find(types.begin(), types.end(), holder.flavour) == types.end()) return;
  for (const PartRow& part : holder.parts) {
    if (part.over() || !HostTakes(in, gang, part.host)) continue;
    const auto key = std::make_pair(gang.job->holder, part.host);
    auto room = rooms->find(key);
    if (room == rooms->end())
      room = rooms->emplace(key, RoomOf(in.state, gang.job->holder, holder, part)).first;
    const Demand demand = WorkerDemand(*gang.spec, in.state.host(part.host).inventory);
    const std::optional<HostSlice> slice = FitInto(demand, part.host, room->second);
    if (!slice.has_value()) continue;
    room->second.Take(demand, slice->devices, slice->device_milli);
    draft->StartOnHolder(g, holder, *slice);
    return;
  }
}

// Who runs on the devices of a job that this plan stops stops with it.
void StopWithHolders(const Inputs& in, Draft* draft) {
  for (const auto& [number, hosted] : in.state.hosted()) {
    const auto holder = in.model.gang_of.find({number, 0});
    if (holder == in.model.gang_of.end() || !draft->Stops(holder->second)) continue;
    for (const uint64_t job : hosted) {
      const auto found = in.model.gang_of.find({job, 0});
      if (found == in.model.gang_of.end() || draft->Stops(found->second)) continue;
      const Gang& gang = in.gang(found->second);
      if (!gang.running()) continue;
      const std::string why = absl::StrCat("job ", number, ", on whose devices it ran, is stopped");
      draft->Stop(gang, {pb::HOLDER, why, GraceOf(*gang.spec)});
    }
  }
}

}  // namespace

void StartHosted(const Inputs& in, Draft* draft) {
  StopWithHolders(in, draft);
  Rooms rooms;
  for (const int32_t g : in.model.needs_verdict) {
    const Gang& gang = in.gang(g);
    if (!gang.hosted || gang.blocked || gang.ends || draft->Ends(gang)) continue;
    const bool lost = gang.may_be_lost && in.AllOver(*gang.current);
    if (!gang.wants_place() && !lost) continue;
    if (gang.backoff_until_ns > in.now_ns) {
      draft->WakeAt(gang.backoff_until_ns);
      continue;
    }
    const AttemptRow* holder = HolderRuns(in.state, *gang.job);
    const auto held_by = in.model.gang_of.find({gang.job->holder, 0});
    if (holder == nullptr || held_by == in.model.gang_of.end() || draft->Stops(held_by->second) ||
        draft->Serves(held_by->second))
      continue;
    StartOn(in, g, *holder, &rooms, draft);
  }
}

}  // namespace muster
