#include "sim/faults/schedule_checks.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster::sim::faults {
namespace {

// From one of its times to the next.
int64_t IntervalNs(const pb::Schedule& schedule) {
  const std::string& cron = schedule.cron();
  int64_t minutes = 0;
  if (cron.size() < 3 || !absl::SimpleAtoi(cron.substr(2, 1), &minutes) || minutes == 0) return 1;
  return minutes * kMinute;
}

}  // namespace

void ScheduleChecks::Violate(const pb::JobRecord& job, const std::string& what) {
  violate_(absl::StrCat("a schedule: job ", job.number(), " ", what));
}

const pb::JobRecord* ScheduleChecks::Numbered(uint64_t number) const {
  for (const auto& [uid, job] : jobs_) {
    if (job.number() == number) return &job;
  }
  return nullptr;
}

void ScheduleChecks::OnJob(const pb::JobRecord* before, const pb::JobRecord& after) {
  if (!after.spec().has_schedule()) return;
  if (before == nullptr) OnNew(after);
  const int64_t was_ns = before == nullptr ? 0 : before->not_before_ns();
  if (after.not_before_ns() != 0) {
    if (after.not_before_ns() < was_ns) Violate(after, "waits for an earlier time than before");
    if (after.not_before_ns() % IntervalNs(after.spec().schedule()) != 0)
      Violate(after, "waits for a time that is none of its schedule");
    times_[after.uid()] = after.not_before_ns();
  } else if (was_ns != 0 && after.end_ns() == 0 && !after.cancel_requested()) {
    came_.push_back(after.uid());
  }
  if (before != nullptr && after.skipped() > before->skipped())
    ++counters_["times of schedules left out"];
  for (const pb::TaskRecord& task : after.tasks()) {
    for (const pb::AttemptRecord& attempt : task.attempts()) {
      if (attempt.place_ns() < times_[after.uid()]) Violate(after, "is placed before its time");
    }
  }
}

void ScheduleChecks::OnNew(const pb::JobRecord& job) {
  if (job.not_before_ns() == 0 && job.end_ns() == 0) Violate(job, "doesn't wait for a time");
  if (job.previous() == 0) return;
  ++counters_["jobs that schedules submitted"];
  new_.push_back(job.uid());
  if (!followed_.emplace(job.previous(), job.uid()).second)
    Violate(job, absl::StrCat("is a second one after job ", job.previous()));
}

// The one before, as far as it is remembered, was the same, and of an earlier time.
void ScheduleChecks::CheckFollows(const pb::JobRecord& job) {
  const pb::JobRecord* before = Numbered(job.previous());
  if (before == nullptr) return;
  if (before->owner() != job.owner() || before->spec().queue() != job.spec().queue() ||
      before->spec().schedule().cron() != job.spec().schedule().cron() ||
      before->spec().tasks_size() != job.spec().tasks_size())
    Violate(job, "is another one's, or another job, than the one before");
  if (times_[job.uid()] <= times_[before->uid()])
    Violate(job, "waits for a time that one has started at");
}

void ScheduleChecks::CheckCame(const pb::JobRecord& job) {
  if (!followed_.contains(job.number()))
    Violate(job, "may start, and there is none for the next time");
  const pb::JobRecord* before = Numbered(job.previous());
  if (before != nullptr && before->end_ns() == 0 && job.spec().schedule().overlap() != pb::ALLOW)
    Violate(job, absl::StrCat("may start while job ", before->number(), " goes on"));
}

void ScheduleChecks::Committed() {
  for (const std::string& uid : new_) CheckFollows(jobs_.at(uid));
  for (const std::string& uid : came_) CheckCame(jobs_.at(uid));
  new_.clear();
  came_.clear();
}

void ScheduleChecks::OnRestored() {
  followed_.clear();
  for (const auto& [uid, job] : jobs_) {
    if (!job.spec().has_schedule()) continue;
    // Of one that waits no more the record doesn't say for which time it waited; what is known may
    // be of days that the backup hasn't seen.
    if (job.not_before_ns() != 0)
      times_[uid] = job.not_before_ns();
    else
      times_.erase(uid);
    if (job.previous() != 0) followed_[job.previous()] = uid;
  }
}

}  // namespace muster::sim::faults
