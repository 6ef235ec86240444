#include "scheduler/api/jobs_of_users.h"

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {

void JobsOfUsers::Count(const State& state) {
  users_.clear();
  const std::string* owner = nullptr;  // of the job before
  Has* has = nullptr;
  const pb::JobSpec* before = nullptr;  // members of an array have one together
  for (const uint64_t number : state.active_jobs()) {
    const JobRow* job = state.FindJob(number);
    if (job == nullptr) continue;
    if (owner == nullptr || *owner != job->owner) {
      owner = &job->owner;
      has = &users_[job->owner];
    }
    ++has->jobs;
    if (job->spec.get() == before) continue;
    before = job->spec.get();
    if (job->spec_bytes != nullptr) has->bytes += static_cast<int64_t>(job->spec_bytes->size());
  }
}

bool JobsOfUsers::Fits(const Has& has, int64_t jobs, int64_t bytes) const {
  return has.jobs + jobs <= most_ && has.bytes + bytes <= kMostBytes;
}

absl::Status JobsOfUsers::TooMany(const Has& has, int64_t jobs) const {
  if (has.since) {
    return absl::UnavailableError(
        "your unfinished jobs may be too many, with what you have submitted just now; try again in "
        "a moment");
  }
  const std::string remedy = ". Wait until some have ended, or cancel some: muster jobs";
  if (has.jobs + jobs > most_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("you have ", has.jobs, " unfinished jobs, and there may be ", most_,
                     " of a user, with the ", jobs,
                     " of this submission (jobs_per_user in musterd.yaml)", remedy));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("your unfinished jobs take ", FormatSize(has.bytes), " together, and there may ",
                   "be ", FormatSize(kMostBytes), " of a user", remedy));
}

absl::Status JobsOfUsers::Take(const State& state, const std::string& owner, int64_t jobs,
                               int64_t bytes, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  const bool never = counted_ns_ == 0;
  if (never || (!Fits(users_[owner], jobs, bytes) && now_ns - counted_ns_ >= kSecond)) {
    Count(state);
    counted_ns_ = now_ns;
  }
  Has& has = users_[owner];
  if (!Fits(has, jobs, bytes)) return TooMany(has, jobs);
  has.jobs += jobs;
  has.bytes += bytes;
  has.since = true;
  return absl::OkStatus();
}

}  // namespace muster
