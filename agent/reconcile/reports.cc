// What a host tells of itself and its attempts: Hello, reports, faults; and again, until they are
// acknowledged.
#include <algorithm>
#include <tuple>
#include <utility>

#include "agent/reconcile/exits.h"
#include "agent/reconcile/reconciler.h"
#include "common/base/protocol.h"
#include "common/base/utf8.h"

namespace muster::agent {
namespace {

constexpr int kFaultRepeats = 60;  // heartbeats
constexpr size_t kFaultsKept = 64;
// A Hello that is larger leaves out what is gone: a scheduler takes no message above 320 KiB from
// the network.
constexpr size_t kHelloBytes = 128 << 10;
// A report that is larger, of very many processes, is told in several messages.
constexpr size_t kReportBytes = 128 << 10;

// The failures first, in the order in which they happened: by the first one that it hears the
// scheduler judges the attempt.
void PutFailuresFirst(v1::AttemptReport* report) {
  const auto place = [](const v1::WorkerExit& exit) {
    return std::tuple(exit.exit_code() == 0 && exit.signal() == 0, exit.at_ns(), exit.rank());
  };
  std::sort(report->mutable_exits()->begin(), report->mutable_exits()->end(),
            [&](const v1::WorkerExit& a, const v1::WorkerExit& b) { return place(a) < place(b); });
}

}  // namespace

std::string Shortened(const std::string& text) {
  constexpr size_t kLongest = 4096;
  const std::string valid = ValidUtf8(text);
  return valid.size() <= kLongest ? valid : std::string(CutUtf8(valid, kLongest)) + " ...";
}

v1::AgentMessage Reconciler::Hello(const v1::Inventory& inventory, int64_t boot_ns) {
  hello_ns_ = boot_ns;
  v1::AgentMessage message;
  v1::Hello* hello = message.mutable_hello();
  hello->set_protocol_version(kAgentProtocolVersion);
  hello->set_cluster(identity_.cluster);
  hello->set_host(identity_.host);
  hello->set_state_id(identity_.state_id);
  hello->set_boot_id(identity_.boot_id);
  hello->set_store_id_seen(seen_.store_id);
  hello->set_epoch_seen(seen_.epoch);
  hello->set_commit_seen(seen_.commit);
  hello->set_mac_seen(seen_.mac);
  *hello->mutable_inventory() = inventory;
  size_t bytes = message.ByteSizeLong();
  for (const auto& [id, record] : records_) {
    // What is gone holds nothing, and follows the Welcome anyway. After another boot it is said
    // here: else the new boot id alone would say that it ended, and not how.
    const bool follows = record.gone() && record.boot_id == identity_.boot_id;
    if (follows && bytes > kHelloBytes) continue;
    v1::AttemptReport report = ReportOf(record);
    const bool large = report.ByteSizeLong() > kReportBytes;
    if (follows && large) continue;
    const bool cut = report.exits_size() > 0 && (large || bytes > kHelloBytes);
    if (cut) report.clear_exits();
    bytes += report.ByteSizeLong();
    // A checkpoint, an export or the ends of processes are told before the end of the attempt, here
    // too: what follows the Welcome says both.
    const bool more = cut || !record.checkpoints.empty() ||
                      (record.export_report.has_value() && !record.published);
    if (more && record.gone() && record.claim == Claim::kStarted) report.set_phase(v1::STARTED);
    *hello->add_attempts() = std::move(report);
  }
  return message;
}

v1::AttemptReport Reconciler::ReportOf(const AttemptRecord& record) {
  v1::AttemptReport report;
  *report.mutable_key() = KeyOf(record.id);
  report.set_phase(record.gone()                     ? v1::GONE
                   : record.claim == Claim::kStarted ? v1::STARTED
                                                     : v1::PREPARED);
  report.set_rendezvous_port(record.port);
  for (const v1::WorkerExit& exit : record.exits) {
    *report.add_exits() = exit;
    report.mutable_exits()->rbegin()->set_detail(Shortened(WithoutMark(exit.detail())));
  }
  report.set_cause(record.cause);
  report.set_detail(Shortened(record.detail));
  report.set_start_ns(record.start_ns);
  report.set_end_ns(record.end_ns);
  // Its shim says so with the end: an order that comes after the last process has ended stops
  // nothing (contract 13).
  report.set_stop_sent(record.ended && record.stop_sent);
  if (record.ended && record.usage.ran_ns() > 0) *report.mutable_usage() = HostUsageOf(record);
  if (!record.gone()) report.set_fills_disk(Shortened(record.fills_disk));
  return report;
}

void Reconciler::Report(const AttemptRecord& record) {
  if (!has_session()) return;
  v1::AgentMessage message;
  *message.mutable_report() = ReportOf(record);
  if (message.report().ByteSizeLong() > kReportBytes) SendParts(message.mutable_report());
  Send(std::move(message));
}

// The scheduler puts together what it hears of an attempt's processes. Each end is sent once in a
// session, but for the last: it stays in the report, which is repeated. That an attempt is gone
// comes with the end of one process at least: without any, it would be that of a host that has lost
// track of it.
void Reconciler::SendParts(v1::AttemptReport* report) {
  PutFailuresFirst(report);
  std::set<int32_t>& told = exits_told_[IdOf(report->key())];
  const int most = report->exits_size() - 1;
  for (int i = 0; i < most;) {
    v1::AgentMessage message;
    v1::AttemptReport* part = message.mutable_report();
    *part->mutable_key() = report->key();
    part->set_phase(v1::STARTED);
    part->set_cause(report->cause());
    part->set_detail(report->detail());
    part->set_start_ns(report->start_ns());
    for (size_t bytes = 0; i < most && bytes < kReportBytes; ++i) {
      if (!told.insert(report->exits(i).rank()).second) continue;
      part->add_exits()->Swap(report->mutable_exits(i));
      bytes += part->exits().rbegin()->ByteSizeLong();
    }
    if (part->exits_size() > 0) Send(std::move(message));
  }
  report->mutable_exits()->DeleteSubrange(0, most);
}

void Reconciler::Send(v1::AgentMessage message) {
  if (!has_session()) return;
  *message.mutable_session() = session_;
  sender_->Send(std::move(message));
}

void Reconciler::OnFault(int32_t device, int32_t code, const std::string& detail, int64_t at_ns) {
  fault_ns_ = std::max(at_ns, fault_ns_ + 1);
  v1::HostFault fault;
  fault.set_device(device);
  fault.set_code(code);
  fault.set_detail(Shortened(detail));
  fault.set_at_ns(fault_ns_);
  faults_.emplace_back(fault, kFaultRepeats);
  if (faults_.size() > kFaultsKept) faults_.erase(faults_.begin());
  v1::AgentMessage message;
  *message.mutable_fault() = std::move(fault);
  Send(std::move(message));
}

void Reconciler::OnFillsDisk(const AttemptId& id, const std::string& why) {
  const auto found = records_.find(id);
  if (found == records_.end() || found->second.gone()) return;
  found->second.fills_disk = why;
  Report(found->second);
}

void Reconciler::RepeatReports() {
  for (auto& [fault, left] : faults_) {
    v1::AgentMessage message;
    *message.mutable_fault() = fault;
    Send(std::move(message));
    --left;
  }
  std::erase_if(faults_, [](const auto& told) { return told.second <= 0; });
  for (const auto& [id, record] : records_) {
    for (const v1::CheckpointReport& checkpoint : record.checkpoints) {
      v1::AgentMessage message;
      *message.mutable_checkpoint() = checkpoint;
      Send(std::move(message));
    }
    if (record.loaded.has_value()) {
      v1::AgentMessage message;
      *message.mutable_loaded() = *record.loaded;
      Send(std::move(message));
    }
    if (record.export_report.has_value()) {
      v1::AgentMessage message;
      *message.mutable_export_report() = *record.export_report;
      Send(std::move(message));
    }
    Report(record);
  }
}

}  // namespace muster::agent
