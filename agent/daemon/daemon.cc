#include "agent/daemon/daemon.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/daemon/connection.h"
#include "agent/daemon/fetcher.h"
#include "agent/daemon/identity_keeper.h"
#include "agent/daemon/loop.h"
#include "agent/daemon/ports.h"
#include "agent/daemon/tunnel_carrier.h"
#include "agent/host/host_check.h"
#include "agent/host/inventory.h"
#include "agent/host/unit.h"
#include "agent/shim/format.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kSweep = kSecond;  // of live attempts, whatever inotify says
constexpr int64_t kSweepWithoutInotify = 20 * kMillisecond;
constexpr int64_t kReapInterval = kSecond;
constexpr int64_t kGpuInterval = 5 * kSecond;            // between looks at what GPUs do
constexpr int64_t kDeviceInterval = 200 * kMillisecond;  // the driver is waited for so long at once

bool AddToEpoll(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

// What makes the agent deaf is the agent's end: whoever started it starts it again.
absl::Status Deaf(int error, const std::string& what) {
  return ErrnoStatus(error, absl::StrCat("the agent cannot wait for ", what,
                                         error == EMFILE || error == ENFILE
                                             ? " (too few open files are allowed: raise "
                                               "LimitNOFILE or `ulimit -n`)"
                                             : ""));
}

class HostClock final : public AgentClock {
 public:
  int64_t WallNs() override { return RealClock()->WallNs(); }
  int64_t BootNs() override { return RealClock()->BootNs(); }
};

// The shims of this host, by their locks, directories and process descriptors.
class HostShims final : public Shims {
 public:
  HostShims(StateDirectory* state, HostProcesses* processes)
      : state_(state), processes_(processes) {}
  ~HostShims() override;

  // Tells through this descriptor of epoll. False: only sweeps see what files say.
  bool Open(int epoll);
  int inotify() const { return inotify_; }
  // Of whose files something has changed; `*missed`: of some.
  std::set<AttemptId> ReadChanged(bool* missed);
  // Whose end a descriptor that is ready tells; nullopt: it tells of none.
  std::optional<AttemptId> EndedBy(int fd);

  void Watch(const AttemptId& id) override;
  void Unwatch(const AttemptId& id) override;
  bool Lives(const AttemptId& id) override;
  bool KillStrays(const AttemptId& id, bool ended) override {
    return processes_->KillStrays(id, ended);
  }
  void Ended(const AttemptId& id) override { Follow(&watched_[id], id, 0); }
  void RemoveCgroup(const AttemptId& id) override { processes_->RemoveCgroup(id); }
  void ReleasePort(const AttemptId& id) override { processes_->ReleasePort(id); }

 private:
  struct Watched {
    int directory_watch = -1;
    int pidfd = -1;
    pid_t pid = 0;
  };

  void Follow(Watched* watched, const AttemptId& id, pid_t pid);

  StateDirectory* const state_;
  HostProcesses* const processes_;
  int epoll_ = -1;
  int inotify_ = -1;
  std::map<AttemptId, Watched> watched_;
  std::map<int, AttemptId> by_watch_;
  std::map<int, AttemptId> by_pidfd_;
};

HostShims::~HostShims() {
  for (const auto& [id, watched] : watched_) {
    if (watched.pidfd >= 0) ::close(watched.pidfd);
  }
  if (inotify_ >= 0) ::close(inotify_);
}

bool HostShims::Open(int epoll) {
  epoll_ = epoll;
  inotify_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (inotify_ >= 0 && AddToEpoll(epoll_, inotify_)) return true;
  LogWarn("no inotify, looking at files every 20 ms", {{"error", strerror(errno)}});
  if (inotify_ >= 0) ::close(inotify_);
  inotify_ = -1;
  return false;
}

void HostShims::Watch(const AttemptId& id) {
  Watched& watched = watched_[id];
  if (watched.directory_watch >= 0 || inotify_ < 0) return;
  watched.directory_watch = ::inotify_add_watch(inotify_, state_->AttemptDirectory(id).c_str(),
                                                IN_CREATE | IN_MOVED_TO | IN_MODIFY);
  if (watched.directory_watch >= 0) by_watch_[watched.directory_watch] = id;
}

void HostShims::Unwatch(const AttemptId& id) {
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  Watched& watched = found->second;
  if (watched.pidfd >= 0) {  // it may be on its way out: HostProcesses::ReapEnded
    by_pidfd_.erase(watched.pidfd);
    ::close(watched.pidfd);
  }
  if (watched.directory_watch >= 0) {
    ::inotify_rm_watch(inotify_, watched.directory_watch);
    by_watch_.erase(watched.directory_watch);
  }
  watched_.erase(found);
}

bool HostShims::Lives(const AttemptId& id) {
  const pid_t pid = processes_->ShimPid(id);
  Follow(&watched_[id], id, pid);
  return pid != 0;
}

// From now on the end of this process is told, 0: of none, and the one before is reaped.
void HostShims::Follow(Watched* watched, const AttemptId& id, pid_t pid) {
  if (pid == watched->pid) return;
  if (watched->pidfd >= 0) {
    by_pidfd_.erase(watched->pidfd);
    ::close(watched->pidfd);
  }
  if (watched->pid > 0) processes_->Reap(watched->pid);
  watched->pid = pid;
  watched->pidfd = pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
  if (watched->pidfd >= 0 && !AddToEpoll(epoll_, watched->pidfd)) {
    ::close(watched->pidfd);
    watched->pidfd = -1;  // the next sweep sees its end
  }
  if (watched->pidfd >= 0) by_pidfd_[watched->pidfd] = id;
}

std::set<AttemptId> HostShims::ReadChanged(bool* missed) {
  alignas(inotify_event) char buffer[16384];
  std::set<AttemptId> changed;
  ssize_t got = 0;
  while ((got = ::read(inotify_, buffer, sizeof buffer)) > 0) {
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      if ((event->mask & IN_Q_OVERFLOW) != 0) *missed = true;
      const auto found = by_watch_.find(event->wd);
      if (found == by_watch_.end()) continue;
      const std::string_view name = event->len > 0 ? event->name : "";
      if (name == shim::kClaimFile || name == shim::kEventsFile || name == shim::kProgressFile ||
          name == shim::kExitsFile)
        changed.insert(found->second);
    }
  }
  return changed;
}

