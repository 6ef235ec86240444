#include "scheduler/decide/testing/fuzz_arrays.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/spec/members.h"

namespace muster {
namespace {

bool HasProcesses(const JobRow& job) {
  return std::any_of(job.tasks.begin(), job.tasks.end(),
                     [](const TaskRow& task) { return task.current() != nullptr; });
}

// The member that the event is about; nullptr: it is about none, or about more than one.
const JobRow* MemberOf(const State& state, const pb::Event& event) {
  const JobRow* job = nullptr;
  if (event.has_attempt_reported()) {
    job = state.FindJobByUid(event.attempt_reported().report().key().job_uid());
  } else if (event.has_attempt_placed()) {
    job = state.FindJobByUid(event.attempt_placed().key().job_uid());
  } else if (event.has_attempt_stopping() &&
             event.attempt_stopping().claimant().job_uid().empty()) {
    job = state.FindJobByUid(event.attempt_stopping().key().job_uid());
  } else if (event.has_job_cancel() && !event.job_cancel().array()) {
    job = state.FindJob(event.job_cancel().number());
  }
  return job != nullptr && job->array != 0 ? job : nullptr;
}

}  // namespace

int32_t MakeArray(Dice* dice, pb::JobSubmitted* job) {
  pb::JobSpec* spec = job->mutable_spec();
  if (spec->tasks_size() == 1 && dice->Percent(60)) {
    pb::Workers* workers = spec->mutable_independent_workers();
    workers->set_min(1 + dice->Of(2));
    workers->set_max(workers->min() + dice->Of(6));
    spec->mutable_tasks(0)->mutable_workers()->set_min(1);
    spec->mutable_tasks(0)->mutable_workers()->set_max(1);
  } else {
    // Two statements: compilers evaluate a call's arguments in an order of their own.
    const int last = dice->Of(6);
    spec->set_array(absl::StrCat("0-", last, "%", 1 + dice->Of(4)));
  }
  job->set_members(MembersOf(*spec));
  return job->members();
}

std::string CheckOthersUntouched(const State& before, const State& after, const pb::Event& event) {
  const JobRow* member = MemberOf(before, event);
  if (member == nullptr) return "";
  const uint64_t own = member->number, array = member->array;
  for (const uint64_t number : after.Since(before).jobs) {
    const JobRow* was = before.FindJob(number);
    if (was == nullptr || number == own || was->array != array || !HasProcesses(*was)) continue;
    // The first of an array tells that all have ended: then none has processes.
    return absl::StrCat("job ", number, " has processes, and was changed by what happened to job ",
                        own, " of its array");
  }
  return "";
}

int32_t UrgencyOf(const JobRow& job) {
  const bool behind = job.array != 0 && job.spec->has_independent_workers() &&
                      job.member >= job.spec->independent_workers().min();
  return job.spec->priority() - (behind ? 1'000'000 : 0);
}

std::string CheckArrays(const State& state) {
  std::map<uint64_t, ArrayTally> tallies;
  std::map<uint64_t, int32_t> in_turn;
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    if (job.array == 0) continue;
    ++tallies[job.array].unfinished;
    tallies[job.array].later += job.later;
    in_turn[job.array] += !job.later;
    if (job.later && HasProcesses(job))
      return absl::StrCat("job ", number, " has processes before its turn");
  }
  if (tallies != state.arrays()) return "arrays are counted wrong";
  for (const auto& [array, tally] : tallies) {
    const JobRow* first = state.FindJob(array);
    if (first == nullptr) return absl::StrCat("array ", array, " lost its first member");
    if (first->ended != nullptr) return absl::StrCat("array ", array, " ended with members left");
    const int32_t members = MembersOf(*first->spec), turns = MembersAtATime(*first->spec);
    if (in_turn[array] > turns) return absl::StrCat("array ", array, " takes too many turns");
    if (tally.later > 0 && in_turn[array] < turns)
      return absl::StrCat("a turn of array ", array, " is nobody's");
    const pb::ArrayStatus status = ArrayStatusOf(state, *first);
    const int32_t ended =
        status.succeeded() + status.failed() + status.cancelled() + status.unneeded();
    if (ended + tally.unfinished != members)
      return absl::StrCat("array ", array, " has lost members");
  }
  return "";
}

}  // namespace muster
