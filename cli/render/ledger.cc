#include "cli/render/ledger.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"

namespace muster {
namespace {

std::string DeviceHours(int64_t device_us) { return absl::StrFormat("%.3f", static_cast<double>(device_us) / 3.6e9); }

}  // namespace

Table LedgerTable(const pb::LedgerResponse& ledger) {
  Table table({{"CLASS"}, {"DEVICE-HOURS", Table::kRight}, {"SHARE", Table::kRight}});
  for (const auto& entry : ledger.entries()) {
    std::string share;
    if (ledger.capacity_device_us() > 0) {
      share = absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(entry.device_us()) / static_cast<double>(ledger.capacity_device_us()));
    }
    table.AddRow({entry.class_(), DeviceHours(entry.device_us()), share});
  }
  table.AddRow({"all", DeviceHours(ledger.capacity_device_us()), ledger.capacity_device_us() > 0 ? "100.0 %" : ""});
  return table;
}

Table LedgerRowsTable(const pb::LedgerResponse& ledger, pb::GetLedgerRequest::By by) {
  const bool job = by == pb::GetLedgerRequest::JOB;
  std::vector<Table::Column> columns;
  if (job) columns = {{"JOB", Table::kRight}, {"NAME"}, {"QUEUE"}, {"OWNER"}};
  else columns = {{by == pb::GetLedgerRequest::USER ? "USER" : "QUEUE"}};
  constexpr int kHeld = 4;               // productive, restart, preemption, reserved; idle and down are nobody's
  for (int c = 0; c < kHeld && c < ledger.entries_size(); ++c) columns.push_back({absl::AsciiStrToUpper(ledger.entries(c).class_()), Table::kRight});
  columns.push_back({"ALL", Table::kRight});
  Table table(columns);
  for (const auto& row : ledger.rows()) {
    std::vector<std::string> cells;
    if (job) cells = {absl::StrCat(row.job()), row.name(), row.queue(), row.owner()};
    else cells = {row.name()};
    int64_t sum_us = 0;
    for (int c = 0; c < kHeld && c < ledger.entries_size(); ++c) {
      const int64_t device_us = c < row.device_us_size() ? row.device_us(c) : 0;
      sum_us += device_us;
      cells.push_back(DeviceHours(device_us));
    }
    cells.push_back(DeviceHours(sum_us));
    table.AddRow(std::move(cells));
  }
  return table;
}

std::string LedgerLine(const pb::LedgerResponse& ledger) {
  if (ledger.since_ns() == 0) return "Nothing has been booked yet.\n";
  std::string text = absl::StrCat("From ", FormatDateTime(ledger.since_ns()), " to ", FormatDateTime(ledger.until_ns()), ", device-hours of every flavour, stand-ins included.\n");
  const pb::Fragmentation& lost = ledger.fragmentation();
  if (lost.since_ns() > 0) {
    absl::StrAppend(&text, "Fragmentation: ", DeviceHours(lost.device_us()), " device-hours free but in the wrong shape since ", FormatDateTime(lost.since_ns()));
    absl::StrAppend(&text, lost.now_tasks() > 0 ? absl::StrCat("; now ", FormatMilli(lost.now_milli()), " devices, ", lost.now_tasks(), " tasks wait for them") : "", ".\n");
  }
  return text;
}

}  // namespace muster
