#include "sandbox/scenario.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"

namespace muster::sandbox {
namespace {

constexpr int kHostsARack = 8, kRacksABlock = 4;

void AddCluster(pb::ClusterFile* file, const std::string& name, const std::string& sku,
                const std::string& storage, int hosts) {
  pb::ClusterSpec* cluster = file->add_clusters();
  cluster->set_name(name);
  cluster->set_sku(sku);
  cluster->set_job_storage(storage);
  for (int h = 0; h < hosts; ++h) {
    pb::HostSpec* host = cluster->add_hosts();
    host->set_name(absl::StrFormat("h%03d", h + 1));
    host->set_rack(absl::StrCat("r", h / kHostsARack + 1));
    host->set_block(absl::StrCat("b", h / kHostsARack / kRacksABlock + 1));
  }
}

void AddSku(pb::ClusterFile* file, const std::string& name, const std::string& flavour, int gpus,
            int64_t cpus, int64_t memory_gib) {
  pb::Sku& sku = (*file->mutable_skus())[name];
  sku.set_flavour(flavour);
  sku.set_gpus(gpus);
  sku.set_nvlink_island(gpus);
  sku.set_cpus_milli(cpus * 1000);
  sku.set_memory_bytes(memory_gib << 30);
  sku.set_disk_bytes(int64_t{6} << 40);
  sku.set_declared(true);
}

void AddStorage(pb::ClusterFile* file, const std::string& name,
                const std::vector<std::string>& clusters) {
  pb::Storage& storage = (*file->mutable_storages())[name];
  storage.set_path(absl::StrCat("/sandbox/", name));
  for (const std::string& cluster : clusters) storage.add_clusters(cluster);
}

struct QuotaLine {
  const char* flavour;
  int64_t guarantee;
  int64_t weight;
};

pb::QueueSpec QueueOf(const std::string& name, const std::vector<QuotaLine>& quotas) {
  pb::QueueSpec queue;
  queue.set_name(name);
  queue.add_submit("*");
  for (const QuotaLine& line : quotas) {
    pb::Quota& quota = (*queue.mutable_quota())[line.flavour];
    quota.set_guarantee_milli(line.guarantee * 1000);
    quota.set_weight(line.weight);
  }
  return queue;
}

// A kind of job: who submits it where, and between which sizes.
struct Kind {
  const char* flavour;
  const char* name;
  const char* queue;
  int share;  // of the jobs of its flavour, in percent
  int least_workers_log2, most_workers_log2;
  int64_t gpus_milli;
  int64_t least_minutes, most_minutes;
  bool elastic;
};

constexpr Kind kKinds[] = {
    {"h100-80g", "pretrain", "research/nlp", 4, 5, 6, 8000, 240, 1200, true},
    {"h100-80g", "vit", "research/vision", 8, 2, 4, 8000, 60, 360, true},
    {"h100-80g", "sft", "research/nlp", 30, 0, 3, 8000, 20, 180, false},
    {"h100-80g", "grpo", "research/rl", 16, 1, 4, 8000, 40, 240, true},
    {"h100-80g", "serve-tune", "prod", 16, 2, 5, 8000, 30, 240, false},
    {"h100-80g", "try", "scratch", 26, 0, 0, 4000, 10, 90, false},
    {"a100-80g", "distil", "research/nlp", 30, 1, 4, 8000, 30, 240, false},
    {"a100-80g", "segment", "research/vision", 30, 0, 3, 8000, 20, 200, true},
    {"a100-80g", "embed", "platform", 15, 1, 3, 4000, 20, 120, false},
    {"a100-80g", "try", "scratch", 25, 0, 0, 2000, 10, 120, false},
    {"l40s-48g", "eval", "platform", 45, 0, 1, 4000, 8, 50, false},
    {"l40s-48g", "judge", "research/rl", 30, 0, 2, 1000, 8, 60, false},
    {"l40s-48g", "notebook", "scratch", 25, 0, 0, 500, 15, 120, false},
};
constexpr const char* kOwners[] = {"ann", "bo", "cai", "dee", "eli", "fay", "gus", "hana"};

}  // namespace

pb::ClusterFile Clusters() {
  pb::ClusterFile file;
  AddSku(&file, "h100x8", "h100-80g", 8, 192, 1872);
  AddSku(&file, "a100x8", "a100-80g", 8, 128, 1000);
  AddSku(&file, "l40sx4", "l40s-48g", 4, 64, 500);
  AddStorage(&file, "lake", {"phx", "fra"});  // jobs may move between these two
  AddStorage(&file, "dal-fs", {"dal"});
  AddStorage(&file, "sin-fs", {"sin"});
  AddCluster(&file, "phx", "h100x8", "lake", 256);
  AddCluster(&file, "dal", "a100x8", "dal-fs", 128);
  AddCluster(&file, "fra", "h100x8", "lake", 96);
  AddCluster(&file, "sin", "l40sx4", "sin-fs", 64);
  return file;
}

pb::QueueTree Queues() {
  pb::QueueTree tree;
  *tree.add_queues() = QueueOf("prod", {{"h100-80g", 768, 3}});
  pb::QueueSpec* research = tree.add_queues();
  *research =
      QueueOf("research", {{"h100-80g", 1280, 2}, {"a100-80g", 640, 2}, {"l40s-48g", 64, 2}});
  *research->add_queues() = QueueOf("nlp", {{"h100-80g", 640, 2}, {"a100-80g", 256, 1}});
  *research->add_queues() = QueueOf("vision", {{"h100-80g", 320, 1}, {"a100-80g", 256, 1}});
  *research->add_queues() =
      QueueOf("rl", {{"h100-80g", 256, 1}, {"a100-80g", 64, 1}, {"l40s-48g", 64, 1}});
  *tree.add_queues() = QueueOf("platform", {{"a100-80g", 128, 2}, {"l40s-48g", 128, 2}});
  *tree.add_queues() =
      QueueOf("scratch", {{"h100-80g", 0, 1}, {"a100-80g", 0, 1}, {"l40s-48g", 0, 1}});
  tree.mutable_queues(3)->set_max_time_limit_ns(kDay);
  return tree;
}

PopulationJob DrawJob(const std::string& flavour, sim::Random* random) {
  int64_t percent = static_cast<int64_t>(random->Below(100));
  const Kind* kind = nullptr;
  for (const Kind& one : kKinds) {
    if (flavour != one.flavour) continue;
    kind = &one;
    percent -= one.share;
    if (percent < 0) break;
  }
  PopulationJob job;
  job.owner = kOwners[random->Below(std::size(kOwners))];
  job.duration_ns = random->Between(kind->least_minutes, kind->most_minutes) * kMinute;
  job.spec.set_name(absl::StrFormat("%s-%02d", kind->name, random->Below(100)));
  job.spec.set_queue(kind->queue);
  if (random->OneIn(6)) job.spec.set_priority(static_cast<int32_t>(random->Between(1, 5) * 10));
  pb::TaskSpec* task = job.spec.add_tasks();
  task->set_name("main");
  const int32_t workers = 1 << random->Between(kind->least_workers_log2, kind->most_workers_log2);
  task->mutable_workers()->set_min(kind->elastic ? (workers + 1) / 2 : workers);
  task->mutable_workers()->set_max(workers);
  task->mutable_resources()->set_gpus_milli(kind->gpus_milli);
  task->mutable_resources()->add_gpu_types(flavour);
  task->mutable_run()->add_exec("train");
  task->mutable_run()->add_exec(job.spec.name());
  task->mutable_checkpoint()->set_interval_ns(random->Between(3, 15) * kMinute);
  task->set_time_limit_ns(2 * job.duration_ns + kHour);
  return job;
}

}  // namespace muster::sandbox
