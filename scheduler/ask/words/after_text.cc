#include "scheduler/ask/words/after_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/ask/words/clock_text.h"
#include "scheduler/decide/model/expected_end.h"

namespace muster {
namespace {

// 0: nobody knows.
int64_t EndOfAwaited(const State& state, const Predecessor& before) {
  const JobRow* job = before.array ? nullptr : state.FindJob(before.number);
  if (job == nullptr) return 0;
  int64_t end_ns = 0;
  for (size_t t = 0; t < job->tasks.size(); ++t) {
    if (job->tasks[t].finished()) continue;
    const int64_t task_ns = ExpectedEndOf(state, {job->number, static_cast<int32_t>(t)});
    if (task_ns == 0) return 0;
    end_ns = std::max(end_ns, task_ns);
  }
  return end_ns;
}

// "jobs 17, 18 and array 20"; "" of none.
std::string AwaitedNames(const std::vector<Predecessor>& awaits, bool any) {
  std::vector<uint64_t> jobs, arrays;
  for (const Predecessor& before : awaits) {
    if (before.any == any) (before.array ? arrays : jobs).push_back(before.number);
  }
  const auto list = [](const char* what, const std::vector<uint64_t>& numbers) {
    if (numbers.empty()) return std::string();
    return absl::StrCat(what, numbers.size() == 1 ? " " : "s ", absl::StrJoin(numbers, ", "));
  };
  const std::string first = list("job", jobs), second = list("array", arrays);
  return absl::StrCat(first, first.empty() || second.empty() ? "" : " and ", second);
}

}  // namespace

std::string AfterText(const State& state, const JobRow& job) {
  const std::string succeed = AwaitedNames(job.awaits, false), end = AwaitedNames(job.awaits, true);
  std::string text = "waits for ";
  if (!succeed.empty()) absl::StrAppend(&text, succeed, " to succeed");
  if (!end.empty()) absl::StrAppend(&text, succeed.empty() ? "" : " and for ", end, " to end");
  int64_t until_ns = 0;
  for (const Predecessor& before : job.awaits) {
    const int64_t end_ns = EndOfAwaited(state, before);
    if (end_ns == 0) return text;
    until_ns = std::max(until_ns, end_ns);
  }
  if (until_ns <= state.now_ns()) return text;
  return absl::StrCat(text, ", expected by ", ClockTime(until_ns, state.now_ns()));
}

}  // namespace muster
