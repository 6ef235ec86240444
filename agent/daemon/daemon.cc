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
#include "agent/failures/rules.h"
#include "agent/host/inventory.h"
#include "agent/host/logs.h"
#include "agent/host/unit.h"
#include "agent/reconcile/reconciler.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/log_writer.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/rank_devices.h"
#include "common/base/signals.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kSweep =
    kSecond;  // all live attempts are looked at again so often, whatever inotify says
constexpr int64_t kSweepWithoutInotify = 20 * kMillisecond;
constexpr int64_t kStrayCheck = 20 * kMillisecond;
constexpr int64_t kLogInterval = 30 * kMillisecond;  // of followed logs
constexpr int64_t kPruneInterval = kHour;
constexpr int64_t kPrunePause = 10 * kMillisecond;       // after a part of what is to be removed
constexpr int64_t kDeviceInterval = 200 * kMillisecond;  // the driver is waited for so long at once
constexpr size_t kDeviceEventsKept = 256;
constexpr int64_t kSameEventNs = kMinute;  // the same error of a device is told once in so long
constexpr int64_t kLogChunkBytes = 256 << 10;
constexpr size_t kLogQueueBytes = 4 << 20;
constexpr size_t kLogRequests = 256;

// One LogRequest being answered.
struct LogReader {
  AttemptId id;
  int32_t rank = -1;
  bool follow = false;
  int64_t tail_lines = 0;
  int64_t left_bytes = INT64_MAX;   // that may be sent
  std::map<int32_t, int64_t> from;  // by rank: where to begin
  std::map<int32_t, LogCursor> cursors;
};

// A critical error that the driver told of.
struct DeviceEvent {
  int32_t device = 0;
  std::string text;
  int64_t at_ns = 0;  // Unix time
};

// One attempt whose shim is, or may be, alive.
struct Watched {
  int directory_watch = -1;
  int pidfd = -1;
  pid_t pid = 0;
  int64_t events_read = 0;
  ShimNews news;
};

class Agent final : public Sender {
 public:
  Agent(const AgentOptions& options, std::unique_ptr<StateDirectory> state,
        std::vector<AttemptRecord> records, HostCgroups cgroups, int signals);
  ~Agent() override;

  absl::Status Run();
  void Send(v1::AgentMessage message) override {
    connection_->Send(generation_, std::move(message));
  }

 private:
  void Post(Incoming incoming);
  void TakeIncoming();
  void OnIncoming(Incoming incoming);
  void OnMessage(const v1::SchedulerMessage& message);
  void Tell(const v1::SchedulerMessage& message);
  void TakeFromStorage();
  void Heartbeat();
  void OnDeviceEvent(const Nvml::Event& event);
  DeviceEvents EventsOf(const AttemptRecord& record) const;
  void WatchAttempts();
  void WatchCommanded(const AttemptId& id);
  void Watch(const AttemptId& id);
  void Unwatch(const AttemptId& id);
  void Refresh(const AttemptId& id);
  void ShimEnded(const AttemptId& id);
  void ReadInotify();
  void PumpLogs();
  void StartLog(const v1::LogRequest& request);
  int64_t NextWakeNs() const;

  const AgentOptions options_;
  std::unique_ptr<StateDirectory> state_;
  v1::Inventory inventory_;
  StorageThreads storage_;
  std::map<StorageKey, v1::SchedulerMessage> held_;  // commands whose work on storage is under way
  HostProcesses processes_;
  std::unique_ptr<Reconciler> reconciler_;
  const int signals_;
  int epoll_ = -1;
  int inbox_ready_ = -1;
  int inotify_ = -1;
  std::mutex mutex_;
  std::deque<Incoming> inbox_;                    // guarded by mutex_
  std::unique_ptr<v1::Inventory> new_inventory_;  // guarded by mutex_
  std::deque<Nvml::Event> device_events_;         // guarded by mutex_
  std::thread schema_;
  std::thread devices_;  // waits for device_events_
  std::atomic<bool> stopping_ = false;
  std::vector<DeviceEvent> told_;  // by the driver; the newest last
  std::map<std::pair<int32_t, int32_t>, int64_t>
      newest_event_ns_;                    // BootNs, by device and Xid: of those that were told
  std::map<int32_t, std::string> broken_;  // devices that have to be reset, and why
  uint64_t generation_ = 0;
  bool open_ = false;  // a stream is there, welcomed or not
  std::string last_reason_;
  int64_t lease_ns_ = 45 * kSecond;
  int64_t heartbeat_ns_ = 5 * kSecond;
  int64_t next_heartbeat_ns_ = 0;  // CLOCK_BOOTTIME, as all below
  int64_t heard_ns_ = 0;
  int64_t next_sweep_ns_ = 0;
  int64_t next_prune_ns_ = 0;
  int64_t next_log_ns_ = 0;
  uint64_t heartbeat_sequence_ = 0;
  std::map<AttemptId, Watched> watched_;
  std::map<int, AttemptId> by_watch_;
  std::map<int, AttemptId> by_pidfd_;
  std::set<AttemptId> strays_;  // their shim is dead, what it left is being killed
  std::map<uint64_t, LogReader> logs_;
  std::string refused_;
  std::unique_ptr<Connection> connection_;  // last: its thread posts to us
};

