#include "scheduler/api/jobs_of_users.h"

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {

void JobsOfUsers::Count(const State& state, const std::string& owner, Has* has) {
  has->jobs = has->bytes = 0;
  const pb::JobSpec* before = nullptr;  // members of an array have one together
  for (const uint64_t number : state.active_jobs()) {
    const JobRow* job = state.FindJob(number);
    if (job == nullptr || job->owner != owner) continue;
    ++has->jobs;
    if (job->spec.get() == before) continue;
    before = job->spec.get();
    if (job->spec_bytes != nullptr) has->bytes += static_cast<int64_t>(job->spec_bytes->size());
  }
}

bool JobsOfUsers::Fits(const Has& has, int64_t jobs, int64_t bytes) const {
  return has.jobs + jobs <= most_ && has.bytes + bytes <= kMostBytes;
}

std::string JobsOfUsers::WhyNoMore(const State& state, const std::string& owner, int64_t jobs,
                                   int64_t bytes, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  Has& has = users_[owner];
  const bool never = has.counted_ns == 0;
  if (never || (!Fits(has, jobs, bytes) && now_ns - has.counted_ns >= kSecond)) {
    Count(state, owner, &has);
    has.counted_ns = now_ns;
  }
  if (Fits(has, jobs, bytes)) {
    has.jobs += jobs;
    has.bytes += bytes;
    return "";
  }
  const std::string remedy = ". Wait until some have ended, or cancel some: muster jobs";
  if (has.jobs + jobs > most_) {
    return absl::StrCat("you have ", has.jobs, " unfinished jobs, and there may be ", most_,
                        " of a user (jobs_per_user in musterd.yaml)", remedy);
  }
  return absl::StrCat("your unfinished jobs take ", FormatSize(has.bytes),
                      " together, and there may be ", FormatSize(kMostBytes), " of a user", remedy);
}

}  // namespace muster
