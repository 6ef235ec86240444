#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "scheduler/ask/ask.h"

namespace muster {
namespace {

// UTC clock time; with the date when it is more than 18 hours away.
std::string ClockTime(int64_t at_ns, int64_t now_ns) {
  const time_t seconds = static_cast<time_t>(at_ns / kSecond);
  tm parts;
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof text, at_ns - now_ns > 18 * kHour ? "%Y-%m-%d %H:%M UTC" : "%H:%M:%S UTC", &parts);
  return text;
}

std::string Jobs(const pb::Verdict& verdict) {
  std::vector<std::string> numbers;
  for (uint64_t number : verdict.held_by()) numbers.push_back(absl::StrCat(number));
  return absl::StrCat(numbers.size() == 1 ? "job " : "jobs ", absl::StrJoin(numbers, ", "));
}

std::string Where(const pb::Verdict& verdict) {
  std::string where = verdict.flavour();
  if (!verdict.cluster().empty()) absl::StrAppend(&where, where.empty() ? "in " : " in ", verdict.cluster());
  return where;
}

std::string Reason(const State& state, const JobRow& job, int32_t task, const pb::Verdict& verdict) {
  const std::string missing = verdict.missing_milli() > 0 ? absl::StrCat(FormatMilli(verdict.missing_milli()), " more ") : "";
  switch (verdict.code()) {
    case pb::V_AFTER: {
      std::vector<std::string> names;
      for (const std::string& name : job.task_spec(task).after()) {
        const int32_t before = TaskIndex(*job.spec, name);
        if (before >= 0 && job.tasks[before].state != pb::TASK_SUCCEEDED) names.push_back(name);
      }
      return absl::StrCat("waits for ", absl::StrJoin(names, ", "), " to succeed");
    }
    case pb::V_STARTING_NOW: return absl::StrCat("starts now on ", Where(verdict));
    case pb::V_CAPACITY:
      return absl::StrCat("is entitled, and waits for ", missing, Where(verdict), " to become free");
    case pb::V_SHARE:
      return absl::StrCat("waits for ", missing, Where(verdict), ": ", job.spec->queue(),
                          " has what it is entitled to, and nothing is taken from others for more");
    case pb::V_LIMIT: return absl::StrCat("a limit on the way to ", job.spec->queue(), " is reached", missing.empty() ? "" : absl::StrCat("; it lacks ", missing, Where(verdict)));
    case pb::V_RECLAIMING: return absl::StrCat("is entitled to ", Where(verdict), "; others checkpoint and leave for it");
    case pb::V_PLACEMENT: return absl::StrCat("enough ", Where(verdict), " is free, but not in the shape that its gang needs");
    case pb::V_BACKOFF:
      return absl::StrCat("failed before; starts again at ", ClockTime(job.tasks[task].backoff_until_ns, state.now_ns()));
    case pb::V_UNREACHABLE: return "its last attempt's host can't be reached, so it may still run there";
    case pb::V_CLUSTER: return absl::StrCat("no cluster that it may use is up with such devices", verdict.flavour().empty() ? "" : absl::StrCat(" (", verdict.flavour(), ")"));
    case pb::V_HELD: return "its queue is held, or its clusters are drained";
    case pb::V_ENTITLED_CELL: return absl::StrCat("waits for its place, ", Where(verdict), "; it goes elsewhere when that pays");
    case pb::V_REFUSED: return "what was planned for it broke a rule of Muster's own check and was dropped; it is tried again in a few seconds (please report this)";
    default: return "waits";
  }
}

}  // namespace

std::string VerdictText(const State& state, const JobRow& job, int32_t task, const pb::Verdict& verdict) {
  std::string text = Reason(state, job, task, verdict);
  if (verdict.held_by_size() > 0) absl::StrAppend(&text, "; held by ", Jobs(verdict));
  if (verdict.expected_start_ns() > state.now_ns()) {
    absl::StrAppend(&text, "; starts about ", ClockTime(verdict.expected_start_ns(), state.now_ns()), " (in ",
                    FormatDuration((verdict.expected_start_ns() - state.now_ns()) / kSecond * kSecond), ")");
  }
  if (!job.tasks[task].spill_reason.empty()) absl::StrAppend(&text, "; ", job.tasks[task].spill_reason);
  return text;
}

}  // namespace muster
