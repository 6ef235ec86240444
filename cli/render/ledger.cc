#include "cli/render/ledger.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

std::string LedgerLine(const pb::LedgerResponse& ledger) {
  if (ledger.since_ns() == 0) return "Nothing has been booked yet.\n";
  return absl::StrCat("From ", FormatDateTime(ledger.since_ns()), " to ", FormatDateTime(ledger.until_ns()), ", devices of every flavour, stand-ins included.\n");
}

}  // namespace muster
