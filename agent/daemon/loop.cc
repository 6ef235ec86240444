#include "agent/daemon/loop.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/failures/rules.h"
#include "agent/host/environment.h"
#include "agent/host/inventory.h"
#include "agent/host/shim_files.h"
#include "agent/host/unit.h"
#include "common/base/log.h"
#include "common/base/rank_devices.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kFirstLease = 45 * kSecond;  // before a Welcome says another
constexpr int64_t kFirstHeartbeat = 5 * kSecond;
constexpr int64_t kStrayCheck = 20 * kMillisecond;
constexpr int64_t kPruneInterval = kHour;
constexpr int64_t kPrunePause = 10 * kMillisecond;  // after a part of what is to be removed
constexpr size_t kDeviceEventsKept = 256;
constexpr int64_t kLooksApartNs = 20 * kSecond;  // at GPUs: nobody knows what was between
constexpr int64_t kSameEventNs = kMinute;  // the same error of a device is told once in so long

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

// The works that the command may have begun.
std::vector<StorageKey> StorageKeysOf(const v1::SchedulerMessage& message) {
  switch (message.body_case()) {
    case v1::SchedulerMessage::kPrepare:
      return {{IdOf(message.prepare().key()), StorageUse::kPrepare},
              {IdOf(message.prepare().key()), StorageUse::kFetch}};
    case v1::SchedulerMessage::kStart:
      return {{IdOf(message.start().key()), StorageUse::kFetch}};
    case v1::SchedulerMessage::kPublish:
      return {{IdOf(message.publish().key()), StorageUse::kPublish}};
    default:
      return {};
  }
}

void MarkBroken(int32_t device, const std::string& why, v1::Inventory* inventory) {
  if (device >= inventory->devices_size()) return;
  inventory->mutable_devices(device)->set_healthy(false);
  inventory->mutable_devices(device)->set_fault(why);
}

}  // namespace

AgentLoop::AgentLoop(Options options, const Ports& ports, std::vector<AttemptRecord> records)
    : options_(std::move(options)),
      ports_(ports),
      inventory_(options_.inventory),
      reconciler_(std::make_unique<Reconciler>(options_.identity, std::move(records),
                                               ports.state->seen(), ports.files, ports.processes,
                                               this)),
      logs_(ports.state, reconciler_.get(), ports.link, this),
      lease_ns_(kFirstLease),
      heartbeat_ns_(kFirstHeartbeat) {}

void AgentLoop::Begin() { WatchAttempts(); }

// ---- the stream ----

void AgentLoop::OnOpened(uint64_t generation) {
  generation_ = generation;
  open_ = true;
  heard_ns_ = ports_.clock->BootNs();
  // What happened while nobody listened belongs into the Hello.
  WatchAttempts();
  v1::AgentMessage hello = reconciler_->Hello(inventory_, ports_.clock->BootNs());
  hello.mutable_hello()->set_checks_host(ports_.check_host != nullptr);
  hello.mutable_hello()->set_runs_as_owner(options_.runs_as_owner);
  Send(std::move(hello));
}

void AgentLoop::OnClosed(const std::string& reason, bool ours) {
  if (ours)
    LogInfo("connecting anew", {{"server", options_.server}, {"why", reason}});
  else if (reconciler_->has_session() || reason != last_reason_)
    LogWarn("not connected", {{"server", options_.server}, {"why", reason}});
  SayStatus(absl::StrCat("not connected to ", options_.server, ": ", reason));
  last_reason_ = reason;
  open_ = false;
  generation_ = 0;
  reconciler_->OnDisconnected();
  logs_.CancelAll();
}

void AgentLoop::OnMessage(uint64_t generation, const v1::SchedulerMessage& message) {
  if (generation == generation_) {
    // A Welcome that could not be kept is none: whatever comes after it, the stream ends with the
    // lease, and the next Hello is answered anew.
    if (reconciler_->has_session()) heard_ns_ = ports_.clock->BootNs();
  } else if (message.has_welcome() || message.has_refused() || !reconciler_->has_session()) {
    return;  // else the Reconciler drops it, as of another session (contract 1)
  }
  const auto in_session = [&] {
    return reconciler_->has_session() &&
           message.session().session() == reconciler_->session().session();
  };
  switch (message.body_case()) {
    case v1::SchedulerMessage::kRefused:
      LogError("refused",
               {{"why", message.refused().reason()}, {"final", message.refused().final()}});
      SayStatus(absl::StrCat("refused by ", options_.server, ": ", message.refused().reason()));
      if (message.refused().final()) refused_ = message.refused().reason();
      return;
    case v1::SchedulerMessage::kLogRequest:
      if (in_session()) logs_.Start(message.log_request());
      return;
    case v1::SchedulerMessage::kCheckHost:
      if (in_session() && ports_.check_host && ports_.check_host(message.check_host(), inventory_))
        check_session_ = message.session().session();
      return;
    case v1::SchedulerMessage::kOpenTunnel:
      if (in_session() && ports_.open_tunnel) ports_.open_tunnel(message.open_tunnel());
      return;
    case v1::SchedulerMessage::kLogCancel:
      if (in_session()) logs_.Cancel(message.log_cancel().request());
      return;
    default:
      break;
  }
  Tell(message);
  if (message.has_welcome() && in_session()) OnWelcome(message);
}