// The attempt that a command is about; null: the message is no command.
const v1::AttemptKey* CommandedKey(const v1::SchedulerMessage& message) {
  switch (message.body_case()) {
    case v1::SchedulerMessage::kPrepare:
      return &message.prepare().key();
    case v1::SchedulerMessage::kStart:
      return &message.start().key();
    case v1::SchedulerMessage::kStop:
      return &message.stop().key();
    case v1::SchedulerMessage::kForget:
      return &message.forget().key();
    case v1::SchedulerMessage::kQuery:
      return &message.query().key();
    default:
      return nullptr;
  }
}

std::optional<StorageKey> StorageKeyOf(const v1::SchedulerMessage& message) {
  if (message.has_prepare()) return StorageKey{IdOf(message.prepare().key()), StorageUse::kPrepare};
  if (message.has_publish()) return StorageKey{IdOf(message.publish().key()), StorageUse::kPublish};
  return std::nullopt;
}

void MarkBroken(int32_t device, const std::string& why, v1::Inventory* inventory) {
  if (device >= inventory->devices_size()) return;
  inventory->mutable_devices(device)->set_healthy(false);
  inventory->mutable_devices(device)->set_fault(why);
}

void AddToEpoll(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

Identity IdentityOf(const AgentOptions& options, const StateDirectory& state) {
  return Identity{options.cluster, options.host, state.state_id(), options.launch.boot_id};
}

Agent::Agent(const AgentOptions& options, std::unique_ptr<StateDirectory> state,
             std::vector<AttemptRecord> records, HostCgroups cgroups, int signals)
    : options_(options),
      state_(std::move(state)),
      inventory_(options.inventory),
      processes_(state_.get(), options.launch, options.ports, std::move(cgroups), &storage_),
      signals_(signals) {
  for (const AttemptRecord& record : records) {
    if (record.port > 0 && !record.gone()) processes_.TakePort(record.id, record.port);
  }
  reconciler_ = std::make_unique<Reconciler>(IdentityOf(options_, *state_), std::move(records),
                                             state_->seen(), state_.get(), &processes_, this);
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  inbox_ready_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  inotify_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (inotify_ < 0)
    LogWarn("no inotify, looking at files every 20 ms", {{"error", strerror(errno)}});
  AddToEpoll(epoll_, inbox_ready_);
  AddToEpoll(epoll_, signals_);
  AddToEpoll(epoll_, storage_.ready());
  state_->PublishBy(&storage_);
  if (inotify_ >= 0) AddToEpoll(epoll_, inotify_);
}

Agent::~Agent() {
  stopping_ = true;
  connection_.reset();
  for (std::thread* thread : {&schema_, &devices_}) {
    if (thread->joinable()) thread->join();
  }
  for (const int fd : {epoll_, inbox_ready_, inotify_}) {
    if (fd >= 0) ::close(fd);
  }
  for (const auto& [id, watched] : watched_) {
    if (watched.pidfd >= 0) ::close(watched.pidfd);
  }
}

void Agent::Post(Incoming incoming) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_.push_back(std::move(incoming));
  }
  const uint64_t one = 1;
  if (::write(inbox_ready_, &one, sizeof one) < 0) return;  // full: it is ready anyway
}

