#include "sim/faults/run.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "scheduler/api/submit.h"
#include "scheduler/ask/ask.h"
#include "scheduler/store/admin.h"
#include "sim/faults/scheduler.h"
#include "sim/faults/sim_agent.h"

namespace muster::sim::faults {
namespace {

constexpr char kFlavour[] = "h100-80g";
constexpr int64_t kClientPatienceNs = 8 * kSecond;
// Numbers given away after an adoption are told from those of the next by the seconds between them
// (scheduler/state/apply.cc). Where the one before goes on, it may give away some more of its own.
constexpr int64_t kApartNs = 2 * kSecond, kApartFromOriginalNs = 30 * kSecond;

// The hosts' state directories, on a file system in memory where there is one.
class Workplace {
 public:
  Workplace() {
    std::error_code error;
    std::string name =
        std::string(std::filesystem::is_directory("/dev/shm", error) ? "/dev/shm" : "/tmp") +
        "/muster-faults-XXXXXX";
    MUSTER_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Workplace() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct User {
  pb::JobSpec spec;
  std::string key;
  uint64_t number = 0;  // acknowledged
  bool wants_cancel = false, cancelled = false;
};

class World {
 public:
  World(const Config& config, uint64_t seed, const std::vector<Fault>& faults);
  RunResult Run();

 private:
  void MakeHosts();
  void MakeUsers();
  pb::JobSpec DrawSpec();
  void StartScheduler();
  void SchedulerDied(Scheduler* scheduler);
  Scheduler* current() {
    return schedulers_.empty() || !schedulers_.back()->alive() ? nullptr : schedulers_.back().get();
  }
  void Submit(size_t user);
  void Cancel(size_t user);
  void Drain(const std::string& target, bool drained);
  pb::QueueTree DrawQueues(uint64_t seed) const;
  void ApplyQueues(const pb::QueueTree& tree);
  void Inject(const Fault& fault);
  void Reboot(int32_t host, int64_t down_ns, bool forget);
  void ConfirmOff(int32_t host);
  bool JustAdopted(int64_t apart_ns) const {
    return restored_ns_ != 0 && shared_.heap.now_ns() - restored_ns_ < apart_ns;
  }
  void Restore(const Database& backup);
  // The store is another's from now on: what it doesn't know was never said.
  void Adopted(bool newest);
  void Clone(int64_t both_ns);
  // Once, with the store as it was when the gang's first host was told to prepare, and with the
  // word to start on its way.
  void RestoreAtStart();
  void Stagger(const Fault& fault);
  void HoldAck(int32_t host, const pb::SchedulerMessage& message);
  void HealAll();
  void TellStuck();
  std::vector<std::string> Leaks() const;
  void CheckJournal();

  const std::vector<Fault> faults_;
  const uint64_t seed_;
  Workplace workplace_;
  Shared shared_;
  Random random_;
  Network network_;
  Scheduler::Setup setup_;
  Database database_;
  std::vector<std::unique_ptr<Database>>
      originals_;  // of which it is a copy, each with a scheduler that goes on
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
  std::vector<std::unique_ptr<Scheduler>>
      schedulers_;  // the newest last; dead ones stay until the end
  std::vector<User> users_;
  std::map<int32_t, Fault> held_acks_;  // by host
  bool healed_ = false;
  int64_t began_ns_ = 0;
  int64_t restored_ns_ = 0;  // the newest one; 0: none
};

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
    // One word of a driver takes a device out, for a while.
    cluster->mutable_quarantine()->set_device_blames(1);
    cluster->mutable_quarantine()->set_max_percent(40);
    cluster->mutable_quarantine()->set_release_after_ns(kMinute);
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
  for (int32_t h = 0; h < config.hosts; ++h) {
    agents_.push_back(
        std::make_unique<SimAgent>(&shared_, machines_[h].get(), &network_, h, inventory));
    shared_.heap.After(random_.Between(0, 2 * kSecond), [this, h] { agents_[h]->Start(); });
  }
}

pb::JobSpec World::DrawSpec() {
  pb::JobSpec spec;
  spec.set_name("job");
  spec.set_queue(random_.OneIn(2) ? "b" : random_.OneIn(2) ? "a/x" : "a/y");
  const int tasks = random_.OneIn(8) ? 2 : 1;
  for (int t = 0; t < tasks; ++t) {
    pb::TaskSpec* task = spec.add_tasks();
    task->set_name(t == 0 ? "main" : "then");
    if (t > 0) task->add_after("main");
    const uint64_t shape = random_.Below(10);
    int32_t workers = 1, most = 1;
    int64_t gpus =
        1 + static_cast<int64_t>(random_.Below(static_cast<uint64_t>(shared_.config.gpus)));
    if (shape >= 5) {
      workers = most = 2 + static_cast<int32_t>(random_.Below(3));
      gpus = shape == 9 ? 1 : shared_.config.gpus;
    }
    if (shape == 8) workers = 1;
    most = std::min(most, std::max(1, shared_.config.hosts * 2 / 5 - 1));
    workers = std::min(workers, most);
    task->mutable_workers()->set_min(workers);
    task->mutable_workers()->set_max(most);
    const bool on_cpus = random_.OneIn(8);  // beside devices, which may want their CPUs back
    if (on_cpus) {
      task->mutable_resources()->set_cpus_milli(1000 * random_.Between(1, 48));
    } else {
      task->mutable_resources()->set_gpus_milli(gpus * 1000);
      task->mutable_resources()->add_gpu_types(kFlavour);
    }
    task->set_processes_per_worker(random_.OneIn(4) ? 2 : 1);
    if (shape == 0 && !on_cpus) {  // a part of a GPU: one worker, one process
      task->mutable_resources()->set_gpus_milli(random_.Between(1, 9) * 100);
      task->set_processes_per_worker(1);
    }
    task->mutable_run()->set_shell("train");
    task->set_hang_timeout_ns(random_.OneIn(3) ? random_.Between(kMinute, 2 * kMinute) : 0);
    task->set_grace_ns(random_.Between(0, 10 * kSecond));
    if (random_.OneIn(4)) task->set_time_limit_ns(random_.Between(30 * kSecond, 10 * kMinute));
    constexpr pb::WhenUnreachable kRules[] = {
        pb::WHEN_UNREACHABLE_UNSPECIFIED, pb::REPLACE, pb::REPLACE, pb::WAIT, pb::FENCE, pb::FENCE};
    task->set_when_unreachable(kRules[random_.Below(std::size(kRules))]);
    if (task->when_unreachable() == pb::FENCE)
      task->set_fence_after_ns(
          random_.Between(shared_.config.lease_ns, 2 * shared_.config.lease_ns));
  }
  return spec;
}

// In half of the seeds all come at once: while many wait, what is free is taken at once.
void World::MakeUsers() {
  const int64_t until_ns =
      random_.OneIn(2) ? shared_.config.duration_ns * 3 / 4 : shared_.config.duration_ns / 8;
  for (int32_t i = 0; i < shared_.config.jobs; ++i) {
    User user;
    user.spec = DrawSpec();
    user.key = absl::StrCat("key-", i);
    user.wants_cancel = random_.OneIn(8);
    users_.push_back(std::move(user));
    const int64_t at_ns = random_.Between(0, until_ns);
    shared_.heap.After(at_ns, [this, i] { Submit(static_cast<size_t>(i)); });
    if (random_.OneIn(8))
      shared_.heap.After(at_ns + random_.Between(0, kMinute),
                         [this, i] { Submit(static_cast<size_t>(i)); });
    if (users_.back().wants_cancel)
      shared_.heap.After(at_ns + random_.Between(kSecond, shared_.config.work_ns),
                         [this, i] { Cancel(static_cast<size_t>(i)); });
  }
}

// ---- the scheduler ----

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

// ---- users ----

void World::Submit(size_t i) {
  Scheduler* const scheduler = current();
  const auto again = [this, i](int64_t after_ns) {
    shared_.heap.After(after_ns, [this, i] { Submit(i); });
  };
  if (scheduler == nullptr) return again(random_.Between(kSecond, 3 * kSecond));
  auto request = std::make_shared<pb::SubmitRequest>();
  *request->mutable_spec() = users_[i].spec;
  request->set_idempotency_key(users_[i].key);
  muster::Submit(
      scheduler->engine(), SpecDefaults{}, "user", request,
      [this, i, scheduler](const SubmitOutcome& outcome) {
        if (!outcome.status.ok() || scheduler->alone()) return;
        shared_.checker.OnAcknowledgedSubmission(shared_.heap.now_ns(), users_[i].key,
                                                 outcome.number);
        if (!random_.OneIn(10))
          users_[i].number = outcome.number;  // else the reply is lost, and the user tries again
      },
      [this] { return absl::StrFormat("%016x%016x", random_.Next(), random_.Next()); });
  scheduler->Wake();
  shared_.heap.After(kClientPatienceNs, [this, i] {
    if (users_[i].number == 0) Submit(i);
  });
}

void World::Cancel(size_t i) {
  Scheduler* const scheduler = current();
  const auto again = [this, i] {
    shared_.heap.After(kClientPatienceNs, [this, i] {
      if (!users_[i].cancelled) Cancel(i);
    });
  };
  if (scheduler != nullptr && users_[i].number != 0) {
    const uint64_t number = users_[i].number;
    scheduler->engine()->Call(
        [number](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
          if (state.FindJob(number) == nullptr) return absl::NotFoundError("no such job");
          std::vector<pb::Event> events(1);
          events[0].mutable_job_cancel()->set_number(number);
          return events;
        },
        [this, i, number, scheduler](absl::Status status) {
          if (!status.ok() || scheduler->alone()) return;
          users_[i].cancelled = true;
          ++shared_.counters["cancels"];
          shared_.checker.OnAcknowledgedCancel(shared_.heap.now_ns(), number);
        });
    scheduler->Wake();
  }
  again();
}

void World::Drain(const std::string& target, bool drained) {
  Scheduler* const scheduler = current();
  if (scheduler == nullptr) {
    shared_.heap.After(kSecond, [this, target, drained] { Drain(target, drained); });
    return;
  }
  pb::Event event;
  event.mutable_drain_changed()->set_target(target);
  event.mutable_drain_changed()->set_drained(drained);
  scheduler->engine()->Post(std::move(event), [this, target, drained](absl::Status status) {
    if (!status.ok())
      shared_.heap.After(kSecond, [this, target, drained] { Drain(target, drained); });
  });
  scheduler->Wake();
  // A death before the commit answers nobody: what has to hold in the end is said again.
  if (!drained && !healed_)
    shared_.heap.After(kClientPatienceNs, [this, target] { Drain(target, false); });
}

// The same queues, with guarantees of at most half of what there is, and limits on all levels.
pb::QueueTree World::DrawQueues(uint64_t seed) const {
  Random random(seed);
  pb::QueueTree tree = setup_.queues;
  const int64_t all_milli = int64_t{shared_.config.hosts} * shared_.config.gpus * 1000;
  const auto draw = [&](const auto& self, pb::QueueSpec* queue) -> int64_t {
    int64_t below_milli = 0;
    for (pb::QueueSpec& child : *queue->mutable_queues()) below_milli += self(self, &child);
    pb::Quota& quota = (*queue->mutable_quota())[kFlavour];
    const bool inner = queue->queues_size() > 0;
    const int64_t most_milli = inner ? all_milli / 8000 : all_milli / 4000;
    quota.set_guarantee_milli(below_milli);
    if (!random.OneIn(3))
      quota.set_guarantee_milli(below_milli +
                                random.Between(0, most_milli / (inner ? 1 : 2)) * 1000);
    if (random.OneIn(inner ? 2 : 3))
      quota.set_limit_milli(quota.guarantee_milli() + random.Between(1, all_milli / 2000) * 1000);
    quota.set_weight(random.Between(0, 3));
    if (random.OneIn(2)) queue->set_min_runtime_ns(random.Between(kSecond, kMinute));
    return quota.guarantee_milli();
  };
  for (pb::QueueSpec& queue : *tree.mutable_queues()) draw(draw, &queue);
  return tree;
}

void World::ApplyQueues(const pb::QueueTree& tree) {
  Scheduler* const scheduler = current();
  const auto again = [this, tree, last = healed_] {  // an edit before that is given up: it may not
                                                     // come after what has to hold in the end
    if (last) shared_.heap.After(kSecond, [this, tree] { ApplyQueues(tree); });
  };
  if (scheduler == nullptr) return again();
  const auto answered = std::make_shared<bool>(false);
  scheduler->engine()->Call(
      [this, tree](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const QueueResolution resolution = ResolveQueues(state, tree);
        if (!resolution.ok()) return absl::FailedPreconditionError(resolution.problems[0].message);
        std::vector<pb::Event> events(1);
        *events[0].mutable_queues_applied()->mutable_tree() = resolution.resolved;
        events[0].mutable_queues_applied()->set_version(state.queue_version() + 1);
        return events;
      },
      [this, answered, again](absl::Status status) {
        *answered = true;
        if (status.ok() && !healed_) ++shared_.counters["queues edited"];
        if (!status.ok()) again();
      });
  scheduler->Wake();
  shared_.heap.After(kClientPatienceNs, [answered, again] {
    if (!*answered) again();  // it died first, and answers nobody
  });
}

// ---- faults ----

void World::Reboot(int32_t host, int64_t down_ns, bool forget) {
  Machine& machine = *machines_[host];
  if (!machine.on()) return;
  ++shared_.counters[forget ? Counter("state directories lost") : Counter("reboots")];
  agents_[host]->Die(/*silently=*/true);
  machine.PowerOff();
  if (forget) {
    shared_.checker.OnStateLost(machine.full_name());
    machine.ForgetState();
  }
  shared_.heap.After(down_ns, [this, host] {
    if (machines_[host]->on()) return;
    machines_[host]->PowerOn();
    agents_[host]->Start();
  });
}

// An operator who has seen that the machine is off.
void World::ConfirmOff(int32_t host) {
  Scheduler* const scheduler = current();
  if (scheduler == nullptr || machines_[host]->on()) return;
  ++shared_.counters["hosts confirmed off"];
  pb::Event event;
  event.mutable_host_confirmed_off()->set_cluster(machines_[host]->cluster());
  event.mutable_host_confirmed_off()->set_host(machines_[host]->name());
  event.mutable_host_confirmed_off()->set_by("operator");
  scheduler->engine()->Post(std::move(event));
  scheduler->Wake();
}

// What was acknowledged since the backup is gone: the users see that, and say it again.
void World::Restore(const Database& backup) {
  if (healed_) return;
  if (JustAdopted(kApartNs))
    return shared_.heap.After(kApartNs, [this, backup] { Restore(backup); });
  restored_ns_ = shared_.heap.now_ns();
  ++shared_.counters["backups restored"];
  for (const std::unique_ptr<Scheduler>& scheduler : schedulers_) scheduler->Die();
  database_.rows = backup.rows;
  database_.last_commit = backup.last_commit;
  database_.epoch = backup.epoch;
  database_.instance = backup.instance;
  database_.adopt = true;
  Adopted(/*newest=*/false);
}

void World::Adopted(bool newest) {
  shared_.checker.OnRestored(database_.rows, database_.last_commit, newest);
  for (size_t i = 0; i < users_.size(); ++i) {
    User& user = users_[i];
    if (user.number == 0) continue;
    const bool known = shared_.checker.Stores(user.key);
    if (user.cancelled) {
      user.cancelled = false;
      shared_.heap.After(kSecond, [this, i] { Cancel(i); });
    }
    if (known) continue;
    user.number = 0;
    shared_.heap.After(random_.Between(kSecond, kClientPatienceNs), [this, i] { Submit(i); });
  }
}

// An operator moves the scheduler to another machine, with its store, and forgets to stop the old
// one for a time. Who reaches that one only is served by it, as far as anybody there can tell
// rightly.
void World::Clone(int64_t both_ns) {
  Scheduler* const old = current();
  if (old == nullptr || JustAdopted(kApartFromOriginalNs) || !database_.sqlite.empty() ||
      shared_.heap.now_ns() < database_.full_until_ns)
    return;
  ++shared_.counters["stores cloned"];
  restored_ns_ = shared_.heap.now_ns();
  Database& original = *originals_.emplace_back(std::make_unique<Database>(database_));
  original.dies_before = original.dies_after = original.fails = original.fails_done = 0;
  old->ServeAlone(&original);
  database_.adopt = true;
  Adopted(/*newest=*/true);
  StartScheduler();
  const int64_t until_ns = shared_.heap.now_ns() + both_ns;
  for (int32_t h = 0; h < shared_.config.hosts; ++h) {
    if (random_.OneIn(2)) agents_[h]->Reconnect(/*silently=*/true);
    if (random_.OneIn(4)) network_.KeepFromNew(h, until_ns);
    if (!random_.OneIn(8)) continue;
    // It finds its way back; perhaps before it has heard a word of the new one.
    int64_t back_ns = random_.Between(0, both_ns);
    if (random_.OneIn(2)) {
      agents_[h]->Reconnect(/*silently=*/true);
      network_.HoldNext(h, shared_.config.lease_ns);
      back_ns = std::min(back_ns, random_.Between(kSecond, shared_.config.lease_ns));
    }
    shared_.heap.After(back_ns, [this, h, old, until_ns] {
      if (!old->alive() || healed_) return;
      network_.Misdirect(h, old, until_ns);
      agents_[h]->Reconnect();
    });
  }
  shared_.heap.At(until_ns, [old] { old->Die(); });
}

void World::RestoreAtStart() {
  shared_.sends = [this, key = std::string(),
                   backup = Database()](const pb::SchedulerMessage& message) mutable {
    if (message.has_prepare() && !message.prepare().start_at_once() && key.empty()) {
      key = message.prepare().key().SerializeAsString();
      backup = database_;
    } else if (message.has_start() && message.start().key().SerializeAsString() == key) {
      key = "over";
      shared_.heap.After(1, [this, backup] {
        shared_.sends = nullptr;
        Restore(backup);
      });
    } else if (message.has_stop() && message.stop().key().SerializeAsString() == key) {
      key.clear();  // it won't start: the next gang will do
    }
  };
}

// A power failure that spreads, or a network that breaks piece by piece: the first lease is over
// while others have only begun to be silent.
void World::Stagger(const Fault& fault) {
  const int64_t lease_ns = shared_.config.lease_ns;
  for (size_t h = 0; h < machines_.size(); ++h) {
    if (machines_[h]->cluster() != machines_[fault.host]->cluster() ||
        static_cast<int64_t>(random_.Below(100)) >= fault.value)
      continue;
    const int64_t for_ns = std::max(fault.duration_ns, 3 * lease_ns);
    shared_.heap.After(random_.Between(0, lease_ns), [this, h, for_ns] {
      if (healed_) return;
      ++shared_.counters["hosts silent one after the other"];
      network_.Cut(static_cast<int32_t>(h), true, true, shared_.heap.now_ns() + for_ns);
    });
  }
}

// The scheduler counts from the host's word, and so has the host, however late it hears that.
void World::HoldAck(int32_t host, const pb::SchedulerMessage& message) {
  const auto held = held_acks_.find(host);
  if (healed_ || held == held_acks_.end() || message.heartbeat_ack().renews().empty()) return;
  const Fault fault = held->second;
  held_acks_.erase(held);
  ++shared_.counters["acknowledgements held up"];
  network_.HoldNext(host, fault.value);
  const int64_t for_ns = std::max(fault.duration_ns, 5 * shared_.config.lease_ns);
  network_.Cut(host, true, false, shared_.heap.now_ns() + for_ns);
}

void World::Inject(const Fault& fault) {
  if (healed_) return;
  const int64_t until_ns = shared_.heap.now_ns() + fault.duration_ns;
  Scheduler* const scheduler = current();
  Machine& machine = *machines_[fault.host];
  ++shared_.counters["faults"];
  if (fault.kind == FaultKind::kLossy || fault.kind == FaultKind::kDiskFull ||
      fault.kind == FaultKind::kPauseShims)
    shared_.checker.OnMuted(machine.full_name());
  switch (fault.kind) {
    case FaultKind::kCut:
      return network_.Cut(fault.host, true, true, until_ns);
    case FaultKind::kCutUp:
      return network_.Cut(fault.host, true, false, until_ns);
    case FaultKind::kCutDown:
      return network_.Cut(fault.host, false, true, until_ns);
    case FaultKind::kReset:
      return network_.Reset(fault.host);
    case FaultKind::kLossy:
      return network_.Lossy(fault.host, until_ns);
    case FaultKind::kSlow:
      return network_.Slow(fault.host, until_ns, fault.value);
    case FaultKind::kMassCut: {
      ++shared_.counters["mass cuts"];
      for (size_t h = 0; h < machines_.size(); ++h) {
        if (machines_[h]->cluster() == machine.cluster() &&
            static_cast<int64_t>(random_.Below(100)) < fault.value)
          network_.Cut(static_cast<int32_t>(h), true, true, until_ns);
      }
      return;
    }
    case FaultKind::kStagger:
      return Stagger(fault);
    case FaultKind::kHoldAck:
      held_acks_[fault.host] = fault;
      return;
    case FaultKind::kDeviceFault:
      ++shared_.counters["faults of devices told"];
      return agents_[fault.host]->TellFault(static_cast<int32_t>(fault.value));
    case FaultKind::kCrashBeforeCommit:
      database_.dies_before = fault.value;
      return;
    case FaultKind::kCrashAfterCommit:
      database_.dies_after = fault.value;
      return;
    case FaultKind::kCommitFails:
      database_.fails = fault.value;
      return;
    case FaultKind::kCommitFailsDone:
      database_.fails_done = fault.value;
      return;
    case FaultKind::kStoreFull:
      database_.full_until_ns = until_ns;
      return;
    case FaultKind::kPauseScheduler:
      if (scheduler != nullptr) scheduler->Pause(until_ns);
      return;
    case FaultKind::kTakeover:
      if (scheduler != nullptr && database_.sqlite.empty()) {  // its lock lets no second one in
        ++shared_.counters["takeovers"];
        StartScheduler();
        // Some hosts reach only the old one's machine: it goes on with them until it sees that it
        // is replaced. The others stay with it as well, or reach only the new one's from now on,
        // and the old one hears nothing more.
        const bool leave = random_.OneIn(2);
        for (int32_t h = 0; h < shared_.config.hosts; ++h) {
          if (random_.OneIn(4)) {
            network_.KeepFromNew(
                h, shared_.heap.now_ns() +
                       random_.Between(3 * shared_.config.lease_ns, 8 * shared_.config.lease_ns));
          } else if (leave) {
            agents_[h]->Reconnect(/*silently=*/true);
          }
        }
      }
      return;
    case FaultKind::kSchedulerClock:
      if (scheduler != nullptr) scheduler->JumpClock(fault.value);
      return;
    case FaultKind::kCrashAgent:
      return agents_[fault.host]->DieAtUse(fault.value);
    case FaultKind::kAgentAway:
      if (!agents_[fault.host]->runs()) return;
      ++shared_.counters["agents that stay away"];
      agents_[fault.host]->Die(/*silently=*/false);
      shared_.heap.At(until_ns, [this, host = fault.host] { agents_[host]->Start(); });
      return;
    case FaultKind::kOldStreams:
      network_.Age(fault.host, fault.value);
      for (int times = 0; times < 2; ++times)
        shared_.heap.After(random_.Between(0, fault.value),
                           [this, host = fault.host] { agents_[host]->Reconnect(); });
      return;
    case FaultKind::kDiskFull:
      machine.disk_full_until_ns = until_ns;
      return;
    case FaultKind::kKillShim:
      return fault.value == 1 ? machine.KillNextClaim() : machine.KillAnyShim();
    case FaultKind::kReboot:
      return Reboot(fault.host, fault.duration_ns, false);
    case FaultKind::kRebootMany:
      for (int32_t h = fault.host / 4 * 4;
           h < std::min<int32_t>(fault.host / 4 * 4 + 4, shared_.config.hosts); ++h)
        Reboot(h, fault.duration_ns, false);
      return;
    case FaultKind::kLoseState:
      return Reboot(fault.host, fault.duration_ns, true);
    case FaultKind::kRebootAtMarker:
      machine.marked = [this, fault, gone = false]() mutable {
        if (gone || healed_) return;
        gone = true;
        // Before its shim claims it, or soon after.
        shared_.heap.After(random_.Between(0, 8 * kMillisecond), [this, fault] {
          if (!healed_) Reboot(fault.host, fault.duration_ns, false);
        });
      };
      return;
    case FaultKind::kPowerOff:
      Reboot(fault.host, fault.duration_ns, false);
      shared_.heap.After(fault.duration_ns * 3 / 4,
                         [this, host = fault.host] { ConfirmOff(host); });
      return;
    case FaultKind::kRestore:
      if (database_.sqlite.empty() && fault.value == 1) return RestoreAtStart();
      if (database_.sqlite.empty()) {
        shared_.heap.After(fault.duration_ns, [this, backup = database_] { Restore(backup); });
      }
      return;
    case FaultKind::kClone:
      return Clone(fault.duration_ns);
    case FaultKind::kHostClock:
      return machine.JumpClock(fault.value);
    case FaultKind::kLaunchFails:
      machine.launch_fails_until_ns = until_ns;
      return;
    case FaultKind::kLateShims:
      machine.late_shims_until_ns = until_ns;
      machine.late_shims_ns = fault.value;
      // What is too busy to run its shims is often not heard of either, for about as long as a
      // fence: some of them begin after half of theirs.
      machine.begins_late = [this, host = fault.host] {
        const int64_t for_ns =
            random_.Between(shared_.config.lease_ns, 2 * shared_.config.lease_ns);
        if (!healed_) network_.Cut(host, true, true, shared_.heap.now_ns() + for_ns);
      };
      for (int times = 0; times < 2; ++times) {
        shared_.heap.After(
            random_.Between(0, fault.duration_ns),
            [this, host = fault.host,
             for_ns = random_.Between(shared_.config.lease_ns, 2 * shared_.config.lease_ns)] {
              if (!healed_) network_.Cut(host, true, true, shared_.heap.now_ns() + for_ns);
            });
      }
      return;
    case FaultKind::kPauseAgent:
      return agents_[fault.host]->Pause(until_ns);
    case FaultKind::kPauseShims:
      return machine.PauseShims(until_ns);
    case FaultKind::kSleep:
      agents_[fault.host]->Sleep(until_ns);
      return machine.Sleep(until_ns);
    case FaultKind::kEditQueues:
      return ApplyQueues(DrawQueues(static_cast<uint64_t>(fault.value)));
    case FaultKind::kDrain:
      Drain(machine.full_name(), true);
      shared_.heap.At(until_ns,
                      [this, host = fault.host] { Drain(machines_[host]->full_name(), false); });
      return;
  }
}

void World::HealAll() {
  healed_ = true;
  for (const std::unique_ptr<Scheduler>& scheduler : schedulers_) {
    if (scheduler->alone()) scheduler->Die();
  }
  database_.dies_before = database_.dies_after = database_.fails = database_.fails_done =
      database_.full_until_ns = 0;
  for (const auto& machine : machines_)
    machine->disk_full_until_ns = machine->launch_fails_until_ns = machine->late_shims_until_ns = 0;
  for (size_t h = 0; h < machines_.size(); ++h) {
    agents_[h]->DieAtUse(0);
    if (!machines_[h]->on()) machines_[h]->PowerOn();
    agents_[h]->Start();
  }
  network_.Heal();
  if (current() == nullptr) StartScheduler();
  for (const auto& machine : machines_) Drain(machine->full_name(), false);
  ApplyQueues(setup_.queues);
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
      shared_.checker.Violate(shared_.heap.now_ns(),
                              absl::StrCat("liveness: ", user.key, " was never acknowledged"));
  }
}

// Rows of what is lost, processes, and what agents know of attempts that the scheduler needs no
// more.
std::vector<std::string> World::Leaks() const {
  std::vector<std::string> leaks = shared_.checker.Leaks();
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
  const int64_t heal_ns = began_ns_ + shared_.config.duration_ns,
                end_ns = heal_ns + shared_.config.patience_ns;
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
  while (!shared_.heap.empty() && shared_.heap.next_ns() < end_ns &&
         shared_.checker.violations().empty()) {
    shared_.heap.RunNext();
    if (!healed_ || shared_.heap.now_ns() < looked_ns + kSecond) continue;
    looked_ns = shared_.heap.now_ns();
    if (!over()) continue;
    // What is left of it goes within ten leases.
    if (over_ns == 0) over_ns = looked_ns;
    ended = true;
    if (Leaks().empty()) break;
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

}  // namespace

RunResult Run(const Config& config, uint64_t seed, const std::vector<Fault>& faults) {
  return World(config, seed, faults).Run();
}

std::vector<Fault> Shrink(const Config& config, uint64_t seed, std::vector<Fault> faults,
                          int runs) {
  size_t chunk = std::max<size_t>(1, faults.size() / 2);
  while (runs > 0) {
    bool shorter = false;
    for (size_t at = 0; at < faults.size() && runs > 0;) {
      std::vector<Fault> fewer = faults;
      fewer.erase(fewer.begin() + static_cast<int64_t>(at),
                  fewer.begin() + static_cast<int64_t>(std::min(at + chunk, fewer.size())));
      --runs;
      if (!Run(config, seed, fewer).violations.empty()) {
        faults = std::move(fewer);
        shorter = true;
      } else {
        at += chunk;
      }
    }
    if (chunk == 1 && !shorter) break;
    chunk = std::max<size_t>(1, chunk / 2);
  }
  return faults;
}

}  // namespace muster::sim::faults
