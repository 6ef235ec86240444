#include "scheduler/decide/model/inputs.h"

#include <algorithm>

#include "common/base/job_defaults.h"
#include "common/base/units.h"
#include "common/spec/blocks.h"
#include "scheduler/state/topology.h"

namespace muster {
namespace {

// What a stop may take after its grace: the kill, what the host still writes, and the way there and
// back.
constexpr int64_t kAnswerNs = 2 * kMinute;

// Each run of so many GPUs is in one island.
bool AreInIslands(const State& state, const HostSlices& slices, int64_t run) {
  int64_t before = 0;  // GPUs
  HostId host = kNoHost;
  int32_t island = 0;
  for (const HostSlice& slice : slices) {
    const pb::Inventory& has = state.host(slice.host).inventory;
    for (const int32_t device : slice.devices) {
      if (device >= has.devices_size()) return false;  // the host has come back without it
      const int32_t here = has.devices(device).island();
      if (before++ % run != 0 && (slice.host != host || here != island)) return false;
      host = slice.host;
      island = here;
    }
  }
  return true;
}

}  // namespace

Inputs::Inputs(const State& state, int64_t now_ns, const SchedulingOptions& options,
               const Model& model)
    : state(state), now_ns(now_ns), options(options), model(model), ends_(model.pools.size()) {
  EachOf(model.gangs, model.needs_verdict, [&](int32_t b) {
    const Gang& gang = model.gangs[b];
    if (gang.wants_place()) (gang.entitled ? entitled : others).push_back(b);
    if (gang.entitled && gang.may_be_lost && !gang.ComesBack()) entitled.push_back(b);
  });
  for (const int32_t b : model.stopping) {
    if (!model.gangs[b].ComesBack()) continue;
    std::vector<int32_t>& gangs = model.gangs[b].entitled ? entitled : others;
    gangs.insert(std::lower_bound(gangs.begin(), gangs.end(), b), b);
  }
}

int64_t Inputs::AnswerDueNs(const Gang& gang) const {
  return std::max(gang.current->stop_ns, state.listens_since_ns()) + gang.current->grace_ns +
         kAnswerNs;
}

bool Inputs::AllOver(const AttemptRow& attempt) const {
  return std::all_of(attempt.parts.begin(), attempt.parts.end(), [&](const PartRow& part) {
    return part.over() || state.host(part.host).state == pb::HOST_UNREACHABLE;
  });
}

const std::vector<RunEnd>& Inputs::EndsIn(int32_t pool) const {
  std::optional<std::vector<RunEnd>>& known = ends_[pool];
  if (known.has_value()) return *known;
  std::vector<RunEnd>& ends = known.emplace();
  ends.reserve(model.holding[pool].size());
  EachOf(model.gangs, model.holding[pool], [&](int32_t v) {
    const Gang& gang = model.gangs[v];
    if (!gang.running()) return;
    const int64_t end_ns = ExpectedEnd(gang, now_ns);
    ends.push_back({end_ns == 0 ? kUnbounded : std::max(end_ns, now_ns), gang.place_ns, v,
                    gang.gpus, gang.worker_milli * gang.workers});
  });
  std::sort(ends.begin(), ends.end());
  return ends;
}

int64_t GraceOf(const pb::TaskSpec& spec) {
  return spec.has_grace_ns() ? spec.grace_ns() : kDefaultGraceNs;
}

HostSlices SlicesOf(const pb::TaskSpec& spec, const AttemptRow& attempt, int32_t from, int32_t to) {
  const int64_t gpus_milli = spec.resources().gpus_milli();
  const size_t a_worker = gpus_milli >= 1000 ? static_cast<size_t>(gpus_milli / 1000)
                          : gpus_milli > 0   ? 1
                                             : 0;
  HostSlices slices;
  int32_t rank = 0;
  for (const PartRow& part : attempt.parts) {
    const int32_t first = std::max(from, rank) - rank;
    const int32_t last = std::min(to, rank + part.workers) - rank;
    rank += part.workers;
    if (first >= last || part.lost) continue;
    HostSlice& here = slices.emplace_back();
    here.host = part.host;
    here.workers = last - first;
    for (size_t d = first * a_worker; d < last * a_worker && d < part.devices.size(); ++d) {
      here.devices.push_back(part.devices[d]);
      if (d < part.device_milli.size()) here.device_milli.push_back(part.device_milli[d]);
    }
  }
  return slices;
}

bool AllSound(const State& state, const HostSlices& slices) {
  return std::all_of(slices.begin(), slices.end(), [&](const HostSlice& slice) {
    const pb::Inventory& has = state.host(slice.host).inventory;
    return std::all_of(slice.devices.begin(), slice.devices.end(), [&](int32_t device) {
      return device < has.devices_size() && has.devices(device).healthy();
    });
  });
}

bool AreTogether(const State& state, const pb::TaskSpec& spec, const HostSlices& slices) {
  if (const int64_t run = RankUnitsOf(spec, /*wishes=*/0).island_gpus;
      run > 1 && !AreInIslands(state, slices, run))
    return false;
  int64_t before = 0;  // workers in the slices before
  for (size_t i = 1; i < slices.size(); ++i) {
    before += slices[i - 1].workers;
    const HostRow &last = state.host(slices[i - 1].host), &here = state.host(slices[i].host);
    if (!InOneDomain(spec.topology().required(), last, here)) return false;
    for (const pb::RankBlock& block : spec.topology().blocks()) {
      if (before % WorkersOf(block, spec) != 0 && !InOneDomain(block.required(), last, here))
        return false;
    }
  }
  return true;
}

AttemptRow SoundFirst(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt) {
  const auto unit = static_cast<int32_t>(RankUnitsOf(spec, /*wishes=*/0).block);
  AttemptRow sorted;
  for (const bool sound : {true, false}) {
    for (int32_t first = 0; first < attempt.workers; first += unit) {
      const int32_t end = std::min(first + unit, attempt.workers);
      const HostSlices block = SlicesOf(spec, attempt, first, end);
      if ((WorkersIn(block) == end - first && AllSound(state, block)) != sound) continue;
      for (int32_t rank = first; rank < end; ++rank) {
        const HostSlices one = SlicesOf(spec, attempt, rank, rank + 1);
        if (one.empty()) continue;
        PartRow& part = sorted.parts.emplace_back();
        part.host = one[0].host;
        part.workers = 1;
        part.devices = one[0].devices;
        part.device_milli = one[0].device_milli;
      }
    }
  }
  return sorted;
}

HostSlices RanksOf(const pb::TaskSpec& spec, const HostSlices& slices, int32_t from, int32_t to) {
  AttemptRow whole;
  for (const HostSlice& slice : slices) {
    PartRow& part = whole.parts.emplace_back();
    part.host = slice.host;
    part.workers = slice.workers;
    part.devices = slice.devices;
    part.device_milli = slice.device_milli;
  }
  return SlicesOf(spec, whole, from, to);
}

int32_t WorkersIn(const HostSlices& slices) {
  int32_t workers = 0;
  for (const HostSlice& slice : slices) workers += slice.workers;
  return workers;
}

}  // namespace muster
