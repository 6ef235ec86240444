#include "scheduler/api/named_jobs.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/spec/check_predecessors.h"
#include "scheduler/access/roles.h"
#include "scheduler/api/find_jobs.h"

namespace muster {

absl::StatusOr<FindNamed> NamedFor(const std::shared_ptr<const View>& view, History* history,
                                   std::shared_ptr<const Principal> who, const pb::JobSpec& spec) {
  std::map<std::string, NamedJob> past;
  std::set<std::string> asked;
  const Sight now(view->state, *who);
  for (const auto* ids : {&spec.after(), &spec.after_any()}) {
    for (const std::string& id : *ids) {
      // A spec that names more is refused: the history isn't read for it.
      if (asked.size() == kMostPredecessors) break;
      if (!asked.insert(id).second || view->state.FindJobByText(id) != nullptr) continue;
      const absl::StatusOr<std::shared_ptr<const JobRow>> job = FindJob(view, history, id);
      if (!job.ok()) return job.status();
      if (*job != nullptr && now.Sees(**job)) past[id] = Named(**job, id);
    }
  }
  return [past = std::move(past), who = std::move(who)](
             const State& state, const std::string& id) -> std::optional<NamedJob> {
    if (const JobRow* job = state.FindJobByText(id); job != nullptr) {
      if (!Sight(state, *who).Sees(*job)) return std::nullopt;
      return Named(*job, id);
    }
    const auto known = past.find(id);
    return known == past.end() ? std::nullopt : std::optional(known->second);
  };
}

}  // namespace muster
