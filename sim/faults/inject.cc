// Faults.
#include "sim/faults/world.h"

#include <algorithm>
#include <memory>

#include "common/base/check.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {
namespace {

// Numbers given away after an adoption are told from those of the next by the seconds between them
// (scheduler/state/apply.cc). Where the one before goes on, it may give away some more of its own.
constexpr int64_t kApartNs = 2 * kSecond, kApartFromOriginalNs = 30 * kSecond;

}  // namespace

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
    const bool known = shared_.checker.Stores(KeyOfUser(user.name, user.key));
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
  ++shared_.counters["faults"];
  if (fault.kind == FaultKind::kLossy || fault.kind == FaultKind::kDiskFull ||
      fault.kind == FaultKind::kPauseShims)
    shared_.checker.OnMuted(machines_[fault.host]->full_name());
  MUSTER_CHECK(InjectInNetwork(fault) || InjectInScheduler(fault) || InjectInMachine(fault));
}

bool World::InjectInNetwork(const Fault& fault) {
  const int64_t until_ns = shared_.heap.now_ns() + fault.duration_ns;
  switch (fault.kind) {
    case FaultKind::kCut:
      network_.Cut(fault.host, true, true, until_ns);
      return true;
    case FaultKind::kCutUp:
      network_.Cut(fault.host, true, false, until_ns);
      return true;
    case FaultKind::kCutDown:
      network_.Cut(fault.host, false, true, until_ns);
      return true;
    case FaultKind::kReset:
      network_.Reset(fault.host);
      return true;
    case FaultKind::kLossy:
      network_.Lossy(fault.host, until_ns);
      return true;
    case FaultKind::kSlow:
      network_.Slow(fault.host, until_ns, fault.value);
      return true;
    case FaultKind::kMassCut:
      MassCut(fault);
      return true;
    case FaultKind::kStagger:
      Stagger(fault);
      return true;
    case FaultKind::kHoldAck:
      held_acks_[fault.host] = fault;
      return true;
    case FaultKind::kOldStreams:
      network_.Age(fault.host, fault.value);
      for (int times = 0; times < 2; ++times)
        shared_.heap.After(random_.Between(0, fault.value),
                           [this, host = fault.host] { agents_[host]->Reconnect(); });
      return true;
    default:
      return false;
  }
}

void World::MassCut(const Fault& fault) {
  const int64_t until_ns = shared_.heap.now_ns() + fault.duration_ns;
  const std::string& cluster = machines_[fault.host]->cluster();
  ++shared_.counters["mass cuts"];
  for (size_t h = 0; h < machines_.size(); ++h) {
    if (machines_[h]->cluster() == cluster &&
        static_cast<int64_t>(random_.Below(100)) < fault.value)
      network_.Cut(static_cast<int32_t>(h), true, true, until_ns);
  }
}

// Of the scheduler, its store, and what it is told.
bool World::InjectInScheduler(const Fault& fault) {
  const int64_t until_ns = shared_.heap.now_ns() + fault.duration_ns;
  Scheduler* const scheduler = current();
  switch (fault.kind) {
    case FaultKind::kCrashBeforeCommit:
      database_.dies_before = fault.value;
      return true;
    case FaultKind::kCrashAfterCommit:
      database_.dies_after = fault.value;
      return true;
    case FaultKind::kCommitFails:
      database_.fails = fault.value;
      return true;
    case FaultKind::kCommitFailsDone:
      database_.fails_done = fault.value;
      return true;
    case FaultKind::kStoreFull:
      database_.full_until_ns = until_ns;
      return true;
    case FaultKind::kPauseScheduler:
      if (scheduler != nullptr) scheduler->Pause(until_ns);
      return true;
    case FaultKind::kTakeover:
      Takeover();
      return true;
    case FaultKind::kSchedulerClock:
      if (scheduler != nullptr) scheduler->JumpClock(fault.value);
      was_set_back_ = was_set_back_ || fault.value < 0;
      return true;
    case FaultKind::kRestore:
      if (database_.sqlite.empty() && fault.value == 1) {
        RestoreAtStart();
        return true;
      }
      if (database_.sqlite.empty()) {
        shared_.heap.After(fault.duration_ns, [this, backup = database_] { Restore(backup); });
      }
      return true;
    case FaultKind::kClone:
      Clone(fault.duration_ns);
      return true;
    case FaultKind::kEditQueues:
      ApplyQueues(DrawQueues(static_cast<uint64_t>(fault.value)));
      return true;
    default:
      return false;
  }
}

void World::Takeover() {
  // The lock of the real store lets no second one in.
  if (current() == nullptr || !database_.sqlite.empty()) return;
  ++shared_.counters["takeovers"];
  StartScheduler();
  // Some hosts reach only the old one's machine: it goes on with them until it sees that it is
  // replaced. The others stay with it as well, or reach only the new one's from now on, and the old
  // one hears nothing more.
  const bool leave = random_.OneIn(2);
  for (int32_t h = 0; h < shared_.config.hosts; ++h) {
    if (random_.OneIn(4)) {
      network_.KeepFromNew(h, shared_.heap.now_ns() + random_.Between(3 * shared_.config.lease_ns,
                                                                      8 * shared_.config.lease_ns));
    } else if (leave) {
      agents_[h]->Reconnect(/*silently=*/true);
    }
  }
}

