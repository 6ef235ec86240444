#include "sim/faults/sim_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "common/base/check.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {
namespace {

constexpr int64_t kMicrosecond = kMillisecond / 1000;
// From SIGKILL to a process's end; a fence allows for 5 s.
constexpr int64_t kSlowestDeathNs = 3 * kSecond;
// For so long may a shim that has to fence stand still, once: within the same 5 s.
constexpr int64_t kFencePauseNs = kSecond;
constexpr uint64_t kSyncsBetweenErrors = 50;

size_t RanksOf(const shim::Spec& spec) {
  size_t ranks = 0;
  for (const shim::WorkerSpec& worker : spec.workers) ranks += worker.processes.size();
  return ranks;
}

}  // namespace

SimShim::SimShim(Shared* shared, Machine* machine, const agent::AttemptRecord& record,
                 shim::Spec spec)
    : shared_(shared),
      machine_(machine),
      id_(record.id),
      prepare_(record.prepare),
      prepared_boot_id_(record.boot_id),
      directory_(machine->DirectoryOf(record.id)),
      random_(machine->random()->Next()),
      ranks_(RanksOf(spec)),
      loop_(std::move(spec), {this, this, this, this}),
      pause_(&shared->heap) {}

void SimShim::Later(int64_t delay_ns, void (SimShim::*what)()) {
  shared_->heap.After(delay_ns, [self = shared_from_this(), what] {
    self->Act([self, what] { (self.get()->*what)(); });
  });
}

void SimShim::Act(std::function<void()> what) {
  if (!over_) pause_.Act(std::move(what));
}

// What happens until its turn comes it hears of together, as from one poll.
void SimShim::WakeUp() {
  if (std::exchange(turn_queued_, true)) return;
  Later(random_.Between(kMicrosecond, 100 * kMicrosecond), &SimShim::Turn);
}

void SimShim::SignalAfter(int64_t delay_ns) {
  if (!begun_) return;  // it reads what lies there when it begins
  shared_->heap.After(delay_ns, [self = shared_from_this()] {
    self->Act([self] {
      self->loop_.OnStopFile();
      self->WakeUp();
    });
  });
}

// ---- its life ----

void SimShim::Claim() {
  if (!loop_.ReadyToClaim(machine_->boot_id())) {
    ++shared_->counters["shims that came too late"];
    return End(false);
  }
  const shim::Loop::Claimed claimed = loop_.TryClaim();
  if (claimed == shim::Loop::Claimed::kLate)
    ++shared_->counters["shims that came after their fence"];
  if (claimed != shim::Loop::Claimed::kClaimed) return End(false);
  claimed_ = true;
  if (machine_->TakeDeathAtClaim()) return Kill();
  Later(random_.Between(kMillisecond / 10, 20 * kMillisecond), &SimShim::Run);
}

void SimShim::Run() {
  begun_ = true;
  start_ns_ = WallNs();
  loop_.Begin();
  Turn();
}

void SimShim::Turn() {
  turn_queued_ = false;
  const bool was_fenced = loop_.fenced();
  const shim::Wake wake = loop_.Turn();
  if (loop_.fenced() && !was_fenced) ++shared_->counters["fenced"];
  if (loop_.Over()) return End(true);
  const int64_t at_ns = std::min(wake.at_ns, wake.alarm_ns);
  const uint64_t turn = ++turns_;
  if (at_ns == shim::kNever) return;
  shared_->heap.After(std::max<int64_t>(kMillisecond, at_ns - BootNs()),
                      [self = shared_from_this(), turn] {
                        if (self->turns_ != turn) return;  // it has had another since
                        self->Act([self, turn] {
                          if (self->turns_ == turn) self->Turn();
                        });
                      });
}

void SimShim::Exited(pid_t pid, int exit_code, int signal) {
  Process& process = processes_.at(pid);
  if (over_ || !std::exchange(process.there, false)) return;
  if (std::exchange(process.runs, false)) shared_->programs.Dead(key(), process.rank);
  loop_.OnEnded(pid, exit_code, signal);
  WakeUp();
}

