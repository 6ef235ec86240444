#include "sim/faults/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/host/environment.h"
#include "agent/host/state_dir.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "common/base/check.h"
#include "sim/faults/sim_shim.h"

namespace muster::sim::faults {
namespace {

// What the agent adds to a launch there.
agent::LaunchHost LaunchOf(const std::string& boot_id) {
  agent::LaunchHost host;
  host.bin_directory = "/bin";
  host.home = "/root";
  host.user = "root";
  host.boot_id = boot_id;
  return host;
}

}  // namespace

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
  for (const auto& [id, shim] : shims_) shim->Abandon();  // what it puts off holds it
}

std::string Machine::NewId() {
  return absl::StrFormat("%016x%016x", random_.Next(), random_.Next());
}

void Machine::ForgetState() {
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
  std::filesystem::create_directories(directory_);
  std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
  next_state_id_ = NewId();
}

agent::StateDirectory::Making Machine::Making() {
  return {[this] { return next_state_id_; }, [this](const std::string&) { EndForgottenShims(); }};
}

void Machine::EndForgottenShims() {
  while (!shims_.empty()) {
    ++shared_->counters["attempts that were there when their state directory was lost"];
    const std::shared_ptr<SimShim> shim = shims_.begin()->second;
    shim->Kill();
  }
}

std::string Machine::DirectoryOf(const agent::AttemptId& id) const {
  return absl::StrCat(directory_, "/attempts/", agent::DirectoryName(id));
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
  if (StorageHangs()) {
    ++shared_->counters["launches given up for storage that hung"];
    return absl::DeadlineExceededError("/shared does not answer");
  }
  return prepare.hosts_rendezvous() || prepare.start_at_once() ? next_port_++ : 0;
}

absl::Status Machine::SpawnShim(const agent::AttemptRecord& record) {
  if (shared_->heap.now_ns() < launch_fails_until_ns && random_.OneIn(2)) {
    ++shared_->counters["spawns failed"];
    return absl::InternalError("spawn fails");
  }
  if (DiskFull()) return absl::ResourceExhaustedError("spec: No space left on device");
  if (shims_.count(record.id) > 0) return absl::OkStatus();  // it can't get the lock
  absl::StatusOr<shim::Spec> spec =
      agent::MakeShimSpec(record, LaunchOf(boot_id_), /*token=*/"token", /*progress_socket=*/"");
  if (!spec.ok()) return spec.status();
  const auto shim = std::make_shared<SimShim>(shared_, this, record, *std::move(spec));
  shims_[record.id] = shim;
  acted();
  const bool late = shared_->heap.now_ns() < late_shims_until_ns;
  if (late && record.prepare.task().when_unreachable() == pb::FENCE && begins_late) {
    begins_late();
    const int64_t fence_ns = record.prepare.task().fence_after_ns();
    shim->BeginAfter(random_.Between(fence_ns / 3, fence_ns * 5 / 4));
    return absl::OkStatus();
  }
  shim->BeginAfter(late ? random_.Between(0, late_shims_ns)
                        : random_.Between(kMillisecond, 30 * kMillisecond));
  return absl::OkStatus();
}

void Machine::SignalShim(const agent::AttemptId& id) {
  const auto found = shims_.find(id);
  if (found != shims_.end()) found->second->SignalAfter(random_.Between(1, kMillisecond));
}

void Machine::ShimEnded(const agent::AttemptId& id) {
  shims_.erase(id);
  shared_->heap.After(random_.Between(kMillisecond / 10, 2 * kMillisecond), [this, id] {
    if (shim_ended) shim_ended(id);
  });
}

// ---- faults ----

void Machine::KillAnyShim() {
  if (shims_.empty()) return;
  auto victim = shims_.begin();
  std::advance(victim, static_cast<int64_t>(random_.Below(shims_.size())));
  const std::shared_ptr<SimShim> shim = victim->second;
  shim->Kill();
}

