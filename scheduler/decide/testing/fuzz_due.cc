#include "scheduler/decide/testing/fuzz_due.h"

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {
namespace {

uint64_t WholeOf(const JobRow& job) { return job.array == 0 ? job.number : job.array; }

}  // namespace

void Dues::Draw(Dice* dice, int64_t now_ns, pb::JobSubmitted* e) {
  e->set_not_before_ns(now_ns + (1 + dice->Of(60)) * kSecond);
  times_[e->number()] = e->not_before_ns();
}

std::vector<pb::Event> Dues::Come(Dice* dice, int64_t now_ns) {
  std::vector<pb::Event> events;
  for (auto it = times_.begin(); it != times_.end();) {
    if (it->second > now_ns) {
      ++it;
      continue;
    }
    pb::JobDue* due = events.emplace_back().mutable_job_due();
    due->set_number(it->first);
    if (dice->Percent(20)) {
      it->second = now_ns + (1 + dice->Of(30)) * kSecond;
      due->set_skip_to_ns(it->second);
      ++it;
      continue;
    }
    if (dice->Percent(10)) events.push_back(events.back());
    it = times_.erase(it);
  }
  return events;
}

std::string Dues::CheckPlaced(const State& before, const pb::Event& event) const {
  if (!event.has_attempt_placed()) return "";
  const JobRow* job = before.FindJobByUid(event.attempt_placed().key().job_uid());
  if (job == nullptr || !times_.contains(WholeOf(*job))) return "";
  return absl::StrCat("job ", job->number, " is placed before its time");
}

std::string Dues::Check(const State& state) const {
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    const auto time = times_.find(WholeOf(job));
    if (job.not_before_ns != (time == times_.end() ? 0 : time->second))
      return absl::StrCat("job ", number, " waits for another time than was given");
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const TaskRow& task = job.tasks[t];
      if (time != times_.end() && task.state != pb::TASK_BLOCKED)
        return absl::StrCat("job ", number, " isn't blocked, and waits for its time");
      const bool others = job.later || !job.awaits.empty();
      const bool first = job.task_spec(static_cast<int32_t>(t)).after().empty();
      if (time == times_.end() && !others && first && task.state == pb::TASK_BLOCKED)
        return absl::StrCat("job ", number, " is blocked, and nothing keeps it");
    }
  }
  return "";
}

std::string Dues::CheckWakes(const State& state, int64_t next_wake_ns) const {
  for (const uint64_t number : state.active_jobs()) {
    const auto time = times_.find(WholeOf(*state.FindJob(number)));
    if (time != times_.end() && next_wake_ns > time->second)
      return absl::StrCat("nobody wakes for the time of job ", number);
  }
  return "";
}

}  // namespace muster
