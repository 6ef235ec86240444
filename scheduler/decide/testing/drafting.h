// A draft over a system, for tests of one pass or verb at a time.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/draft/draft.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/model/model_upkeep.h"
#include "scheduler/decide/place/free_map.h"
#include "scheduler/state/testing/builders.h"

namespace muster::testing {

class Drafting {
 public:
  explicit Drafting(const SystemBuilder& system, SchedulingOptions scheduling = {})
      : options(scheduling),
        now_(system.state),
        later_(system.state),
        in(system.state, system.now_ns, options,
           upkeep_.Update(system.state, system.now_ns, options)),
        draft(in, &now_, &later_) {}

  const Gang& gang(uint64_t job, int32_t task = 0) const {
    return in.gang(in.model.gang_of.at({job, task}));
  }
  int32_t index(uint64_t job) const { return in.IndexOf(gang(job)); }
  // Where it would go on free devices of its first pool.
  HostSlices PlaceOf(uint64_t job, int32_t workers = 1) {
    return *draft.now()->Place(gang(job), gang(job).pools[0], workers, {});
  }

  // The events of the finished draft, each in a few words: "job 2 starts on h01", "job 1 stops:
  // PREEMPTION for job 2, goes on with 1", "job 3 holds h00", "job 3 may have h00 at 100s".
  std::vector<std::string> Events() {
    draft.Finish();
    std::vector<std::string> words;
    for (const pb::Event& event : draft.TakeEvents()) words.push_back(InWords(event));
    return words;
  }

 private:
  std::string JobOf(const pb::AttemptKey& key) const {
    for (const Gang& gang : in.model.gangs) {
      if (gang.unit && gang.job->uid == key.job_uid()) return absl::StrCat("job ", gang.ref.job);
    }
    return key.job_uid();
  }
  template <typename Message>
  static std::string HostsOf(const Message& message) {
    std::string hosts;
    for (const pb::Placement& placement : message.placements())
      absl::StrAppend(&hosts, hosts.empty() ? "" : "+", placement.host());
    return hosts;
  }
  std::string InWords(const pb::Event& event) const {
    if (event.has_attempt_placed()) {
      const pb::AttemptPlaced& e = event.attempt_placed();
      return absl::StrCat(JobOf(e.key()), " starts on ", HostsOf(e));
    }
    if (event.has_attempt_stopping()) {
      const pb::AttemptStopping& e = event.attempt_stopping();
      return absl::StrCat(
          JobOf(e.key()), " stops: ", pb::Cause_Name(e.cause()),
          e.has_claimant() ? absl::StrCat(" for ", JobOf(e.claimant())) : "",
          e.next_workers() > 0 ? absl::StrCat(", goes on with ", e.next_workers()) : "");
    }
    if (event.has_attempt_lost()) {
      const pb::AttemptLost& e = event.attempt_lost();
      return absl::StrCat(JobOf(e.key()), " is lost on ", e.host());
    }
    if (event.has_reservation()) {
      const pb::ReservationChanged& e = event.reservation();
      if (e.workers() == 0) return absl::StrCat(JobOf(e.key()), " has nothing kept");
      if (e.held()) return absl::StrCat(JobOf(e.key()), " holds ", HostsOf(e));
      const int64_t seconds =
          e.start_ns() == 0 ? -1 : (e.start_ns() - SystemBuilder::kStart) / kSecond;
      return absl::StrCat(JobOf(e.key()), " may have ", HostsOf(e), " at ", seconds, "s",
                          e.draining() ? ", draining" : "");
    }
    if (event.has_cluster_opened()) return absl::StrCat("opens ", event.cluster_opened().cluster());
    return "?";
  }

 public:
  const SchedulingOptions options;

 private:
  ModelUpkeep upkeep_;
  FreeMap now_, later_;

 public:
  const Inputs in;
  Draft draft;
};

}  // namespace muster::testing
