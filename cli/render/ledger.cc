#include "cli/render/ledger.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"

namespace muster {
namespace {

// One for a whole table, so that its figures can be compared, and small enough for its largest.
struct Unit {
  int64_t us;
  const char *title, *short_name;
};

Unit UnitFor(int64_t largest_us) {
  constexpr Unit kHours = {3'600'000'000, "DEVICE-HOURS", "h"},
                 kMinutes = {60'000'000, "DEVICE-MINUTES", "min"},
                 kSeconds = {1'000'000, "DEVICE-SECONDS", "s"};
  return largest_us >= kHours.us ? kHours : largest_us >= 10 * kMinutes.us ? kMinutes : kSeconds;
}

std::string In(const Unit& unit, int64_t device_us) {
  return absl::StrFormat("%.3f", static_cast<double>(device_us) / static_cast<double>(unit.us));
}
std::string WithUnit(const Unit& unit, int64_t device_us) {
  return absl::StrCat(In(unit, device_us), " ", unit.short_name);
}

}  // namespace

Table LedgerTable(const pb::LedgerResponse& ledger) {
  const Unit unit = UnitFor(ledger.capacity_device_us());
  Table table({{"CLASS"}, {unit.title, Table::kRight}, {"SHARE", Table::kRight}});
  for (const auto& entry : ledger.entries()) {
    std::string share;
    if (ledger.capacity_device_us() > 0) {
      share = absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(entry.device_us()) /
                                             static_cast<double>(ledger.capacity_device_us()));
    }
    table.AddRow({entry.class_(), In(unit, entry.device_us()), share});
  }
  table.AddRow({"all", In(unit, ledger.capacity_device_us()),
                ledger.capacity_device_us() > 0 ? "100.0 %" : ""});
  return table;
}

Table LedgerRowsTable(const pb::LedgerResponse& ledger, pb::GetLedgerRequest::By by) {
  const bool job = by == pb::GetLedgerRequest::JOB;
  std::vector<Table::Column> columns;
  if (job)
    columns = {{"JOB", Table::kRight}, {"NAME"}, {"QUEUE"}, {"OWNER"}};
  else
    columns = {{by == pb::GetLedgerRequest::USER ? "USER" : "QUEUE"}};
  // What attempts held, and of queues what was kept for them or lacked by them; idle and down are
  // nobody's.
  const int kinds = by == pb::GetLedgerRequest::QUEUE ? 5 : 3;
  for (int c = 0; c < kinds && c < ledger.entries_size(); ++c)
    columns.push_back({absl::AsciiStrToUpper(ledger.entries(c).class_()), Table::kRight});
  columns.push_back({"ALL", Table::kRight});
  int64_t largest_us = 0;
  for (const auto& row : ledger.rows()) {
    int64_t sum_us = 0;
    for (int c = 0; c < kinds && c < row.device_us_size(); ++c) sum_us += row.device_us(c);
    largest_us = std::max(largest_us, sum_us);
  }
  const Unit unit = UnitFor(largest_us);
  Table table(columns);
  for (const auto& row : ledger.rows()) {
    std::vector<std::string> cells;
    if (job)
      cells = {absl::StrCat(row.job()), row.name(), row.queue(), row.owner()};
    else
      cells = {row.name()};
    int64_t sum_us = 0;
    for (int c = 0; c < kinds && c < ledger.entries_size(); ++c) {
      const int64_t device_us = c < row.device_us_size() ? row.device_us(c) : 0;
      sum_us += device_us;
      cells.push_back(WithUnit(unit, device_us));
    }
    cells.push_back(WithUnit(unit, sum_us));
    table.AddRow(std::move(cells));
  }
  return table;
}

std::string LedgerLine(const pb::LedgerResponse& ledger) {
  if (ledger.since_ns() == 0) return "Nothing has been booked yet.\n";
  std::string text = absl::StrCat("From ", FormatDateTime(ledger.since_ns()), " to ",
                                  FormatDateTime(ledger.until_ns()),
                                  ": time of devices of every flavour, stand-ins included.\n");
  const pb::Fragmentation& lost = ledger.fragmentation();
  if (lost.now_tasks() > 0) {
    absl::StrAppend(&text, "Fragmentation: ", FormatMilli(lost.now_milli()),
                    " devices are free now, but in the wrong shape for ", lost.now_tasks(),
                    lost.now_tasks() == 1 ? " task that waits.\n" : " tasks that wait.\n");
  }
  return text;
}

}  // namespace muster
