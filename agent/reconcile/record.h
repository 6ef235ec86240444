// What the agent knows of one attempt: the state on its disk as a value.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/reconcile/gpu_record.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

struct AttemptId {
  std::string job_uid;
  std::string task;
  int32_t attempt = 0;
  auto operator<=>(const AttemptId&) const = default;
};

AttemptId IdOf(const v1::AttemptKey& key);
v1::AttemptKey KeyOf(const AttemptId& id);
bool IsValid(
    const AttemptId& id);  // safe as a file name: uid 32 hex digits, task a label, attempt positive

enum class Claim { kNone, kStarted, kStopped };

struct StopRecord {
  v1::Cause cause = v1::CAUSE_UNSPECIFIED;
  int64_t grace_ns = 0;
  bool operator==(const StopRecord&) const = default;
};

struct AttemptRecord {
  AttemptId id;
  bool prepared = false;  // the marker is there; prepare, boot_id and port count
  bool durable = false;   // the marker survives power loss (decision 018)
  v1::Prepare prepare;
  std::string boot_id;  // of the boot that prepared it
  int32_t port = 0;
  std::string master_address;  // from Start
  int32_t master_port = 0;
  Claim claim = Claim::kNone;
  std::optional<StopRecord> stop;
  bool ended = false;  // claim "started" and no process is left; exits are final
  std::vector<v1::WorkerExit> exits;
  bool stop_sent = false;  // before the processes ended
  int64_t renewed_ns = 0;  // CLOCK_BOOTTIME; with a fence: sending time of the newest heartbeat
                           // that was acknowledged for it
  v1::Cause cause = v1::CAUSE_UNSPECIFIED;  // GONE without a start, or lost exit records: why
  std::string detail;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  // From progress lines; counted anew from the shim's events after a restart.
  uint64_t checkpoints_told = 0;  // the newest one's sequence
  uint64_t checkpoint_acked = 0;
  std::vector<v1::CheckpointReport> checkpoints;  // that aren't acknowledged, in order
  std::optional<v1::LoadedReport> loaded;
  std::optional<v1::ExportReport> export_report;
  bool published = false;
  // What its processes used until now, by its shim; unset fields: it doesn't say. And its GPUs.
  v1::HostUsage usage;
  GpuRecord gpus;
  std::string fills_disk;  // why it is to be stopped; not kept over a restart of the agent

  bool gone() const { return claim == Claim::kStopped || ended; }
};

// All that is known of what it has used here; ran_ns 0: nothing.
v1::HostUsage HostUsageOf(const AttemptRecord& record);

// The highest the agent ever saw of the scheduler (contract 2).
struct Seen {
  std::string store_id;
  uint64_t epoch = 0;
  uint64_t commit = 0;
  std::string mac;  // that came with them; empty: none did
  bool operator==(const Seen&) const = default;
};

// What a shim's files say, whole but for lines that were taken in: the Reconciler compares it with
// what it knows.
struct ShimNews {
  Claim claim = Claim::kNone;
  bool alive = false;  // a shim holds the attempt, or strays of it still run
  std::optional<int64_t> start_ns;
  std::vector<v1::WorkerExit> exits;  // known so far, in the order of their end
  bool final = false;                 // DIR/exits is there: no process is left
  bool stop_sent = false;
  bool fenced = false;
  int64_t end_ns = 0;
  size_t lines_before = 0;           // durable progress lines that are dropped
  std::vector<std::string> lines;    // those after them
  std::vector<int64_t> lines_at_ns;  // parallel
  std::string metrics;               // the newest progress line; empty: none
  int64_t metrics_at_ns = 0;
  v1::HostUsage usage;              // newest word; ran_ns 0: none
  std::vector<v1::RankTime> times;  // of ranks that tell how long their steps take, by rank

  // Of a job's life there may be millions.
  void DropLines() {
    lines_before += lines.size();
    lines.clear();
    lines_at_ns.clear();
  }
};

}  // namespace muster::agent
