// Apply: jobs that come after others, or at a time. A job's end is noted while an event is carried
// out, and what it means for those that wait is settled behind it, one after the other: a chain of
// jobs may be long.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/spec/members.h"
#include "scheduler/state/applier.h"

namespace muster {
namespace {

AwaitedKey KeyOf(const Predecessor& before) { return {before.number, before.array}; }

// The state of a job, or of the array that it is the first of. Of an array that goes on no member
// is looked at: nobody asks more of it than whether it has ended.
pb::JobState StateOf(const JobRow& job, bool whole) {
  if (!whole) return job.state;
  return job.ended != nullptr ? StateOfArray(*job.ended) : pb::RUNNING;
}

// nullopt: it isn't known.
std::optional<NamedJob> FindAwaited(const State& state, const AwaitedKey& key) {
  const JobRow* job = state.FindJob(key.first);
  if (job == nullptr || (key.second && job->array != job->number)) return std::nullopt;
  return NamedJob{key.first, key.second, StateOf(*job, key.second)};
}

// "cancelled: job 17 failed, and this one was to come after its success".
std::string WhyNever(const AwaitedKey& key, const std::optional<NamedJob>& before) {
  const std::string name = absl::StrCat("cancelled: ", key.second ? "array " : "job ", key.first);
  if (!before.has_value()) return absl::StrCat(name, ", which this one was to come after, is gone");
  return absl::StrCat(name, before->state == pb::FAILED ? " failed" : " was cancelled",
                      ", and this one was to come after its success");
}

}  // namespace

pb::Predecessor ToRecord(const Predecessor& before) {
  pb::Predecessor r;
  r.set_number(before.number);
  r.set_array(before.array);
  r.set_any(before.any);
  return r;
}

NamedJob Named(const JobRow& job, std::string_view id) {
  const bool whole = job.array != 0 && job.member == 0 && id.find('_') == std::string_view::npos;
  return {job.number, whole, StateOf(job, whole)};
}

std::optional<NamedJob> FindNamedJob(const State& state, std::string_view id) {
  const JobRow* job = state.FindJobByText(id);
  if (job == nullptr) return std::nullopt;
  return Named(*job, id);
}

pb::VerdictCode BlockedCode(const JobRow& job, int32_t task) {
  const bool others = job.later || !job.awaits.empty() || !job.task_spec(task).after().empty();
  return job.not_before_ns != 0 && !others ? pb::V_TIME : pb::V_AFTER;
}

const JobRow& FirstOf(const State& state, const JobRow& job) {
  const JobRow* first = job.array == 0 ? nullptr : state.FindJob(job.array);
  return first == nullptr ? job : *first;
}

const JobRow* FirstDue(const State& state) {
  if (state.due().empty() || state.due().begin()->first > state.now_ns()) return nullptr;
  return &FirstOf(state, *state.FindJob(state.due().begin()->second));
}

bool SkipsItsTime(const State& state, const JobRow& first) {
  const int32_t most = first.spec->schedule().overlap() == pb::ALLOW ? kMostBeside : 1;
  int32_t beside = 0;
  for (uint64_t number = first.previous; number != 0 && beside < most;) {
    const JobRow* previous = state.FindJob(number);
    if (previous == nullptr) break;
    const bool ended = Named(*previous, absl::StrCat(number)).ended();
    if (ended && most == 1) break;  // the one before alone counts
    beside += ended ? 0 : 1;
    number = previous->previous;
  }
  return beside >= most;
}

void SetPredecessors(const State& state, pb::JobSubmitted* submitted) {
  std::map<AwaitedKey, bool> any;  // whatever its end is, by whom it waits for
  const auto add = [&](const auto& ids, bool whatever) {
    for (const std::string& id : ids) {
      const std::optional<NamedJob> job = FindNamedJob(state, id);
      if (job.has_value() && !job->ended())
        any.emplace(AwaitedKey{job->number, job->array}, whatever);
    }
  };
  add(submitted->spec().after(), false);  // first: the stricter of both counts
  add(submitted->spec().after_any(), true);
  submitted->clear_predecessors();
  for (const auto& [key, whatever] : any) {
    *submitted->add_predecessors() = ToRecord(Predecessor{key.first, key.second, whatever});
  }
}

// Who has ended since, or isn't known, is settled like one that ends now. So nobody waits for what
// comes later than itself, and no two for each other.
void Applier::SetPredecessors(const pb::JobSubmitted& e, JobRow* job) {
  for (const pb::Predecessor& before : e.predecessors()) {
    job->awaits.push_back({before.number(), before.array(), before.any()});
    const AwaitedKey key = {before.number(), before.array()};
    if (const std::optional<NamedJob> named = FindAwaited(s_, key); !named || named->ended())
      ended_.push_back(key);
  }
  std::sort(job->awaits.begin(), job->awaits.end());
  const auto same = [](const Predecessor& a, const Predecessor& b) { return KeyOf(a) == KeyOf(b); };
  job->awaits.erase(std::unique(job->awaits.begin(), job->awaits.end(), same), job->awaits.end());
}

void Applier::IndexAwaited(const JobRow& job, bool awaits) {
  for (const Predecessor& before : job.awaits) IndexAwaited(KeyOf(before), job.number, awaits);
}

void Applier::IndexAwaited(const AwaitedKey& key, uint64_t number, bool awaits) {
  std::map<AwaitedKey, std::vector<uint64_t>>& awaited = *Own(&s_.awaited_);
  std::vector<uint64_t>& by = awaited[key];
  const auto at = std::lower_bound(by.begin(), by.end(), number);
  const bool known = at != by.end() && *at == number;
  MUSTER_CHECK(known != awaits);
  if (awaits) {
    by.insert(at, number);
  } else {
    by.erase(at);
  }
  if (by.empty()) awaited.erase(key);
}

void Applier::IndexDue(const JobRow& job, bool waits) {
  if (job.not_before_ns == 0) return;
  std::set<std::pair<int64_t, uint64_t>>& due = *Own(&s_.due_);
  const std::pair<int64_t, uint64_t> key(job.not_before_ns, job.number);
  MUSTER_CHECK((waits ? due.insert(key).second : due.erase(key) == 1));
}

void Applier::On(const pb::JobDue& e) {
  const JobRow* first = s_.FindJob(e.number());
  if (first == nullptr) return;
  const int32_t members = first->array == first->number ? MembersOf(*first->spec) : 1;
  // From behind, as CancelJob wants it.
  for (int32_t m = members; m-- > 0;) DueMember(e.number() + static_cast<uint64_t>(m), e);
}

void Applier::DueMember(uint64_t number, const pb::JobDue& e) {
  const JobRow* row = s_.FindJob(number);
  if (row == nullptr || row->finished() || row->not_before_ns == 0) return;
  JobRow* job = Job(number);
  IndexDue(*job, false);
  job->not_before_ns = e.skip_to_ns();
  if (e.skip_to_ns() != 0) {
    ++job->skipped;
    job->no_right = e.no_right();
    return IndexDue(*job, true);
  }
  NewRound();
  if (!e.end_reason().empty()) return CancelJob(number, e.end_reason());
  SettleJob(job);
}

void Applier::SettleSuccessors() {
  // By index: settling a successor may end it, and then adds it here.
  for (size_t i = 0; i < ended_.size(); ++i) {  // NOLINT(modernize-loop-convert)
    const AwaitedKey ended = ended_[i];
    if (!ended.second) {
      EndHosted(ended.first);
      EndWithHead(ended.first);
    }
    const auto waiting = s_.awaited_->find(ended);
    if (waiting == s_.awaited_->end()) continue;
    // From behind: of an array whose turn hasn't come ends before a turn becomes free (CancelJob).
    const std::vector<uint64_t> successors(waiting->second.rbegin(), waiting->second.rend());
    for (const uint64_t number : successors) SettleSuccessor(number, ended);
  }
  ended_.clear();
}

void Applier::SettleSuccessor(uint64_t number, const AwaitedKey& ended) {
  JobRow* job = Job(number);
  const std::optional<NamedJob> before = FindAwaited(s_, ended);
  const auto awaited = std::find_if(job->awaits.begin(), job->awaits.end(),
                                    [&](const Predecessor& p) { return KeyOf(p) == ended; });
  MUSTER_CHECK(!job->finished() && awaited != job->awaits.end());
  NewRound();
  if (awaited->any || (before.has_value() && before->state == pb::SUCCEEDED)) {
    IndexAwaited(ended, number, false);
    job->awaits.erase(awaited);
    SettleJob(job);
    return;
  }
  job->detail = WhyNever(ended, before);
  for (TaskRow& task : job->tasks) {
    MUSTER_CHECK(task.attempts.empty() && task.reservation == nullptr);
    task.state = pb::TASK_CANCELLED;
    task.cause = pb::PREDECESSOR;
  }
  EndJob(job, pb::CANCELLED, pb::PREDECESSOR);
}

}  // namespace muster