void Agent::TakeIncoming() {
  uint64_t count = 0;
  if (::read(inbox_ready_, &count, sizeof count) < 0) return;
  std::deque<Incoming> taken;
  std::deque<Nvml::Event> events;
  std::unique_ptr<v1::Inventory> inventory;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(inbox_);
    events.swap(device_events_);
    inventory = std::move(new_inventory_);
  }
  for (const Nvml::Event& event : events) OnDeviceEvent(event);
  if (inventory != nullptr) {
    for (const auto& [device, why] : broken_) MarkBroken(device, why, inventory.get());
    const bool changed = inventory->SerializeAsString() != inventory_.SerializeAsString();
    inventory_ = *inventory;
    if (changed) connection_->Restart();  // the next Hello tells of it
  }
  for (Incoming& incoming : taken) OnIncoming(std::move(incoming));
}

void Agent::OnIncoming(Incoming incoming) {
  switch (incoming.kind) {
    case Incoming::Kind::kOpened: {
      generation_ = incoming.generation;
      open_ = true;
      heard_ns_ = RealClock()->BootNs();
      // What happened while nobody listened belongs into the Hello.
      WatchAttempts();
      connection_->Send(generation_, reconciler_->Hello(inventory_, RealClock()->BootNs()));
      return;
    }
    case Incoming::Kind::kMessage:
      if (incoming.generation == generation_) OnMessage(incoming.message);
      return;
    case Incoming::Kind::kClosed:
      if (reconciler_->has_session() || incoming.reason != last_reason_)
        LogWarn("not connected", {{"server", options_.server}, {"why", incoming.reason}});
      last_reason_ = incoming.reason;
      open_ = false;
      reconciler_->OnDisconnected();
      logs_.clear();
      return;
  }
}

void Agent::OnMessage(const v1::SchedulerMessage& message) {
  heard_ns_ = RealClock()->BootNs();
  const auto in_session = [&] {
    return reconciler_->has_session() &&
           message.session().session() == reconciler_->session().session();
  };
  switch (message.body_case()) {
    case v1::SchedulerMessage::kRefused:
      LogError("refused",
               {{"why", message.refused().reason()}, {"final", message.refused().final()}});
      if (message.refused().final()) refused_ = message.refused().reason();
      return;
    case v1::SchedulerMessage::kLogRequest:
      if (in_session()) StartLog(message.log_request());
      return;
    case v1::SchedulerMessage::kLogCancel:
      if (in_session()) logs_.erase(message.log_cancel().request());
      return;
    case v1::SchedulerMessage::kWelcome:
      if (message.welcome().lease_ns() > 0) lease_ns_ = message.welcome().lease_ns();
      if (message.welcome().heartbeat_ns() > 0) heartbeat_ns_ = message.welcome().heartbeat_ns();
      next_heartbeat_ns_ = heard_ns_ + heartbeat_ns_;
      last_reason_.clear();
      LogInfo("connected", {{"server", options_.server}, {"epoch", message.session().epoch()}});
      if (!message.welcome().differs().empty())
        LogWarn("this host contradicts its SKU in the clusters file",
                {{"how", message.welcome().differs()}});
      break;
    default:
      break;
  }
  Tell(message);
}

void Agent::Tell(const v1::SchedulerMessage& message) {
  if (!reconciler_->OnMessage(message, RealClock()->WallNs())) {
    LogError("message not understood, ending the stream",
             {{"kind", static_cast<int>(message.body_case())}});
    connection_->Restart();
    return;
  }
  if (const std::optional<StorageKey> key = StorageKeyOf(message);
      key.has_value() && storage_.UnderWay(*key))
    held_[*key] = message;
  const v1::AttemptKey* key = CommandedKey(message);
  if (key == nullptr) return;
  if (!message.has_prepare())
    held_.erase({IdOf(*key), StorageUse::kPrepare});  // whatever it says comes after it
  WatchCommanded(IdOf(*key));
}

// Gives the commands once more whose storage has answered, or didn't in time.
void Agent::TakeFromStorage() {
  for (const StorageKey& key : storage_.TakeAnswered()) {
    if (const auto held = held_.extract(key); !held.empty()) Tell(held.mapped());
    storage_.Drop(key);
  }
}

