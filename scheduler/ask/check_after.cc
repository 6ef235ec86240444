#include "scheduler/ask/check_after.h"

#include "absl/strings/str_cat.h"

namespace muster {

std::vector<FieldProblem> CheckAfter(const State& state, const pb::JobSpec& spec,
                                     const FindNamed& named) {
  std::vector<FieldProblem> problems;
  const auto check = [&](const auto& ids, const char* field, bool any) {
    for (int i = 0; i < ids.size(); ++i) {
      const std::string path = absl::StrCat(field, "[", i, "]");
      const std::optional<NamedJob> job = named(state, ids[i]);
      if (!job.has_value()) {
        problems.push_back({path, absl::StrCat("there is no job \"", ids[i],
                                               "\". Jobs have numbers: muster jobs")});
      } else if (!any && job->ended() && job->state != pb::SUCCEEDED) {
        problems.push_back(
            {path, absl::StrCat(job->array ? "array " : "job ", ids[i],
                                job->state == pb::FAILED ? " failed" : " was cancelled",
                                ", so this one would never start. Name the job that does it again "
                                "(muster rerun ",
                                ids[i], job->array && job->state == pb::FAILED ? " --failed" : "",
                                "), or take this one out")});
      }
    }
  };
  check(spec.after(), "after", false);
  check(spec.after_any(), "after_any", true);
  return problems;
}

}  // namespace muster
