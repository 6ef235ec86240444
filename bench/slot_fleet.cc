#include "bench/slot_fleet.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster::bench {
namespace {

constexpr int64_t kMemoryBytes = int64_t{64} << 30;

}  // namespace

pb::ClusterFile SlotClusters(int hosts) {
  pb::ClusterFile file;
  pb::Sku& sku = (*file.mutable_skus())["slots8"];
  sku.set_flavour(kSlotFlavour);
  sku.set_gpus(kSlotsPerHost);
  sku.set_cpus_milli(kSlotsPerHost * 1000);
  sku.set_memory_bytes(kMemoryBytes);
  sku.set_declared(true);
  pb::ClusterSpec* cluster = file.add_clusters();
  cluster->set_name("lab");
  cluster->set_sku("slots8");
  for (int h = 0; h < hosts; ++h) {
    pb::HostSpec* host = cluster->add_hosts();
    host->set_name(absl::StrFormat("h%04d", h));
    host->set_block(absl::StrCat("b", h / 128));
    host->set_rack(absl::StrCat("r", h / 16));
  }
  return file;
}

pb::JobSpec SlotJob(const std::string& name, const std::string& queue, int workers, int slots) {
  pb::JobSpec spec;
  spec.set_name(name);
  spec.set_queue(queue);
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  task->mutable_workers()->set_min(workers);
  task->mutable_workers()->set_max(workers);
  task->mutable_resources()->set_gpus_milli(slots * 1000);
  task->mutable_resources()->add_gpu_types(kSlotFlavour);
  task->mutable_run()->add_exec("/bin/true");
  return spec;
}

}  // namespace muster::bench
