// The rows of State: small structs that name each other by number. Times are Unix nanoseconds, 0 =
// not yet.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "muster/v1/record.pb.h"
#include "scheduler/state/plan.h"

namespace muster {

namespace pb = ::muster::v1;

using HostId =
    int32_t;  // index of a host's row; stable within a State and its copies, not across Load
inline constexpr HostId kNoHost = -1;

// An attempt in State: `number` counts from 1.
struct AttemptRef {
  uint64_t job = 0;
  int32_t task = 0;
  int32_t number = 0;
  auto operator<=>(const AttemptRef&) const = default;
};

// A planned part of a gang on one host; devices in worker order.
struct HostSlice {
  HostId host = kNoHost;
  int32_t workers = 0;
  std::vector<int32_t> devices;       // indexes on the host
  std::vector<int64_t> device_milli;  // taken of each; empty = whole
  bool operator==(const HostSlice&) const = default;
};

// Devices kept for a task's next attempt. It counts as use for nobody; what is free of it is booked
// as reserved.
struct Reservation {
  int32_t attempt = 0;
  int32_t cluster = 0;           // index in State::clusters()
  std::string flavour;           // empty: no GPUs
  std::vector<HostSlice> parts;  // in rank order
  int32_t workers = 0;
  bool held =
      false;  // its own as they become free: others were stopped for it, or itself, to come back
  int64_t start_ns = 0;   // not held: expected; 0 = unknown
  bool draining = false;  // not held: nothing that ends after start_ns is placed on its hosts
  int64_t since_ns = 0;   // it has had one without a gap
  bool operator==(const Reservation&) const = default;
};

// The part of a gang on one host.
struct PartRow {
  HostId host = kNoHost;
  int32_t first_group_rank = 0;
  int32_t workers = 0;
  std::vector<int32_t> devices;                            // indexes on the host, in worker order
  std::vector<int64_t> device_milli;                       // taken of each; empty = whole
  pb::AttemptPhase phase = pb::ATTEMPT_PHASE_UNSPECIFIED;  // only ever rises
  std::string state_id;                                    // of the host when it was placed
  std::vector<pb::WorkerExit> exits;                       // first outcome wins, by rank
  bool lost = false;
  bool lags =
      false;  // its gang was stopped as it waited too long for this host to prepare or start it
  bool stop_sent = false;  // a Stop was carried out before its processes ended
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;
  std::string detail;
  std::shared_ptr<const pb::HostUsage> usage;  // told with its end; nullptr: not, or not yet
  std::string fills_disk;  // its host says that it has to be stopped for that: what it wrote, where

  bool over() const { return lost || phase == pb::GONE; }
};

struct AttemptRow {
  int32_t number = 0;
  pb::TaskState state =
      pb::TASK_STATE_UNSPECIFIED;  // PREPARING..STOPPING; SUCCEEDED/FAILED/CANCELLED once ended
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;  // why it is stopped or ended
  std::string detail;
  int32_t cluster = 0;         // index in State::clusters()
  std::string flavour;         // empty: no GPUs
  std::vector<PartRow> parts;  // in rank order; the first has rank 0
  int32_t workers = 0;
  int64_t place_ns = 0, start_ns = 0, end_ns = 0, stop_ns = 0;
  int64_t resumed_step = -1;  // -1: from the beginning
  std::string master_address;
  int32_t master_port = 0;   // as the host of rank 0 reserved it, once that is Prepared
  int32_t next_workers = 0;  // size to come back with; 0 = not a resize
  pb::AttemptKey claimant;   // PREEMPTION: for whom
  std::vector<std::string> resume_from;
  std::string export_staged, export_target;  // committed as the task's export
  bool loaded_reported = false;
  int64_t grace_ns = 0;
  int64_t last_checkpoint_ns = 0;
  int64_t off_since_ns = 0;    // since when the first of its hosts that is lost, or was restarted,
                               // hadn't spoken; 0: none
  uint64_t place_round = 0;    // State::round() when it was placed
  int32_t holder_attempt = 0;  // of JobRow::holder: on whose devices it runs
  std::vector<pb::Straggler> stragglers;  // by rank
  // Derived: where the fault of the infrastructure was told that ended it; its next attempts avoid
  // that host.
  HostId failed_host = kNoHost;

