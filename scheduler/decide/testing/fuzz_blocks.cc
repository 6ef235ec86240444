#include "scheduler/decide/testing/fuzz_blocks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

struct Gpu {
  const HostRow* host = nullptr;
  int32_t device = 0;
};

std::string DomainAt(const Gpu& gpu, pb::TopologyLevel level) {
  const HostRow& host = *gpu.host;
  if (level == pb::ISLAND)
    return absl::StrCat(host.name, "/", host.inventory.devices(gpu.device).island());
  if (level == pb::HOST) return host.name;
  return level == pb::RACK ? absl::StrCat(host.block, "/", host.rack) : host.block;
}

// The blocks of so many GPUs, and how many of them are in one domain of the level.
std::pair<size_t, size_t> Together(const std::vector<Gpu>& gpus, int32_t size,
                                   pb::TopologyLevel level) {
  std::pair<size_t, size_t> found;
  for (size_t first = 0; first < gpus.size(); first += static_cast<size_t>(size), ++found.first) {
    const size_t end = std::min(gpus.size(), first + static_cast<size_t>(size));
    found.second += std::all_of(
        gpus.begin() + static_cast<ptrdiff_t>(first), gpus.begin() + static_cast<ptrdiff_t>(end),
        [&](const Gpu& gpu) { return DomainAt(gpu, level) == DomainAt(gpus[first], level); });
  }
  return found;
}

template <typename Event>
std::string CheckPlace(const State& state, const Event& e, const char* what, RankBlocks* seen) {
  const JobRow* job = state.FindJobByUid(e.key().job_uid());
  if (job == nullptr) return "";
  const pb::TaskSpec& spec = job->task_spec(TaskIndex(*job->spec, e.key().task()));
  std::vector<Gpu> gpus;  // in the order of RANK
  for (const pb::Placement& placement : e.placements()) {
    const HostRow& host = state.host(state.FindHost(e.cluster(), placement.host()));
    for (const int32_t device : placement.devices()) gpus.push_back({&host, device});
  }
  for (const pb::RankBlock& block : spec.topology().blocks()) {
    if (block.preferred() != pb::TOPOLOGY_LEVEL_UNSPECIFIED)
      seen->wishes += static_cast<int64_t>(Together(gpus, block.gpus(), block.preferred()).second);
    if (block.required() == pb::TOPOLOGY_LEVEL_UNSPECIFIED) continue;
    const auto [all, together] = Together(gpus, block.gpus(), block.required());
    if (together < all)
      return absl::StrCat("job ", job->number, what, all, " blocks of ", block.gpus(),
                          " GPUs, of which ", all - together, " are apart");
    if (block.required() == pb::ISLAND && block.gpus() > 1)
      seen->in_islands += static_cast<int64_t>(all);
  }
  return "";
}

}  // namespace

void Racks::Put(int number, pb::HostSpec* host) const {
  host->set_rack(absl::StrCat("r", (numbered ? number % block : number) / rack));
  if (block > 0) host->set_block(absl::StrCat("b", number / block));
}

Racks DrawRacks(Dice* dice) {
  Racks racks;
  racks.rack = 1 + dice->Of(3);
  racks.block = racks.rack * (1 + dice->Of(3));
  racks.numbered = !dice->Percent(50);
  return racks;
}

int64_t DrawBlocks(Dice* dice, bool islands, pb::JobSpec* spec) {
  if (!spec->array().empty() || spec->sweep_size() > 0 || spec->has_independent_workers() ||
      !spec->on().empty())
    return 0;
  int64_t drawn = 0;
  for (pb::TaskSpec& task : *spec->mutable_tasks()) {
    const int64_t milli = task.resources().gpus_milli();
    if (milli == 0 || milli % 1000 != 0 || !dice->Percent(70)) continue;
    int32_t workers = milli >= 4000 ? 2 : 2 + dice->Of(3);
    if (islands && milli > 1000 && dice->Percent(40)) {  // half of a worker's GPUs
      pb::RankBlock* block = task.mutable_topology()->add_blocks();
      block->set_gpus(static_cast<int32_t>(milli / 2000));
      block->set_required(pb::ISLAND);
    }
    for (const bool first : {true, false}) {
      if (!first && !dice->Percent(40)) break;
      if (!first) workers *= 2;
      pb::RankBlock* block = task.mutable_topology()->add_blocks();
      block->set_gpus(workers * static_cast<int32_t>(milli / 1000));
      const bool fits_island = islands && block->gpus() <= 4;
      const auto level = [&] {
        return static_cast<pb::TopologyLevel>(fits_island ? pb::ISLAND + dice->Of(4)
                                                          : pb::HOST + dice->Of(3));
      };
      if (dice->Percent(75)) block->set_required(level());
      if (block->required() == pb::TOPOLOGY_LEVEL_UNSPECIFIED) {
        block->set_preferred(level());
      } else if (block->required() > pb::HOST && dice->Percent(30)) {
        block->set_preferred(fits_island && dice->Percent(50) ? pb::ISLAND : pb::HOST);
      }
    }
    const bool elastic = task.workers().max() > task.workers().min();
    task.mutable_workers()->set_min(workers * (1 + dice->Of(2)));
    task.mutable_workers()->set_max(task.workers().min() +
                                    (elastic ? workers * (1 + dice->Of(3)) : 0));
    task.mutable_workers()->set_multiple_of(workers);
    ++drawn;
  }
  return drawn;
}

std::string CheckRankBlocks(const State& state, const Plan& plan, RankBlocks* seen) {
  for (const pb::Event& event : plan.events) {
    std::string broken;
    if (event.has_attempt_placed()) {
      const pb::AttemptPlaced& e = event.attempt_placed();
      broken = CheckPlace(state, e, " starts with ", seen);
      const JobRow* job = state.FindJobByUid(e.key().job_uid());
      const pb::TaskSpec& spec = job->task_spec(TaskIndex(*job->spec, e.key().task()));
      seen->spread += !spec.topology().blocks().empty() && e.placements_size() > 1;
    } else if (event.has_reservation()) {
      broken = CheckPlace(state, event.reservation(), " has devices kept for ", seen);
    } else if (event.has_attempt_stopping()) {
      const pb::AttemptStopping& e = event.attempt_stopping();
      const JobRow* job = state.FindJobByUid(e.key().job_uid());
      const pb::TaskSpec& spec = job->task_spec(TaskIndex(*job->spec, e.key().task()));
      seen->resizes += !spec.topology().blocks().empty() && e.next_workers() > 0;
    }
    if (!broken.empty()) return broken;
  }
  return "";
}

}  // namespace muster
