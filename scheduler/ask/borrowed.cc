#include "scheduler/ask/borrowed.h"

#include <cstddef>
#include <optional>

#include "scheduler/ask/words/standing_text.h"
#include "scheduler/decide/decider.h"

namespace muster {

void AddBorrowed(const std::string& text, const std::string& task, pb::ExplainResponse* response) {
  if (text.empty()) return;
  pb::ExplainResponse::Borrowed* borrowed = response->add_borrowed();
  borrowed->set_task(task);
  borrowed->set_text(text);
}

void FillBorrowed(const State& state, const JobRow& job, int64_t now_ns,
                  const SchedulingOptions& scheduling, pb::ExplainResponse* response) {
  Decider decider;
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    const AttemptRow* current = job.tasks[t].current();
    if (current == nullptr || current->state == pb::TASK_STOPPING) continue;
    const TaskRef ref{job.number, static_cast<int32_t>(t)};
    const std::optional<Standing> standing = decider.StandingOf(state, now_ns, scheduling, ref);
    if (!standing.has_value()) continue;
    const pb::TaskSpec& spec = job.task_spec(ref.task);
    const int64_t since_ns = current->start_ns != 0 ? current->start_ns : current->place_ns;
    AddBorrowed(BorrowedText(state, spec, *standing, since_ns, now_ns), spec.name(), response);
  }
}

}  // namespace muster
