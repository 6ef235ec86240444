#include "scheduler/ask/words/together_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/ask/words/clock_text.h"

namespace muster {

std::string StartsWithText(const JobRow& job, int32_t task) {
  std::vector<std::string> names;
  for (const std::string& name : job.task_spec(task).with()) {
    const int32_t t = TaskIndex(*job.spec, name);
    if (t < 0 || job.tasks[t].finished()) continue;
    const AttemptRow* current = job.tasks[t].current();
    if (current != nullptr && current->state != pb::TASK_STOPPING) return "";
    names.push_back(name);
  }
  return names.empty() ? "" : absl::StrCat("starts together with ", absl::StrJoin(names, ", "));
}

std::string BehindStartsWith(const JobRow& job, int32_t task, const std::string& text) {
  const std::string with = StartsWithText(job, task);
  return with.empty() || absl::StartsWith(text, with) ? text : absl::StrCat(with, ": ", text);
}

std::string WaitsForTogetherText(const State& state, const JobRow& job, int32_t task) {
  for (const std::string& name : job.task_spec(task).with()) {
    const int32_t t = TaskIndex(*job.spec, name);
    if (t < 0) continue;
    const TaskRow& other = job.tasks[t];
    const std::string with = absl::StrCat("starts together with ", name);
    if (other.current() != nullptr && other.current()->state == pb::TASK_STOPPING)
      return with + ", which is being stopped";
    if (other.waiting() && other.backoff_until_ns > state.now_ns()) {
      return absl::StrCat(with, ", which failed before and starts again at ",
                          ClockTime(other.backoff_until_ns, state.now_ns()));
    }
    if (other.current() != nullptr)
      return absl::StrCat("waits until it can start where ", name,
                          " runs, or all of them elsewhere");
  }
  return "waits for the tasks that it starts together with";
}

}  // namespace muster