void AgentLoop::OnWelcome(const v1::SchedulerMessage& message) {
  const v1::Welcome& welcome = message.welcome();
  heard_ns_ = ports_.clock->BootNs();
  if (welcome.lease_ns() > 0) lease_ns_ = welcome.lease_ns();
  if (welcome.heartbeat_ns() > 0) heartbeat_ns_ = welcome.heartbeat_ns();
  next_heartbeat_ns_ = heard_ns_ + heartbeat_ns_;
  last_reason_.clear();
  LogInfo("connected", {{"server", options_.server}, {"epoch", message.session().epoch()}});
  if (!welcome.differs().empty())
    LogWarn("this host contradicts its SKU in the clusters file", {{"how", welcome.differs()}});
  SayStatus(absl::StrCat(
      kUpStatus, options_.identity.cluster, "/", options_.identity.host, ": ", Summary(inventory_),
      welcome.differs().empty() ? "" : absl::StrCat("; contradicts its SKU: ", welcome.differs())));
}

void AgentLoop::Tell(const v1::SchedulerMessage& message) {
  if (!reconciler_->OnMessage(message, ports_.clock->WallNs())) {
    LogError("message not understood, ending the stream",
             {{"kind", static_cast<int>(message.body_case())}});
    ports_.link->Restart("a message of the scheduler's was not understood");
    return;
  }
  const v1::AttemptKey* key = CommandedKey(message);
  if (key != nullptr && !message.has_prepare()) {  // whatever it says comes after it
    held_.erase({IdOf(*key), StorageUse::kPrepare});
    if (!message.has_query()) held_.erase({IdOf(*key), StorageUse::kFetch});
  }
  Hold(message);
  if (key != nullptr) WatchCommanded(IdOf(*key));
}

// Until the work is done that it waits for.
void AgentLoop::Hold(const v1::SchedulerMessage& message) {
  if (ports_.storage == nullptr) return;
  for (const StorageKey& key : StorageKeysOf(message)) {
    // A Prepare that has been answered waits for nothing; what is fetched then, its Start does.
    const bool answered = message.has_prepare() && !message.prepare().start_at_once() &&
                          reconciler_->Find(key.attempt) != nullptr;
    if (!answered && ports_.storage->UnderWay(key)) held_[key] = message;
  }
}

// Gives the commands once more whose storage has answered, or didn't in time.
void AgentLoop::OnStorage() {
  for (const StorageKey& key : ports_.storage->TakeAnswered()) {
    if (const auto held = held_.extract(key); !held.empty()) Tell(held.mapped());
    ports_.storage->Drop(key);
  }
}

void AgentLoop::Heartbeat(int64_t now_ns) {
  next_heartbeat_ns_ = now_ns + heartbeat_ns_;
  v1::AgentMessage message;
  *message.mutable_session() = reconciler_->session();
  message.mutable_heartbeat()->set_sent_boottime_ns(now_ns);
  message.mutable_heartbeat()->set_sequence(++heartbeat_sequence_);
  reconciler_->AddUsages(now_ns, message.mutable_heartbeat());
  Send(std::move(message));
  reconciler_->RepeatReports();
}

// ---- devices ----

void AgentLoop::OnInventory(v1::Inventory found) {
  for (const auto& [device, why] : broken_) MarkBroken(device, why, &found);
  found.set_low_disk(inventory_.low_disk());
  const bool changed = found.SerializeAsString() != inventory_.SerializeAsString();
  inventory_ = std::move(found);
  if (changed) ports_.link->Restart("the inventory changed: reporting anew");
}

void AgentLoop::OnDisk(const DiskNews& news) {
  for (const auto& [id, why] : news.fills) {
    LogWarn("an attempt fills a disk", {{"attempt", DirectoryName(id)}, {"why", why}});
    reconciler_->OnFillsDisk(id, why);
  }
  if (news.low == inventory_.low_disk()) return;
  inventory_.set_low_disk(news.low);
  ports_.link->Restart(news.low.empty() ? "there is enough disk again: reporting anew"
                                        : "there is too little disk: reporting anew");
}

