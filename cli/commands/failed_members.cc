#include "cli/commands/failed_members.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/render/array.h"
#include "common/spec/members.h"

namespace muster {
namespace {

// How many members of the array that `request` names wait to be tried again after a failure.
absl::StatusOr<int> WaitToBeTriedAgain(Client* client, pb::ListJobsRequest request) {
  request.clear_states();
  request.add_states(pb::WAITING);
  int count = 0;
  do {
    const absl::StatusOr<pb::ListJobsResponse> page = client->List(request);
    if (!page.ok()) return page.status();
    for (const pb::Job& job : page->jobs()) {
      if (std::any_of(job.tasks().begin(), job.tasks().end(), [](const pb::Task& task) {
            return task.state() == pb::TASK_WAITING && task.restarts_used() > 0;
          }))
        ++count;
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return count;
}

}  // namespace

absl::StatusOr<std::vector<pb::ArrayMember>> FailedMembers(Client* client, const pb::Job& array) {
  const std::string id = JobId(array);
  if (!array.has_array())
    return absl::FailedPreconditionError(
        absl::StrCat("--failed: job ", id,
                     " is no array; without --failed it runs again whole: muster rerun ", id));
  pb::ListJobsRequest request;
  request.set_array(id);
  request.add_states(pb::FAILED);
  request.set_page_size(1000);
  std::vector<pb::ArrayMember> members;
  do {
    const absl::StatusOr<pb::ListJobsResponse> page = client->List(request);
    if (!page.ok()) return page.status();
    for (const pb::Job& job : page->jobs()) members.push_back(job.member());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  if (members.empty()) {
    const absl::StatusOr<int> again = WaitToBeTriedAgain(client, request);
    if (!again.ok()) return again.status();
    return absl::FailedPreconditionError(absl::StrCat(
        "--failed: no member of array ", id, " has failed",
        *again == 0 ? ""
                    : absl::StrCat(" for good; ", *again, *again == 1 ? " waits" : " wait",
                                   " to be tried again, as max_restarts allows"),
        ": muster jobs ", id, " --tasks"));
  }
  std::sort(members.begin(), members.end(), [](const pb::ArrayMember& a, const pb::ArrayMember& b) {
    return a.index() < b.index();
  });
  return members;
}

std::vector<std::string> ArraysOf(const std::vector<pb::ArrayMember>& members,
                                  const std::string& as_before) {
  const size_t most = kMaxArrayBytes - absl::StrCat("%", kMaxMembers).size();
  std::vector<std::string> arrays(1);
  for (size_t i = 0; i < members.size();) {
    size_t end = i + 1;
    while (end < members.size() && members[end].index() == members[end - 1].index() + 1) ++end;
    std::string range = absl::StrCat(members[i].index());
    if (end - i > 1) absl::StrAppend(&range, "-", members[end - 1].index());
    if (arrays.back().size() + 1 + range.size() > most) arrays.emplace_back();
    absl::StrAppend(&arrays.back(), arrays.back().empty() ? "" : ",", range);
    i = end;
  }
  std::string why;
  const int32_t at_a_time = ParseArray(as_before, &why).value_or(ArrayIndices()).at_a_time;
  if (at_a_time == 0) return arrays;
  const int32_t share = std::max(1, at_a_time / static_cast<int32_t>(arrays.size()));
  for (std::string& array : arrays) absl::StrAppend(&array, "%", share);
  return arrays;
}

}  // namespace muster