void SimShim::End(bool recorded) {
  over_ = true;
  pause_.Die();
  for (auto& [pid, process] : processes_) {
    if (std::exchange(process.runs, false)) shared_->programs.Dead(key(), process.rank);
  }
  if (begun_) {
    TrueEnd end;
    end.recorded = recorded;
    end.stop_sent = loop_.rules().stop_sent();
    end.all_exited_0 = loop_.rules().exits().size() == ranks_;
    for (const auto& [rank, exit] : loop_.rules().exits())
      end.all_exited_0 = end.all_exited_0 && exit.exit_code == 0 && exit.signal == 0;
    shared_->checker.OnEnd(machine_->full_name(), key(), end);
    shared_->Digest(absl::StrCat("end ", machine_->full_name(), key().job_uid(), key().attempt(),
                                 shared_->heap.now_ns()));
  }
  machine_->ShimEnded(id_);
}

// ---- faults ----

void SimShim::Kill() {
  ++shared_->counters[begun_     ? Counter("shims killed")
                      : claimed_ ? Counter("shims killed between claim and start")
                                 : Counter("shims killed before the claim")];
  End(false);
}

void SimShim::PowerOff() {
  std::error_code error;
  if (events_bytes_ > 0)
    std::filesystem::resize_file(Path(shim::kEventsFile), static_cast<uintmax_t>(durable_bytes_),
                                 error);
  End(false);
}

void SimShim::StandStill(int64_t until_ns) {
  const bool fence = prepare_.task().when_unreachable() == pb::FENCE;
  if (fence && pause_.ever()) return;
  ++shared_->counters["shims paused"];
  pause_.Until(fence ? std::min(until_ns, shared_->heap.now_ns() + kFencePauseNs) : until_ns);
}

// The first thing once it wakes is a turn, which looks at the fence.
void SimShim::Sleep(int64_t until_ns) {
  slept_alive_ = !killed();
  pause_.Until(until_ns);
  if (begun_ && !over_) pause_.Defer([self = shared_from_this()] { self->Turn(); });
}

bool SimShim::TakeKilledByItsFenceInSleep() {
  return killed() && loop_.fenced() && std::exchange(slept_alive_, false);
}

// ---- its clock and its files ----

int64_t SimShim::WallNs() { return machine_->WallNs(); }
int64_t SimShim::BootNs() { return machine_->BootNs(); }
std::string SimShim::Path(const char* name) const { return absl::StrCat(directory_, "/", name); }

int SimShim::ReadClaim(shim::Claim* claim) { return shim::ReadClaim(directory_, claim); }

int SimShim::MakeClaim(shim::Claim* winner) {
  if (machine_->DiskFull()) return ENOSPC;
  const int error = shim::MakeClaim(directory_, shim::Claim::kStarted, winner);
  machine_->Tell(id_);
  return error;
}

int SimShim::Read(const char* name, std::string* content) {
  return shim::ReadSmallFile(Path(name), content);
}

int SimShim::Replace(const char* name, std::string_view content, bool) {
  if (machine_->DiskFull()) {
    if (name == std::string_view(shim::kExitsFile) && !std::exchange(exits_failed_, true))
      ++shared_->counters["exits written after a full disk"];
    return ENOSPC;
  }
  const int error = shim::ReplaceFile(directory_, name, content, /*sync=*/false);
  machine_->Tell(id_);
  return error;
}

// A stop, or an end, that a full disk is to be told on is not modelled: it waits.
void SimShim::Reserve(const char*) {}

