#include "scheduler/api/find_jobs.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/members.h"

namespace muster {
namespace {

class Filter {
 public:
  Filter(const pb::ListJobsRequest& request, const std::function<bool(const JobRow&)>& may_see)
      : request_(request), may_see_(may_see) {}

  // By what needs no spec.
  bool MayMatch(std::string_view owner, std::string_view queue, pb::JobState state) const {
    if (!request_.owner().empty() && owner != request_.owner()) return false;
    if (!request_.queue().empty() && queue != request_.queue() &&
        !queue.starts_with(request_.queue() + "/"))
      return false;
    return request_.states_size() == 0 ||
           std::find(request_.states().begin(), request_.states().end(), state) !=
               request_.states().end();
  }

  bool Matches(const JobRow& job, pb::JobState state) const {
    if (request_.exported() && !job.spec->has_track() && !job.spec->has_notify()) return false;
    // Of an array as a row, its first member's end says nothing.
    const bool one = job.array == 0 || !request_.array().empty();
    if (one && job.finished() && job.end_ns <= request_.ended_after_ns()) return false;
    if (!may_see_(job) || !MayMatch(job.owner, job.spec->queue(), state)) return false;
    return std::all_of(request_.labels().begin(), request_.labels().end(), [&](const auto& label) {
      const auto it = job.spec->labels().find(label.first);
      return it != job.spec->labels().end() && it->second == label.second;
    });
  }

  // Who asks for jobs that have not ended doesn't wait for those that have, which may be many more.
  bool Ended() const {
    return request_.states_size() == 0 ||
           std::any_of(request_.states().begin(), request_.states().end(),
                       [](int asked) { return asked != pb::WAITING && asked != pb::RUNNING; });
  }