// A program's own errors (an address that isn't mapped) come as Xids, too: they end programs and
// say nothing of the device.
void Agent::OnDeviceEvent(const Nvml::Event& event) {
  const std::string text = absl::StrCat("Xid ", event.xid, " on GPU ", event.device);
  const int64_t now_ns = RealClock()->WallNs(), boot_ns = RealClock()->BootNs();
  const auto [newest, first] = newest_event_ns_.try_emplace({event.device, event.xid}, boot_ns);
  if (!first && boot_ns - newest->second < kSameEventNs)
    return;  // a storm says no more than its first
  newest->second = boot_ns;
  LogWarn("critical error of a device", {{"device", event.device}, {"xid", event.xid}});
  told_.push_back({event.device, text, now_ns});
  if (told_.size() > kDeviceEventsKept) told_.erase(told_.begin());
  if (!XidBlamesDevice(event.xid)) return;
  reconciler_->OnFault(event.device, event.xid, text, now_ns);
  if (!XidNeedsReset(event.xid)) return;
  // It serves nobody before it was reset: then this agent is started anew, and looks.
  if (!broken_.emplace(event.device, text).second) return;
  MarkBroken(event.device, text, &inventory_);
  if (connection_ != nullptr) connection_->Restart();
}

// By rank what the driver said of its devices.
DeviceEvents Agent::EventsOf(const AttemptRecord& record) const {
  DeviceEvents events;
  const v1::Placement& here = record.prepare.here();
  const int32_t processes = std::max(1, record.prepare.processes_per_worker());
  for (int32_t rank = here.first_group_rank() * processes;
       !told_.empty() && rank < (here.first_group_rank() + here.workers()) * processes; ++rank) {
    const auto [first, last] =
        RankDevices(rank, processes, here.first_group_rank(), here.workers(), here.devices_size());
    for (const DeviceEvent& event : told_) {
      if (std::find(here.devices().begin() + first, here.devices().begin() + last, event.device) !=
          here.devices().begin() + last)
        events[rank].emplace_back(event.at_ns, event.text);
    }
  }
  return events;
}

// A command may have begun or ended what it is about.
void Agent::WatchCommanded(const AttemptId& id) {
  const AttemptRecord* record = reconciler_->Find(id);
  const auto known = watched_.find(id);
  if (record == nullptr) {
    Unwatch(id);
    processes_.RemoveCgroup(id);
  } else if (record->gone()) {
    processes_.ReleasePort(id);
  } else if (known == watched_.end() || known->second.pid == 0) {
    Watch(id);
  }
}

void Agent::Heartbeat() {
  next_heartbeat_ns_ = RealClock()->BootNs() + heartbeat_ns_;
  v1::AgentMessage message;
  *message.mutable_session() = reconciler_->session();
  message.mutable_heartbeat()->set_sent_boottime_ns(RealClock()->BootNs());
  message.mutable_heartbeat()->set_sequence(++heartbeat_sequence_);
  Send(std::move(message));
  reconciler_->RepeatReports();
}

// Watches what runs or may start, and takes in what its files say; stops watching what is gone.
void Agent::WatchAttempts() {
  std::vector<AttemptId> live, over;
  for (const auto& [id, record] : reconciler_->records()) {
    const auto known = watched_.find(id);
    if (!record.gone()) live.push_back(id);
    // After our restart: progress lines of attempts that ended meanwhile are still to be told.
    if (record.gone() && record.claim == Claim::kStarted && known == watched_.end())
      live.push_back(id);
    if (!record.gone()) continue;
    processes_.ReleasePort(id);
    processes_.RemoveCgroup(
        id);  // a shim that came too late, or a stop that came first, may have left it
  }
  for (const auto& [id, watched] : watched_) {
    if (reconciler_->Find(id) == nullptr) over.push_back(id);
  }
  for (const AttemptId& id : over) Unwatch(id);
  for (const AttemptId& id : live) Watch(id);
}

void Agent::Watch(const AttemptId& id) {
  Watched& watched = watched_[id];
  const AttemptRecord* record = reconciler_->Find(id);
  if (watched.directory_watch < 0 && inotify_ >= 0 && !record->gone()) {
    watched.directory_watch = ::inotify_add_watch(inotify_, state_->AttemptDirectory(id).c_str(),
                                                  IN_CREATE | IN_MOVED_TO | IN_MODIFY);
    if (watched.directory_watch >= 0) by_watch_[watched.directory_watch] = id;
  }
  Refresh(id);
}

