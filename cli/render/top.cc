#include "cli/render/top.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/render/bar.h"
#include "common/base/units.h"

namespace muster {
namespace {

std::string Share(int64_t part, int64_t whole) {
  return whole <= 0 ? "" : absl::StrCat(part * 100 / whole, " %");
}

// Used, free and down devices in 20 cells.
std::string UseBar(const pb::TopResponse::Total& total, const Screen& screen) {
  constexpr int64_t kCells = 20;
  if (total.total_milli() <= 0) return "";
  const int64_t used = std::min(
      kCells, (total.used_milli() * kCells + total.total_milli() / 2) / total.total_milli());
  const int64_t down = std::min(
      kCells - used, (total.down_milli() * kCells + total.total_milli() / 2) / total.total_milli());
  std::string bar;
  for (int64_t i = 0; i < kCells; ++i) {
    bar += i < used            ? (screen.utf8 ? "█" : "#")
           : i < kCells - down ? (screen.utf8 ? "░" : ".")
                               : "x";
  }
  return bar;
}

std::string FlavourOrCpus(const pb::TopResponse& top, const std::string& flavour) {
  if (flavour.empty()) return "cpus";
  const auto total = std::find_if(top.totals().begin(), top.totals().end(),
                                  [&](const auto& one) { return one.flavour() == flavour; });
  return FlavourName(flavour, total != top.totals().end() && total->declared());
}
std::string MilliOrNothing(int64_t milli) { return milli == 0 ? "" : FormatMilli(milli); }
std::string TokensText(double tokens_per_s) {
  return tokens_per_s > 0 ? FormatCount(tokens_per_s) : "";
}

}  // namespace

std::string TopHead(const pb::TopResponse& top, const Screen& screen) {
  std::string out = absl::StrCat(FormatClockSeconds(top.now_ns()), "  ", top.hosts_up(), " of ",
                                 top.hosts_known(), " hosts up, ", top.running_jobs(),
                                 " jobs run, ", top.waiting_jobs(), " wait\n");
  int width = 0;
  for (const auto& total : top.totals())
    width = std::max(width, DisplayWidth(FlavourName(total.flavour(), total.declared())));
  for (const auto& total : top.totals()) {
    std::string name = FlavourName(total.flavour(), total.declared());
    name.resize(static_cast<size_t>(width), ' ');
    absl::StrAppend(&out, " ", name, "  ", UseBar(total, screen), "  ",
                    FormatMilli(total.used_milli()), " of ", FormatMilli(total.total_milli()),
                    " in use, ", Share(total.used_milli(), total.total_milli()));
    if (total.down_milli() > 0)
      absl::StrAppend(&out, "; ", FormatMilli(total.down_milli()), " drained or down");
    if (total.waiting_milli() > 0)
      absl::StrAppend(&out, "; ", FormatMilli(total.waiting_milli()), " waited for");
    out += '\n';
  }
  return out;
}

Table TopTable(const pb::TopResponse& top, pb::TopRequest::By by) {
  if (by == pb::TopRequest::JOB) {
    Table table({{"JOB", Table::kRight},
                 {"NAME", Table::kLeft, false, 2},
                 {"QUEUE"},
                 {"OWNER", Table::kLeft, false, 4},
                 {"FLAVOUR"},
                 {"IN USE", Table::kRight},
                 {"WAITS FOR", Table::kRight},
                 {"WHERE", Table::kLeft, false, 1},
                 {"PROGRESS"},
                 {"TOKENS/S", Table::kRight, false, 3},
                 {"MFU", Table::kRight, false, 5},
                 {"SINCE"}});
    for (const auto& row : top.rows()) {
      pb::Task task;
      *task.mutable_progress() = row.progress();
      table.AddRow({absl::StrCat(row.job()), row.name(), row.queue(), row.owner(),
                    FlavourOrCpus(top, row.flavour()), MilliOrNothing(row.used_milli()),
                    MilliOrNothing(row.waiting_milli()), row.place(), ShortProgress(task),
                    TokensText(row.tokens_per_s()),
                    row.progress().mfu_causal() > 0
                        ? absl::StrFormat("%.0f%%", 100 * row.progress().mfu_causal())
                        : "",
                    row.since_ns() > 0 ? FormatClock(row.since_ns(), top.now_ns()) : ""});
    }
    return table;
  }
  const bool queue = by == pb::TopRequest::QUEUE, cluster = by == pb::TopRequest::CLUSTER;
  std::vector<Table::Column> columns = {{queue     ? "QUEUE"
                                         : cluster ? "CLUSTER"
                                                   : "USER"},
                                        {"FLAVOUR"}};
  if (queue)
    columns.insert(columns.end(),
                   {{"GUARANTEE", Table::kRight, false, 2}, {"ENTITLED", Table::kRight}});
  if (cluster) columns.push_back({"DEVICES", Table::kRight});
  columns.push_back({"IN USE", Table::kRight});
  if (cluster) columns.push_back({"SHARE", Table::kRight});
  columns.insert(columns.end(), {{"WAITS FOR", Table::kRight},
                                 {"RUN HERE", Table::kRight, false, 3},
                                 {"WAIT HERE", Table::kRight},
                                 {"LONGEST WAIT", Table::kRight},
                                 {"TOKENS/S", Table::kRight, false, 4}});
  Table table(columns);
  for (const auto& row : top.rows()) {
    std::vector<std::string> cells = {row.name(), FlavourOrCpus(top, row.flavour())};
    if (queue)
      cells.insert(cells.end(),
                   {FormatMilli(row.guarantee_milli()), FormatMilli(row.entitled_milli())});
    if (cluster) cells.push_back(MilliOrNothing(row.total_milli()));
    cells.push_back(FormatMilli(row.used_milli()));
    if (cluster) cells.push_back(Share(row.used_milli(), row.total_milli()));
    cells.insert(cells.end(), {MilliOrNothing(row.waiting_milli()),
                               absl::StrCat(row.running_jobs()), absl::StrCat(row.waiting_jobs()),
                               row.oldest_wait_ns() > 0 ? FormatSpan(row.oldest_wait_ns()) : "",
                               TokensText(row.tokens_per_s())});
    table.AddRow(std::move(cells));
  }
  return table;
}

}  // namespace muster
