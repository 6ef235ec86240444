#include "cli/render/preview.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/render/explain.h"
#include "cli/render/table.h"
#include "common/base/units.h"

namespace muster {
namespace {

using Candidate = pb::PreviewResponse::Candidate;

std::string TakesFrom(const Candidate& candidate) {
  std::string text = TakenText(candidate.takes_from());
  if (!text.empty()) return text;
  if (candidate.after_jobs().empty()) return "nobody";
  return absl::StrCat("nobody (", absl::StrJoin(candidate.after_jobs(), ", "),
                      candidate.after_jobs_size() == 1 ? " ends)" : " end)");
}

std::string LossLine(const pb::PreviewResponse& preview) {
  std::string text;
  for (const Candidate& candidate : preview.candidates()) {
    if (!candidate.chosen()) continue;
    for (const auto& taken : candidate.takes_from()) {
      if (taken.lost_gpu_ms() <= 0) continue;
      const char* unit =
          candidate.declared() ? "slot" : "GPU";  // a stand-in's hours are not a GPU's
      double seconds = static_cast<double>(taken.lost_gpu_ms()) / 1000;
      std::string loss = seconds < 360 ? absl::StrFormat("%.0f %s-seconds", seconds, unit)
                                       : absl::StrFormat("%.1f %s-h", seconds / 3600, unit);
      absl::StrAppend(&text, text.empty() ? "" : " ",
                      taken.job() == 0     ? "Another's job"
                      : taken.id().empty() ? absl::StrCat(taken.job())
                                           : taken.id(),
                      " loses about ", loss, ".");
    }
  }
  return text;
}

// "{gpus: 8, preferred: host}"
std::string BlockText(const pb::RankBlock& block) {
  const auto level = [](const char* field, pb::TopologyLevel of) {
    return of == pb::TOPOLOGY_LEVEL_UNSPECIFIED
               ? ""
               : absl::StrCat(", ", field, ": ", absl::AsciiStrToLower(pb::TopologyLevel_Name(of)));
  };
  return absl::StrCat("{gpus: ", block.gpus(), level("preferred", block.preferred()),
                      level("required", block.required()), "}");
}

// "2 to 4 workers with 8 h100-80g"
std::string TakesText(const pb::TaskSpec& task) {
  const int32_t least = std::max(1, task.workers().min()),
                most = std::max(least, task.workers().max());
  std::string text = absl::StrCat(least, least == most ? "" : absl::StrCat(" to ", most),
                                  most == 1 ? " worker" : " workers");
  const pb::Resources& resources = task.resources();
  if (resources.gpus_milli() == 0) return text + " without GPUs";
  const std::string types = absl::StrJoin(resources.gpu_types(), " or ");
  absl::StrAppend(&text, " with ", FormatMilli(resources.gpus_milli()), " ",
                  types.empty() ? "GPUs" : Plain(types));
  return text;
}

}  // namespace

std::string OtherTasksText(const pb::PreviewResponse& preview) {
  if (preview.task().empty()) return "";
  std::string text;
  for (const pb::TaskSpec& task : preview.resolved().tasks()) {
    if (task.name() == preview.task()) continue;
    absl::StrAppend(&text, "Task ", Plain(task.name()), ": ", TakesText(task));
    if (!task.after().empty())
      absl::StrAppend(&text, ", after ", Plain(absl::StrJoin(task.after(), ", ")),
                      ": its place is looked for then");
    else if (!task.with().empty())
      absl::StrAppend(&text, ", together with ", Plain(absl::StrJoin(task.with(), ", ")));
    text += ".\n";
  }
  return text;
}

std::string FilledInText(const pb::JobSpec& asked, const pb::JobSpec& resolved) {
  std::string text;
  for (int t = 0; t < asked.tasks_size() && t < resolved.tasks_size(); ++t) {
    const pb::TaskSpec &before = asked.tasks(t), &after = resolved.tasks(t);
    std::vector<std::string> fields;
    if (before.workers().multiple_of() == 0 && after.workers().multiple_of() != 0)
      fields.push_back(absl::StrCat("workers.multiple_of: ", after.workers().multiple_of()));
    if (before.topology().blocks().empty() && !after.topology().blocks().empty()) {
      std::vector<std::string> blocks;
      for (const pb::RankBlock& block : after.topology().blocks())
        blocks.push_back(BlockText(block));
      fields.push_back(absl::StrCat("topology.blocks: [", absl::StrJoin(blocks, ", "), "]"));
    }
    if (fields.empty()) continue;
    absl::StrAppend(
        &text, "Filled in",
        resolved.tasks_size() > 1 ? absl::StrCat(" for task ", Plain(after.name())) : "",
        after.trainer_json().empty() ? " by its blocks: " : " by the trainer's layout: ",
        absl::StrJoin(fields, "; "), "\n");
  }
  return text;
}

std::string RenderPreview(const pb::PreviewResponse& preview, const Screen& screen,
                          int64_t now_ns) {
  Table table({{"#", Table::kRight},
               {"CLUSTER"},
               {"FLAVOUR"},
               {"WORKERS"},
               {"WITHIN"},
               {"STARTS"},
               {"CHOSEN"},
               {.title = "TAKES FROM", .wrap = true}});
  int number = 0;
  for (const Candidate& candidate : preview.candidates()) {
    std::string flavour =
        candidate.flavour().empty() ? "-" : FlavourName(candidate.flavour(), candidate.declared());
    if (candidate.start_ns() < 0) {
      table.AddRow({"-", candidate.cluster(), flavour, "-", "-", "never", "",
                    LocalTimes(candidate.reason(), now_ns)});
      continue;
    }
    std::string workers = candidate.gpus_milli_per_worker() > 0
                              ? absl::StrCat(candidate.workers(), " x ",
                                             FormatMilli(candidate.gpus_milli_per_worker()))
                              : absl::StrCat(candidate.workers());
    table.AddRow({absl::StrCat(++number), candidate.cluster(), flavour, workers, candidate.within(),
                  FormatStart(candidate.start_ns(), now_ns), candidate.chosen() ? "yes" : "",
                  TakesFrom(candidate)});
  }
  std::string out;
  if (preview.resolved().tasks_size() > 1 && !preview.task().empty())
    absl::StrAppend(&out, "Task ", Plain(preview.task()), ":\n");
  if (!table.empty()) out += table.Render(screen);
  number = 0;
  for (const Candidate& candidate :
       preview.candidates()) {  // a start that is unknown has its reason below
    if (candidate.start_ns() < 0) continue;
    ++number;
    if (candidate.start_ns() == 0 && !candidate.reason().empty())
      absl::StrAppend(&out, number, ": ", LocalTimes(Plain(candidate.reason()), now_ns), ".\n");
  }
  std::string last = Plain(preview.queue_line()), loss = LossLine(preview);
  if (!loss.empty()) absl::StrAppend(&last, last.empty() ? "" : " ", loss);
  if (!last.empty()) absl::StrAppend(&out, last, "\n");
  return out;
}

bool WouldEvict(const pb::PreviewResponse& preview) {
  for (const Candidate& candidate : preview.candidates())
    if (candidate.chosen() && candidate.takes_from_size() > 0) return true;
  return false;
}

}  // namespace muster