bool World::InjectInMachine(const Fault& fault) {
  const int64_t until_ns = shared_.heap.now_ns() + fault.duration_ns;
  Machine& machine = *machines_[fault.host];
  switch (fault.kind) {
    case FaultKind::kDeviceFault:
      BreakDevice(fault);
      return true;
    case FaultKind::kCrashAgent:
      agents_[fault.host]->DieAtUse(fault.value);
      return true;
    case FaultKind::kAgentAway:
      if (!agents_[fault.host]->runs()) return true;
      ++shared_.counters["agents that stay away"];
      agents_[fault.host]->Die(/*silently=*/false);
      shared_.heap.At(until_ns, [this, host = fault.host] { agents_[host]->Start(); });
      return true;
    case FaultKind::kDiskFull:
      machine.disk_full_until_ns = until_ns;
      return true;
    case FaultKind::kKillShim:
      if (fault.value == 1) {
        machine.KillNextClaim();
      } else {
        machine.KillAnyShim();
      }
      return true;
    case FaultKind::kReboot:
      Reboot(fault.host, fault.duration_ns, false);
      return true;
    case FaultKind::kRebootMany:
      for (int32_t h = fault.host / 4 * 4;
           h < std::min<int32_t>(fault.host / 4 * 4 + 4, shared_.config.hosts); ++h)
        Reboot(h, fault.duration_ns, false);
      return true;
    case FaultKind::kLoseState:
      Reboot(fault.host, fault.duration_ns, true);
      return true;
    case FaultKind::kLoseStateAlone:
      LoseStateAlone(fault);
      return true;
    case FaultKind::kStorageHangs:
      HangStorage(fault);
      return true;
    case FaultKind::kRebootAtMarker:
      RebootAtMarker(fault);
      return true;
    case FaultKind::kPowerOff:
      Reboot(fault.host, fault.duration_ns, false);
      shared_.heap.After(fault.duration_ns * 3 / 4,
                         [this, host = fault.host] { ConfirmOff(host); });
      return true;
    case FaultKind::kHostClock:
      machine.JumpClock(fault.value);
      return true;
    case FaultKind::kLaunchFails:
      machine.launch_fails_until_ns = until_ns;
      return true;
    case FaultKind::kLateShims:
      LateShims(fault);
      return true;
    case FaultKind::kPauseAgent:
      agents_[fault.host]->Pause(until_ns);
      return true;
    case FaultKind::kPauseShims:
      machine.PauseShims(until_ns);
      return true;
    case FaultKind::kSleep:
      agents_[fault.host]->Sleep(until_ns);
      machine.Sleep(until_ns);
      return true;
    case FaultKind::kDrain:
      Drain(machine.full_name(), true);
      shared_.heap.At(until_ns,
                      [this, host = fault.host] { Drain(machines_[host]->full_name(), false); });
      return true;
    default:
      return false;
  }
}

// Somebody clears the disk while the agent is away; who starts it again starts it with an empty
// directory.
void World::LoseStateAlone(const Fault& fault) {
  Machine& machine = *machines_[fault.host];
  if (!machine.on() || machine.asleep() || !agents_[fault.host]->runs()) return;
  agents_[fault.host]->Die(/*silently=*/false);
  ++shared_.counters["state directories lost while the machine was up"];
  shared_.checker.OnStateLost(machine.full_name());
  machine.ForgetState();
  shared_.heap.After(random_.Between(0, fault.duration_ns),
                     [this, host = fault.host] { agents_[host]->Start(); });
}

// Its driver tells of it, and it fails its checks for a time.
void World::BreakDevice(const Fault& fault) {
  ++shared_.counters["faults of devices told"];
  const auto device = static_cast<int32_t>(fault.value);
  agents_[fault.host]->TellFault(device);
  machines_[fault.host]->Sicken(device, shared_.heap.now_ns() + 3 * fault.duration_ns);
}

void World::HangStorage(const Fault& fault) {
  ++shared_.counters["storages that hung"];
  int64_t& until_ns = shared_.programs.storage_hangs_until_ns;
  until_ns = std::max(until_ns, shared_.heap.now_ns() + fault.duration_ns);
  // What programs would have said comes late.
  for (const auto& machine : machines_) shared_.checker.OnMuted(machine->full_name());
}

void World::RebootAtMarker(const Fault& fault) {
  machines_[fault.host]->marked = [this, fault, gone = false]() mutable {
    if (gone || healed_) return;
    gone = true;
    // Before its shim claims it, or soon after.
    shared_.heap.After(random_.Between(0, 8 * kMillisecond), [this, fault] {
      if (!healed_) Reboot(fault.host, fault.duration_ns, false);
    });
  };
}

void World::LateShims(const Fault& fault) {
  const int64_t until_ns = shared_.heap.now_ns() + fault.duration_ns;
  Machine& machine = *machines_[fault.host];
  machine.late_shims_until_ns = until_ns;
  machine.late_shims_ns = fault.value;
  // What is too busy to run its shims is often not heard of either, for about as long as a
  // fence: some of them begin after half of theirs.
  machine.begins_late = [this, host = fault.host] {
    const int64_t for_ns = random_.Between(shared_.config.lease_ns, 2 * shared_.config.lease_ns);
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
}

}  // namespace muster::sim::faults