std::optional<AttemptId> HostShims::EndedBy(int fd) {
  const auto found = by_pidfd_.find(fd);
  if (found == by_pidfd_.end()) return std::nullopt;
  processes_->Reap(watched_.at(found->second).pid);
  return found->second;
}

Trust TrustOf(const AgentOptions& options) {
  return {options.single_user,
          options.launch.as_owners ? options.launch.min_uid : Trust().system_below};
}

// Feeds the loop from gRPC's thread, the driver's, and the kernel.
class Agent final : public Link {
 public:
  Agent(const AgentOptions& options, std::unique_ptr<StateDirectory> state,
        std::vector<AttemptRecord> records, HostCgroups cgroups, int signals);
  ~Agent() override;

  // What it waits with. An error: it can't, and Run must not be called.
  absl::Status Open();
  absl::Status Run();

  void Send(uint64_t generation, v1::AgentMessage message) override {
    if (connection_ != nullptr) connection_->Send(generation, std::move(message));
  }
  void Restart(const std::string& why) override {
    if (connection_ != nullptr) connection_->Restart(why);
  }
  size_t queued_bytes() override { return connection_->queued_bytes(); }

 private:
  void StartThreads();
  void OpenTunnel(const v1::OpenTunnel& open);
  void LookAtGpus();
  std::vector<DiskUser> DiskUsers() const;
  void Renewed();
  void Post(Incoming incoming);
  void Ring();
  void TakeIncoming();
  void OnReady(int fd);