void Machine::PauseShims(int64_t until_ns) {
  for (const auto& [id, shim] : shims_) shim->StandStill(until_ns);
}

void Machine::Sleep(int64_t until_ns) {
  if (!on_) return;
  if (!asleep()) ++shared_->counters["machines that slept"];
  asleep_until_ns_ = std::max(asleep_until_ns_, until_ns);
  shared_->checker.OnAsleep(full_name());
  for (const auto& [id, shim] : shims_) shim->Sleep(until_ns);
  // Once all that was due meanwhile is done.
  shared_->heap.At(until_ns + 1, [this] {
    if (on_ && !asleep()) Awake();
  });
}

void Machine::Awake() {
  std::set<std::string> killed;
  for (const auto& [id, shim] : shims_) {
    if (!shim->killed()) continue;
    killed.insert(Checker::Text(shim->key()));
    if (shim->TakeKilledByItsFenceInSleep()) ++shared_->counters["killed by their fence at waking"];
  }
  shared_->checker.OnAwake(shared_->heap.now_ns(), full_name(), killed);
}

void Machine::PowerOff() {
  on_ = false;
  asleep_until_ns_ = 0;
  while (!shims_.empty()) {
    const std::shared_ptr<SimShim> shim = shims_.begin()->second;
    shim->PowerOff();
  }
  for (const agent::AttemptId& id : unsynced_) LoseUnsynced(id);
  unsynced_.clear();
  if (random_.OneIn(2)) LoseSeen();
  if (random_.OneIn(4)) TearFiles();
}

// A disk may say that it has written what it has not: of some small files there is nothing left, or
// a part, or they are empty. What they said, nobody knows any more.
void Machine::TearFiles() {
  std::vector<std::filesystem::path> directories;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/attempts", error)) {
    agent::AttemptId id;
    if (agent::ParseDirectoryName(entry.path().filename().string(), &id))
      directories.push_back(entry.path());
  }
  std::sort(directories.begin(), directories.end());
  for (const std::filesystem::path& directory : directories) {
    for (const char* name : {shim::kExitsFile, shim::kStopFile, shim::kRenewedFile, "outcome"}) {
      const std::filesystem::path file = directory / name;
      const auto size = std::filesystem::file_size(file, error);
      if (error || random_.OneIn(2)) continue;
      ++shared_->counters["files torn when the power went"];
      if (random_.OneIn(4)) {
        std::filesystem::remove(file, error);
      } else {
        std::filesystem::resize_file(file, random_.Below(size + 1), error);
      }
      agent::AttemptId id;
      agent::ParseDirectoryName(directory.filename().string(), &id);
      shared_->checker.OnRecordTorn(full_name(), agent::KeyOf(id));
    }
  }
}

void Machine::LoseSeen() {
  std::vector<std::pair<std::pair<uint64_t, uint64_t>, std::filesystem::path>> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/attempts", error)) {
    agent::Seen seen;
    if (agent::ParseSeenName(entry.path().filename().string(), &seen))
      names.emplace_back(std::pair(seen.epoch, seen.commit), entry.path());
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

std::vector<std::string> Machine::Held() const {
  std::vector<std::string> held;
  for (const auto& [id, shim] : shims_)
    held.push_back(absl::StrCat(full_name(), " has the shim of ", Checker::Text(shim->key())));
  return held;
}

bool Machine::Fit(int32_t device) const {
  const int64_t now_ns = shared_->heap.now_ns();
  if (device < 0 && now_ns < launch_fails_until_ns) return false;
  return std::none_of(sick_until_ns_.begin(), sick_until_ns_.end(), [&](const auto& sick) {
    return (device < 0 || sick.first == device) && now_ns < sick.second;
  });
}

void Machine::PowerOn() {
  on_ = true;
  boot_id_ = NewId();
}

}  // namespace muster::sim::faults
