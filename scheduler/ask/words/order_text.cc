#include "scheduler/ask/words/order_text.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "scheduler/state/queue_order.h"

namespace muster {
namespace {

std::string Count(int64_t jobs, const char* what) {
  return absl::StrCat(jobs, " ", what, jobs == 1 ? " job" : " jobs");
}

}  // namespace

bool HasATurn(const JobRow& job) {
  return std::any_of(job.tasks.begin(), job.tasks.end(), [](const TaskRow& task) {
    return task.waiting() || task.current() != nullptr;
  });
}

std::string OrderText(const State& state, const JobRow& job) {
  const std::string& path = job.spec->queue();
  const int32_t node = state.queues().Find(path);
  if (node < 0 || !state.queues().nodes[node].shortest_first) return "";
  const std::string order = absl::StrCat(" of ", path, ", whose order is shortest");
  if (job.band == kFrontBand) {
    const int64_t waited_ns = WaitedNs(job, state.now_ns());
    return waited_ns >= state.queues().nodes[node].max_wait_ns
               ? absl::StrCat("goes before the other jobs", order, ": it has waited for ",
                              FormatDuration(waited_ns / kMinute * kMinute), " in all")
               : absl::StrCat("goes before the other jobs", order,
                              ": it is the one that will end last");
  }
  int64_t first = 0, shorter = 0, older = 0;
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& other = *state.FindJob(number);
    if (number == job.number || other.spec->queue() != path ||
        other.spec->priority() != job.spec->priority() || !HasATurn(other))
      continue;
    if (other.band == kFrontBand) {
      ++first;
    } else if (other.band < job.band) {
      ++shorter;
    } else if (other.band == job.band &&
               std::tie(other.submit_ns, other.number) < std::tie(job.submit_ns, job.number)) {
      ++older;
    }
  }
  std::vector<std::string> ahead;
  if (shorter > 0) ahead.push_back(Count(shorter, "shorter"));
  if (older > 0) ahead.push_back(Count(older, "older"));
  if (first > 0)
    ahead.push_back(absl::StrCat(first, first == 1 ? " that goes" : " that go", " first"));
  if (ahead.empty()) return "";
  return absl::StrCat("behind ", absl::StrJoin(ahead, ", "), order);
}

}  // namespace muster
