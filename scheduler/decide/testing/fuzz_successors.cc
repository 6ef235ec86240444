#include "scheduler/decide/testing/fuzz_successors.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/members.h"

namespace muster {
namespace {

enum class Before { kGoesOn, kMet, kNever };

// The rows that the name means: all members of an array by its number.
std::vector<const JobRow*> RowsOf(const State& state, const std::string& id) {
  const uint64_t number = std::strtoull(id.c_str(), nullptr, 10);
  const JobRow* first = state.FindJob(number);
  const size_t bar = id.find('_');
  std::vector<const JobRow*> rows;
  for (int32_t m = 0; first != nullptr && m < std::max(1, MembersOf(*first->spec)); ++m) {
    const JobRow* row = state.FindJob(number + static_cast<uint64_t>(m));
    if (bar == std::string::npos || MemberId(*first->spec, number, m) == id) rows.push_back(row);
  }
  return rows;
}

Before BeforeOf(const State& state, const std::string& id, bool any) {
  bool ended = true, failed = false;
  for (const JobRow* row : RowsOf(state, id)) {
    ended = ended && row->end_ns != 0;
    // A worker that isn't needed any more is no failure of its array, but one of itself.
    const bool unneeded = row->cause == pb::DONE && id.find('_') == std::string::npos;
    failed = failed || (row->end_ns != 0 && row->state != pb::SUCCEEDED && !unneeded);
  }
  if (!ended) return Before::kGoesOn;
  return failed && !any ? Before::kNever : Before::kMet;
}

}  // namespace

void PlaceBehind(const State& state, Dice* dice, pb::JobSubmitted* e) {
  if (dice->Percent(5)) {
    const int later = dice->Of(3);
    e->add_predecessors()->set_number(e->number() + static_cast<uint64_t>(later));
    return;
  }
  pb::JobSpec* spec = e->mutable_spec();
  const int named = 1 + dice->Of(2);
  for (int i = 0; i < named && e->number() > 1; ++i) {
    const bool any = dice->Percent(30), member = dice->Percent(40);
    const int number = 1 + dice->Of(static_cast<int>(e->number()) - 1);
    const JobRow* job = state.FindJob(static_cast<uint64_t>(number));
    if (job == nullptr) continue;
    const uint64_t array = job->array;
    const std::string id = array == 0 ? absl::StrCat(number)
                           : member   ? MemberId(*job->spec, array, job->member)
                                      : absl::StrCat(array);
    const NamedJob before = *FindNamedJob(state, id);
    if (!any && before.ended() && before.state != pb::SUCCEEDED) continue;
    (any ? spec->add_after_any() : spec->add_after())->assign(id);
  }
  SetPredecessors(state, e);
}

std::string CheckPlacedAfter(const State& before, const pb::Event& event) {
  if (!event.has_attempt_placed()) return "";
  const JobRow* job = before.FindJobByUid(event.attempt_placed().key().job_uid());
  if (job == nullptr) return "";
  for (const bool any : {false, true}) {
    for (const std::string& id : any ? job->spec->after_any() : job->spec->after()) {
      if (BeforeOf(before, id, any) != Before::kMet)
        return absl::StrCat("job ", job->number, " is placed before job ", id,
                            any ? " has ended" : " has succeeded");
    }
  }
  return "";
}

std::string CheckSuccessors(const State& state) {
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    if (job.spec->after().empty() && job.spec->after_any().empty() && job.awaits.empty()) continue;
    bool waits = false;
    for (const bool any : {false, true}) {
      for (const std::string& id : any ? job.spec->after_any() : job.spec->after()) {
        const Before how = BeforeOf(state, id, any);
        if (how == Before::kNever)
          return absl::StrCat("job ", number, " goes on, and job ", id, " did not succeed");
        waits = waits || how == Before::kGoesOn;
      }
    }
    if (waits == job.awaits.empty())
      return absl::StrCat("job ", number, waits ? " waits for nobody" : " waits for what is over");
    for (const Predecessor& before : job.awaits) {
      if (before.number >= number)
        return absl::StrCat("job ", number, " waits for job ", before.number, ", a later one");
    }
    for (const TaskRow& task : job.tasks) {
      if (waits && task.state != pb::TASK_BLOCKED)
        return absl::StrCat("job ", number, " isn't blocked, and waits for others");
    }
  }
  return "";
}

}  // namespace muster
