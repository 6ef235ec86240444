// What a run consists of, how it begins, and how it ends.
#include "sim/faults/world.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/spec/config_files.h"
#include "scheduler/store/admin.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {

Workplace::Workplace() {
  std::error_code error;
  std::string name =
      std::string(std::filesystem::is_directory("/dev/shm", error) ? "/dev/shm" : "/tmp") +
      "/muster-faults-XXXXXX";
  MUSTER_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

Workplace::~Workplace() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

World::World(const Config& drawn, uint64_t seed, const std::vector<Fault>& faults)
    : faults_(faults),
      seed_(seed),
      shared_(ForSeed(drawn, seed), seed),
      random_(seed * 0x2545f4914f6cdd1dull + 7),
      network_(&shared_, drawn.hosts, seed ^ 0x1234567) {
  const Config& config = shared_.config;
  shared_.checker.set_lease_ns(config.lease_ns);
  shared_.checker.hangs = [this](const pb::AttemptKey& key, const pb::TaskSpec& task) {
    return shared_.programs.Hangs(key, task);
  };
  shared_.checker.loaded_by = [this](const pb::AttemptKey& key) {
    return shared_.programs.LoadedBy(key);
  };
  shared_.storage = workplace_.path() + "/storage";
  shared_.programs.waits = [this](bool is_export) {
    ++shared_.counters[is_export ? Counter("exports that waited for storage")
                                 : Counter("checkpoints that waited for storage")];
  };
  shared_.programs.stage = [this](const std::string& staged, const pb::AttemptKey& by) {
    std::filesystem::create_directories(shared_.storage + staged);
    std::ofstream(shared_.storage + staged + "/by") << Checker::Text(by);
  };
  database_.store_id = absl::StrFormat("%016x%016x", random_.Next(), random_.Next());
  if (config.sqlite > 0 && seed % static_cast<uint64_t>(config.sqlite) == 0)
    database_.sqlite = workplace_.path() + "/store";
  began_ns_ = shared_.heap.now_ns();
  MakeHosts();
  MakeUsers();
}

void World::MakeHosts() {
  const Config& config = shared_.config;
  pb::Sku& sku = (*setup_.clusters.mutable_skus())["node"];
  sku.set_flavour(kFlavour);
  sku.set_gpus(config.gpus);
  sku.set_cpus_milli(64'000);
  sku.set_memory_bytes(int64_t{512} << 30);
  sku.set_disk_bytes(int64_t{1} << 40);
  pb::Storage& shared = (*setup_.clusters.mutable_storages())["shared"];
  shared.set_path("/shared");
  const int32_t first = std::max(1, config.hosts * 3 / 5);
  for (int c = 0; c < 2; ++c) {
    pb::ClusterSpec* cluster = setup_.clusters.add_clusters();
    cluster->set_name(c == 0 ? "north" : "south");
    cluster->set_sku("node");
    cluster->set_job_storage("shared");
    shared.add_clusters(cluster->name());
    // One word of a driver takes a device out, for a while, and in one of them one failed launch a
    // host.
    cluster->mutable_quarantine()->set_device_blames(1);
    if (c == 1) cluster->mutable_quarantine()->set_host_blames(1);
    if (c == 1 && config.only_user > 0) cluster->set_only_user(kUserNames[0]);
    cluster->set_host_check_timeout_ns(kHostCheckTimeoutNs);
    cluster->mutable_quarantine()->set_max_percent(40);
    cluster->mutable_quarantine()->set_release_after_ns(kReleaseAfterNs);
    for (int32_t h = c == 0 ? 0 : first; h < (c == 0 ? first : config.hosts); ++h) {
      pb::HostSpec* host = cluster->add_hosts();
      host->set_name(absl::StrFormat("n%03d", h));
      host->set_rack(absl::StrCat("r", h / 4));
      machines_.push_back(std::make_unique<Machine>(
          &shared_, cluster->name(), host->name(),
          absl::StrCat(workplace_.path(), "/", host->name()), random_.Next()));
    }
  }
  for (const char* name : {"a", "b"}) setup_.queues.add_queues()->set_name(name);
  for (const char* name : {"x", "y"}) setup_.queues.mutable_queues(0)->add_queues()->set_name(name);
  setup_.scheduling.lease_ns = config.lease_ns;
  setup_.scheduling.min_runtime_ns = 20 * kSecond;
  setup_.scheduling.grow_interval_ns = 30 * kSecond;
  if (seed_ % 4 != 0)
    setup_.scheduling.estimates =
        0;  // expected starts, which no decision reads, take a twelfth of the time
  setup_.refused_plans = workplace_.path() + "/refused-plans";
  pb::Inventory inventory;
  inventory.set_flavour(kFlavour);
  for (int32_t d = 0; d < config.gpus; ++d) {
    pb::Device* device = inventory.add_devices();
    device->set_index(d);
    device->set_healthy(true);
  }
  inventory.set_cpus_milli(sku.cpus_milli());
  inventory.set_memory_bytes(sku.memory_bytes());
  inventory.set_disk_bytes(sku.disk_bytes());
  inventory.set_address("127.0.0.1");
  AnnounceAll(&inventory);
  for (int32_t h = 0; h < config.hosts; ++h) {
    agents_.push_back(
        std::make_unique<SimAgent>(&shared_, machines_[h].get(), &network_, h, inventory));
    shared_.heap.After(random_.Between(0, 2 * kSecond), [this, h] { agents_[h]->Start(); });
  }
}

void World::StartScheduler() {
  const int64_t now_ns = shared_.heap.now_ns();
  if (now_ns < database_.full_until_ns) {
    shared_.heap.After(kSecond, [this] {
      if (current() == nullptr) StartScheduler();
    });
    return;
  }
  ++shared_.counters["schedulers started"];
  schedulers_.push_back(
      std::make_unique<Scheduler>(&shared_, &database_, &network_, setup_, random_.Next(),
                                  [this](Scheduler* died) { SchedulerDied(died); }));
  schedulers_.back()->name_of = [this](int32_t host) { return machines_[host]->full_name(); };
  schedulers_.back()->sends = [this](int32_t host, const pb::SchedulerMessage& message) {
    HoldAck(host, message);
  };
}

void World::SchedulerDied(Scheduler* scheduler) {
  if (schedulers_.back().get() != scheduler) return;  // another has taken over
  shared_.heap.After(random_.Between(kSecond / 10, 4 * kSecond), [this] {
    if (current() == nullptr) StartScheduler();
  });
}

void World::HealAll() {
  healed_ = true;
  for (const std::unique_ptr<Scheduler>& scheduler : schedulers_) {
    if (scheduler->alone()) scheduler->Die();
  }
  database_.dies_before = database_.dies_after = database_.fails = database_.fails_done =
      database_.full_until_ns = 0;
  shared_.programs.storage_hangs_until_ns = 0;
  for (const auto& machine : machines_) {
    machine->disk_full_until_ns = machine->launch_fails_until_ns = machine->late_shims_until_ns = 0;
    machine->Recover();
  }
  for (size_t h = 0; h < machines_.size(); ++h) {
    agents_[h]->DieAtUse(0);
    if (!machines_[h]->on()) machines_[h]->PowerOn();
    agents_[h]->Start();
  }
  network_.Heal();
  if (current() == nullptr) StartScheduler();
  for (const auto& machine : machines_) Drain(machine->full_name(), false);
  ApplyQueues(setup_.queues);
  if (shared_.config.schedules > 0) EndSchedules();
}

void World::TellStuck() {
  for (const auto& [uid, job] : shared_.checker.jobs()) {
    if (job.end_ns() != 0) continue;
    std::string text =
        absl::StrCat("liveness: job ", job.number(), job.cancel_requested() ? " (cancelled)" : "",
                     " has not ended:");
    for (int t = 0; t < job.tasks_size(); ++t) {
      absl::StrAppend(&text, " task ", job.spec().tasks(t).name(), " ",
                      pb::TaskState_Name(job.tasks(t).state()));
      if (job.tasks(t).attempts().empty()) continue;
      const pb::AttemptRecord& attempt = *job.tasks(t).attempts().rbegin();
      for (int p = 0; p < attempt.parts_size(); ++p) {
        absl::StrAppend(&text, " ", attempt.number(), "@", attempt.placements(p).host(), ":",
                        pb::AttemptPhase_Name(attempt.parts(p).phase()),
                        attempt.parts(p).lost() ? "(lost)" : "");
      }
    }
    shared_.checker.Violate(shared_.heap.now_ns(), text);
  }
  for (const User& user : users_) {
    if (user.number == 0)
      shared_.checker.Violate(
          shared_.heap.now_ns(),
          absl::StrCat("liveness: ", KeyOfUser(user.name, user.key), " was never acknowledged"));
  }
}

// Rows of what is lost, processes, what agents know of attempts that the scheduler needs no more,
// and devices that anybody holds.
std::vector<std::string> World::Leaks() const {
  std::vector<std::string> leaks = shared_.checker.Leaks();
  const auto add = [&](const std::vector<std::string>& held) {
    leaks.insert(leaks.end(), held.begin(), held.end());
  };
  if (!schedulers_.empty()) add(schedulers_.back()->Held());
  for (const auto& agent : agents_) add(agent->Held());
  for (const auto& machine : machines_) add(machine->Held());
  for (const auto& machine : machines_) {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(machine->state_directory() + "/attempts", error)) {
      const std::string name = entry.path().filename();
      agent::AttemptId id;
      if (agent::ParseDirectoryName(name, &id))
        leaks.push_back(absl::StrCat(machine->full_name(), " keeps the record of ", name));
    }
  }
  return leaks;
}

// The journal makes the rows, and its steps are decided the same again.
void World::CheckJournal() {
  schedulers_.clear();
  const std::string file = absl::StrCat(database_.sqlite, "/", kStoreFile);
  if (const absl::Status verified = VerifyStore(file).status(); !verified.ok()) {
    shared_.checker.Violate(shared_.heap.now_ns(),
                            absl::StrCat("contract 23: ", std::string(verified.message())));
  }
  const absl::StatusOr<ReplayReport> replayed = ReplayStore(file, setup_.scheduling);
  if (!replayed.ok())
    shared_.checker.Violate(shared_.heap.now_ns(),
                            absl::StrCat("replay: ", std::string(replayed.status().message())));
  if (replayed.ok())
    shared_.counters["commits replayed"] += static_cast<int64_t>(replayed->commits);
}

RunResult World::Run() {
  const auto began = std::chrono::steady_clock::now();
  const int64_t heal_ns = began_ns_ + shared_.config.duration_ns;
  // While a clock that was set back catches up, the engine's time goes on half as fast, and so all
  // that waits for it takes twice as long: the members of an array that hang one after another.
  const auto end_ns = [&] {
    return heal_ns + (was_set_back_ ? 2 : 1) * shared_.config.patience_ns;
  };
  StartScheduler();
  for (const Fault& fault : faults_)
    shared_.heap.At(began_ns_ + fault.at_ns, [this, &fault] { Inject(fault); });
  shared_.heap.At(heal_ns, [this] { HealAll(); });
  const auto over = [&] {
    return healed_ && shared_.checker.unfinished_jobs() == 0 &&
           std::all_of(users_.begin(), users_.end(),
                       [](const User& user) { return user.number != 0; });
  };
  int64_t looked_ns = 0, over_ns = 0;
  bool ended = false;
  while (!shared_.heap.empty() && shared_.heap.next_ns() < end_ns() &&
         shared_.checker.violations().empty()) {
    shared_.heap.RunNext();
    if (!healed_ || shared_.heap.now_ns() < looked_ns + kSecond) continue;
    looked_ns = shared_.heap.now_ns();
    if (!over()) continue;
    // What is left of it goes within ten leases.
    if (over_ns == 0) over_ns = looked_ns;
    ended = true;
    shared_.checker.CheckQuarantinesEnd(looked_ns, heal_ns);
    if (Leaks().empty() && !shared_.checker.AnyQuarantine()) break;
    if (looked_ns - over_ns < 10 * shared_.config.lease_ns) continue;
    for (const std::string& leak : Leaks())
      shared_.checker.Violate(looked_ns, absl::StrCat("left behind: ", leak));
  }
  if (!ended && shared_.checker.violations().empty()) TellStuck();
  if (!database_.sqlite.empty() && shared_.checker.violations().empty()) CheckJournal();
  RunResult result;
  result.violations = shared_.checker.violations();
  result.counters = shared_.counters;
  result.digest = shared_.digest;
  result.virtual_ns = shared_.heap.now_ns() - began_ns_;
  result.real_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began)
          .count();
  return result;
}

}  // namespace muster::sim::faults
