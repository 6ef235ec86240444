// For tests of the engine and of what stands around it: a clock to set, a store that writes down
// what it was told, a link that drops it, and the events of a small cluster.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/engine/engine.h"

namespace muster {

class ManualClock : public Clock {
 public:
  int64_t WallNs() override { return now_ns - behind_ns; }
  int64_t MonotonicNs() override { return now_ns; }
  int64_t BootNs() override { return now_ns; }
  int64_t now_ns = 1'000'000 * kSecond;
  int64_t behind_ns = 0;  // of the wall clock: it was set back
};

class RecordingStore : public Store {
 public:
  explicit RecordingStore(std::vector<std::string>* log) : log_(log) {}
  absl::Status Commit(const Transaction& transaction) override {
    if (fail) return absl::InternalError("disk gone");
    if (slow) slow();
    last = transaction;
    if (log_ != nullptr) log_->push_back(absl::StrCat("commit ", transaction.commit));
    return absl::OkStatus();
  }
  bool fail = false;
  std::function<void()> slow;  // time that a commit takes
  Transaction last;

 private:
  std::vector<std::string>* log_;
};

class DeafLink : public AgentLink {
 public:
  void Send(const std::string&, const std::string&, const pb::SchedulerMessage&) override {}
};

// The events that make cluster `lab`, open to any host, with a storage.
inline pb::Event LabConfigured() {
  pb::Event event;
  pb::ClusterFile* file = event.mutable_clusters_configured()->mutable_file();
  (*file->mutable_storages())["shared"].set_path("/shared");
  (*file->mutable_storages())["shared"].add_clusters("lab");
  pb::ClusterSpec* lab = file->add_clusters();
  lab->set_name("lab");
  lab->set_job_storage("shared");
  lab->set_open(true);
  return event;
}

inline pb::Inventory TwoSlots() {
  pb::Inventory inventory;
  inventory.set_flavour("cpu-slot");
  inventory.set_declared(true);
  inventory.set_cpus_milli(4000);
  inventory.set_memory_bytes(int64_t{8} << 30);
  inventory.set_address("127.0.0.1");
  AnnounceAll(&inventory);
  for (int i = 0; i < 2; ++i) {
    pb::Device* device = inventory.add_devices();
    device->set_index(i);
    device->set_healthy(true);
  }
  return inventory;
}

inline pb::Event HostJoins(const std::string& host) {
  pb::Event event;
  event.mutable_host_hello()->set_cluster("lab");
  event.mutable_host_hello()->set_host(host);
  event.mutable_host_hello()->set_state_id(std::string(32, 'a'));
  event.mutable_host_hello()->set_boot_id("boot");
  *event.mutable_host_hello()->mutable_inventory() = TwoSlots();
  return event;
}

inline pb::JobSpec OneSlotSpec() {
  pb::JobSpec spec;
  spec.set_name("job");
  spec.set_queue("default");
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  task->mutable_workers()->set_min(1);
  task->mutable_workers()->set_max(1);
  task->mutable_resources()->set_gpus_milli(1000);
  task->mutable_resources()->add_gpu_types("cpu-slot");
  task->mutable_run()->set_shell("true");
  return spec;
}

// An engine that knows cluster `lab` and its host h1.
struct LabWithOneHost {
  explicit LabWithOneHost(const EngineOptions& options = {})
      : engine(options, &clock, &store, &link, State()) {
    engine.Post(LabConfigured());
    engine.Post(HostJoins("h1"));
    engine.Step();
  }
  ManualClock clock;
  RecordingStore store{nullptr};
  DeafLink link;
  Engine engine;
};

}  // namespace muster
