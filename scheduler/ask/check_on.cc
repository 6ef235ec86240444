#include "scheduler/ask/check_on.h"

#include "absl/strings/str_cat.h"
#include "scheduler/state/hosted.h"

namespace muster {

std::vector<FieldProblem> CheckHolder(const State& state, const pb::JobSpec& spec,
                                      const std::string& owner) {
  if (spec.on().empty()) return {};
  const JobRow* holder = state.FindJob(HolderNumber(spec));
  const std::string name = absl::StrCat("job ", spec.on());
  if (holder == nullptr || holder->owner != owner)
    return {{"on",
             absl::StrCat("there is no job ", spec.on(),
                          " of yours; on devices that others hold nobody runs: muster dev list")}};
  if (holder->finished() || holder->cancel_requested)
    return {{"on", absl::StrCat(name, " has ended: muster dev resume ", spec.on())}};
  if (holder->holder != 0)
    return {{"on", absl::StrCat(name, " runs on devices of job ", holder->holder,
                                " itself; name that one")}};
  if (holder->tasks.size() != 1 || holder->array != 0)
    return {
        {"on", absl::StrCat(name, " is an array or has several tasks; name a job of one task")}};
  return {};
}

}  // namespace muster