  const AgentOptions options_;
  std::unique_ptr<StateDirectory> state_;
  StorageThreads storage_;
  HostProcesses processes_;
  HostShims shims_;
  HostClock clock_;
  std::vector<AttemptRecord> records_;  // until Open
  std::unique_ptr<AgentLoop> loop_;
  const int signals_;
  int epoll_ = -1;
  int inbox_ready_ = -1;
  int64_t next_reap_ns_ = 0;
  std::mutex mutex_;
  std::deque<Incoming> inbox_;                    // guarded by mutex_
  std::unique_ptr<v1::Inventory> new_inventory_;  // guarded by mutex_
  std::deque<Nvml::Event> device_events_;         // guarded by mutex_
  std::deque<v1::HostChecked> checked_;           // guarded by mutex_
  std::vector<GpuLook> looks_;                    // guarded by mutex_; the newest
  std::condition_variable ending_;                // with mutex_: stopping_ was set
  std::deque<DiskNews> disk_news_;                // guarded by mutex_
  std::thread schema_;
  std::thread devices_;  // waits for device_events_
  std::thread gpus_;     // looks at what they do
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<HostCheck> check_;
  std::unique_ptr<DiskGuard> disks_;
  std::unique_ptr<IdentityKeeper> keeper_;
  std::unique_ptr<TunnelCarrier> tunnels_;
  std::unique_ptr<Connection> connection_;  // last: its thread posts to us
};

Agent::Agent(const AgentOptions& options, std::unique_ptr<StateDirectory> state,
             std::vector<AttemptRecord> records, HostCgroups cgroups, int signals)
    : options_(options),
      state_(std::move(state)),
      processes_(state_.get(), options.launch, options.ports, std::move(cgroups), &storage_),
      shims_(state_.get(), &processes_),
      records_(std::move(records)),
      signals_(signals) {
  for (const AttemptRecord& record : records_) {
    if (record.port > 0 && !record.gone()) processes_.TakePort(record.id, record.port);
  }
  state_->PublishBy(&storage_, processes_.owners());
  const std::string identity_file = options_.identity.has_value() ? options_.identity_file : "";
  const Source source{options_.server, TrustOf(options_), identity_file};
  processes_.FetchBy(PackFetcher(source), SecretFetcher(source));
  tunnels_ = std::make_unique<TunnelCarrier>(source);
}

absl::Status Agent::Open() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return Deaf(errno, "anything");
  inbox_ready_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (inbox_ready_ < 0 || !AddToEpoll(epoll_, inbox_ready_)) return Deaf(errno, "the scheduler");
  if (signals_ < 0 || !AddToEpoll(epoll_, signals_)) return Deaf(errno, "signals");
  if (storage_.ready() < 0 || !AddToEpoll(epoll_, storage_.ready())) return Deaf(errno, "storage");
  AgentLoop::Options options;
  options.server = options_.server;
  options.identity = {options_.cluster, options_.host, state_->state_id(), options_.launch.boot_id};
  options.inventory = options_.inventory;
  options.retention = options_.retention;
  options.runs_as_owner = options_.launch.as_owners;
  options.sweep_ns = shims_.Open(epoll_) ? kSweep : kSweepWithoutInotify;
  check_ = std::make_unique<HostCheck>(options_.nvml, [this](v1::HostChecked checked) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      checked_.push_back(std::move(checked));
    }
    Ring();
  });
  loop_ = std::make_unique<AgentLoop>(
      std::move(options),
      AgentLoop::Ports{&clock_, this, &shims_, state_.get(), &processes_, state_.get(), &storage_,
                       [this](const v1::CheckHost& check, const v1::Inventory& inventory) {
                         return check_->Begin(check, inventory);
                       },
                       [this](const v1::OpenTunnel& open) { OpenTunnel(open); }, SayInUnit},
      std::move(records_));
  return absl::OkStatus();
}

Agent::~Agent() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  ending_.notify_all();
  check_.reset();
  disks_.reset();
  std::unique_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(mutex_);  // the keeper looks at it
    connection.swap(connection_);
  }
  connection.reset();
  tunnels_.reset();
  keeper_.reset();
  for (std::thread* thread : {&schema_, &devices_, &gpus_}) {
    if (thread->joinable()) thread->join();
  }
  for (const int fd : {epoll_, inbox_ready_}) {
    if (fd >= 0) ::close(fd);
  }
}