 private:
  const pb::ListJobsRequest& request_;
  const std::function<bool(const JobRow&)>& may_see_;
};

// Of a State's own row: it lives as long as the view.
std::shared_ptr<const JobRow> Pinned(const std::shared_ptr<const View>& view, const JobRow& job) {
  return {view, &job};
}

absl::StatusOr<std::shared_ptr<const JobRow>> Past(const State& state, const std::string& record) {
  absl::StatusOr<JobRow> job = state.ParseJob(record);
  if (!job.ok())
    return absl::Status(job.status().code(),
                        absl::StrCat("the history of finished jobs: ", job.status().message()));
  return std::make_shared<const JobRow>(*std::move(job));
}

// The jobs of the past among [above + 1, before), merged into *page, which holds those of State in
// that range. Of a page that is full, `above` is its last.
absl::Status AddPast(const std::shared_ptr<const View>& view, History* history,
                     const Filter& filter, size_t size, uint64_t before, JobPage* page) {
  const State& state = view->state;
  const uint64_t above = page->next_page_token.empty() ? 0 : page->jobs.back()->number;
  std::vector<std::shared_ptr<const JobRow>> past;
  absl::Status broken = absl::OkStatus();
  uint64_t reached = 0;  // the last one that was looked at, where others may follow
  int examined = 0;
  absl::Status status =
      history->Scan(std::min(before, state.next_job_number()), above, [&](const History::Row& row) {
        if (past.size() == size || examined++ == kExamined) return false;
        reached = row.number;
        if (state.FindJob(row.number) != nullptr ||
            !filter.MayMatch(row.owner, row.queue, row.state))
          return true;
        absl::StatusOr<std::shared_ptr<const JobRow>> job = Past(state, row.record());
        if (!job.ok()) {
          broken = job.status();
          return false;
        }
        if (filter.Matches(**job, row.state)) past.push_back(*std::move(job));
        return true;
      });
  if (!status.ok()) return status;
  if (!broken.ok()) return broken;
  const bool more = past.size() == size || examined > kExamined;
  std::vector<std::shared_ptr<const JobRow>> merged;
  const auto newer = [](const auto& a, const auto& b) { return a->number > b->number; };
  std::merge(page->jobs.begin(), page->jobs.end(), past.begin(), past.end(),
             std::back_inserter(merged), newer);
  // Below what was looked at, the past may hold more.
  if (more) std::erase_if(merged, [&](const auto& job) { return job->number < reached; });
  if (merged.size() > size) {
    merged.resize(size);
    page->next_page_token = absl::StrCat(merged.back()->number);
  } else if (more) {
    page->next_page_token = absl::StrCat(reached);
  }
  page->jobs = std::move(merged);
  return absl::OkStatus();
}

// An array's members by their order, in pages of which the token is the next one's place.
absl::StatusOr<JobPage> ListMembers(const std::shared_ptr<const View>& view, History* history,
                                    const pb::ListJobsRequest& request, const Filter& filter,
                                    size_t size) {
  int32_t from = 0;
  if (!request.page_token().empty() && (!absl::SimpleAtoi(request.page_token(), &from) || from < 0))
    return absl::InvalidArgumentError("page_token is not one that List gave");
  const absl::StatusOr<std::shared_ptr<const JobRow>> first =
      FindJob(view, history, request.array());
  if (!first.ok()) return first.status();
  if (*first == nullptr || (*first)->array == 0 || (*first)->member != 0) {
    return absl::NotFoundError(
        absl::StrCat("\"", request.array(),
                     "\" is no array's number: there is no such job, or it has no array, sweep or "
                     "independent_workers. See: muster jobs"));
  }
  JobPage page;
  const int32_t members = MembersOf(*(*first)->spec);
  for (int32_t m = from; m < members; ++m) {
    if (page.jobs.size() == size) {
      page.next_page_token = absl::StrCat(m);
      break;
    }
    const uint64_t number = (*first)->number + static_cast<uint64_t>(m);
    const absl::StatusOr<std::shared_ptr<const JobRow>> job =
        FindJob(view, history, absl::StrCat(number));
    if (!job.ok()) return job.status();
    if (*job != nullptr && filter.Matches(**job, (*job)->state)) page.jobs.push_back(*job);
  }
  return page;
}

// "17_3" as the history has it: by the number of that member. "" if there is none.
absl::StatusOr<std::string> NumberInHistory(const std::shared_ptr<const View>& view,
                                            History* history, std::string_view id) {
  const size_t at = id.rfind('_');
  if (at == std::string_view::npos) return std::string(id);
  if (id.find('_') != at) return std::string();
  int64_t index = 0;
  const absl::StatusOr<std::shared_ptr<const JobRow>> first =
      FindJob(view, history, id.substr(0, at));
  if (!first.ok()) return first.status();
  const std::string_view text = id.substr(at + 1);  // digits alone, as in FindJobByText
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (*first == nullptr || (*first)->array == 0 || (*first)->member != 0 || wrong != std::errc() ||
      end != text.data() + text.size())
    return std::string();
  const int32_t member = MemberOfIndex(*(*first)->spec, index);
  return member < 0 ? std::string()
                    : absl::StrCat((*first)->number + static_cast<uint64_t>(member));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const JobRow>> FindJob(std::shared_ptr<const View> view,
                                                      History* history, std::string_view id) {
  if (const JobRow* job = view->state.FindJobByText(id); job != nullptr) return Pinned(view, *job);
  if (history == nullptr) return nullptr;
  const absl::StatusOr<std::string> number = NumberInHistory(view, history, id);
  if (!number.ok()) return number.status();
  if (number->empty()) return nullptr;
  id = *number;
  const absl::StatusOr<std::string> record = history->Find(id);
  if (!record.ok()) return record.status();
  if (record->empty()) return nullptr;
  return Past(view->state, *record);
}

absl::StatusOr<JobPage> ListJobs(std::shared_ptr<const View> view, History* history,
                                 const pb::ListJobsRequest& request,
                                 const std::function<bool(const JobRow&)>& may_see) {
  if (request.page_size() < 0 || request.page_size() > 1000)
    return absl::InvalidArgumentError("page_size must be 1..1000 (0: 100)");
  const size_t size = request.page_size() == 0 ? 100 : request.page_size();
  uint64_t before = UINT64_MAX;
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &before)) {
    return absl::InvalidArgumentError("page_token is not one that List gave");
  }
  const State& state = view->state;
  const Filter filter(request, may_see);
  if (!request.array().empty()) return ListMembers(view, history, request, filter, size);
  JobPage page;
  uint64_t array = 0;  // the newest that was looked at: it is one row
  const auto take = [&](const JobRow& member) {
    if (member.array != 0 && member.array == array) return true;
    array = member.array;
    const JobRow& job = array == 0 ? member : *state.FindJob(array);
    if (!filter.Matches(job, ShownState(state, job))) return true;
    if (page.jobs.size() == size) {
      page.next_page_token = absl::StrCat(page.jobs.back()->number);
      return false;
    }
    page.jobs.push_back(Pinned(view, job));
    return true;
  };
  if (filter.Ended()) {
    state.ForEachJobBelow(before, take);
    // Who asks again and again what has ended lately doesn't go through all of the past.
    const bool lately = request.exported() && request.ended_after_ns() > 0;
    if (history != nullptr && !lately) {
      if (absl::Status status = AddPast(view, history, filter, size, before, &page); !status.ok())
        return status;
    }
  } else {
    const std::vector<uint64_t>& numbers = state.active_jobs();
    for (auto it = std::lower_bound(numbers.begin(), numbers.end(), before);
         it != numbers.begin() && take(*state.FindJob(*(it - 1)));)
      --it;
  }
  // A queue that is gone may still have had jobs; one that never was is a slip of the pen.
  if (page.jobs.empty() && page.next_page_token.empty() && request.page_token().empty() &&
      !request.queue().empty() && state.queues().Find(request.queue()) < 0) {
    std::vector<std::string> known;
    for (size_t n = 1; n < state.queues().nodes.size(); ++n)
      known.push_back(state.queues().nodes[n].path);
    return absl::NotFoundError(
        absl::StrCat("no queue \"", request.queue(), "\"; there are ", absl::StrJoin(known, ", ")));
  }
  return page;
}

}  // namespace muster