// A program's own errors (an address that isn't mapped) come as Xids, too: they end programs and
// say nothing of the device.
void AgentLoop::OnDeviceEvent(int32_t device, int32_t xid) {
  const std::string text = absl::StrCat("Xid ", xid, " on GPU ", device);
  const int64_t now_ns = ports_.clock->WallNs(), boot_ns = ports_.clock->BootNs();
  const auto [newest, first] = newest_event_ns_.try_emplace({device, xid}, boot_ns);
  if (!first && boot_ns - newest->second < kSameEventNs)
    return;  // a storm says no more than its first
  newest->second = boot_ns;
  LogWarn("critical error of a device", {{"device", device}, {"xid", xid}});
  told_.push_back({device, text, now_ns});
  if (told_.size() > kDeviceEventsKept) told_.erase(told_.begin());
  if (!XidBlamesDevice(xid)) return;
  reconciler_->OnFault(device, xid, text, now_ns);
  if (!XidNeedsReset(xid)) return;
  // It serves nobody before it was reset: then this agent is started anew, and looks.
  if (!broken_.emplace(device, text).second) return;
  MarkBroken(device, text, &inventory_);
  ports_.link->Restart("a device is not healthy: reporting anew");
}

// A look stands for the time since the one before, if that was not long ago.
void AgentLoop::OnGpus(const std::vector<GpuLook>& looks) {
  if (inventory_.declared()) return;  // what the driver tells of is none of these
  const int64_t now_ns = ports_.clock->BootNs();
  const int64_t since_ns = now_ns - std::exchange(looked_at_gpus_ns_, now_ns);
  reconciler_->OnGpus(looks, now_ns, since_ns <= kLooksApartNs ? since_ns : 0);
}

// Numbers of requests are of the session that asked.
void AgentLoop::OnChecked(v1::HostChecked checked) {
  if (!reconciler_->has_session() || reconciler_->session().session() != check_session_) return;
  v1::AgentMessage message;
  *message.mutable_session() = reconciler_->session();
  *message.mutable_checked() = std::move(checked);
  Send(std::move(message));
}

// By rank what the driver said of its devices.
DeviceEvents AgentLoop::EventsOf(const AttemptRecord& record) const {
  DeviceEvents events;
  if (!record.prepare.task().image().empty())
    events.image = {ShownInImage(record.prepare), WorkdirOf(record.prepare)};
  const v1::Placement& here = record.prepare.here();
  events.held = here.devices_size() > 0 && !inventory_.declared();
  const int32_t processes = std::max(1, record.prepare.processes_per_worker());
  for (int32_t rank = here.first_group_rank() * processes;
       !told_.empty() && rank < (here.first_group_rank() + here.workers()) * processes; ++rank) {
    const auto [first, last] =
        RankDevices(rank, processes, here.first_group_rank(), here.workers(), here.devices_size());
    for (const DeviceEvent& event : told_) {
      if (std::find(here.devices().begin() + first, here.devices().begin() + last, event.device) !=
          here.devices().begin() + last)
        events.by_rank[rank].emplace_back(event.at_ns, event.text);
    }
  }
  return events;
}

// ---- the shims ----

// A command may have begun or ended what it is about.
void AgentLoop::WatchCommanded(const AttemptId& id) {
  const AttemptRecord* record = reconciler_->Find(id);
  const auto known = watched_.find(id);
  if (record == nullptr) {
    Unwatch(id);
    ports_.shims->RemoveCgroup(id);
  } else if (record->gone()) {
    ports_.shims->ReleasePort(id);
  } else if (known == watched_.end() || !known->second.lives) {
    Watch(id);
  }
}

// Watches what runs or may start, and takes in what its files say; stops watching what is gone.
void AgentLoop::WatchAttempts() {
  std::vector<AttemptId> live, over;
  for (const auto& [id, record] : reconciler_->records()) {
    const auto known = watched_.find(id);
    if (!record.gone()) live.push_back(id);
    // After our restart: progress lines of attempts that ended meanwhile are still to be told.
    if (record.gone() && record.claim == Claim::kStarted && known == watched_.end())
      live.push_back(id);
    if (!record.gone()) continue;
    ports_.shims->ReleasePort(id);
    // A shim that came too late, or a stop that came first, may have left it.
    ports_.shims->RemoveCgroup(id);
  }
  for (const auto& [id, watched] : watched_) {
    if (reconciler_->Find(id) == nullptr) over.push_back(id);
  }
  for (const AttemptId& id : over) Unwatch(id);
  for (const AttemptId& id : live) Watch(id);
}

