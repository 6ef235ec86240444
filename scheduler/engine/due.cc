#include "scheduler/engine/due.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fnv.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/spec/members.h"
#include "common/spec/when.h"

namespace muster {
namespace {

// Of the job of the next time. Not the same in two stores of which one was the other's backup, nor
// in one that is served again: agents tell attempts apart by it.
std::string NextUid(const std::string& uid, uint64_t epoch) {
  const uint64_t high = Fnv1a(absl::StrCat("the next of ", uid, " in epoch ", epoch));
  return absl::StrFormat("%016x%016x", high, Fnv1a(uid, high));
}

pb::Event JobOfNextTime(const State& state, const JobRow& first, int64_t next_ns) {
  pb::Event event;
  pb::JobSubmitted* next = event.mutable_job_submitted();
  next->set_uid(NextUid(first.uid, state.epoch()));
  next->set_number(state.next_job_number());
  next->set_owner(first.owner);
  *next->mutable_spec() = *first.spec;
  next->set_umask(first.umask);
  next->set_request_hash(first.request_hash);
  next->set_members(MembersOf(*first.spec));
  next->set_not_before_ns(next_ns);
  next->set_previous(first.number);
  return event;
}

}  // namespace

std::vector<pb::Event> NextDue(const State& state, bool may_submit) {
  const JobRow* due = FirstDue(state);
  if (due == nullptr) return {};
  const JobRow& first = *due;
  std::vector<pb::Event> events(1);
  pb::JobDue* said = events[0].mutable_job_due();
  said->set_number(first.number);
  if (!first.spec->has_schedule()) return events;
  const pb::Schedule& schedule = first.spec->schedule();
  const std::optional<int64_t> next_ns = NextTimeNs(schedule, state.now_ns());
  if (!next_ns.has_value()) {
    LogError("a job's schedule can't be read here; it is tried again in an hour",
             {{"job", first.number}, {"cron", schedule.cron()}, {"zone", schedule.zone()}});
    said->set_skip_to_ns(state.now_ns() + kHour);
  } else if (!may_submit || SkipsItsTime(state, first)) {
    said->set_skip_to_ns(*next_ns);
    said->set_no_right(!may_submit);
    if (*next_ns == 0)
      said->set_end_reason(
          "cancelled: its time was to be skipped, and its schedule has no next one");
  } else if (*next_ns != 0) {
    events.push_back(JobOfNextTime(state, first, *next_ns));
  }
  if (said->no_right() && !first.no_right)
    LogWarn("a schedule leaves its times out: its owner may not submit to the queue",
            {{"job", first.number}, {"owner", first.owner}, {"queue", first.spec->queue()}});
  return events;
}

}  // namespace muster
