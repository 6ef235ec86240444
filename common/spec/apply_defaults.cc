// What a checked spec may leave out.
#include <algorithm>

#include "common/base/job_defaults.h"
#include "common/spec/placement_defaults.h"
#include "common/spec/spec.h"
#include "common/spec/together.h"

namespace muster {

void ApplyDefaults(pb::JobSpec* spec, const SpecDefaults& defaults) {
  if (spec->name().empty()) spec->set_name("job");
  if (spec->tasks_size() == 1 && spec->tasks(0).name().empty())
    spec->mutable_tasks(0)->set_name("main");
  JoinTasks(spec);
  for (pb::TaskSpec& task : *spec->mutable_tasks()) {
    if (!task.has_workers()) {
      task.mutable_workers()->set_min(1);
      task.mutable_workers()->set_max(1);
    }
    pb::Resources* resources = task.mutable_resources();
    if (resources->gpus_milli() == 0 && resources->cpus_milli() == 0)
      resources->set_cpus_milli(1000);
    if (task.processes_per_worker() == 0) {
      task.set_processes_per_worker(
          task.has_ray()
              ? 1
              : std::max<int32_t>(1, static_cast<int32_t>(resources->gpus_milli() / 1000)));
    }
    FillPlacement(*spec, &task);
    pb::Topology* topology = task.mutable_topology();
    if (topology->required() == pb::TOPOLOGY_LEVEL_UNSPECIFIED) topology->set_required(pb::CLUSTER);
    if (topology->preferred() == pb::TOPOLOGY_LEVEL_UNSPECIFIED)
      topology->set_preferred(pb::ISLAND);
    pb::CheckpointPolicy* checkpoint = task.mutable_checkpoint();
    if (!checkpoint->has_interval_ns()) checkpoint->set_interval_ns(kDefaultCheckpointIntervalNs);
    if (!checkpoint->has_keep()) checkpoint->set_keep(kDefaultCheckpointsKept);
    if (!task.has_max_restarts()) task.set_max_restarts(defaults.max_restarts);
    if (!task.has_retry_faults_for_ns()) task.set_retry_faults_for_ns(defaults.retry_faults_for_ns);
    if (!task.has_hang_timeout_ns()) task.set_hang_timeout_ns(defaults.hang_timeout_ns);
    if (!task.has_grace_ns()) task.set_grace_ns(defaults.grace_ns);
    if (task.time_limit_ns() == 0) task.set_time_limit_ns(defaults.time_limit_ns);
    if (task.when_unreachable() == pb::WHEN_UNREACHABLE_UNSPECIFIED) {
      if (!task.trainer_json().empty()) {
        task.set_when_unreachable(pb::REPLACE);
      } else if (task.workers().max() <= 1) {
        task.set_when_unreachable(pb::WAIT);
      }
    }
    if (task.when_unreachable() == pb::FENCE && task.fence_after_ns() == 0)
      task.set_fence_after_ns(kDefaultFenceAfterNs);
  }
}

}  // namespace muster
