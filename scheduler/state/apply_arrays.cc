// Apply: arrays. A member is a job of its own, so all that is said of jobs holds for it; what is
// here binds the members together: whose turn it is, who is still needed, and when all have ended.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

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

namespace {

// As its program said: another member would fail as well.
bool FailedForGood(const JobRow& job) {
  if (job.state != pb::FAILED) return false;
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    const std::vector<AttemptRow>& attempts = job.tasks[t].attempts;
    if (!attempts.empty() && EndedForGood(job.task_spec(static_cast<int32_t>(t)), attempts.back()))
      return true;
  }
  return false;
}

}  // namespace

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

// A member of an array that goes on is in no list until all of it has ended. The newest of its
// names, too, is by the end of the whole: then it is the last that is forgotten.
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
  IndexDone(job);
}

void Applier::EndMember(const JobRow& ended) {
  const uint64_t array = ended.array;
  CountMember(ended, -1);
  if (ended.later) {
    Job(ended.number)->later = false;
  } else {
    NextTurn(ended);
  }
  if (ended.state == pb::SUCCEEDED || FailedForGood(ended)) EndUnneeded(ended);
  if (s_.arrays_->count(array) > 0 || s_.FindJob(array)->ended != nullptr) return;
  JobRow* first = Job(array);
  auto status = std::make_shared<pb::ArrayStatus>(ArrayStatusOf(s_, *first));
  status->set_end_ns(s_.now_ns_);
  const int32_t members = status->members();
  first->ended = std::move(status);
  ended_.emplace_back(array, true);
  for (int32_t m = 0; m < members; ++m) InsertFinished(array + static_cast<uint64_t>(m));
}

std::pair<std::vector<TaskRef>::const_iterator, std::vector<TaskRef>::const_iterator>
Applier::WaitingOf(const JobRow& member) const {
  const std::vector<TaskRef>& waiting = *s_.waiting_;
  const auto end = member.array + static_cast<uint64_t>(MembersOf(*member.spec));
  return {std::lower_bound(waiting.begin(), waiting.end(), TaskRef{member.array, 0}),
          std::lower_bound(waiting.begin(), waiting.end(), TaskRef{end, 0})};
}

// A member has ended whose turn it was: the next one's comes.
void Applier::NextTurn(const JobRow& ended) {
  const auto tally = s_.arrays_->find(ended.array);
  if (tally == s_.arrays_->end() || tally->second.later == 0) return;
  const auto [first, last] = WaitingOf(ended);
  // Turns come in the members' order: those whose turn hasn't come stand behind the others. As
  // before this event; a cancel of all ends them first, and comes here with none left.
  const auto at = std::partition_point(
      first, last, [&](const TaskRef& ref) { return !s_.FindJob(ref.job)->later; });
  MUSTER_CHECK(at != last);
  JobRow* next = Job(at->job);
  next->later = false;
  --(*Own(&s_.arrays_))[ended.array].later;
  NewRound();
  SettleJob(next);
}

// An independent worker that ends with success has found no work left, and one that failed for good
// says that the others would, too: what never started isn't needed any more. What did start comes
// back, and sees for itself.
void Applier::EndUnneeded(const JobRow& ended) {
  if (!ended.spec->has_independent_workers()) return;
  const std::string detail =
      ended.state == pb::SUCCEEDED
          ? "not needed: others had done the work"
          : absl::StrCat("never started: worker ", MemberId(*ended.spec, ended.array, ended.member),
                         " had failed for good");
  const auto [first, last] = WaitingOf(ended);
  // One task each; as before this event, from behind.
  const std::vector<TaskRef> waiting(std::make_reverse_iterator(last),
                                     std::make_reverse_iterator(first));
  for (const TaskRef& ref : waiting) {
    const JobRow& row = *s_.FindJob(ref.job);
    const bool never = std::all_of(row.tasks.begin(), row.tasks.end(), [](const TaskRow& task) {
      return task.attempts.empty() && task.next_attempt == 1;
    });
    if (row.finished() || !never) continue;
    JobRow* job = Job(row.number);
    job->detail = detail;
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

// No other head comes, and the nodes would wait for one, with their devices. After a success they
// read that it is the end, and end with success themselves.
void Applier::EndWithHead(uint64_t number) {
  const JobRow* head = s_.FindJob(number);
  if (head == nullptr || head->array != number || !head->finished() ||
      head->state == pb::SUCCEEDED || head->spec->tasks_size() == 0 ||
      !head->spec->tasks(0).has_ray())
    return;
  const std::string detail =
      absl::StrCat("cancelled: worker 0, which was Ray's head, ",
                   head->state == pb::FAILED ? "has failed" : "was cancelled");
  // From behind, as CancelJob wants it.
  for (int32_t m = MembersOf(*head->spec); m-- > 1;)
    CancelJob(number + static_cast<uint64_t>(m), detail);
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

namespace {

// The first that `is` holds for; nullptr: none.
template <typename Is>
const JobRow* FirstMember(const State& state, const JobRow& first, const Is& is) {
  const int32_t members = MembersOf(*first.spec);
  for (int32_t m = 0; m < members; ++m) {
    const JobRow* job = state.FindJob(first.number + static_cast<uint64_t>(m));
    if (job != nullptr && is(*job)) return job;
  }
  return nullptr;
}

bool Waits(const JobRow& job) { return !job.finished() && !job.later && job.state != pb::RUNNING; }

}  // namespace

const JobRow& TellingMember(const State& state, const JobRow& first) {
  const JobRow* failed =
      FirstMember(state, first, [](const JobRow& job) { return job.state == pb::FAILED; });
  return failed != nullptr ? *failed : ExplainedMember(state, first);
}

const JobRow& ExplainedMember(const State& state, const JobRow& first) {
  if (const JobRow* waiting = FirstMember(state, first, Waits); waiting != nullptr) return *waiting;
  const JobRow* running =
      FirstMember(state, first, [](const JobRow& job) { return job.state == pb::RUNNING; });
  return running != nullptr ? *running : first;
}

}  // namespace muster
