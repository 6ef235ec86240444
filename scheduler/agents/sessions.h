// Agents as the scheduler sees them: who is connected, as what, since when silent (contracts 1, 2,
// 9, 11 of docs/contracts.md).
//
// One Session a stream, born by an accepted Hello, dead with the stream or when a newer one of the
// same host and state id replaces it. Its messages become events of the engine; what the engine
// says to a host goes out on its session. Commands are level-triggered: sent on change, on Hello,
// and again at heartbeats while they hold. Acknowledgements follow commits.
//
// No gRPC here: a stream is an interface. Thread-safe; never calls a stream or the engine while it
// holds a lock of theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "muster/v1/agent.pb.h"
#include "scheduler/agents/live_usage.h"
#include "scheduler/agents/open_tunnels.h"
#include "scheduler/agents/pace.h"
#include "scheduler/agents/stragglers.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/ports.h"

namespace muster {

// The scheduler's side of one stream. Both calls return at once and are thread-safe.
class AgentStream {
 public:
  virtual ~AgentStream() = default;
  virtual void Send(const pb::SchedulerMessage& message) = 0;
  // Ends the stream once what was sent before is out.
  virtual void End(const absl::Status& status) = 0;
  // Its other end is root's, or the user's who runs musterd: its word is taken for true.
  virtual bool trusted() const { return false; }
  // Whose jobs alone its host may be given, as its certificate says; empty: everybody's.
  virtual std::string only_user() const { return ""; }
  // Whether it is bounded what its host may say (pace.h): it comes over the network.
  virtual bool bounded() const { return false; }
};

struct SessionOptions {
  std::string store_id;
  uint64_t epoch = 0;
  int64_t lease_ns = 45'000'000'000;
  int64_t heartbeat_ns = 5'000'000'000;
  // Jobs belong to several users: an agent that runs them all as one is refused.
  bool several_users = false;
  bool adopts = false;  // this epoch is the first after a backup was restored
  // Of what agents are told to have seen (seen_mac.h). Empty: streams that aren't trusted are
  // believed nothing.
  std::string mac_key;
  // A host claims to have seen what this store hasn't, and can't show that it was told so. Called
  // once a host, as on_restored.
  std::function<void(const pb::Hello& hello)> on_unproved;
  // An agent has seen what this store hasn't: it is a backup that was restored. Called with the
  // highest epoch and commit seen, on an agent's thread, each time they rise; the engine serves
  // nobody any more.
  std::function<void(uint64_t epoch, uint64_t commit)> on_restored;
  std::function<std::string()> new_id =
      RandomId;  // of a session; the fault simulation draws them from its seed
  // Keeps a host's inventory to what the clusters file says of it, and returns how it contradicted
  // that (HostSkus); empty: it didn't. From any thread. Null: nobody knows.
  std::function<std::string(const std::string& cluster, const std::string& host,
                            pb::Inventory* inventory)>
      keep_to_sku;
};

// Why a musterd whose version is `ours` (common/base/protocol.h) serves no agent whose version is
// `theirs`, with the remedy; empty: it does. Agents one release older work (contract 1).
std::string WhyNotSpoken(int32_t theirs, int32_t ours);

class Sessions : public AgentLink {
 public:
  using LogSink = std::function<void(const pb::LogChunk&)>;

  Sessions(SessionOptions options, Clock* clock);
  // Before anything else; the engine must outlive the last call.
  void Attach(Engine* engine);

  // A message of a stream. An error means that the stream is to be ended with it: INVALID_ARGUMENT
  // for what no agent sends.
  absl::Status Receive(const std::shared_ptr<AgentStream>& stream, const pb::AgentMessage& message);
  // How long not to read on from the stream, as its host has said too much (pace.h); 0: not at all.
  // For streams that are bounded.
  int64_t RestNs(const AgentStream* stream);
  uint64_t Rests() const;  // that were asked for, since the start
  // The stream has ended, whoever ended it. Its host counts as heard until its heartbeats are
  // missed.
  void Closed(const AgentStream* stream);
  // Finds hosts that fell silent or unreachable. Call it once a second or so, from one thread;
  // first right after the start.
  void Tick();
  // Called before Tick by who could not call it for long: this process stood still, or its machine
  // did, and heard nobody. Each host has a full lease again, as after a start; what a fence waits
  // for is still counted from the host's last word.
  void StoodStill();

  // Of a restored store (Engine::awaits_hosts): a host that it knows has said nothing yet, for less
  // than a lease.
  bool AwaitsHosts(const State& state) const;

