#include "cli/render/preview.h"

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

}  // namespace

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
