// The agent's logic: commands and news of shims in, effects through ports and reports to the
// scheduler out.
//
// Level-triggered: every input may come twice, late or never. Not thread-safe; no clock, no I/O of
// its own. The rules are in decide.h.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/reconcile/decide.h"
#include "agent/reconcile/ports.h"
#include "agent/reconcile/record.h"
#include "muster/v1/agent.pb.h"
#include "muster/v1/cluster.pb.h"

namespace muster::agent {

struct HostIds {
  std::string cluster;
  std::string host;
  std::string state_id;
  std::string boot_id;
};

class Reconciler {
 public:
  // `records` is what the state directory held at start. The ports outlive this object.
  Reconciler(HostIds identity, std::vector<AttemptRecord> records, Seen seen, Files* files,
             Processes* processes, Sender* sender);

  // To be sent now, `boot_ns` by CLOCK_BOOTTIME.
  v1::AgentMessage Hello(const v1::Inventory& inventory, int64_t boot_ns);

  // A stream ended: its session is over, and with it what was remembered of forgotten attempts.
  void OnDisconnected();
  // Any message but log requests. A Welcome begins the session, unless its epoch has to be kept and
  // can't be (contract 19); commands of another session are dropped (contract 1). False: the
  // message is not one that a scheduler may send; the stream should end.
  bool OnMessage(const v1::SchedulerMessage& message, int64_t now_ns);

  // What a shim's files say now. Any order, any number of times.
  void OnShim(const AttemptId& id, const ShimNews& news, int64_t now_ns);

  // Something of the host failed: told now and with the next heartbeats, as nobody acknowledges it.
  // at_ns is Unix time.
  void OnFault(int32_t device, int32_t code, const std::string& detail, int64_t at_ns);

  // Looks at all of the host's GPUs, at `boot_ns`; each stands for the `span_ns` before it.
  void OnGpus(const std::vector<GpuLook>& looks, int64_t boot_ns, int64_t span_ns);
  // Tells what running attempts use, where that is news and was not told for a while.
  void AddUsages(int64_t boot_ns, v1::Heartbeat* heartbeat);
  // It fills a file system that others need: its report says so from now on.
  void OnFillsDisk(const AttemptId& id, const std::string& why);

  // Says again what is not yet acknowledged: ends, checkpoints, exports. For each heartbeat.
  void RepeatReports();

  bool has_session() const { return !session_.session().empty(); }
  const v1::SessionKey& session() const { return session_; }
  const std::map<AttemptId, AttemptRecord>& records() const { return records_; }
  const AttemptRecord* Find(const AttemptId& id) const;

 private:
  void OnCommand(const v1::AttemptKey& key, Command command, const v1::SchedulerMessage& message,
                 int64_t now_ns);
  bool PrepareNew(const v1::Prepare& prepare);
  void Spawn(AttemptRecord* record);
  void Refuse(AttemptRecord record, v1::Cause cause, std::string detail, const v1::Stop* stop);
  void Stop(AttemptRecord* record, const v1::Stop& stop);
  void OnHeartbeatAck(const v1::HeartbeatAck& ack);
  void OnPublish(const v1::Publish& publish);
  void OnLine(AttemptRecord* record, const std::string& json, int64_t at_ns);
  // False: it is to be acted on and its commit number, or the epoch of a Welcome, can't be kept.
  bool See(const v1::SchedulerMessage& message);
  void Send(v1::AgentMessage message);
  void Report(const AttemptRecord& record);
  void SendParts(v1::AttemptReport* report);
  void KeepGpus(const AttemptRecord& record);
  static v1::AttemptReport ReportOf(const AttemptRecord& record);

  const HostIds identity_;
  Files* const files_;
  Processes* const processes_;
  Sender* const sender_;
  std::map<AttemptId, AttemptRecord> records_;
  std::set<AttemptId> forgotten_;           // in this session
  std::map<AttemptId, size_t> lines_read_;  // durable lines of its shim taken in
  // To this session: the newest metrics, with their time, and how long steps take.
  std::map<AttemptId, std::pair<std::string, int64_t>> metrics_sent_;
  std::map<AttemptId, std::string> times_sent_;
  // Ranks whose ends this session was told, of reports that are told in parts.
  std::map<AttemptId, std::set<int32_t>> exits_told_;
  struct UsageSent {
    int64_t boot_ns = 0;
    int64_t ran_ns = 0;  // as it was said
  };
  std::map<AttemptId, UsageSent> usages_sent_;         // to this session
  int64_t gpus_kept_ns_ = 0;                           // CLOCK_BOOTTIME
  std::vector<std::pair<v1::HostFault, int>> faults_;  // and how often they are still repeated
  int64_t fault_ns_ = 0;                               // at_ns of the newest
  Seen seen_;
  Seen seen_kept_;        // as the state directory has it
  int64_t hello_ns_ = 0;  // CLOCK_BOOTTIME, when the newest Hello was sent
  int64_t acknowledged_ns_ =
      0;  // sending time of the newest message that this session's scheduler acknowledged
  v1::SessionKey session_;  // empty: none
};

}  // namespace muster::agent
