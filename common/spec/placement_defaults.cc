#include "common/spec/placement_defaults.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "common/spec/blocks.h"
#include "common/spec/check_spec.h"
#include "common/spec/spec.h"
#include "common/spec/trainer_json.h"
#include "common/spec/trainer_schema.h"
#include "common/spec/workers.h"

namespace muster {
namespace {

// Neighbours in the order of RANK that belong together. Each divides the next.
struct NeighbourRanks {
  int64_t slices = 1;   // tp: they share out each product
  int64_t layer = 1;    // tp · cp: they share out each layer
  int64_t replica = 1;  // whole replicas of the model have a multiple of so many
};

// As the trainer's mesh numbers its ranks: tp changes fastest, then cp, then who takes other rows,
// then pp. ep and shard_size are of neighbours within a stage. Nothing where the trainer is to
// choose, or where no job has so many ranks.
std::optional<NeighbourRanks> NeighboursOf(const nlohmann::json& trainer) {
  constexpr int64_t kMost = int64_t{1} << 24;  // its square is an int64_t
  if (!trainer.is_object()) return std::nullopt;
  const nlohmann::json& parallel = trainer_json::Inner(trainer, "parallel");
  if (!parallel.is_null() && !parallel.is_object()) return std::nullopt;
  const auto number = [](const nlohmann::json& map, const char* key) {
    return trainer_json::Number(map, key).value_or(1);
  };
  const int64_t tp = number(parallel, "tp"), cp = number(parallel, "cp"),
                pp = number(parallel, "pp"), ep = number(parallel, "ep"),
                shard = number(trainer, "shard_size");
  if (std::max({tp, cp, pp, ep, shard}) > kMost || tp * cp > kMost) return std::nullopt;
  const int64_t with_experts = std::lcm(tp * cp, ep);
  if (with_experts > kMost) return std::nullopt;
  const int64_t in_stage = std::lcm(with_experts, shard);
  if (in_stage > kMost || in_stage * pp > kMost) return std::nullopt;
  return NeighbourRanks{tp, tp * cp, in_stage * pp};
}

bool SweepsLayout(const pb::JobSpec& spec) {
  return std::any_of(spec.sweep().begin(), spec.sweep().end(), [](const pb::SweepValues& of) {
    return of.name() == "trainer.parallel" || absl::StartsWith(of.name(), "trainer.parallel.") ||
           of.name() == "trainer.shard_size";
  });
}

// Whether each number of workers that the task may have is a multiple of `workers`, which are more
// than one.
bool GoInto(const pb::TaskSpec& task, int64_t workers) {
  const pb::Workers& has = task.workers();
  const int32_t least = std::max(1, has.min()), most = std::max(least, has.max());
  return workers > 1 && workers <= kMaxWorkers && least % workers == 0 && most % workers == 0 &&
         has.multiple_of() % workers == 0;
}

void FillFromNeighbours(const NeighbourRanks& ranks, pb::TaskSpec* task) {
  constexpr int64_t kMostMilli = int64_t{1'000} * kMaxWorkers;
  const int64_t gpus_milli = task->resources().gpus_milli(), processes = ProcessesOf(*task);
  if (gpus_milli > kMostMilli) return;  // refused elsewhere
  if (task->workers().multiple_of() == 0) {
    const int64_t replica = std::lcm(ranks.replica, processes) / processes,
                  step = std::lcm(replica, LargestBlockOf(*task));
    if (replica > 1 && GoInto(*task, step))
      task->mutable_workers()->set_multiple_of(static_cast<int32_t>(step));
  }
  if (gpus_milli < 1'000 || gpus_milli % 1'000 != 0 || task->topology().blocks_size() > 0) return;
  for (const auto& [together, level] :
       {std::pair(ranks.slices, pb::ISLAND), std::pair(ranks.layer, pb::HOST)}) {
    const int64_t workers = together / processes, gpus = workers * (gpus_milli / 1'000);
    if (together % processes != 0 || !GoInto(*task, workers) || gpus > kMaxWorkers) continue;
    const auto& blocks = task->topology().blocks();
    if (!blocks.empty() && blocks[0].gpus() == gpus) continue;
    pb::RankBlock* block = task->mutable_topology()->add_blocks();
    block->set_gpus(static_cast<int32_t>(gpus));
    block->set_preferred(level);
  }
}

// `filled` is what FillPlacement makes of a task. Before decision 181 it wished a host where it
// wishes an island now, and jobs that are stored have that.
bool HaveOnePlacement(const pb::TaskSpec& filled, const pb::TaskSpec& task) {
  const auto same = [](const pb::RankBlock& wished, const pb::RankBlock& has) {
    pb::RankBlock before = wished;
    if (wished.preferred() == pb::ISLAND) before.set_preferred(pb::HOST);
    const std::string bytes = has.SerializeAsString();
    return bytes == wished.SerializeAsString() || bytes == before.SerializeAsString();
  };
  return filled.workers().multiple_of() == task.workers().multiple_of() &&
         std::equal(filled.topology().blocks().begin(), filled.topology().blocks().end(),
                    task.topology().blocks().begin(), task.topology().blocks().end(), same);
}

}  // namespace

void FillPlacement(const pb::JobSpec& spec, pb::TaskSpec* task) {
  if (!task->trainer_json().empty() && !SweepsLayout(spec)) {
    const auto ranks = NeighboursOf(ParseBoundedJson(task->trainer_json(), kMaxYamlBytes));
    if (ranks.has_value()) FillFromNeighbours(*ranks, task);
  }
  if (const int64_t block = LargestBlockOf(*task); block > 1 && task->workers().multiple_of() == 0)
    task->mutable_workers()->set_multiple_of(static_cast<int32_t>(block));
}

pb::TaskSpec WithoutFilledPlacement(const pb::JobSpec& spec, const pb::TaskSpec& task) {
  for (const auto& [blocks, multiple] :
       {std::pair(true, true), std::pair(false, true), std::pair(true, false)}) {
    pb::TaskSpec without = task;
    if (blocks && task.topology().blocks_size() > 0) without.mutable_topology()->clear_blocks();
    if (multiple && task.workers().multiple_of() != 0)
      without.mutable_workers()->clear_multiple_of();
    pb::TaskSpec again = without;
    FillPlacement(spec, &again);
    if (HaveOnePlacement(again, task)) return without;
  }
  return task;
}

pb::JobSpec WithoutFilledPlacements(const pb::JobSpec& spec) {
  pb::JobSpec without = spec;
  for (pb::TaskSpec& task : *without.mutable_tasks()) task = WithoutFilledPlacement(spec, task);
  return without;
}

pb::JobSpec WithoutOutdatedPlacements(const pb::JobSpec& spec, const pb::JobSpec& changed) {
  pb::JobSpec kept = spec;
  for (int t = 0; t < kept.tasks_size() && t < changed.tasks_size(); ++t) {
    pb::TaskSpec again = changed.tasks(t);
    FillPlacement(changed, &again);
    if (!HaveOnePlacement(again, spec.tasks(t)))
      *kept.mutable_tasks(t) = WithoutFilledPlacement(spec, spec.tasks(t));
  }
  return kept;
}

}  // namespace muster
