#include "scheduler/agents/check_message.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"

namespace muster {
namespace {

constexpr size_t kMaxText = 16 << 10;
constexpr int kMaxExits = 65'536 * 8;
constexpr int kMaxDevices = 1024;
constexpr int kMaxSlots = 1024;
constexpr int kMaxUsages = 4096;
constexpr size_t kMaxPath = 4096;
constexpr size_t kMaxName = 255;
constexpr size_t kMaxChunk = 1 << 20;
constexpr int kMaxRefused = 1000;
constexpr size_t kMaxRefusedBytes = 256 << 10;  // together

absl::Status Wrong(std::string_view field, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", std::string(why)));
}

absl::Status CheckKey(const pb::AttemptKey& key) {
  if (!IsId(key.job_uid())) return Wrong("key.job_uid", "must be 32 hex digits");
  if (!IsLabel(key.task())) return Wrong("key.task", "must be a name of 1 to 63 of [A-Za-z0-9._-]");
  if (key.attempt() < 1) return Wrong("key.attempt", "must be 1 or more");
  return absl::OkStatus();
}

absl::Status CheckReport(const pb::AttemptReport& report) {
  if (absl::Status status = CheckKey(report.key()); !status.ok()) return status;
  if (report.phase() < pb::PREPARED || report.phase() > pb::GONE)
    return Wrong("report.phase", "must be PREPARED, STARTED, EXITED or GONE");
  if (report.rendezvous_port() < 0 || report.rendezvous_port() > 65'535)
    return Wrong("report.rendezvous_port", "must be 0..65535");
  // Causes that only the scheduler gives are told back of what was stopped; Apply takes them for no
  // more than that.
  if (!pb::Cause_IsValid(report.cause())) return Wrong("report.cause", "is none of this protocol");
  if (report.exits_size() > kMaxExits) return Wrong("report.exits", "too many");
  if (report.detail().size() > kMaxText) return Wrong("report.detail", "longer than 16 KiB");
  if (report.usage().gpus().busy_permille_size() > kMaxSlots)
    return Wrong("report.usage.gpus.busy_permille", "more than 1024");
  if (report.fills_disk().size() > kMaxText)
    return Wrong("report.fills_disk", "longer than 16 KiB");
  for (const pb::WorkerExit& exit : report.exits()) {
    if (exit.rank() < 0 || exit.signal() < 0 || exit.signal() > 64 || exit.exit_code() < 0 ||
        exit.exit_code() > 255 || exit.detail().size() > kMaxText) {
      return Wrong("report.exits", "rank, signal, exit code or detail out of range");
    }
    if (!pb::Cause_IsValid(exit.cause()))
      return Wrong("report.exits.cause", "is none of this protocol");
  }
  return absl::OkStatus();
}

// What they say may be anything: PlausibleUsage looks at that.
absl::Status CheckHeartbeat(const pb::Heartbeat& heartbeat) {
  if (heartbeat.usages_size() > kMaxUsages) return Wrong("heartbeat.usages", "more than 4096");
  for (const pb::AttemptUsage& told : heartbeat.usages()) {
    if (absl::Status status = CheckKey(told.key()); !status.ok()) return status;
    if (told.usage().gpus().busy_permille_size() > kMaxSlots)
      return Wrong("heartbeat.usages.usage.gpus.busy_permille", "more than 1024");
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const pb::CheckpointReport& report) {
  const pb::Checkpoint& checkpoint = report.checkpoint();
  if (checkpoint.step() < 0) return Wrong("checkpoint.step", "must not be negative");
  if (checkpoint.path().size() > kMaxPath) return Wrong("checkpoint.path", "longer than 4096");
  if (checkpoint.storage().size() > kMaxName) return Wrong("checkpoint.storage", "longer than 255");
  if (report.loaded_step() < -1) return Wrong("checkpoint.loaded_step", "must be -1 or more");
  if (report.loaded_path().size() > kMaxPath)
    return Wrong("checkpoint.loaded_path", "longer than 4096");
  return CheckKey(report.key());
}

absl::Status CheckLoaded(const pb::LoadedReport& report) {
  if (report.step() < -1) return Wrong("loaded.step", "must be -1 or more");
  if (report.path().size() > kMaxPath) return Wrong("loaded.path", "longer than 4096");
  if (report.refused_size() > kMaxRefused) return Wrong("loaded.refused", "more than 1000");
  size_t bytes = 0;
  for (const std::string& refused : report.refused()) bytes += refused.size();
  if (bytes > kMaxRefusedBytes) return Wrong("loaded.refused", "longer than 256 KiB together");
  return CheckKey(report.key());
}

constexpr int kMaxTimes = 1024;

absl::Status CheckProgress(const pb::ProgressReport& report) {
  if (report.times_size() > kMaxTimes) return Wrong("progress.times", "more than 1024");
  for (const pb::RankTime& time : report.times()) {
    if (time.rank() < 0 || time.step() < 0 || time.steps() < 0 || time.own_us() < 0)
      return Wrong("progress.times", "must not be negative");
  }
  const pb::Progress& progress = report.progress();
  if (progress.step() < 0 || progress.total_steps() < -1)
    return Wrong("progress.step", "must not be negative");
  if (progress.at_ns() < 0 || progress.expected_end_ns() < 0)
    return Wrong("progress.at_ns", "must not be negative");
  return CheckKey(report.key());
}

absl::Status CheckRanges(const pb::LogChunk& chunk) {
  int64_t at = 0;
  for (const pb::ByteRange& range : chunk.from_stderr()) {
    if (range.begin() < at || range.end() <= range.begin() ||
        range.end() > static_cast<int64_t>(chunk.data().size())) {
      return Wrong("log_chunk.from_stderr", "must be ranges of data, ascending");
    }
    at = range.end();
  }
  return absl::OkStatus();
}

absl::Status CheckInventory(const pb::Inventory& inventory) {
  if (inventory.devices_size() > kMaxDevices) return Wrong("inventory.devices", "more than 1024");
  if (inventory.cpus_milli() < 0 || inventory.memory_bytes() < 0 || inventory.disk_bytes() < 0) {
    return Wrong("inventory", "amounts must not be negative");
  }
  if (inventory.devices_size() > 0 && !IsLabel(inventory.flavour()))
    return Wrong("inventory.flavour", "must be a name");
  std::set<int32_t> indexes;
  for (const pb::Device& device : inventory.devices()) {
    if (device.index() < 0 || device.index() >= kMaxDevices ||
        !indexes.insert(device.index()).second) {
      return Wrong("inventory.devices", "indexes must be 0..1023, each once");
    }
  }
  if (inventory.low_disk().size() > kMaxText)
    return Wrong("inventory.low_disk", "longer than 16 KiB");
  if (inventory.address().size() > kMaxName) return Wrong("inventory.address", "longer than 255");
  if (inventory.trainer_schema_hash().size() > kMaxName)
    return Wrong("inventory.trainer_schema_hash", "longer than 255");
  if (inventory.trainer_schema_json().size() > (1u << 20))
    return Wrong("inventory.trainer_schema_json", "longer than 1 MiB");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHello(const pb::Hello& hello) {
  if (!IsLabel(hello.cluster()))
    return Wrong("hello.cluster", "must be a name of 1 to 63 of [A-Za-z0-9._-]");
  if (!IsLabel(hello.host()))
    return Wrong("hello.host", "must be a name of 1 to 63 of [A-Za-z0-9._-]");
  if (!IsId(hello.state_id())) return Wrong("hello.state_id", "must be 32 hex digits");
  if (hello.boot_id().empty() || hello.boot_id().size() > 64)
    return Wrong("hello.boot_id", "must be 1 to 64 characters");
  if (!hello.store_id_seen().empty() && !IsId(hello.store_id_seen()))
    return Wrong("hello.store_id_seen", "must be 32 hex digits");
  if (absl::Status status = CheckInventory(hello.inventory()); !status.ok()) return status;
  for (const pb::AttemptReport& report : hello.attempts()) {
    if (absl::Status status = CheckReport(report); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckAgentMessage(const pb::AgentMessage& message) {
  switch (message.body_case()) {
    case pb::AgentMessage::kHello:
      return CheckHello(message.hello());
    case pb::AgentMessage::kHeartbeat:
      return CheckHeartbeat(message.heartbeat());
    case pb::AgentMessage::kLogChunk:
      if (message.log_chunk().data().size() > kMaxChunk)
        return Wrong("log_chunk.data", "longer than 1 MiB");
      if (message.log_chunk().error().size() > kMaxText)
        return Wrong("log_chunk.error", "longer than 16 KiB");
      if (message.log_chunk().dropped_bytes() < 0)
        return Wrong("log_chunk.dropped_bytes", "must not be negative");
      if (message.log_chunk().next_offset() < 0)
        return Wrong("log_chunk.next_offset", "must not be negative");
      return CheckRanges(message.log_chunk());
    case pb::AgentMessage::kReport:
      return CheckReport(message.report());
    case pb::AgentMessage::kProgress:
      return CheckProgress(message.progress());
    case pb::AgentMessage::kCheckpoint:
      return CheckCheckpoint(message.checkpoint());
    case pb::AgentMessage::kExportReport:
      if (message.export_report().staged().size() > kMaxPath ||
          message.export_report().target().size() > kMaxPath ||
          message.export_report().detail().size() > kMaxText) {
        return Wrong("export_report", "staged, target or detail too long");
      }
      return CheckKey(message.export_report().key());
    case pb::AgentMessage::kLoaded:
      return CheckLoaded(message.loaded());
    case pb::AgentMessage::kFault:
      if (message.fault().device() < -1 || message.fault().device() >= kMaxDevices)
        return Wrong("fault.device", "must be -1..1023");
      if (message.fault().detail().size() > kMaxText)
        return Wrong("fault.detail", "longer than 16 KiB");
      if (message.fault().at_ns() <= 0) return Wrong("fault.at_ns", "must be positive");
      return absl::OkStatus();
    case pb::AgentMessage::kChecked:
      if (message.checked().detail().size() > kMaxText)
        return Wrong("checked.detail", "longer than 16 KiB");
      return absl::OkStatus();
    case pb::AgentMessage::BODY_NOT_SET:
      return Wrong("body", "missing, or of a newer protocol");
  }
  return Wrong("body", "unknown");
}

}  // namespace muster