  // AgentLink: for the engine.
  void Send(const std::string& cluster, const std::string& host,
            const pb::SchedulerMessage& message) override;

  // Asks a host for output; chunks come to `sink` (from any thread, not concurrently) until one
  // with `end`. A stream that breaks gives a last chunk with an error. A host that isn't connected
  // is waited for so long, to the next Tick. Returns the number of the request.
  uint64_t RequestLogs(const std::string& cluster, const std::string& host, pb::LogRequest request,
                       LogSink sink, int64_t wait_ns);
  void CancelLogs(uint64_t request);

  // Asks a host to join a tunnel. False: it isn't connected.
  bool OpenTunnel(const std::string& cluster, const std::string& host, pb::OpenTunnel open);
  OpenTunnels* tunnels() { return &tunnels_; }

  // Agents that are connected now.
  size_t Connected() const;
  // Hellos that were refused as on_unproved says, since the start.
  uint64_t Unproved() const;
  // Something was heard of it for less than a lease ago, by this process.
  bool Speaks(const std::string& cluster, const std::string& host) const;
  // Unix time of the newest message; 0 = not heard since this process started.
  int64_t LastHeardNs(const std::string& cluster, const std::string& host) const;
  // What a running attempt has used until now, by the name of the host inside its cluster.
  std::map<std::string, pb::HostUsage> UsageOf(const pb::AttemptKey& key) const {
    return usage_.Of(key);
  }

 private:
  struct Session {
    std::shared_ptr<AgentStream> stream;
    std::string cluster, host, state_id, id;
    bool welcomed = false;
    bool checks_host = false;    // as its Hello said
    std::shared_ptr<Pace> pace;  // its host's
    bool told_pace = false;      // in the log
    std::map<std::string, int64_t>
        sent;  // commands (serialized) that hold, and when they were sent last
    std::map<std::string, std::string> reports;         // digest of the newest, by attempt
    std::map<std::string, pb::SchedulerMessage> asked;  // queries without an answer, by attempt
    struct Told {
      // Other messages that became events in this session, by digest; checkpoints by sequence.
      std::set<std::string> posted;
      std::set<uint64_t> acknowledged;  // checkpoints whose event is durable, by sequence
    };
    std::map<std::string, Told> told;  // by attempt, until its host is to forget it
    size_t told_words = 0;             // in all of it
    // Room for one more word: forgets all where there is none. All together, as a checkpoint that
    // is posted and no longer among those that are acknowledged would be under way for ever.
    void BoundTold();
    // That became events, by digest: BootNs when the host last repeated them.
    std::map<std::string, int64_t> faults;
  };
  struct HostEntry {
    std::shared_ptr<Session> session;  // null: not connected
    std::string state_id;              // of the last session
    int64_t heard_ns = 0;              // BootNs; 0 = not since the start
    int64_t heard_wall_ns = 0;
    pb::HostState posted = pb::HOST_STATE_UNSPECIFIED;  // what the engine was last told
    int64_t posted_quiet_ns = 0;
    // To this process, with all that it runs, which is in the store; and it knows this epoch, so
    // that it runs nothing by another one's word from then on.
    bool answered = false;
    uint64_t hellos = 0;  // accepted ones
    std::shared_ptr<Pace> pace = std::make_shared<Pace>();
    struct Check {  // before a quarantine ends: the newest that was asked for
      uint64_t request = 0;
      int32_t device = -1;
      std::string session;   // that was asked
      int64_t again_ns = 0;  // BootNs: not asked again before that
      bool answered = false;
    } check;
  };
  struct LogStream {
    std::string cluster, host;
    LogSink sink;
    pb::LogRequest waiting;  // for the host to connect; its number is 0 once it was sent
    int64_t until_ns = 0;    // BootNs; of one that waits
  };

  static constexpr char kDisconnected[] = "has disconnected: what followed can't be read now";
  static constexpr char kNotConnected[] = "is not connected; its output can't be read now";