int SimShim::WriteEvents(int64_t at, std::string_view text) {
  if (machine_->DiskFull()) return ENOSPC;
  const int fd =
      ::open(Path(shim::kEventsFile).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno;
  int error = ::lseek(fd, at, SEEK_SET) == at ? shim::WriteAll(fd, text) : errno;
  if (error == 0 && ::ftruncate(fd, at + static_cast<int64_t>(text.size())) != 0) error = errno;
  ::close(fd);
  events_bytes_ = at + static_cast<int64_t>(text.size());
  durable_bytes_ = std::min(durable_bytes_, at);
  if (at <= dropped_from_) dropped_from_ = INT64_MAX;
  machine_->Tell(id_);
  return error;
}

// An error of the disk: what was to be written the kernel drops, and says so once.
int SimShim::SyncEvents() {
  if (random_.OneIn(kSyncsBetweenErrors)) {
    ++shared_->counters["syncs of events that failed"];
    dropped_from_ = std::min(dropped_from_, durable_bytes_);
    return EIO;
  }
  durable_bytes_ = std::min(events_bytes_, dropped_from_);
  return 0;
}

bool SimShim::Forgotten() {
  std::error_code error;
  return !std::filesystem::exists(directory_, error);
}

// ---- its processes ----

pid_t SimShim::Start(const shim::Launch& launch, std::string*) {
  if (!std::exchange(started_, true)) {
    shared_->checker.OnStart(shared_->heap.now_ns(), machine_->full_name(), machine_->boot_id(),
                             prepared_boot_id_, prepare_);
    shared_->Digest(absl::StrCat("start ", machine_->full_name(), key().job_uid(), key().attempt(),
                                 shared_->heap.now_ns()));
  }
  const pid_t pid = next_pid_++;
  processes_[pid] = Process{launch.rank};
  Programs::Rank acts;
  acts.exit = [self = shared_from_this(), pid](int code) {
    self->Act([self, pid, code] { self->Exited(pid, code, 0); });
  };
  acts.say = acts.report = [self = shared_from_this()](const std::string& json) {
    self->Act([self, json] {
      self->loop_.OnProgress(json);
      self->WakeUp();
    });
  };
  shared_->programs.Start(prepare_, launch.rank, std::move(acts));
  shared_->heap.After(random_.Between(100 * kMicrosecond, 3 * kMillisecond),
                      [self = shared_from_this(), pid] {
                        self->Act([self, pid] {
                          self->loop_.OnExec(pid, "");
                          self->WakeUp();
                        });
                      });
  return pid;
}

bool SimShim::SignalGroup(pid_t pid, int signal) {
  Process& process = processes_.at(pid);
  if (!process.there) return false;
  if (signal == SIGKILL) {
    KillProcess(pid, &process);
  } else if (process.runs) {
    shared_->programs.Terminate(key(), process.rank);
  }
  return true;
}

bool SimShim::GroupLives(pid_t pid) { return processes_.at(pid).there; }

void SimShim::Kill(pid_t pid) { KillProcess(pid, &processes_.at(pid)); }

// Nothing of a killed process runs any more, but it is there, and holds its devices, until the
// kernel has taken it down: mostly at once, sometimes not for seconds, as when a driver frees a
// GPU's memory.
void SimShim::KillProcess(pid_t pid, Process* process) {
  if (!std::exchange(process->runs, false)) return;
  shared_->programs.Dead(key(), process->rank);
  const bool slow = random_.OneIn(4);
  if (slow) ++shared_->counters["killed processes that are there for longer"];
  const int64_t death_ns = slow ? random_.Between(0, kSlowestDeathNs)
                                : random_.Between(kMillisecond / 10, 20 * kMillisecond);
  shared_->heap.After(death_ns, [self = shared_from_this(), pid] {
    self->Act([self, pid] { self->Exited(pid, 0, SIGKILL); });
  });
}

// Only in all: looks in between would be turns of its own.
std::optional<shim::Measured> SimShim::MeasureUse() {
  if (!ended_all_) return std::nullopt;
  return shim::Measured{.cpu_us = CpuUsOf(machine_->full_name(), key())};
}

void SimShim::EndAll() {
  ended_all_ = true;
  for (const auto& [pid, process] : processes_) MUSTER_CHECK(!process.there);
  if (started_) shared_->checker.OnProcessesGone(machine_->full_name(), key());
}

}  // namespace muster::sim::faults
