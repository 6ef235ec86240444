// Tasks that start together, by what specs name and committed rows say.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/faults/checks.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {
namespace {

bool Finished(const pb::TaskRecord& task) {
  return task.state() == pb::TASK_SUCCEEDED || task.state() == pb::TASK_FAILED ||
         task.state() == pb::TASK_CANCELLED;
}

// The attempt that hasn't ended; nullptr: none.
const pb::AttemptRecord* Unended(const pb::TaskRecord& task) {
  if (task.attempts().empty()) return nullptr;
  const pb::AttemptRecord& newest = *task.attempts().rbegin();
  return newest.end_ns() == 0 ? &newest : nullptr;
}

// Of its newest attempt; 0: none. The next one's rises when a store is adopted, too.
int32_t NewestOf(const pb::TaskRecord& task) {
  return task.attempts().empty() ? 0 : task.attempts().rbegin()->number();
}

// Nothing of it runs any more: it waits for its export.
bool Released(const pb::AttemptRecord& attempt) {
  return std::all_of(attempt.parts().begin(), attempt.parts().end(), Over);
}

bool GoesOn(const pb::TaskRecord& task) {
  return Unended(task) != nullptr && task.state() != pb::TASK_STOPPING && !Released(*Unended(task));
}

int IndexOfTask(const pb::JobSpec& spec, const std::string& name) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    if (spec.tasks(t).name() == name) return t;
  }
  return -1;
}

bool Unneeded(const pb::JobRecord& job, int t) {
  const auto& until = job.spec().tasks(t).until();
  return !until.empty() && std::all_of(until.begin(), until.end(), [&](const std::string& name) {
    return job.tasks(IndexOfTask(job.spec(), name)).state() == pb::TASK_SUCCEEDED;
  });
}

// What runs of it doesn't come back: it binds nobody any more.
bool Ends(const pb::JobRecord& job, int t) {
  const pb::AttemptRecord* attempt = Unended(job.tasks(t));
  return Unneeded(job, t) ||
         (attempt != nullptr && (attempt->cause() == pb::TIME_LIMIT || Released(*attempt)));
}

// Stopped for a claim by the commit that made `after`.
bool Evicted(const pb::TaskRecord& before, const pb::TaskRecord& after) {
  return after.state() == pb::TASK_STOPPING && !after.attempts().empty() &&
         after.attempts().rbegin()->cause() == pb::PREEMPTION &&
         after.attempts().rbegin()->next_workers() == 0 && before.state() != pb::TASK_STOPPING;
}

}  // namespace

void Checker::CheckTogether(int64_t now_ns, const pb::JobRecord* before,
                            const pb::JobRecord& after) {
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": job ", after.number()));
  };
  for (int t = 0; t < after.tasks_size(); ++t) {
    const pb::TaskSpec& spec = after.spec().tasks(t);
    if (spec.with().empty()) continue;
    const pb::TaskRecord& task = after.tasks(t);
    const pb::TaskRecord* old = before == nullptr ? nullptr : &before->tasks(t);
    // What a job is first seen with may be a restored store's, many commits later.
    const bool placed = old != nullptr && NewestOf(task) > NewestOf(*old);
    const bool evicted = old != nullptr && Evicted(*old, task);
    bool waits = false, beside = false;
    for (const std::string& name : spec.with()) {
      const int o = IndexOfTask(after.spec(), name);
      const pb::TaskRecord& other = after.tasks(o);
      const pb::TaskRecord* was = before == nullptr ? nullptr : &before->tasks(o);
      if (NewestOf(task) > 0 && NewestOf(other) == 0)
        violate("some of what starts together has started, the rest never");
      waits = waits || (!Finished(other) && !GoesOn(other) && !Ends(after, o));
      beside = beside || (was != nullptr && GoesOn(*was) && GoesOn(other) &&
                          NewestOf(*was) == NewestOf(other));
      if (Unended(task) != nullptr && Unended(other) != nullptr && !Ends(after, t) &&
          !Ends(after, o) && Unended(task)->cluster() != Unended(other)->cluster())
        violate("what starts together runs in two clusters");
      if (evicted && GoesOn(other)) violate("a claim stops only a part of what starts together");
    }
    if (placed && waits && !beside) violate("a part of what starts together starts");
    if (placed && beside) ++counters_["tasks that started again beside others"];
    if (NewestOf(task) > 0 && (old == nullptr || NewestOf(*old) == 0))
      ++counters_["tasks that started together"];
    if (evicted) ++counters_["tasks stopped together"];
    const bool unneeded = Unneeded(after, t);
    if (unneeded && placed) violate("what nobody needs any more starts");
    if (unneeded && task.state() == pb::TASK_WAITING) violate("what nobody needs any more waits");
    if (unneeded && task.state() == pb::TASK_SUCCEEDED &&
        (old == nullptr || old->state() != pb::TASK_SUCCEEDED))
      ++counters_["tasks that ended as nobody needed them"];
  }
}

}  // namespace muster::sim::faults
