#include "cli/render/usage.h"

#include <algorithm>
#include <ranges>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"

namespace muster {
namespace {

constexpr int kSparkCells = 24;

// Cores with one decimal.
std::string Cores(int64_t milli) { return FormatMilli(milli / 100 * 100); }

std::string BusyPercent(const pb::GpuUsage& gpus) {
  if (gpus.watched_ns() <= 0) return "";
  const int64_t percent =
      static_cast<int64_t>(static_cast<__int128>(gpus.busy_ns()) * 100 / gpus.watched_ns());
  return absl::StrCat(percent, " %");
}

std::string OfAsked(const std::string& used, int64_t asked, const std::string& asked_text) {
  return used.empty() || asked <= 0 ? used : absl::StrCat(used, " of ", asked_text);
}

// A cell a slot, or several slots; blank where nobody watched.
std::string Spark(const pb::GpuUsage& gpus) {
  static constexpr const char* kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const int slots = gpus.busy_permille_size();
  if (slots < 2) return "";
  const int each = (slots + kSparkCells - 1) / kSparkCells;
  std::string cells;
  for (int first = 0; first < slots; first += each) {
    int sum = 0, count = 0;
    for (int i = first; i < std::min(first + each, slots); ++i) {
      if (gpus.busy_permille(i) < 0) continue;
      sum += std::min(gpus.busy_permille(i), 1000);
      ++count;
    }
    absl::StrAppend(&cells, count == 0 ? " " : kHeights[sum / count * 7 / 1000]);
  }
  return absl::StrCat(cells, " ", FormatSpan(gpus.slot_ns() * each), " each");
}

}  // namespace

std::string ShortUsage(const pb::Job& job) {
  const pb::Task* task = LeadTask(job);
  if (task == nullptr) return "";
  for (const pb::Attempt& attempt : task->attempts() | std::views::reverse) {
    if (!attempt.has_usage()) continue;
    const pb::Usage& usage = attempt.usage();
    std::vector<std::string> parts;
    if (usage.has_memory_peak_bytes()) parts.push_back(FormatSize(usage.memory_peak_bytes()));
    if (usage.has_cpus_mean_milli())
      parts.push_back(absl::StrCat(Cores(usage.cpus_mean_milli()), " cpus"));
    if (usage.has_gpus()) parts.push_back(absl::StrCat("GPUs ", BusyPercent(usage.gpus())));
    return absl::StrJoin(parts, ", ");
  }
  return "";
}

Table UsageTable(const pb::Job& job, const Screen& screen) {
  Table table({{"TASK", Table::kLeft, false, 3},
               {"ATTEMPT", Table::kRight},
               {"PEAK MEMORY", Table::kRight},
               {"CPUS", Table::kRight},
               {"MOST CPUS", Table::kRight, false, 2},
               {"GPUS BUSY", Table::kRight},
               {"GPU MEMORY", Table::kRight, false, 1},
               {"OVER TIME"}});
  for (const pb::Task& task : job.tasks()) {
    const pb::TaskSpec* spec = SpecOf(job, task.name());
    const pb::Resources& asked =
        spec == nullptr ? pb::Resources::default_instance() : spec->resources();
    for (const pb::Attempt& attempt : task.attempts()) {
      if (!attempt.has_usage()) continue;
      const pb::Usage& usage = attempt.usage();
      const auto known = [](bool is, const std::string& text) { return is ? text : ""; };
      table.AddRow(
          {task.name(), absl::StrCat(attempt.number()),
           OfAsked(known(usage.has_memory_peak_bytes(), FormatSize(usage.memory_peak_bytes())),
                   asked.memory_bytes(), FormatSize(asked.memory_bytes())),
           OfAsked(known(usage.has_cpus_mean_milli(), Cores(usage.cpus_mean_milli())),
                   asked.cpus_milli(), FormatMilli(asked.cpus_milli())),
           known(usage.has_cpus_most_milli(), Cores(usage.cpus_most_milli())),
           BusyPercent(usage.gpus()),
           known(usage.has_gpus(),
                 OfAsked(FormatSize(usage.gpus().memory_peak_bytes()), usage.gpus().memory_bytes(),
                         FormatSize(usage.gpus().memory_bytes()))),
           screen.utf8 ? Spark(usage.gpus()) : ""});
    }
  }
  return table;
}

}  // namespace muster