  static std::string Name(const std::string& cluster, const std::string& host) {
    return cluster + "/" + host;
  }
  // By which what a host said is known again: however long that was, this is short.
  static std::string DigestOf(const google::protobuf::Message& said);
  absl::Status ReceiveHello(const std::shared_ptr<AgentStream>& stream, const pb::Hello& hello);
  // The host's session from now on; its number among the host's, and the one that it replaces.
  uint64_t Replace(const std::shared_ptr<AgentStream>& stream,
                   const std::shared_ptr<Session>& session, const pb::Hello& hello,
                   std::shared_ptr<Session>* replaced);  // under mutex_
  void RefuseHello(AgentStream* stream, const pb::Hello& hello, const std::string& why,
                   bool final);  // under mutex_
  std::string WhyRefuse(const AgentStream& stream, const pb::Hello& hello, const View& view,
                        bool* final) const;  // under mutex_
  // False: its host has begun too many sessions of late. It may join else.
  bool TakesHello(const AgentStream& stream, const pb::Hello& hello);  // under mutex_
  // It may be believed what it says of what it has seen.
  bool Believes(const AgentStream& stream, const pb::Hello& hello) const;
  bool SaysTooMuch(const AgentStream& stream, const pb::Hello& hello);  // under mutex_
  pb::Inventory WhatCounts(const pb::Hello& hello) const;
  void Welcome(const std::shared_ptr<Session>& session, const std::set<std::string>& mentioned,
               const std::string& differs);
  void Heard(HostEntry* entry, const Session& session);  // under mutex_
  void Heartbeat(const std::shared_ptr<Session>& session, const pb::Heartbeat& heartbeat);
  void Acknowledge(const std::shared_ptr<Session>& session, const pb::Heartbeat& heartbeat);
  void SawLater(const pb::Hello& hello);      // under mutex_
  void ClaimsLater(const pb::Hello& hello);   // under mutex_
  const std::string& MacOf(uint64_t commit);  // under mutex_
  void ProveOwnership();
  void Timed(const Session& session, const View& view, const pb::ProgressReport& report);
  void LookAtQuarantines(const State& state, HostId id);  // under mutex_
  void EndQuarantine(const pb::ClusterSpec& cluster, const HostRow& row,
                     const pb::Quarantine& quarantine);  // under mutex_
  void Checked(const std::shared_ptr<Session>& session, const pb::HostChecked& checked);
  void Report(const std::shared_ptr<Session>& session, const pb::AttemptReport& report);
  void Checkpointed(const std::shared_ptr<Session>& session, const pb::CheckpointReport& report);
  void Progressed(const Session& session, const pb::ProgressReport& report);
  void Exported(const std::shared_ptr<Session>& session, const pb::AgentMessage& message);
  void Loaded(const std::shared_ptr<Session>& session, const pb::AgentMessage& message);
  void Post(const std::shared_ptr<Session>& session, pb::Event event, Engine::Done done = nullptr);
  void PostOnce(const std::shared_ptr<Session>& session, const pb::AttemptKey& attempt,
                const std::string& identity, pb::Event event);
  void Fault(const std::shared_ptr<Session>& session, const pb::HostFault& fault);
  void Deliver(const Session& session, const pb::LogChunk& chunk);
  // Requests for output whose session is over, or that waited long enough, and the last word to
  // those who wait for it.
  std::vector<std::pair<uint64_t, LogSink>> TakeLogs(
      const std::function<bool(const LogStream&)>& over);                        // under mutex_
  std::vector<std::pair<uint64_t, LogSink>> TakeLogsOf(const Session& session);  // under mutex_
  static void EndLogs(const std::vector<std::pair<uint64_t, LogSink>>& ended,
                      const std::string& why);
  void SendOn(Session* session, pb::SchedulerMessage message);  // under mutex_

  const SessionOptions options_;
  Clock* const clock_;
  const int64_t started_ns_;  // BootNs
  int64_t listens_ns_ =
      started_ns_;  // BootNs since when it was always there to hear; Tick's thread's
  Engine* engine_ = nullptr;

  mutable std::mutex mutex_;
  std::map<std::string, HostEntry> hosts_;  // by cluster/host
  std::map<const AgentStream*, std::shared_ptr<Session>> streams_;
  std::map<uint64_t, LogStream> logs_;
  uint64_t next_log_ = 1, next_check_ = 1;
  uint64_t rests_ = 0;
  int64_t proved_ns_ = started_ns_;  // BootNs of the newest commit that was made to prove it
  Stragglers stragglers_;
  LiveUsage usage_;
  OpenTunnels tunnels_;
  std::map<HostId, std::set<std::string>> told_quarantines_;  // in the log
  bool restored_ = false;  // an agent has seen what this store doesn't have
  uint64_t unproved_ = 0;
  std::set<std::string> unproved_hosts_;  // told of
  std::string mac_;                       // the newest that was made
  uint64_t mac_commit_ = 0;               // its commit
};

}  // namespace muster
