// Sessions: who may join, and what a Hello brings (contracts 1, 2, 19).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/protocol.h"
#include "common/base/units.h"
#include "scheduler/agents/seen_mac.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/engine/commands.h"
#include "scheduler/state/bytes.h"

namespace muster {
namespace {

constexpr char kRestored[] =
    "agents have seen a later state of this store: it was restored from a backup, or a copy of it "
    "is served elsewhere. Nothing is changed, and no "
    "agent is served. Start musterd on the newest store; or, only if no other musterd serves it, "
    "with --adopt-restored to go on from this one";

constexpr char kUnproved[] =
    "the agent claims to have seen a later state of this store, and can't show that musterd told "
    "it so (it has no MAC of it). If the store was restored from a backup, or a copy of it is "
    "served elsewhere, start musterd on the newest store, or, only if no other musterd serves it, "
    "with --adopt-restored. Else the agent's state directory is damaged or not its own: stop what "
    "the host runs, and give its agent a fresh --state-dir";

constexpr char kSaysTooMuch[] =
    "this host has said too much over the network (decision 170). It is served again in a second "
    "or two";

constexpr char kTooMany[] =
    "this host begins sessions oftener than it may; its agent tries again in a moment. What starts "
    "it so often? See its log";

// The agent says that it was told of what this store doesn't hold. What it was told before a
// restored store was adopted says nothing.
bool SeenLater(const pb::Hello& hello, const SessionOptions& options, const View& view) {
  const uint64_t since_epoch = options.adopts ? options.epoch : view.state.adopted_epoch();
  return hello.epoch_seen() > options.epoch ||
         (hello.epoch_seen() >= since_epoch && hello.commit_seen() > view.commit);
}

// What a Hello says, in one operation, so that the whole of it is one step. `inventory`: what
// counts of its own.
std::vector<pb::Event> EventsOf(const pb::Hello& hello, pb::Inventory inventory) {
  std::vector<pb::Event> events(1);
  pb::HostHello* joined = events[0].mutable_host_hello();
  joined->set_cluster(hello.cluster());
  joined->set_host(hello.host());
  joined->set_state_id(hello.state_id());
  joined->set_boot_id(hello.boot_id());
  *joined->mutable_inventory() = std::move(inventory);
  for (const pb::AttemptReport& report : hello.attempts()) {
    pb::AttemptReported* reported = events.emplace_back().mutable_attempt_reported();
    reported->set_cluster(hello.cluster());
    reported->set_host(hello.host());
    reported->set_state_id(hello.state_id());
    *reported->mutable_report() = report;
  }
  return events;
}

// Why a host whose certificate is for jobs of `only_user` alone (empty: it isn't) may not be in
// this cluster; empty: it may.
std::string WhyNotInCluster(const std::string& only_user, const pb::ClusterSpec& cluster) {
  if (only_user.empty() || only_user == cluster.only_user()) return "";
  return absl::StrCat(
      "the certificate of this host is for jobs of ", only_user, " alone, and cluster ",
      cluster.name(), " is for ",
      cluster.only_user().empty() ? "everybody's" : absl::StrCat("those of ", cluster.only_user()),
      " (only_user in the clusters file). Remove the file `identity` of its --state-dir, and join "
      "anew: muster host token new");
}

}  // namespace

std::string WhyNotSpoken(int32_t theirs, int32_t ours) {
  const int32_t oldest = std::max(1, ours - 1);
  if (theirs >= oldest && theirs <= ours) return "";
  return absl::StrCat("protocol version ", theirs, " is not spoken here; this musterd speaks ",
                      oldest == ours ? "" : absl::StrCat(oldest, " and "), ours, ". ",
                      theirs > ours
                          ? "The agent is of a newer release: install that release of musterd first"
                          : "The agent is more than one release older: install musterd's release "
                            "on its host, too; what runs there goes on");
}

// Empty if the host may join now.
std::string Sessions::WhyRefuse(const AgentStream& stream, const pb::Hello& hello, const View& view,
                                bool* final) const {
  *final = true;
  if (const std::string why = WhyNotSpoken(hello.protocol_version(), kAgentProtocolVersion);
      !why.empty())
    return why;
  if (!hello.store_id_seen().empty() && hello.store_id_seen() != options_.store_id) {
    return absl::StrCat("the agent has served another store (", hello.store_id_seen(),
                        ") and may run its attempts; this one is ", options_.store_id,
                        ". Stop what it runs and give it a fresh --state-dir");
  }
  const std::string only_user = stream.only_user();
  if (options_.several_users && !hello.runs_as_owner() && only_user.empty()) {
    return "this musterd serves several users, and the agent would run the jobs of all of them as "
           "one. Start the agent as root without --single-user (with --single-user=false, if its "
           "host has joined with it), or give musterd `single_user: true`";
  }
  if (restored_ || SeenLater(hello, options_, view)) {
    *final = false;
    return restored_ || Believes(stream, hello) ? kRestored : kUnproved;
  }
  const int32_t cluster = view.state.FindCluster(hello.cluster());
  if (cluster < 0)
    return absl::StrCat("there is no cluster \"", hello.cluster(), "\" in the clusters file");
  if (const std::string why = WhyNotInCluster(only_user, view.state.clusters()[cluster].spec);
      !why.empty())
    return why;
  const HostId id = view.state.FindHost(hello.cluster(), hello.host());
  if (!view.state.clusters()[cluster].spec.open() &&
      (id == kNoHost || !view.state.host(id).listed)) {
    return absl::StrCat("cluster ", hello.cluster(), " has no host \"", hello.host(),
                        "\". Add it to the clusters file");
  }
  // Another agent of this name may be running, connected or not, until its lease is over.
  *final = false;
  const int64_t now_ns = clock_->BootNs();
  std::string holder;
  int64_t heard_ns = started_ns_;
  if (const auto it = hosts_.find(Name(hello.cluster(), hello.host()));
      it != hosts_.end() && it->second.heard_ns != 0) {
    holder = it->second.state_id;
    heard_ns = it->second.heard_ns;
  } else if (id != kNoHost && view.state.host(id).state != pb::HOST_UNREACHABLE) {
    holder = view.state.host(id).state_id;
  }
  if (!holder.empty() && holder != hello.state_id() && now_ns - heard_ns < options_.lease_ns) {
    return absl::StrCat(
        "another agent serves as ", hello.cluster(), "/", hello.host(), " (state id ",
        holder.substr(0, 8), "). Give this one another --host, or wait ",
        FormatDuration((options_.lease_ns - (now_ns - heard_ns)) / kSecond * kSecond + kSecond),
        " if that one is gone");
  }
  return "";
}

bool Sessions::TakesHello(const AgentStream& stream, const pb::Hello& hello) {
  return stream.trusted() || hosts_[Name(hello.cluster(), hello.host())].pace->TakeHello(
                                 hello.ByteSizeLong(), clock_->BootNs());
}

void Sessions::RefuseHello(AgentStream* stream, const pb::Hello& hello, const std::string& why,
                           bool final) {
  if (why == kRestored) SawLater(hello);
  if (why == kUnproved) ClaimsLater(hello);
  LogWarn("agent refused", {{"cluster", hello.cluster()}, {"host", hello.host()}, {"why", why}});
  pb::SchedulerMessage message;
  message.mutable_refused()->set_reason(why);
  message.mutable_refused()->set_final(final);
  stream->Send(message);
  stream->End(absl::FailedPreconditionError(why));
}

uint64_t Sessions::Replace(const std::shared_ptr<AgentStream>& stream,
                           const std::shared_ptr<Session>& session, const pb::Hello& hello,
                           std::shared_ptr<Session>* replaced) {
  session->stream = stream;
  session->cluster = hello.cluster();
  session->host = hello.host();
  session->state_id = hello.state_id();
  session->id = options_.new_id();
  session->checks_host = hello.checks_host();
  HostEntry& entry = hosts_[Name(hello.cluster(), hello.host())];
  *replaced = std::move(entry.session);
  entry.session = session;
  entry.state_id = hello.state_id();
  entry.heard_ns = clock_->BootNs();
  entry.heard_wall_ns = clock_->WallNs();
  entry.posted_quiet_ns = 0;
  entry.posted = pb::HOST_UP;  // HostHello says so
  session->pace = entry.pace;
  session->pace->Take((1 + hello.attempts_size()) * Pace::kMessageNs, clock_->BootNs());
  streams_[stream.get()] = session;
  for (const pb::AttemptReport& report : hello.attempts())
    session->reports[AttemptText(report.key())] = DigestOf(report);
  return ++entry.hellos;
}

// A stream's first message is read whatever its host has said before: who opens one after the other
// would never rest.
bool Sessions::SaysTooMuch(const AgentStream& stream, const pb::Hello& hello) {
  if (!stream.bounded()) return false;
  const auto it = hosts_.find(Name(hello.cluster(), hello.host()));
  if (it == hosts_.end() || it->second.pace->RestNs(clock_->BootNs()) == 0) return false;
  ++rests_;
  return true;
}

// A host is believed that it has less than its SKU, and not that it has more: it would draw work
// that it can't do, or wants to see.
pb::Inventory Sessions::WhatCounts(const pb::Hello& hello) const {
  pb::Inventory inventory = hello.inventory();
  inventory.set_differs(
      options_.keep_to_sku ? options_.keep_to_sku(hello.cluster(), hello.host(), &inventory) : "");
  if (!inventory.differs().empty()) {
    LogWarn("a host contradicts its SKU in the clusters file; what it has above that doesn't count",
            {{"cluster", hello.cluster()}, {"host", hello.host()}, {"how", inventory.differs()}});
  }
  return inventory;
}

absl::Status Sessions::ReceiveHello(const std::shared_ptr<AgentStream>& stream,
                                    const pb::Hello& hello) {
  const std::shared_ptr<const View> view = engine_->Snapshot();
  auto session = std::make_shared<Session>();
  std::shared_ptr<Session> replaced;
  std::vector<std::pair<uint64_t, LogSink>> broken;
  uint64_t number = 0;  // of this Hello among its host's
  {
    std::lock_guard lock(mutex_);
    if (streams_.count(stream.get()) != 0)
      return absl::InvalidArgumentError("a second hello on the same stream");
    bool final = false;
    std::string why = WhyRefuse(*stream, hello, *view, &final);
    if (why.empty() && SaysTooMuch(*stream, hello)) why = kSaysTooMuch;
    if (why.empty() && !TakesHello(*stream, hello)) why = kTooMany;
    if (!why.empty()) {
      RefuseHello(stream.get(), hello, why, final);
      return absl::OkStatus();
    }
    number = Replace(stream, session, hello, &replaced);
    if (replaced != nullptr) broken = TakeLogsOf(*replaced);
  }
  if (replaced != nullptr)
    replaced->stream->End(
        absl::AbortedError("a newer session of this agent has replaced this one"));
  EndLogs(broken, kDisconnected);

  std::set<std::string> mentioned;
  for (const pb::AttemptReport& report : hello.attempts())
    mentioned.insert(AttemptText(report.key()));
  LogInfo("agent connected", {{"cluster", hello.cluster()},
                              {"host", hello.host()},
                              {"session", session->id.substr(0, 8)},
                              {"attempts", hello.attempts_size()},
                              {"declared", hello.inventory().declared()}});
  pb::Inventory inventory = WhatCounts(hello);
  const std::string differs = inventory.differs();
  // A newer Hello may have come from another thread since the lock was released, and be queued
  // before this one: then this one says nothing any more.
  engine_->Call(
      [this, number, name = Name(hello.cluster(), hello.host()),
       events = EventsOf(hello, std::move(inventory))](
          const State&) -> absl::StatusOr<std::vector<pb::Event>> {
        std::lock_guard lock(mutex_);
        if (hosts_[name].hellos != number)
          return absl::AbortedError("a newer session of this agent has replaced this one");
        return events;
      },
      [this, session, mentioned, differs](absl::Status status) {
        if (status.ok()) {
          Welcome(session, mentioned, differs);
        } else {
          session->stream->End(status);
        }
      });
  return absl::OkStatus();
}

void Sessions::Welcome(const std::shared_ptr<Session>& session,
                       const std::set<std::string>& mentioned, const std::string& differs) {
  const std::shared_ptr<const View> view = engine_->Snapshot();
  std::lock_guard lock(mutex_);
  if (hosts_[Name(session->cluster, session->host)].session != session) return;
  session->welcomed = true;
  pb::SchedulerMessage message;
  message.mutable_welcome()->set_lease_ns(options_.lease_ns);
  message.mutable_welcome()->set_heartbeat_ns(options_.heartbeat_ns);
  message.mutable_welcome()->set_differs(differs);
  SendOn(session.get(), std::move(message));
  const int64_t now_ns = clock_->BootNs();
  for (pb::SchedulerMessage& command : CommandsFor(view->state, session->cluster, session->host)) {
    session->sent[DeterministicBytes(command)] = now_ns;
    SendOn(session.get(), std::move(command));
  }
  for (pb::SchedulerMessage& query :
       QueriesFor(view->state, session->cluster, session->host, mentioned)) {
    session->asked[AttemptText(query.query().key())] = query;
    SendOn(session.get(), std::move(query));
  }
  for (auto& [number, log] : logs_) {
    if (log.waiting.request() == 0 || log.cluster != session->cluster || log.host != session->host)
      continue;
    pb::SchedulerMessage request;
    request.mutable_log_request()->Swap(&log.waiting);
    SendOn(session.get(), std::move(request));
  }
}

void Sessions::SawLater(const pb::Hello& hello) {
  if (std::exchange(restored_, true)) return;
  LogError(
      "an agent has seen a later state of this store: it was restored from a backup, or a copy is "
      "served elsewhere; nothing is changed any more",
      {{"host", Name(hello.cluster(), hello.host())},
       {"epoch_seen", hello.epoch_seen()},
       {"commit_seen", hello.commit_seen()}});
  engine_->StopServing(kRestored);
  // Who is served here may be what somebody else's store decides about.
  for (const auto& [stream, session] : streams_)
    session->stream->End(absl::FailedPreconditionError(kRestored));
  if (options_.on_restored) options_.on_restored(hello.epoch_seen(), hello.commit_seen());
}

bool Sessions::Believes(const AgentStream& stream, const pb::Hello& hello) const {
  return stream.trusted() || IsMacOfSeen(hello.mac_seen(), options_.mac_key, options_.store_id,
                                         hello.epoch_seen(), hello.commit_seen());
}

void Sessions::ClaimsLater(const pb::Hello& hello) {
  ++unproved_;
  const std::string name = Name(hello.cluster(), hello.host());
  if (!unproved_hosts_.insert(name).second) return;
  LogError(
      "a host claims to have seen a later state of this store, and can't show that musterd told it "
      "so; it is not served",
      {{"host", name},
       {"epoch_seen", hello.epoch_seen()},
       {"commit_seen", hello.commit_seen()},
       {"epoch", options_.epoch}});
  if (options_.on_unproved) options_.on_unproved(hello);
}

bool Sessions::AwaitsHosts(const State& state) const {
  std::lock_guard lock(mutex_);
  if (clock_->BootNs() - started_ns_ >= options_.lease_ns) return false;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    if (host.state == pb::HOST_NEVER_SEEN || host.state == pb::HOST_STATE_UNSPECIFIED) continue;
    const auto entry = hosts_.find(Name(state.clusters()[host.cluster].name, host.name));
    if (entry == hosts_.end() || !entry->second.answered) return true;
  }
  return false;
}

}  // namespace muster