void Agent::OpenTunnel(const v1::OpenTunnel& open) {
  const AttemptId id = IdOf(open.key());
  const AttemptRecord* record = IsValid(id) ? loop_->attempts().Find(id) : nullptr;
  if (record == nullptr || record->gone() || record->claim != Claim::kStarted) {
    tunnels_->Open(open, absl::FailedPreconditionError("the attempt doesn't run on its host"));
  } else {
    tunnels_->Open(open, state_->AttemptDirectory(id));
  }
}

void Agent::Ring() {
  const uint64_t one = 1;
  if (::write(inbox_ready_, &one, sizeof one) < 0) return;  // full: it is ready anyway
}

void Agent::Post(Incoming incoming) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_.push_back(std::move(incoming));
  }
  Ring();
}

void Agent::TakeIncoming() {
  uint64_t count = 0;
  if (::read(inbox_ready_, &count, sizeof count) < 0) return;
  std::deque<Incoming> taken;
  std::deque<Nvml::Event> events;
  std::deque<v1::HostChecked> checked;
  std::vector<GpuLook> looks;
  std::deque<DiskNews> disk_news;
  std::unique_ptr<v1::Inventory> inventory;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    looks.swap(looks_);
    taken.swap(inbox_);
    events.swap(device_events_);
    checked.swap(checked_);
    disk_news.swap(disk_news_);
    inventory = std::move(new_inventory_);
  }
  for (const Nvml::Event& event : events) loop_->OnDeviceEvent(event.device, event.xid);
  for (v1::HostChecked& answer : checked) loop_->OnChecked(std::move(answer));
  if (!looks.empty()) loop_->OnGpus(looks);
  if (inventory != nullptr) loop_->OnInventory(std::move(*inventory));
  for (const DiskNews& news : disk_news) loop_->OnDisk(news);
  for (const Incoming& incoming : taken) {
    switch (incoming.kind) {
      case Incoming::Kind::kOpened:
        loop_->OnOpened(incoming.generation);
        break;
      case Incoming::Kind::kMessage:
        loop_->OnMessage(incoming.generation, incoming.message);
        break;
      case Incoming::Kind::kClosed:
        loop_->OnClosed(incoming.reason, incoming.ours);
        break;
    }
  }
}

void Agent::StartThreads() {
  // The schema of a new trainer takes a second to ask for; the host is useful meanwhile.
  schema_ = std::thread([this] {
    auto found = std::make_unique<v1::Inventory>(options_.inventory);
    FindTrainerSchema(options_.launch.bin_directory, state_->path(), found.get());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      new_inventory_ = std::move(found);
    }
    Ring();
    if (const std::string why = WhyUnitEndsShims(); !why.empty())
      LogWarn("jobs will not outlive the agent", {{"why", why}});
  });
  disks_ = std::make_unique<DiskGuard>(state_->path(), [this](DiskNews news) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      disk_news_.push_back(std::move(news));
    }
    Ring();
  });
  if (options_.nvml != nullptr && options_.nvml->Watch()) {
    devices_ = std::thread([this] {
      while (!stopping_) {
        const std::optional<Nvml::Event> event = options_.nvml->Next(kDeviceInterval);
        if (!event.has_value()) continue;
        {
          std::lock_guard<std::mutex> lock(mutex_);
          device_events_.push_back(*event);
        }
        Ring();
      }
    });
  }
  if (options_.nvml != nullptr) gpus_ = std::thread([this] { LookAtGpus(); });
  Connection::Identify identify;
  if (options_.identity.has_value()) {
    keeper_ = std::make_unique<IdentityKeeper>(options_.identity_file, *options_.identity,
                                               [this] { Renewed(); });
    identify = [keeper = keeper_.get()] { return keeper->newest(); };
  }
  std::lock_guard<std::mutex> lock(mutex_);  // the keeper may have renewed already
  connection_ =
      std::make_unique<Connection>(options_.server, TrustOf(options_), std::move(identify),
                                   [this](Incoming incoming) { Post(std::move(incoming)); });
}