void AgentLoop::Watch(const AttemptId& id) {
  watched_[id];
  if (!reconciler_->Find(id)->gone()) ports_.shims->Watch(id);
  Refresh(id);
}

void AgentLoop::Unwatch(const AttemptId& id) {
  if (watched_.erase(id) == 0) return;
  ports_.shims->Unwatch(id);
  strays_.erase(id);
}

void AgentLoop::OnFiles(const AttemptId& id) { Refresh(id); }

void AgentLoop::Refresh(const AttemptId& id) {
  const auto found = watched_.find(id);
  const AttemptRecord* record = reconciler_->Find(id);
  if (found == watched_.end() || record == nullptr) return;
  Watched& watched = found->second;
  // The process before the files: if it is gone by now, the files are all it left.
  watched.lives = ports_.shims->Lives(id);
  if (watched.news.claim == Claim::kNone)
    watched.news.claim = record->claim;  // known, though its file may have become unreadable
  if (const absl::Status status =
          ReadShimFiles(ports_.state->AttemptDirectory(id), EventsOf(*record), &watched.events_read,
                        &watched.news);
      !status.ok()) {
    LogError("shim's files", {{"error", std::string(status.message())}});
    return;
  }
  ShimNews& news = watched.news;
  news.alive = watched.lives;
  strays_.erase(id);
  const bool was_gone = record->gone(), said_final = news.final;
  if (!watched.lives && news.claim == Claim::kStarted && !was_gone &&
      record->boot_id == options_.identity.boot_id &&
      ports_.shims->KillStrays(id, /*ended=*/said_final)) {
    news.alive = true;  // not gone before they are
    news.final = false;
    strays_.insert(id);
  }
  reconciler_->OnShim(id, news, ports_.clock->WallNs());
  news.DropLines();
  news.final = said_final;
  record = reconciler_->Find(id);
  if (was_gone || record == nullptr || !record->gone()) return;
  ports_.shims->ReleasePort(id);
  // Else its shim has, and the agent once more when it forgets it.
  if (!news.final) ports_.shims->RemoveCgroup(id);
  LogInfo("attempt ended", {{"job", id.job_uid},
                            {"task", id.task},
                            {"attempt", id.attempt},
                            {"detail", record->detail}});
}

void AgentLoop::OnShimEnded(const AttemptId& id) {
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  const AttemptRecord* record = reconciler_->Find(id);
  if (record == nullptr || !record->gone() || !found->second.news.final) return Refresh(id);
  // Its last word has been taken in: nothing comes after the exit record.
  found->second.lives = false;
  ports_.shims->Ended(id);
}

// ---- the turns ----

int64_t AgentLoop::NextNs() const {
  int64_t next_ns = std::min({next_sweep_ns_, next_prune_ns_, logs_.next_ns()});
  if (reconciler_->has_session()) next_ns = std::min(next_ns, next_heartbeat_ns_);
  if (open_) next_ns = std::min(next_ns, heard_ns_ + lease_ns_);
  if (ports_.storage != nullptr) next_ns = std::min(next_ns, ports_.storage->next_ns());
  if (!strays_.empty()) next_ns = std::min(next_ns, ports_.clock->BootNs() + kStrayCheck);
  return next_ns;
}

int64_t AgentLoop::Turn() {
  const int64_t now_ns = ports_.clock->BootNs();
  if (ports_.storage != nullptr && now_ns >= ports_.storage->next_ns()) OnStorage();
  // Contract 1: a session dies with its lease. A Hello that nobody answers, too.
  if (open_ && now_ns >= heard_ns_ + lease_ns_) {
    LogWarn("the scheduler is silent for a lease, ending the session");
    open_ = false;
    reconciler_->OnDisconnected();
    ports_.link->Restart("the scheduler was silent for a lease");
  }
  if (reconciler_->has_session() && now_ns >= next_heartbeat_ns_) Heartbeat(now_ns);
  if (now_ns >= next_sweep_ns_) {
    next_sweep_ns_ = now_ns + options_.sweep_ns;
    WatchAttempts();
  }
  for (const AttemptId& id : std::set<AttemptId>(strays_)) Refresh(id);
  if (now_ns >= next_prune_ns_ || ports_.state->LogsOverflow(options_.retention)) {
    next_prune_ns_ = now_ns + (ports_.state->PruneLogs(options_.retention, ports_.clock->WallNs())
                                   ? kPrunePause
                                   : kPruneInterval);
  }
  logs_.Turn(now_ns);
  ports_.state->CollectForgotten();
  return NextNs();
}

}  // namespace muster::agent
