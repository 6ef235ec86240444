#include "sim/faults/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/host/state_dir.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "common/base/check.h"
#include "sim/faults/standstill.h"

namespace muster::sim::faults {
namespace {

constexpr int64_t kEventsNs =
    50 * kMillisecond;  // agent/shim: after which events are written that nobody waits for
constexpr int64_t kSlowestDeathNs =
    3 * kSecond;  // from SIGKILL to a process's end; a fence allows for 5 s
constexpr int64_t kFencePauseNs =
    kSecond;  // for so long may a shim that has to fence stand still, once: within the same 5 s

}  // namespace

struct Machine::Shim {
  explicit Shim(Heap* heap) : pause(heap) {}

  agent::AttemptId id;
  pb::Prepare prepare;
  std::string prepared_boot_id;  // of the agent's record
  std::string spawned_boot_id;
  shim::Rules rules{kSecond};
  shim::Fence fence;
  bool fenced = false;
  std::map<int32_t, bool> ranks;  // runs
  int running = 0;
  bool claimed = false, begun = false;
  bool over = false;         // dead
  bool slept_alive = false;  // its processes were not killed when its machine began to sleep
  Standstill pause;
  int64_t start_ns = 0;
  std::string held;          // events that are still to be written
  std::string metrics;       // the newest progress line, until it is written
  int64_t synced_bytes = 0;  // of events
};

Machine::Machine(Shared* shared, std::string cluster, std::string name, std::string directory,
                 uint64_t seed)
    : shared_(shared),
      cluster_(std::move(cluster)),
      name_(std::move(name)),
      directory_(std::move(directory)),
      random_(seed) {
  boot_id_ = NewId();
  began_ns_ = shared_->heap.now_ns() - kHour;  // it has been up for a while
  drift_ppm_ = random_.Between(-1000, 1000);
  ForgetState();
}

Machine::~Machine() {
  for (const auto& [id, shim] : shims_) shim->pause.Die();  // what it defers holds it
}

std::string Machine::NewId() {
  return absl::StrFormat("%016x%016x", random_.Next(), random_.Next());
}

void Machine::ForgetState() {
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
  std::filesystem::create_directories(directory_);
  std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
  std::ofstream(directory_ + "/state_id") << NewId() << "\n";
}

std::string Machine::DirectoryOf(const agent::AttemptId& id) const {
  return absl::StrCat(directory_, "/attempts/", agent::DirectoryName(id));
}

void Machine::Later(int64_t delay_ns, const ShimPtr& shim, void (Machine::*what)(const ShimPtr&)) {
  shared_->heap.After(
      delay_ns, [this, shim, what] { Act(shim, [this, shim, what] { (this->*what)(shim); }); });
}

void Machine::Act(const ShimPtr& shim, std::function<void()> what) {
  if (!shim->over) shim->pause.Act(std::move(what));
}

void Machine::Tell(const agent::AttemptId& id) {
  shared_->heap.After(random_.Between(kMillisecond / 10, 2 * kMillisecond), [this, id] {
    if (changed) changed(id);
  });
}

// ---- the agent's port ----

absl::StatusOr<int32_t> Machine::Prepare(const v1::Prepare& prepare) {
  if (shared_->heap.now_ns() < launch_fails_until_ns && random_.OneIn(2)) {
    ++shared_->counters["prepares failed"];
    return absl::InternalError("prepare fails");
  }
  return prepare.hosts_rendezvous() || prepare.start_at_once() ? next_port_++ : 0;
}

absl::Status Machine::SpawnShim(const agent::AttemptRecord& record) {
  if (shared_->heap.now_ns() < launch_fails_until_ns && random_.OneIn(2)) {
    ++shared_->counters["spawns failed"];
    return absl::InternalError("spawn fails");
  }
  if (DiskFull()) return absl::ResourceExhaustedError("spec: No space left on device");
  const ShimPtr shim = std::make_shared<Shim>(&shared_->heap);
  shim->id = record.id;
  shim->prepare = record.prepare;
  shim->prepared_boot_id = record.boot_id;
  shim->spawned_boot_id = boot_id_;
  if (record.prepare.task().when_unreachable() == pb::FENCE)
    shim->fence = shim::Fence(record.prepare.task().fence_after_ns(), record.renewed_ns);
  if (!shims_.emplace(record.id, shim).second) return absl::OkStatus();  // it can't get the lock
  acted();
  const bool late = shared_->heap.now_ns() < late_shims_until_ns;
  if (late && record.prepare.task().when_unreachable() == pb::FENCE && begins_late) {
    begins_late();
    const int64_t fence_ns = record.prepare.task().fence_after_ns();
    Later(random_.Between(fence_ns / 3, fence_ns * 5 / 4), shim, &Machine::Claim);
    return absl::OkStatus();
  }
  Later(late ? random_.Between(0, late_shims_ns) : random_.Between(kMillisecond, 30 * kMillisecond),
        shim, &Machine::Claim);
  return absl::OkStatus();
}

void Machine::SignalShim(const agent::AttemptId& id) {
  const auto found = shims_.find(id);
  if (found != shims_.end() && found->second->begun)
    Later(random_.Between(1, kMillisecond), found->second, &Machine::ReadStop);
}

// ---- a shim's life ----

void Machine::Claim(const ShimPtr& shim) {
  const std::string directory = DirectoryOf(shim->id);
  shim::Claim claim = shim::Claim::kNone;
  if (shim::ReadClaim(directory, &claim) != 0 ||
      !shim::MayStart(claim, shim->spawned_boot_id, boot_id_)) {
    ++shared_->counters["shims that came too late"];
    return Remove(shim, false);
  }
  if (Fenced(shim) && !shim::InTime(shim->fence, BootNs())) {
    ++shared_->counters["shims that came after their fence"];
    return Remove(shim, false);
  }
  shim::Claim winner = shim::Claim::kNone;
  if (DiskFull() || shim::MakeClaim(directory, shim::Claim::kStarted, &winner) != 0 ||
      winner != shim::Claim::kStarted)
    return Remove(shim, false);
  shim->claimed = true;
  if (std::exchange(dies_at_claim_, false)) return KillShim(shim);
  Later(random_.Between(kMillisecond / 10, 20 * kMillisecond), shim, &Machine::Run);
}

void Machine::Run(const ShimPtr& shim) {
  shim->begun = true;
  shim->start_ns = WallNs();
  Append(shim, shim::Line{"started"}.Add("at_ns", shim->start_ns), false);
  ReadStop(shim);
  if (Fenced(shim) && !shim::InTime(shim->fence, BootNs())) {  // the claim took its time
    shim->fenced = true;
    shim->rules.Stop(0, BootNs());
    return Later(1, shim, &Machine::Finish);
  }
  const pb::Prepare& prepare = shim->prepare;
  shared_->checker.OnStart(shared_->heap.now_ns(), full_name(), boot_id_, shim->prepared_boot_id,
                           prepare);
  shared_->Digest(absl::StrCat("start ", full_name(), prepare.key().job_uid(),
                               prepare.key().attempt(), shared_->heap.now_ns()));
  const int32_t per_worker = std::max(1, prepare.processes_per_worker());
  const int32_t first = prepare.here().first_group_rank() * per_worker;
  const int32_t ranks = prepare.here().workers() * per_worker;
  for (int32_t rank = first; rank < first + ranks; ++rank) shim->ranks[rank] = true;
  shim->running = ranks;
  for (int32_t rank = first; rank < first + ranks; ++rank) {
    Programs::Rank acts;
    acts.exit = [this, shim, rank](int code) {
      Act(shim, [this, shim, rank, code] { Ended(shim, rank, code, 0); });
    };
    acts.say = [this, shim](const std::string& json) {
      Act(shim, [this, shim, json] {
        Append(shim, shim::Line{"line"}.Add("at_ns", WallNs()).Add("json", json), true);
        Tell(shim->id);
      });
    };
    acts.report = [this, shim](const std::string& json) {
      Act(shim, [this, shim, json] {
        shim->metrics =
            shim::FormatLine(shim::Line{"line"}.Add("at_ns", WallNs()).Add("json", json));
        WriteMetrics(shim);
      });
    };
    shared_->programs.Start(prepare, rank, std::move(acts));
    if (shim->rules.stop_sent()) shared_->programs.Terminate(prepare.key(), rank);
  }
  if (shim->rules.kill_at_ns() != shim::kNever) Kill(shim);
  WatchFence(shim);
  Tell(shim->id);
}

bool Machine::Fenced(const ShimPtr& shim) {
  if (!shim->fence.Passed(BootNs())) return false;
  std::string content, error;
  int64_t renewed_ns = 0;
  if (shim::ReadSmallFile(DirectoryOf(shim->id) + "/" + shim::kRenewedFile, &content) == 0 &&
      shim::ParseRenewal(content, &renewed_ns, &error)) {
    shim->fence.Renew(renewed_ns);
  }
  return shim->fence.Passed(BootNs());
}

// As the shim's loop does.
void Machine::WatchFence(const ShimPtr& shim) {
  if (shim->fenced || shim->fence.due_ns() == shim::kNever) return;
  LookAtFence(shim);
  if (!shim->fenced)
    Later(std::max<int64_t>(kMillisecond, shim->fence.due_ns() - BootNs()), shim,
          &Machine::WatchFence);
}

void Machine::LookAtFence(const ShimPtr& shim) {
  if (shim->fenced || !Fenced(shim)) return;
  ++shared_->counters["fenced"];
  shim->fenced = true;
  const bool term = shim->rules.StopByFence(shim->fence, shim->prepare.task().grace_ns());
  for (const auto& [rank, runs] : shim->ranks) {
    if (term && runs) shared_->programs.Terminate(shim->prepare.key(), rank);
  }
  Kill(shim);
}

void Machine::ReadStop(const ShimPtr& shim) {
  std::string content, error;
  shim::StopOrder order;
  if (shim::ReadSmallFile(DirectoryOf(shim->id) + "/" + shim::kStopFile, &content) != 0 ||
      !shim::ParseStop(content, &order, &error))
    return;
  const bool term = shim->rules.Stop(order.grace_ns, BootNs());
  for (const auto& [rank, runs] : shim->ranks) {
    if (term && runs) shared_->programs.Terminate(shim->prepare.key(), rank);
  }
  Kill(shim);
}

// SIGKILL if it is time; else when it will be. Nothing of a killed process runs any more, but it is
// there, and holds its devices, until the kernel has taken it down: mostly at once, sometimes not
// for seconds, as when a driver frees a GPU's memory.
void Machine::Kill(const ShimPtr& shim) {
  const int64_t now_ns = BootNs();
  if (shim->rules.KillNow(now_ns)) {
    for (const auto& [rank, runs] : shim->ranks) {
      if (runs) shared_->programs.Dead(shim->prepare.key(), rank);
    }
    const bool slow = random_.OneIn(4);
    if (slow) ++shared_->counters["killed processes that are there for longer"];
    Later(slow ? random_.Between(0, kSlowestDeathNs)
               : random_.Between(kMillisecond / 10, 20 * kMillisecond),
          shim, &Machine::Reap);
  } else if (!shim->rules.killed() && shim->rules.kill_at_ns() != shim::kNever) {
    Later(std::max<int64_t>(1, shim->rules.kill_at_ns() - now_ns), shim, &Machine::Kill);
  }
}

void Machine::Reap(const ShimPtr& shim) {
  const std::map<int32_t, bool> ranks = shim->ranks;
  for (const auto& [rank, runs] : ranks) {
    if (runs) Ended(shim, rank, 0, 9);
  }
}

void Machine::Ended(const ShimPtr& shim, int32_t rank, int exit_code, int signal) {
  if (shim->over || !shim->ranks[rank]) return;
  shim->ranks[rank] = false;
  // The last one's end is told by the exit record alone, as agent/shim does.
  const bool last = shim->running == 1 && !shim->rules.stop_sent();
  shared_->programs.Dead(shim->prepare.key(), rank);
  if (shim->rules.Exited(rank, exit_code, signal, signal != 0 ? "killed" : "", WallNs(),
                         BootNs()) &&
      !last) {
    shim::Line line = shim::ExitLine(shim->rules.exits().at(rank));
    line.Add("stop_sent", int64_t{shim->rules.stop_sent()});
    Append(shim, line, true);
    Tell(shim->id);
  }
  if (--shim->running > 0) {
    if (!shim->rules.killed() && shim->rules.kill_at_ns() != shim::kNever)
      Later(0, shim, &Machine::Kill);
    return;
  }
  shared_->checker.OnProcessesGone(full_name(), shim->prepare.key());
  Later(random_.Between(kMillisecond / 10, 10 * kMillisecond), shim, &Machine::Finish);
}

void Machine::Finish(const ShimPtr& shim) {
  shim::Exits exits = shim->rules.Final(shim->start_ns, WallNs());
  exits.fenced = shim->fenced;
  if (DiskFull() ||
      shim::ReplaceFile(DirectoryOf(shim->id), shim::kExitsFile, shim::FormatExits(exits)) != 0) {
    if (!std::filesystem::exists(DirectoryOf(shim->id))) return Remove(shim, false);
    ++shared_->counters["exits written after a full disk"];
    return Later(kSecond, shim, &Machine::Finish);
  }
  Remove(shim, true);
}

void Machine::Remove(const ShimPtr& shim, bool recorded) {
  shim->over = true;
  shim->pause.Die();
  for (const auto& [rank, runs] : shim->ranks) {
    if (runs) shared_->programs.Dead(shim->prepare.key(), rank);
  }
  if (shim->begun) {
    TrueEnd end;
    end.recorded = recorded;
    end.stop_sent = shim->rules.stop_sent();
    end.all_exited_0 = shim->rules.exits().size() == shim->ranks.size();
    for (const auto& [rank, exit] : shim->rules.exits())
      end.all_exited_0 = end.all_exited_0 && exit.exit_code == 0 && exit.signal == 0;
    shared_->checker.OnEnd(full_name(), shim->prepare.key(), end);
    shared_->Digest(absl::StrCat("end ", full_name(), shim->prepare.key().job_uid(),
                                 shim->prepare.key().attempt(), shared_->heap.now_ns()));
  }
  shims_.erase(shim->id);
  Tell(shim->id);
}

// Of what ends before its events are written there are none: its exit record says it all.
void Machine::Append(const ShimPtr& shim, const shim::Line& line, bool sync) {
  if (!sync && shim->held.empty()) Later(kEventsNs, shim, &Machine::WriteHeld);
  shim->held += shim::FormatLine(line);
  if (sync) Write(shim, true);
}

void Machine::WriteHeld(const ShimPtr& shim) {
  Write(shim, false);
  Tell(shim->id);
}

void Machine::Write(const ShimPtr& shim, bool sync) {
  const std::string held = std::exchange(shim->held, "");
  if (held.empty() || DiskFull()) return;
  const int fd = ::open((DirectoryOf(shim->id) + "/" + shim::kEventsFile).c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  shim::WriteAll(fd, held);
  if (sync) shim->synced_bytes = ::lseek(fd, 0, SEEK_END);
  ::close(fd);
}

void Machine::WriteMetrics(const ShimPtr& shim) {
  if (shim->metrics.empty()) return;
  if (DiskFull()) return Later(kSecond, shim, &Machine::WriteMetrics);
  shim::ReplaceFile(DirectoryOf(shim->id), shim::kProgressFile, std::exchange(shim->metrics, ""),
                    /*sync=*/false);
  Tell(shim->id);
}

// ---- faults ----

void Machine::KillAnyShim() {
  if (shims_.empty()) return;
  auto victim = shims_.begin();
  std::advance(victim, static_cast<int64_t>(random_.Below(shims_.size())));
  KillShim(ShimPtr(victim->second));
}

void Machine::KillShim(const ShimPtr& shim) {
  ++shared_->counters[shim->begun     ? Counter("shims killed")
                      : shim->claimed ? Counter("shims killed between claim and start")
                                      : Counter("shims killed before the claim")];
  Remove(shim, false);
}

void Machine::PauseShims(int64_t until_ns) {
  for (const auto& [id, shim] : shims_) {
    const bool fence = shim->prepare.task().when_unreachable() == pb::FENCE;
    if (fence && shim->pause.ever()) continue;
    ++shared_->counters["shims paused"];
    shim->pause.Until(fence ? std::min(until_ns, shared_->heap.now_ns() + kFencePauseNs)
                            : until_ns);
  }
}

void Machine::Sleep(int64_t until_ns) {
  if (!on_) return;
  if (!asleep()) ++shared_->counters["machines that slept"];
  asleep_until_ns_ = std::max(asleep_until_ns_, until_ns);
  shared_->checker.OnAsleep(full_name());
  for (const auto& [id, shim] : shims_) {
    shim->slept_alive = !shim->rules.killed();
    shim->pause.Until(until_ns);
    // The first thing once it wakes.
    if (shim->begun && !shim->over) shim->pause.Defer([this, shim = shim] { LookAtFence(shim); });
  }
  // Once all that was due meanwhile is done.
  shared_->heap.At(until_ns + 1, [this] {
    if (on_ && !asleep()) Awake();
  });
}

void Machine::Awake() {
  std::set<std::string> killed;
  for (const auto& [id, shim] : shims_) {
    if (!shim->rules.killed()) continue;
    killed.insert(Checker::Text(shim->prepare.key()));
    if (shim->fenced && std::exchange(shim->slept_alive, false))
      ++shared_->counters["killed by their fence at waking"];
  }
  shared_->checker.OnAwake(shared_->heap.now_ns(), full_name(), killed);
}

void Machine::KillAllShims() {
  while (!shims_.empty()) Remove(ShimPtr(shims_.begin()->second), false);
}

void Machine::PowerOff() {
  on_ = false;
  asleep_until_ns_ = 0;
  for (const auto& [id, shim] : shims_) {
    if (!shim->begun) continue;
    if (::truncate((DirectoryOf(id) + "/" + shim::kEventsFile).c_str(), shim->synced_bytes) != 0)
      continue;  // it had none yet
  }
  KillAllShims();
  for (const agent::AttemptId& id : unsynced_) LoseUnsynced(id);
  unsynced_.clear();
  if (random_.OneIn(2)) LoseSeen();
}

void Machine::LoseSeen() {
  std::vector<std::pair<std::pair<uint64_t, uint64_t>, std::filesystem::path>> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/attempts", error)) {
    std::pair<uint64_t, uint64_t> seen;
    if (agent::ParseSeenName(entry.path().filename().string(), &seen.first, &seen.second))
      names.emplace_back(seen, entry.path());
  }
  if (names.size() < 2) return;  // the one there is was synced, or nothing ever was
  std::sort(names.begin(), names.end());
  std::filesystem::remove(names.back().second, error);
  shared_->checker.OnSeenLost(full_name(), names[names.size() - 2].first);
  ++shared_->counters["commit numbers that were not synced when the power went"];
}

void Machine::MarkSynced(const agent::AttemptId& id, bool synced) {
  if (synced) {
    unsynced_.erase(id);
    return;
  }
  unsynced_.insert(id);
  if (marked != nullptr) marked();
}

// Of a marker that was not synced there is nothing left when the power goes, all, or a part; its
// directory's name, and those in it, are durable with its claim.
void Machine::LoseUnsynced(const agent::AttemptId& id) {
  const std::string directory = DirectoryOf(id), marker = directory + "/prepared";
  std::error_code error;
  const auto size = std::filesystem::file_size(marker, error);
  if (error) return;  // forgotten meanwhile
  ++shared_->counters["markers that were not synced when the power went"];
  const uint64_t outcome = random_.Below(3);
  if (outcome == 0) return;
  if (outcome == 1) {
    std::filesystem::remove(marker, error);
  } else {
    std::filesystem::resize_file(marker, size / 2, error);
  }
  shim::Claim claim = shim::Claim::kNone;
  if (shim::ReadClaim(directory, &claim) != 0 || claim != shim::Claim::kNone || !random_.OneIn(2))
    return;
  std::filesystem::remove_all(directory, error);
}

void Machine::PowerOn() {
  on_ = true;
  boot_id_ = NewId();
}

}  // namespace muster::sim::faults