void Agent::Unwatch(const AttemptId& id) {
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  if (found->second.pidfd >= 0) {
    by_pidfd_.erase(found->second.pidfd);
    ::close(found->second.pidfd);
  }
  if (found->second.directory_watch >= 0) {
    ::inotify_rm_watch(inotify_, found->second.directory_watch);
    by_watch_.erase(found->second.directory_watch);
  }
  watched_.erase(found);
  strays_.erase(id);
}

void Agent::Refresh(const AttemptId& id) {
  const auto found = watched_.find(id);
  const AttemptRecord* record = reconciler_->Find(id);
  if (found == watched_.end() || record == nullptr) return;
  Watched& watched = found->second;
  // The process before the files: if it is gone by now, the files are all it left.
  const pid_t pid = processes_.ShimPid(id);
  if (pid != watched.pid) {
    if (watched.pidfd >= 0) {
      by_pidfd_.erase(watched.pidfd);
      ::close(watched.pidfd);
      processes_.Reap(watched.pid);
    }
    watched.pid = pid;
    watched.pidfd = pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
    if (watched.pidfd >= 0) {
      by_pidfd_[watched.pidfd] = id;
      AddToEpoll(epoll_, watched.pidfd);
    }
  }
  if (const absl::Status status = ReadShimFiles(state_->AttemptDirectory(id), EventsOf(*record),
                                                &watched.events_read, &watched.news);
      !status.ok()) {
    LogError("shim's files", {{"error", std::string(status.message())}});
    return;
  }
  watched.news.alive = pid != 0;
  strays_.erase(id);
  const bool was_gone = record->gone();
  if (pid == 0 && watched.news.claim == Claim::kStarted && !was_gone &&
      record->boot_id == options_.launch.boot_id &&
      processes_.KillStrays(id, /*ended=*/watched.news.final)) {
    ShimNews news = watched.news;  // not gone before they are
    news.alive = true;
    news.final = false;
    strays_.insert(id);
    reconciler_->OnShim(id, news, RealClock()->WallNs());
  } else {
    reconciler_->OnShim(id, watched.news, RealClock()->WallNs());
  }
  record = reconciler_->Find(id);
  if (!was_gone && record != nullptr && record->gone()) {
    processes_.ReleasePort(id);
    if (!watched.news.final)
      processes_.RemoveCgroup(id);  // else its shim has, and the agent once more when it forgets it
    LogInfo("attempt ended", {{"job", id.job_uid},
                              {"task", id.task},
                              {"attempt", id.attempt},
                              {"detail", record->detail}});
  }
}

void Agent::ShimEnded(const AttemptId& id) {
  Watched& watched = watched_.at(id);
  processes_.Reap(watched.pid);
  const AttemptRecord* record = reconciler_->Find(id);
  if (record == nullptr || !record->gone() || !watched.news.final) return Refresh(id);
  // Its last word has been taken in: nothing comes after the exit record.
  by_pidfd_.erase(watched.pidfd);
  ::close(watched.pidfd);
  watched.pidfd = -1;
  watched.pid = 0;
}

void Agent::ReadInotify() {
  alignas(inotify_event) char buffer[16384];
  std::set<AttemptId> changed;
  ssize_t got = 0;
  while ((got = ::read(inotify_, buffer, sizeof buffer)) > 0) {
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      if ((event->mask & IN_Q_OVERFLOW) != 0) next_sweep_ns_ = 0;
      const auto found = by_watch_.find(event->wd);
      if (found == by_watch_.end()) continue;
      const std::string_view name = event->len > 0 ? event->name : "";
      if (name == shim::kClaimFile || name == shim::kEventsFile || name == shim::kProgressFile ||
          name == shim::kExitsFile)
        changed.insert(found->second);
    }
  }
  for (const AttemptId& id : changed) Refresh(id);
}

