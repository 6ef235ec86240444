#include "scheduler/ask/capacity.h"

#include <algorithm>
#include <vector>

#include "common/spec/config_files.h"

namespace muster {

pb::Inventory ShapeOf(const State& state, const HostRow& host) {
  pb::Inventory made;
  return ShapeOf(state, host, &made);
}

const pb::Inventory& ShapeOf(const State& state, const HostRow& host, pb::Inventory* made) {
  if (IsRemoved(state, host)) {
    made->Clear();
    return *made;
  }
  if (host.state != pb::HOST_NEVER_SEEN) return host.inventory;
  const pb::ClusterSpec& cluster = state.clusters()[host.cluster].spec;
  const auto listed =
      std::find_if(cluster.hosts().begin(), cluster.hosts().end(),
                   [&](const pb::HostSpec& spec) { return spec.name() == host.name; });
  const pb::Sku* sku =
      SkuOf(state.cluster_file(), cluster,
            listed == cluster.hosts().end() ? pb::HostSpec::default_instance() : *listed);
  made->Clear();
  if (sku != nullptr) FillInventory(*sku, "", made);
  return *made;
}

std::map<int32_t, int64_t> PoolCapacity(const State& state, const std::string& flavour) {
  std::map<int32_t, int64_t> capacity;
  pb::Inventory made;
  for (HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    const pb::Inventory& shape = ShapeOf(state, host, &made);
    if (flavour == "cpu") {
      capacity[host.cluster] += shape.cpus_milli();
    } else if (shape.flavour() == flavour) {
      capacity[host.cluster] += 1000 * static_cast<int64_t>(shape.devices_size());
    }
  }
  return capacity;
}

std::set<std::string> DeclaredFlavours(const State& state) {
  std::set<std::string> declared;
  for (const auto& [name, sku] : state.cluster_file().skus()) {
    if (sku.declared()) declared.insert(sku.flavour());
  }
  for (const HostId id : state.hosts()) {
    const pb::Inventory& inventory = state.host(id).inventory;
    if (inventory.declared()) declared.insert(inventory.flavour());
  }
  declared.erase("");
  return declared;
}

int64_t HeldMilli(const JobRow& job, int32_t task, const AttemptRow& attempt) {
  if (job.holder != 0) return 0;  // what it runs on is its holder's
  const pb::Resources& wants = job.task_spec(task).resources();
  return attempt.workers * (attempt.flavour.empty() ? wants.cpus_milli() : wants.gpus_milli());
}

std::vector<std::map<std::string, int64_t>> UseByQueue(const State& state) {
  std::vector<std::map<std::string, int64_t>> use(state.queues().nodes.size());
  for (uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const AttemptRow* attempt = job.tasks[t].current();
      if (attempt == nullptr || attempt->released()) continue;
      const std::string flavour = attempt->flavour.empty() ? "cpu" : attempt->flavour;
      const int64_t held_milli = HeldMilli(job, static_cast<int32_t>(t), *attempt);
      for (int32_t n = state.queues().Find(job.spec->queue()); n >= 0;
           n = state.queues().nodes[n].parent) {
        use[n][flavour] += held_milli;
      }
    }
  }
  return use;
}

}  // namespace muster