  bool ended() const { return end_ns != 0; }
  // No part has processes (or they are lost): its devices are not its own any more. It may wait for
  // its export nevertheless.
  bool released() const {
    for (const PartRow& part : parts) {
      if (!part.over()) return false;
    }
    return true;
  }
};

struct TaskRow {
  pb::TaskState state = pb::TASK_BLOCKED;
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;  // why it failed or was cancelled
  std::string detail;
  int32_t restarts_used = 0;
  // Faults of the infrastructure in a row, without progress between them, and for how long they
  // were tried again: pauses, and of each try after the first at most kFaultTryNs.
  int32_t infra_failures = 0;
  int64_t faults_tried_ns = 0;
  int32_t hosts_lost =
      0;  // attempts in a row that lost a host before they had progress or a sound run
  int32_t next_attempt = 1;
  int64_t backoff_until_ns = 0;
  int64_t waiting_since_ns = 0;
  int64_t waited_ns = 0;                    // in waits that are over
  int32_t wanted_workers = 0;               // that it was stopped to come back with; 0 = what fits
  int64_t last_resize_ns = 0;               // last growth
  std::vector<pb::Checkpoint> checkpoints;  // oldest first
  pb::Progress progress;
  std::vector<AttemptRow> attempts;  // oldest first; only the last may be unfinished
  std::vector<std::string> opened;   // clusters opened by spill, beside the first
  int32_t opened_attempt = 0;        // newest attempt for which that was decided
  int64_t opened_ns = 0;             // when that was decided last
  // Clusters that spill put at the front of its list for opened_attempt, newest last: that one is
  // first. It stays so until the next decision, whatever attempt that is for: the entitled set may
  // not change because the task starts or stops.
  std::vector<std::string> fronted;
  std::string spill_reason;
  int64_t used_gpu_ms = 0;
  int64_t ran_ns = 0;           // of attempts of which nothing runs any more
  std::string export_state;     // "", "staged", "published", "failed"
  int32_t export_failures = 0;  // tries to publish it that failed
  std::string export_detail;    // why the last one did
  int32_t claimed_attempt = 0;  // others were stopped for this attempt, not placed yet
  uint64_t evicted_round = 0;   // State::round() when it was stopped for a claim; 0 = never
  std::shared_ptr<const Reservation> reservation;  // nullptr: nothing is kept for it
  int64_t expected_run_ns = 0;   // from history, when it was submitted or placed; 0 = unknown
  HostId blamed_host = kNoHost;  // that its ends blamed last
  int64_t blamed_ns = 0;
  bool blames_itself = false;  // its ends blamed several hosts: what its program says speaks
                               // against none (apply_quarantine.cc)

  // The unfinished attempt, or nullptr.
  const AttemptRow* current() const {
    return attempts.empty() || attempts.back().ended() ? nullptr : &attempts.back();
  }
  bool finished() const {
    return state == pb::TASK_SUCCEEDED || state == pb::TASK_FAILED || state == pb::TASK_CANCELLED;
  }
  // Wants a placement: waiting, its backoff apart.
  bool waiting() const { return state == pb::TASK_WAITING; }
  // It was stopped only to go on in another size or place: a hold of its queue that came since
  // doesn't keep it.
  bool comes_back() const { return waiting() && wanted_workers > 0; }
};

// A job that another one waits for.
struct Predecessor {
  uint64_t number = 0;
  bool array = false;  // all members of the array of this number
  bool any = false;    // its end counts whatever it is
  auto operator<=>(const Predecessor&) const = default;
};

struct JobRow {
  uint64_t number = 0;
  std::string uid;
  std::string owner;
  std::shared_ptr<const pb::JobSpec> spec;        // resolved; changed by SetSpec alone
  std::shared_ptr<const std::string> spec_bytes;  // the same, as every record of the job holds it
  std::string idempotency_key, request_hash;
  uint32_t umask = 022;
  // Derived from the spec: the job on whose devices it runs (hosted.h); 0: on its own.
  uint64_t holder = 0;
  pb::JobState state = pb::WAITING;
  pb::Cause cause = pb::CAUSE_UNSPECIFIED;
  std::string detail;
  int64_t submit_ns = 0, start_ns = 0, end_ns = 0;
  std::string cluster;  // bound to once a task was placed; decides the storage of its directory
  bool cancel_requested = false;
  uint64_t version = 1;
  // In a queue that takes the shortest first: its place among jobs of one priority, the lowest
  // first (queue_order.h). Changes at ticks only. 0 in other queues.
  int32_t band = 0;
  std::vector<TaskRow> tasks;  // parallel to spec->tasks()
  // A member of an array is a job of its own, and has the number array + member. 0: no array's.
  uint64_t array = 0;
  int32_t member = 0;
  bool later = false;  // its turn comes when another member has ended: its tasks are blocked
  std::shared_ptr<const pb::ArrayStatus> ended;  // of member 0, once all have ended
  std::vector<Predecessor>
      awaits;  // that have not ended, ascending: till then its tasks are blocked
  int64_t not_before_ns =
      0;  // Unix time that it waits for; till then its tasks are blocked. 0: none
  // Of a schedule: the jobs of the time before and after its own, of arrays their numbers; 0: none.
  uint64_t previous = 0, next = 0;
  int32_t skipped = 0;    // times of the schedule that it has left out
  bool no_right = false;  // the newest of these, as its owner might not submit to its queue