void Agent::StartLog(const v1::LogRequest& request) {
  LogReader reader;
  reader.id = IdOf(request.key());
  reader.rank = request.rank();
  reader.follow = request.follow();
  reader.tail_lines = request.tail_lines();
  if (request.max_bytes() > 0) reader.left_bytes = request.max_bytes();
  reader.from.insert(request.from().begin(), request.from().end());
  const bool known =
      IsValid(reader.id) && (reconciler_->Find(reader.id) != nullptr ||
                             ::access(state_->LogDirectory(reader.id).c_str(), F_OK) == 0);
  if (!known || logs_.size() >= kLogRequests) {
    v1::AgentMessage message;
    *message.mutable_session() = reconciler_->session();
    message.mutable_log_chunk()->set_request(request.request());
    message.mutable_log_chunk()->set_end(true);
    message.mutable_log_chunk()->set_error(
        known ? "this host answers too many log requests already"
              : "no logs of this attempt on this host, or no longer");
    Send(std::move(message));
    return;
  }
  logs_[request.request()] = std::move(reader);
  next_log_ns_ = 0;
}

void Agent::PumpLogs() {
  next_log_ns_ = RealClock()->BootNs() + kLogInterval;
  for (auto it = logs_.begin(); it != logs_.end();) {
    LogReader& reader = it->second;
    const std::string directory = state_->LogDirectory(reader.id);
    const AttemptRecord* record = reconciler_->Find(reader.id);
    const bool over = !reader.follow || record == nullptr ||
                      record->gone();  // asked before reading: what is read then is all
    for (const int32_t rank : shim::LogRanks(directory)) {
      if ((reader.rank >= 0 && reader.rank != rank) || reader.cursors.count(rank) != 0) continue;
      const auto from = reader.from.find(rank);
      reader.cursors.emplace(rank, from != reader.from.end()
                                       ? LogCursor::At(directory, rank, from->second)
                                       : LogCursor(directory, rank, reader.tail_lines));
    }
    bool more = false;
    for (auto& [rank, cursor] : reader.cursors) {
      cursor.MoveTo(directory);
      while (reader.left_bytes > 0) {
        if (connection_->queued_bytes() > kLogQueueBytes) {
          more = true;
          break;
        }
        v1::AgentMessage message;
        v1::LogChunk* chunk = message.mutable_log_chunk();
        int64_t dropped = 0;
        LogCursor::Piece piece = cursor.Read(kLogChunkBytes, &dropped);
        chunk->set_data(std::move(piece.data));
        for (const auto& [begin, end] : piece.from_stderr) {
          v1::ByteRange* range = chunk->add_from_stderr();
          range->set_begin(begin);
          range->set_end(end);
        }
        if (chunk->data().empty() && dropped == 0) break;
        *message.mutable_session() = reconciler_->session();
        chunk->set_request(it->first);
        chunk->set_rank(rank);
        chunk->set_dropped_bytes(dropped);
        chunk->set_next_offset(cursor.offset());
        reader.left_bytes -= static_cast<int64_t>(chunk->data().size());
        Send(std::move(message));
      }
    }
    const bool spent = reader.left_bytes <= 0;
    if ((over && !more) || spent) {
      v1::AgentMessage message;
      *message.mutable_session() = reconciler_->session();
      message.mutable_log_chunk()->set_request(it->first);
      message.mutable_log_chunk()->set_rank(reader.rank);
      message.mutable_log_chunk()->set_end(true);
      message.mutable_log_chunk()->set_more(spent);
      Send(std::move(message));
      it = logs_.erase(it);
    } else {
      ++it;
    }
  }
}

int64_t Agent::NextWakeNs() const {
  int64_t wake = std::min(next_sweep_ns_, next_prune_ns_);
  if (reconciler_->has_session()) wake = std::min(wake, next_heartbeat_ns_);
  if (open_) wake = std::min(wake, heard_ns_ + lease_ns_);
  if (!logs_.empty()) wake = std::min(wake, next_log_ns_);
  wake = std::min(wake, storage_.next_ns());
  if (!strays_.empty()) wake = std::min(wake, RealClock()->BootNs() + kStrayCheck);
  return wake;
}

