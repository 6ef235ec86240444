// Apply: arrays. A member is a job of its own, so all that is said of jobs holds for it; what is
// here binds the members together: whose turn it is, who is still needed, and when all have ended.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/spec/members.h"
#include "scheduler/state/applier.h"

namespace muster {

std::string MemberUid(const std::string& uid, int32_t member) {
  constexpr size_t kDigits = 8;
  if (member == 0) return uid;
  uint32_t tail = 0;
  if (uid.size() < kDigits || !absl::SimpleHexAtoi(uid.substr(uid.size() - kDigits), &tail))
    return absl::StrCat(uid, ".", member);
  return absl::StrCat(uid.substr(0, uid.size() - kDigits),
                      absl::StrFormat("%08x", tail + static_cast<uint32_t>(member)));
}

void Applier::CountMember(const JobRow& job, int32_t sign) {
  if (job.array == 0) return;
  std::map<uint64_t, ArrayTally>& arrays = *Own(&s_.arrays_);
  ArrayTally& tally = arrays[job.array];
  tally.unfinished += sign;
  tally.later += job.later ? sign : 0;
  MUSTER_CHECK(tally.unfinished >= 0 && tally.later >= 0);
  if (tally.unfinished == 0) arrays.erase(job.array);
}

int64_t Applier::EndOfWhole(const JobRow& job) const {
  if (job.array == 0) return job.end_ns;
  const JobRow* first = s_.FindJob(job.array);
  return first == nullptr || first->ended == nullptr ? std::numeric_limits<int64_t>::max()
                                                     : first->ended->end_ns();
}

// A member of an array that goes on is in no list until all of it has ended.
void Applier::InsertFinished(uint64_t number) {
  const JobRow& job = *s_.FindJob(number);
  if (job.array != 0) {
    if (EndOfWhole(job) == std::numeric_limits<int64_t>::max()) return;
    ++s_.finished_members_;
  }
  std::vector<uint64_t>& finished = *Own(&s_.finished_);
  const auto at =
      std::upper_bound(finished.begin(), finished.end(), number, [&](uint64_t a, uint64_t b) {
        return std::make_pair(EndOfWhole(*s_.FindJob(a)), a) <
               std::make_pair(EndOfWhole(*s_.FindJob(b)), b);
      });
  finished.insert(at, number);
}

void Applier::EndMember(const JobRow& ended) {
  const uint64_t array = ended.array;
  CountMember(ended, -1);
  if (ended.later) {
    Job(ended.number)->later = false;
  } else {
    NextTurn(ended);
  }
  if (ended.state == pb::SUCCEEDED) EndUnneeded(ended);
  if (s_.arrays_->count(array) > 0 || s_.FindJob(array)->ended != nullptr) return;
  JobRow* first = Job(array);
  auto status = std::make_shared<pb::ArrayStatus>(ArrayStatusOf(s_, *first));
  status->set_end_ns(s_.now_ns_);
  const int32_t members = status->members();
  first->ended = std::move(status);
  for (int32_t m = 0; m < members; ++m) InsertFinished(array + static_cast<uint64_t>(m));
}

// A member has ended whose turn it was: the next one's comes.
void Applier::NextTurn(const JobRow& ended) {
  const auto tally = s_.arrays_->find(ended.array);
  if (tally == s_.arrays_->end() || tally->second.later == 0) return;
  const std::vector<TaskRef>& waiting = *s_.waiting_;
  for (auto at = std::lower_bound(waiting.begin(), waiting.end(), TaskRef{ended.array, 0});
       at != waiting.end(); ++at) {
    const JobRow* row = s_.FindJob(at->job);
    if (row == nullptr || row->array != ended.array) return;
    if (!row->later || row->finished() || row->cancel_requested) continue;
    JobRow* next = Job(row->number);
    next->later = false;
    --(*Own(&s_.arrays_))[ended.array].later;
    NewRound();
    SettleJob(next);
    return;
  }
}

// An independent worker that ends with success has found no work left: what never started isn't
// needed any more. What did start comes back, and sees for itself.
void Applier::EndUnneeded(const JobRow& ended) {
  if (!ended.spec->has_independent_workers()) return;
  for (int32_t m = MembersOf(*ended.spec); m-- > 0;) {
    const JobRow& row = *s_.FindJob(ended.array + static_cast<uint64_t>(m));
    const bool never = std::all_of(row.tasks.begin(), row.tasks.end(), [](const TaskRow& task) {
      return task.attempts.empty() && task.next_attempt == 1;
    });
    if (row.finished() || !never) continue;
    JobRow* job = Job(row.number);
    job->detail = "not needed: others had done the work";
    for (size_t t = 0; t < job->tasks.size(); ++t) {
      TaskRow& task = job->tasks[t];
      if (task.reservation != nullptr)
        SetReservation({job->number, static_cast<int32_t>(t)}, &task, nullptr);
      task.state = pb::TASK_CANCELLED;
      task.cause = pb::DONE;
    }
    EndJob(job, pb::CANCELLED, pb::DONE);
  }
}

pb::ArrayStatus ArrayStatusOf(const State& state, const JobRow& first) {
  if (first.ended != nullptr) return *first.ended;
  pb::ArrayStatus status;
  const int32_t members = MembersOf(*first.spec);
  status.set_members(members);
  for (int32_t m = 0; m < members; ++m) {
    const JobRow* job = state.FindJob(first.number + static_cast<uint64_t>(m));
    if (job == nullptr) continue;
    for (const TaskRow& task : job->tasks) {
      status.set_ran_ns(status.ran_ns() + task.ran_ns);
      if (task.current() != nullptr) status.set_workers(status.workers() + task.current()->workers);
    }
    if (job->later) {
      status.set_later(status.later() + 1);
    } else if (job->state == pb::RUNNING) {
      status.set_running(status.running() + 1);
    } else if (job->state == pb::SUCCEEDED) {
      status.set_succeeded(status.succeeded() + 1);
    } else if (job->state == pb::FAILED) {
      status.set_failed(status.failed() + 1);
    } else if (job->state == pb::CANCELLED && job->cause == pb::DONE) {
      status.set_unneeded(status.unneeded() + 1);
    } else if (job->state == pb::CANCELLED) {
      status.set_cancelled(status.cancelled() + 1);
    } else {
      status.set_waiting(status.waiting() + 1);
    }
  }
  return status;
}

pb::JobState StateOfArray(const pb::ArrayStatus& status) {
  if (status.end_ns() == 0) return status.running() > 0 ? pb::RUNNING : pb::WAITING;
  return status.failed() > 0 ? pb::FAILED : status.cancelled() > 0 ? pb::CANCELLED : pb::SUCCEEDED;
}

pb::JobState ShownState(const State& state, const JobRow& job) {
  return job.array != 0 && job.member == 0 ? StateOfArray(ArrayStatusOf(state, job)) : job.state;
}

const JobRow& TellingMember(const State& state, const JobRow& first) {
  const JobRow* waiting = nullptr;
  const JobRow* running = nullptr;
  const int32_t members = MembersOf(*first.spec);
  for (int32_t m = 0; m < members; ++m) {
    const JobRow* job = state.FindJob(first.number + static_cast<uint64_t>(m));
    if (job == nullptr) continue;
    if (job->state == pb::FAILED) return *job;
    if (waiting == nullptr && !job->finished() && !job->later && job->state != pb::RUNNING)
      waiting = job;
    if (running == nullptr && job->state == pb::RUNNING) running = job;
  }
  return waiting != nullptr ? *waiting : running != nullptr ? *running : first;
}

}  // namespace muster