  void SetSpec(const pb::JobSpec& resolved);

  bool finished() const { return end_ns != 0; }
  const pb::TaskSpec& task_spec(int32_t task) const { return spec->tasks(task); }
};

struct LostRow {
  pb::AttemptKey key;
  pb::Placement placement;
  std::string state_id;

  // Nobody knows where it came from, nor what it holds: what a restored store's hosts still ran of
  // the time after the backup.
  bool stray() const { return placement.workers() == 0; }
};

// A worker's demand of its host, with the host's own figures for what the spec leaves out.
struct Demand {
  int64_t gpus_milli = 0;
  int64_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  int64_t disk_bytes = 0;
};

// Devices' thousandths of a host that are booked to one class now.
struct LedgerShare {
  std::string
      queue;  // of the attempt that holds the device, or the task it is kept for; else empty
  int ledger_class = 0;  // index into kLedgerClasses
  int64_t milli = 0;
  bool operator==(const LedgerShare&) const = default;
};

struct HostRow {
  HostId id = kNoHost;
  int32_t cluster = 0;      // index in State::clusters()
  std::string name;         // inside its cluster
  std::string block, rack;  // from the clusters file; empty for hosts that aren't listed
  bool listed = false;
  std::string state_id, boot_id;
  pb::Inventory inventory;
  pb::HostState state = pb::HOST_NEVER_SEEN;
  bool drained = false;
  std::string drain_reason;
  int64_t state_since_ns = 0;
  int64_t silent_since_ns = 0;
  int64_t spoke_ns = 0;
  int64_t quiet_ns =
      0;  // unreachable: nothing was heard of it for so long at least, by the boot clock
  std::string confirmed_off_by;  // unreachable: who said that nothing runs there; empty: nobody
  std::string fence_detail;      // unreachable: how fence_command failed last
  std::vector<pb::Quarantine> quarantines;  // by device, the host's own first; devices in force are
                                            // not healthy in `inventory`
  std::vector<pb::Blame> blames;  // oldest first; of the window and no more than kBlamesKept
  int64_t fault_ns = 0;           // HostFault.at_ns of the newest that counted
  std::vector<int32_t>
      unhealthy;  // with quarantines: devices that the host itself calls so, ascending
  std::vector<LostRow> lost;

  // Derived from the attempts placed here and from `lost`:
  std::vector<AttemptRef> attempts;        // whose processes may exist here, ascending
  std::vector<TaskRef> reserved;           // for which devices are kept here, ascending
  std::vector<int64_t> device_used_milli;  // parallel to inventory.devices()
  int64_t cpus_used_milli = 0, memory_used_bytes = 0, disk_used_bytes = 0;
  std::vector<LedgerShare> shares;  // what its devices are booked to; sums to 1000 a device, but
                                    // empty once it is removed (IsRemoved)
  std::string booked_flavour;       // theirs, as they were booked