absl::Status Agent::Run() {
  WatchAttempts();
  // The schema of a new trainer takes a second to ask for; the host is useful meanwhile.
  schema_ = std::thread([this] {
    auto found = std::make_unique<v1::Inventory>(options_.inventory);
    FindTrainerSchema(options_.launch.bin_directory, state_->path(), found.get());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      new_inventory_ = std::move(found);
    }
    const uint64_t one = 1;
    if (::write(inbox_ready_, &one, sizeof one) < 0) return;
    if (const std::string why = WhyUnitEndsShims(); !why.empty())
      LogWarn("jobs will not outlive the agent", {{"why", why}});
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
        const uint64_t one = 1;
        if (::write(inbox_ready_, &one, sizeof one) < 0) continue;  // full: it is ready anyway
      }
    });
  }
  connection_ =
      std::make_unique<Connection>(options_.server, options_.single_user,
                                   [this](Incoming incoming) { Post(std::move(incoming)); });
  while (refused_.empty()) {
    const int64_t wait_ns = std::max<int64_t>(0, NextWakeNs() - RealClock()->BootNs());
    epoll_event events[64];
    const int count = ::epoll_wait(
        epoll_, events, 64, static_cast<int>(wait_ns / kMillisecond) + (wait_ns > 0 ? 1 : 0));
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == signals_) {
        LogInfo("agent stops; its attempts go on");
        return absl::OkStatus();
      }
      if (fd == inbox_ready_) {
        TakeIncoming();
      } else if (fd == inotify_) {
        ReadInotify();
      } else if (fd == storage_.ready()) {
        TakeFromStorage();
      } else if (const auto ended = by_pidfd_.find(fd); ended != by_pidfd_.end()) {
        ShimEnded(AttemptId(ended->second));
      }
    }
    const int64_t now_ns = RealClock()->BootNs();
    if (now_ns >= storage_.next_ns()) TakeFromStorage();
    // Contract 1: a session dies with its lease. A Hello that nobody answers, too.
    if (open_ && now_ns >= heard_ns_ + lease_ns_) {
      LogWarn("the scheduler is silent for a lease, ending the session");
      open_ = false;
      reconciler_->OnDisconnected();
      connection_->Restart();
    }
    if (reconciler_->has_session() && now_ns >= next_heartbeat_ns_) Heartbeat();
    if (now_ns >= next_sweep_ns_) {
      next_sweep_ns_ = now_ns + (inotify_ >= 0 ? kSweep : kSweepWithoutInotify);
      WatchAttempts();
      processes_.ReapEnded();
    }
    for (const AttemptId& id : std::set<AttemptId>(strays_)) Refresh(id);
    if (now_ns >= next_prune_ns_ || state_->LogsOverflow(options_.retention)) {
      next_prune_ns_ =
          now_ns + (state_->PruneLogs(options_.retention, RealClock()->WallNs()) ? kPrunePause
                                                                                 : kPruneInterval);
    }
    if (!logs_.empty() && now_ns >= next_log_ns_) PumpLogs();
    state_->CollectForgotten();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the scheduler refused this agent: ", refused_));
}

}  // namespace

absl::Status RunAgent(const AgentOptions& options, std::unique_ptr<StateDirectory> state) {
  const int signals = ReadEndSignals();
  HostCgroups cgroups(options.cgroup, state->path());
  AgentOptions with = options;
  with.inventory.set_isolation(absl::StrCat(
      options.launch.pid_namespace && ::geteuid() == 0 ? "PID namespaces, " : "process groups, ",
      cgroups.described()));
  LogInfo("attempts are kept apart", {{"by", with.inventory.isolation()}});
  // Contract 8: nobody knows any more of what ran with a state directory that is gone; before the
  // first Hello it is no more.
  if (state->fresh()) {
    if (const int ended = EndForgottenShims(state->path()); ended > 0)
      LogWarn("ended shims of a lost state directory", {{"shims", ended}});
  }
  absl::StatusOr<std::vector<AttemptRecord>> records = state->Load();
  if (!records.ok()) return records.status();
  std::vector<std::string> known;
  for (const AttemptRecord& record : *records) known.push_back(DirectoryName(record.id));
  if (const int ended = cgroups.EndAllBut(known); ended > 0)
    LogWarn("ended what ran in control groups of attempts that nobody knows", {{"groups", ended}});
  const absl::Status status =
      Agent(with, std::move(state), *std::move(records), std::move(cgroups), signals).Run();
  ::close(signals);
  return status;
}

}  // namespace muster::agent
