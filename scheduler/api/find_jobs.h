// Jobs by their ids and in lists: those that State holds, and the finished ones that only the
// history still has.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/v1/job_service.pb.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/history.h"

namespace muster {

// By number or uid. Null: there is none, nor was one as long as history is kept. Errors are of the
// history, which may be null.
absl::StatusOr<std::shared_ptr<const JobRow>> FindJob(std::shared_ptr<const View> view,
                                                      History* history, std::string_view id);

// Newest first, filtered, in pages. A page may hold fewer than were asked for, even none, and name
// another: no call reads more than kExamined finished jobs of the past. INVALID_ARGUMENT for a
// wrong page size or token; NOT_FOUND for a queue that there isn't, and of which there is no job
// either; else of the history.
struct JobPage {
  std::vector<std::shared_ptr<const JobRow>> jobs;
  std::string next_page_token;
};
inline constexpr int kExamined = 20'000;
absl::StatusOr<JobPage> ListJobs(std::shared_ptr<const View> view, History* history,
                                 const pb::ListJobsRequest& request,
                                 const std::function<bool(const JobRow&)>& may_see);

}  // namespace muster