  // In quarantine as a whole: like a drained one it gets nothing new, but what runs there goes on.
  bool quarantined() const {
    return !quarantines.empty() && quarantines.front().device() < 0 &&
           !quarantines.front().withheld();
  }
  // May get work: it speaks, and nobody took it out.
  bool usable() const { return state == pb::HOST_UP && !taken_out(); }
  // It would get no work if it spoke, either.
  bool taken_out() const {
    return drained || quarantined() || !inventory.low_disk().empty() || has_strays();
  }
  // It may still run what a restored store doesn't know (strays.h).
  bool has_strays() const {
    for (const LostRow& row : lost) {
      if (row.stray()) return true;
    }
    return false;
  }
};

struct ClusterRow {
  std::string name;
  pb::ClusterSpec spec;
  bool drained = false;
  std::string drain_reason;
};

// A queue that takes the shortest first and names no max_wait.
inline constexpr int64_t kMaxWaitNs = kDay;

// A queue of the tree, flattened: parents before children, siblings in file order.
struct QueueNode {
  std::string path;  // research/nlp; empty for the root
  int32_t parent = -1;
  std::vector<int32_t> children;
  pb::QueueSpec spec;  // without children
  bool held = false;   // it or a queue above it
  // Its own or the nearest above:
  int64_t min_runtime_ns = 0;  // 0 = the configuration's
  bool shortest_first = false;
  int64_t max_wait_ns = 0;  // with shortest_first
};

struct QueueIndex {
  std::vector<QueueNode> nodes;  // nodes[0] is the root
  // -1 if there is no such queue.
  int32_t Find(const std::string& path) const {
    const auto it = by_path.find(path);
    return it == by_path.end() ? -1 : it->second;
  }
  // The root for the empty path.
  int32_t Node(const std::string& path) const { return path.empty() ? 0 : Find(path); }
  bool leaf(int32_t node) const { return nodes[node].children.empty(); }
  std::map<std::string, int32_t> by_path;
};
// An empty tree has one leaf, `default`.
QueueIndex BuildQueues(const pb::QueueTree& tree);

// Whose role it is, and where: a binding's identity.
struct BindingKey {
  std::string queue;  // path; empty for the root
  bool group = false;
  std::string name;  // of the user or group
  auto operator<=>(const BindingKey&) const = default;
};
using Bindings = std::map<BindingKey, pb::Role>;

// Who may come over a network. Without a trust id nobody may.
struct Trust {
  std::string trust_id;
  std::map<uint64_t, pb::Authority> authorities;  // that are trusted, by version; at most two
  uint64_t signer = 0;                            // version of the one that signs
  std::map<std::string, pb::JoinToken> tokens;    // by id
  std::map<std::string, pb::NetworkUser> users;   // by name
  std::map<std::string, pb::IssuedCertificate> certificates;  // by serial
  std::map<std::string, pb::RevokedHost> revoked_hosts;       // by uri
  // By the host's uri: the last one of each host that has none now and may still renew it.
  std::map<std::string, pb::IssuedCertificate> ended_of_hosts;
  int64_t next_end_ns = 0;  // derived: none is forgotten before; 0: there are none
};

// How long a host's certificate may last, and for how long after the end the host may renew it.
inline constexpr int64_t kMostHostLifeNs = 90 * kDay, kRenewExpiredNs = 90 * kDay;

// Whether a certificate's or token's `uri` names the holder with the uri `of`: also by a token of
// theirs that has scopes, and a host for whosever jobs it is.
inline bool NamesHolder(const std::string& uri, const std::string& of) {
  return uri == of || uri.rfind(of + "/token/", 0) == 0 || uri.rfind(of + "/only/", 0) == 0;
}

// What a queue has used, decayed: it orders equal shares (docs/scheduling.md §4, History). Changes
// at ticks only.
struct QueueHistory {
  int64_t booked_device_us = 0;  // in the ledger when the newest tick was taken
  int64_t decayed_device_us = 0;
};
inline constexpr int64_t kHistoryTickNs = 10 * kMinute;
inline constexpr int64_t kHistoryDecay =
    208;  // a tick takes one part in so many: half of it in a day

// Classes of slot-time (docs/asking.md, `ledger`), in the order they are shown.
inline constexpr const char* kLedgerClasses[] = {"productive", "restart", "preemption", "reserved",
                                                 "fragmented", "idle",    "down"};
enum class LedgerClass { kProductive, kRestart, kPreemption, kReserved, kFragmented, kIdle, kDown };

}  // namespace muster
