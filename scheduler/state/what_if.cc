#include "scheduler/state/what_if.h"

#include <memory>

#include "scheduler/state/applier.h"

namespace muster {

void ReplaceSpec(State* state, uint64_t job, const pb::JobSpec& spec) {
  Applier(state).ReplaceSpec(job, spec);
}

void Applier::ReplaceSpec(uint64_t number, const pb::JobSpec& spec) {
  const JobRow* row = s_.FindJob(number);
  if (row == nullptr || row->finished() || row->spec->tasks_size() != spec.tasks_size()) return;
  for (size_t t = 0; t < row->tasks.size(); ++t) {
    const int i = static_cast<int>(t);
    if (row->tasks[t].current() != nullptr || row->spec->tasks(i).name() != spec.tasks(i).name())
      return;
  }
  Job(number)->SetSpec(spec);
}

}  // namespace muster