// The driver may take its time, or never answer.
void Agent::LookAtGpus() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ending_.wait_for(lock, std::chrono::nanoseconds(kGpuInterval),
                           [this] { return stopping_.load(); })) {
    lock.unlock();
    const std::vector<Nvml::Use> uses = options_.nvml->Uses();
    std::vector<GpuLook> looks;
    for (size_t i = 0; i < uses.size(); ++i) {
      if (uses[i].known)
        looks.push_back({static_cast<int32_t>(i), uses[i].busy_percent * 10,
                         uses[i].memory_used_bytes, uses[i].memory_bytes});
    }
    lock.lock();
    looks_ = std::move(looks);
    if (!looks_.empty()) Ring();
  }
}

std::vector<DiskUser> Agent::DiskUsers() const {
  std::vector<DiskUser> users;
  for (const auto& [id, record] : loop_->attempts().records()) {
    if (record.claim == Claim::kStarted && !record.gone() &&
        !record.prepare.job_directory().empty())
      users.push_back({id, record.prepare.job_directory()});
  }
  return users;
}

// The stream goes on with the new certificate; what runs here doesn't notice.
void Agent::Renewed() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (connection_ != nullptr) connection_->Restart("the certificate was renewed");
}

void Agent::OnReady(int fd) {
  if (fd == inbox_ready_) return TakeIncoming();
  if (fd == storage_.ready()) return loop_->OnStorage();
  if (fd == shims_.inotify()) {
    bool missed = false;
    for (const AttemptId& id : shims_.ReadChanged(&missed)) loop_->OnFiles(id);
    if (missed) loop_->OnFilesMissed();
    return;
  }
  if (const std::optional<AttemptId> ended = shims_.EndedBy(fd); ended.has_value())
    loop_->OnShimEnded(*ended);
}

absl::Status Agent::Run() {
  loop_->Begin();
  StartThreads();
  while (loop_->refused().empty()) {
    const int64_t wait_ns = std::max<int64_t>(0, loop_->Turn() - clock_.BootNs());
    epoll_event events[64];
    const int count = ::epoll_wait(
        epoll_, events, 64, static_cast<int>(wait_ns / kMillisecond) + (wait_ns > 0 ? 1 : 0));
    if (count < 0 && errno != EINTR) return Deaf(errno, "anything");
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == signals_) {
        LogInfo("agent stops; its attempts go on");
        return absl::OkStatus();
      }
      OnReady(events[i].data.fd);
    }
    disks_->Watch(DiskUsers());
    if (clock_.BootNs() < next_reap_ns_) continue;
    next_reap_ns_ = clock_.BootNs() + kReapInterval;
    processes_.ReapEnded();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the scheduler refused this agent: ", loop_->refused()));
}

}  // namespace

absl::Status RunAgent(const AgentOptions& options, std::unique_ptr<StateDirectory> state) {
  const int signals = ReadEndSignals();
  if (options.launch.as_owners) {
    if (absl::Status status = CheckCanIsolate(); !status.ok()) return status;
  }
  HostCgroups cgroups(options.cgroup, state->path());
  AgentOptions with = options;
  FindAbilities(options.launch.bin_directory, options.launch.as_owners, &with.inventory);
  with.inventory.set_isolation(absl::StrCat(
      options.launch.pid_namespace && ::geteuid() == 0 ? "PID namespaces, " : "process groups, ",
      cgroups.described(), options.launch.as_owners ? ", jobs run as their owners" : "",
      with.inventory.enters_images() ? "" : "; images can't be entered"));
  LogInfo("attempts are kept apart", {{"by", with.inventory.isolation()}});
  absl::StatusOr<std::vector<AttemptRecord>> records = state->Load();
  if (!records.ok()) return records.status();
  std::vector<std::string> known;
  for (const AttemptRecord& record : *records) known.push_back(DirectoryName(record.id));
  if (const int ended = cgroups.EndAllBut(known); ended > 0)
    LogWarn("ended what ran in control groups of attempts that nobody knows", {{"groups", ended}});
  absl::Status status;
  {
    Agent agent(with, std::move(state), *std::move(records), std::move(cgroups), signals);
    status = agent.Open();
    if (status.ok()) status = agent.Run();
  }
  ::close(signals);
  return status;
}

}  // namespace muster::agent
